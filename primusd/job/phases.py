"""The phases of every machine, and the closed lists that go with them (docs/state-machines.md)."""

from enum import StrEnum


class AttemptPhase(StrEnum):
    """One run of one replica (table 4)."""

    REQUESTED = "Requested"
    LAUNCHED = "Launched"
    REGISTERED = "Registered"
    STARTING = "Starting"
    RUNNING = "Running"
    STOPPING = "Stopping"
    ENDED = "Ended"
    GONE = "Gone"


class ReplicaPhase(StrEnum):
    """A slot of a role (table 5)."""

    WAITING = "Waiting"
    ACTIVE = "Active"
    DELAYED = "Delayed"
    COMPLETED = "Completed"
    FAILED = "Failed"
    RETIRED = "Retired"


class JobPhase(StrEnum):
    """A job (table 6)."""

    QUEUED = "Queued"
    STARTING = "Starting"
    RUNNING = "Running"
    DRAINING = "Draining"
    STOPPING = "Stopping"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    CANCELLED = "Cancelled"


FINAL_PHASES = frozenset({JobPhase.SUCCEEDED, JobPhase.FAILED, JobPhase.CANCELLED})


class DemandPhase(StrEnum):
    """What a job asks for (table 7, first half)."""

    WAITING = "Waiting"
    GRANTED = "Granted"
    RELEASING = "Releasing"


class NodePhase(StrEnum):
    """A node (table 7, second half)."""

    READY = "Ready"
    EXCLUDED = "Excluded"
    CORDONED = "Cordoned"
    AWAY = "Away"


class Cause(StrEnum):
    """Why an attempt ended, decided once from evidence (docs/state-machines.md §4)."""

    STOPPED = "Stopped"
    OUT_OF_MEMORY = "OutOfMemory"
    NODE_LOST = "NodeLost"
    PREEMPTED = "Preempted"
    LOST = "Lost"
    LAUNCH_FAILED = "LaunchFailed"
    EXECUTOR_FAILED = "ExecutorFailed"
    START_FAILED = "StartFailed"
    CRASHED = "Crashed"
    COMPLETED = "Completed"


class Budget(StrEnum):
    """What an end is charged to."""

    NONE = ""
    APPLICATION = "application"
    INFRASTRUCTURE = "infrastructure"


class StopReason(StrEnum):
    """Why a trainer is stopped: the closed list that it sees."""

    CANCELLED = "cancelled"
    SUSPENDED = "suspended"
    PREEMPTED = "preempted"
    DEADLINE = "deadline"
    SCALED_DOWN = "scaledDown"
    RESTARTING = "restarting"
    SUPERSEDED = "superseded"
    HUNG = "hung"
    DRAINED = "drained"
    VERDICT = "verdict"
    PLACEMENT = "placement"
    NO_REGISTRATION = "noRegistration"
    START_TIMEOUT = "startTimeout"
    REPLICA_HOURS = "replicaHours"
    NODE_GIVEN_UP = "nodeGivenUp"
    """Of attempts whose executors never said hello: no trainer ever sees it."""
