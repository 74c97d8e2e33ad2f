"""The closed lists of reasons: why a job waits, why it is not over, restarts, or has its verdict.

Each has a test; `docs/explain.md` is made from these tables.
"""

from collections.abc import Mapping

from msgspec import Struct

WAITING: Mapping[str, str] = {
    "WaitingForSlots": "The nodes have not enough free of what it asks for.",
    "WaitingForQueue": "There is room, and others come before it.",
    "WaitingForQuota": "Its queue may not use more than it does.",
    "WaitingForNode": "No node is ready that could ever hold it, or it is not known whether "
    "something of it still runs on one that does not answer.",
    "WaitingForPlacement": "No node that its placement rules allow has room, or its launcher has "
    "not placed all of it yet.",
    "WaitingForImage": "An image is being fetched.",
    "WaitingForRegistration": "Executors were started and have not said hello.",
    "WaitingForReady": "Files are being fetched and ports bound, or a trainer is not ready.",
    "WaitingForRole": "Replicas wait for others of their gang, or for a role that comes first.",
    "WaitingForJob": "A job named in `after` has not ended.",
    "RetryDelayed": "An attempt failed; the next one begins after a delay.",
    "StartBackoff": "A start did not come about; the next one begins after a delay.",
    "Paused": "Its data is paused.",
    "WaitingForData": "A stream waits for its storage, for files that are not there yet, or for "
    "its next look for late ones (`rescan`).",
}
"""While it could run and does not, wholly or in part."""

ENDING: Mapping[str, str] = {
    "Suspended": "A person asked for a pause and has not ended it.",
    "AttemptsEnding": "It stops, and something of it still runs.",
    "HelpersDraining": "It has its verdict; roles with `drain` finish what they do.",
    "Wedged": "It stopped on a bug of primusd; its processes run on.",
}
"""While it is on its way out, or held."""

RESTARTED: Mapping[str, str] = {
    "Crashed": "A trainer ended by a signal or with a code that is not 0.",
    "OutOfMemory": "A trainer took more memory than it may.",
    "NodeLost": "A node went, with what ran there.",
    "Preempted": "The back end took the place away.",
    "Lost": "An executor fell silent, or was gone without a record.",
    "StartFailed": "A command could not be started; a person or a rule of `failure` tries again.",
    "LaunchFailed": "The launcher refused an attempt; a person or a rule of `failure` tries again.",
    "ExecutorFailed": "An executor failed, or the node could not start it.",
    "PortTaken": "A stranger held a port that had been allotted.",
    "Hung": "A trainer made no progress and `hang.action` is restart.",
    "CompletedAgain": "It had completed, and a rule of `failure` starts it again.",
    "NoRegistration": "An executor did not say hello in time.",
    "StartTimeout": "Files, ports or a trainer were not there in time.",
    "NotPlaced": "It was not placed in time.",
    "Drained": "A person emptied its node.",
    "NodeGivenUp": "Its node went away, or was left out, before its executor had said hello.",
    "Resumed": "A person ended a pause.",
    "RestartRequested": "A person asked for it.",
    "Evicted": "A job of higher priority took its slots, or a person tried what happens then.",
    "StartTimedOut": "Not all replicas came up in time; all was released and tried anew.",
    "LeaseLost": "A lease of an exactlyOnce group ran out; its role went back to the savepoint.",
}
"""Why attempts after the first began."""

VERDICTS: Mapping[str, str] = {
    "Completed": "Every role and stream has what its `success` asks.",
    "PartialSuccess": "So it has, and something was left out that the job file allows.",
    "RetriesExhausted": "A replica failed once more than its budget forgives.",
    "Crashed": "A replica crashed, and its budget forgives no crash.",
    "OutOfMemory": "A replica ran out of memory, and its budget forgives none.",
    "StartFailed": "A command could not be started.",
    "LaunchFailed": "The launcher refused an attempt for good.",
    "DependencyFailed": "A job named in `after` did not end as asked.",
    "FailureRule": "A rule of `failure` said so.",
    "DataFailed": "A stream failed.",
    "DataLeft": "All readers are done and something of a stream was never read.",
    "DeadlineExceeded": "The job took longer than its `deadline`.",
    "ReplicaHoursUsed": "Its trainers ran for as long as `maxReplicaHours` allows.",
    "PlacementTimeout": "Starts did not come about, until the infrastructure budget was used up.",
    "CancelledByUser": "A person cancelled it.",
    "DecidedByUser": "A person decided the verdict.",
}
"""Of `status.verdict`."""

QUESTIONS: Mapping[str, Mapping[str, str]] = {
    "why does it wait": WAITING,
    "why is it not over": ENDING,
    "why did it restart": RESTARTED,
    "why this verdict": VERDICTS,
}
WHY_WAITING, WHY_ENDING, WHY_RESTARTED, WHY_VERDICT = QUESTIONS


class Why(Struct, frozen=True):
    """An answer: a reason of a closed list, its sentence, and the numbers that decide it."""

    question: str
    """One of QUESTIONS."""
    reason: str
    message: str
    numbers: Mapping[str, int] = {}
    subject: str = ""
    """What it is about: a replica, a role; "" the job."""
    since_ms: int = 0
    because: tuple[str, ...] = ()
    """Timeline entries, `revision.position`."""
