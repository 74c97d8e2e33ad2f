"""The transition tables of attempts, replicas and jobs: docs/state-machines.md §4 to §6.

Notes: (1) to (9) of table 6 stand below the table there, and in the docstrings of the functions
that apply the events. Columns `final` are Succeeded, Failed and Cancelled.
"""

from primusd.errors import PhaseConflictError
from primusd.job.machine import Ignore
from primusd.job.phases import FINAL_PHASES, AttemptPhase, JobPhase, ReplicaPhase
from primusd.job.tables import Table, ignored_reason, is_refused, parse_table

ATTEMPT_TABLE = parse_table("""
                    | Requested | Launched   | Registered | Starting | Running  | Stopping | Ended | Gone
AttemptLaunched     | Launched  | =          | =          | =        | =        | =        | =     | · l
AttemptWaiting      | =         | =          | · o        | · o      | · o      | · o      | · o   | · l
LaunchFailed        | Ended     | Ended      | · d        | · d      | · d      | Ended    | · o   | · l
AttemptVanished     | Gone      | Gone       | Gone       | Gone     | Gone     | Gone     | Gone  | =
StopFailed          | !         | !          | !          | !        | !        | Gone     | Gone  | · l
PreemptionNoticed   | =         | =          | =          | =        | =        | · o      | · o   | · l
ExecutorRegistered  | Registered| Registered | =          | =        | =        | =        | · t   | · t
ExecutorHolding     | !         | !          | =          | · r      | · r      | · o      | · o   | · l
TrainerStarted      | !         | !          | !          | Running  | =        | =        | · o   | · l
TrainerReady        | !         | !          | !          | Running  | =        | · o      | · o   | · l
TrainerHung         | !         | !          | !          | !        | =        | · o      | · o   | · l
TrainerExited       | !         | !          | Ended      | Ended    | Ended    | Ended    | · r   | · l
ExecutorFellSilent  | !         | !          | =          | =        | =        | =        | · o   | · l
ExecutorReturned    | !         | !          | =          | =        | =        | =        | · o   | · l
ExecutorExpired     | !         | !          | Ended      | Ended    | Ended    | Ended    | · o   | · l
GateOpened          | !         | !          | Starting   | !        | !        | !        | !     | !
StopDecided         | Stopping  | Stopping   | Stopping   | Stopping | Stopping | !        | !     | !
""")  # noqa: E501 - a table is read as a table

REPLICA_TABLE = parse_table("""
                 | Waiting | Active    | Delayed | Completed | Failed  | Retired
AttemptBegun     | Active  | !         | Active  | !         | !       | !
AttemptCompleted | !       | Completed | !       | !         | !       | !
RetryDecided     | !       | Delayed   | !       | !         | !       | !
RetriesExhausted | !       | Failed    | !       | !         | !       | !
ReplicaRecalled  | =       | Waiting   | Waiting | Waiting   | Waiting | !
ReplicaRetired   | Retired | Retired   | Retired | !         | !       | !
ReplicaRevived   | !       | !         | !       | !         | !       | Waiting
""")

JOB_TABLE = parse_table("""
                   | Queued    | Starting             | Running              | Draining     | Stopping | Suspended | final
JobSubmitted       | !         | !                    | !                    | !            | !        | !         | !
CancelRequested    | Stopping  | Stopping             | Stopping             | Stopping (1) | = (1)    | Stopping  | · a
SuspendRequested   | Suspended | Stopping             | Stopping             | !            | = (2)    | · a       | !
ResumeRequested    | · a       | · a                  | · a                  | !            | = (3)    | Queued    | !
RestartRequested   | · n       | = (4)                | = (4)                | !            | !        | !         | !
RoleScaled         | =         | =                    | =                    | !            | = (5)    | =         | !
SpecPatched        | =         | =                    | =                    | =            | =        | =         | !
VerdictRequested   | Stopping  | Stopping             | Stopping             | Stopping     | = (6)    | Stopping  | !
DrillRequested     | !         | !                    | Running or Stopping (9) | !            | !        | !         | !
ForgetRequested    | !         | !                    | !                    | !            | !        | !         | = (7)
JobAdmitted        | Starting  | =                    | =                    | · w          | · w      | · w       | · w
JobRefused         | =         | · w                  | · w                  | · w          | · w      | =         | · w
JobEvicted         | · w       | Stopping             | Stopping             | Stopping (1) | · w      | · w       | · w
RoomMade           | =         | =                    | =                    | · w          | · w      | · w       | · w
StreamFinished     | =         | =                    | =                    | =            | =        | =         | · w
StreamFailed       | =         | =                    | =                    | =            | =        | =         | · w
StreamReopened     | =         | =                    | =                    | =            | =        | =         | · w
ReaderSettled      | =         | =                    | =                    | =            | =        | =         | · w
SavepointSealed    | =         | =                    | =                    | =            | =        | =         | · w
CheckpointNoted    | !         | =                    | =                    | =            | =        | · w       | · w
NodeDraining       | · n       | =                    | =                    | =            | · w      | · n       | · w
SlotsStranded      | · n       | =                    | =                    | =            | · w      | · n       | · w
GroupLeaseLost     | · w       | =                    | =                    | =            | · w      | · w       | · w
any attempt event  | = (8)     | = (8)                | = (8)                | = (8)        | = (8)    | = (8)     | = (8)
TimePassed         | =         | =                    | =                    | =            | =        | =         | · w
GateReached        | !         | Running              | !                    | !            | !        | !         | !
StartTimedOut      | !         | Stopping             | !                    | !            | !        | !         | !
FellBelowMinimum   | !         | !                    | Starting             | !            | !        | !         | !
MovesDecided       | !         | =                    | =                    | !            | !        | !         | !
LimitNeared        | !         | =                    | =                    | !            | !        | !         | !
RoleRestarted      | !         | =                    | =                    | !            | !        | !         | !
JobRestarted       | !         | =                    | Starting             | !            | !        | !         | !
VerdictReached     | Stopping  | Draining or Stopping | Draining or Stopping | !            | !        | Stopping  | !
DrainEnded         | !         | !                    | !                    | Stopping     | !        | !         | !
AllGone            | !         | !                    | !                    | !            | then     | !         | !
""")  # noqa: E501 - a table is read as a table


def check_attempt(event: str, phase: AttemptPhase, label: str) -> Ignore | str:
    """Return the cell of table 4 when the event counts, else the reason why it is ignored.

    Raises:
        PhaseConflictError: The cell is refused.
    """
    return _check(ATTEMPT_TABLE, event, phase, "attempt", label)


def check_replica(event: str, phase: ReplicaPhase, name: str) -> Ignore | str:
    """Return the cell of table 5 when the event counts, else the reason why it is ignored.

    Raises:
        PhaseConflictError: The cell is refused.
    """
    return _check(REPLICA_TABLE, event, phase, "replica", name)


def check_job(event: str, phase: JobPhase, name: str) -> Ignore | str:
    """Return the cell of table 6 when the event counts, else the reason why it is ignored.

    Raises:
        PhaseConflictError: The cell is refused.
    """
    column = "final" if phase in FINAL_PHASES else phase
    return _check(JOB_TABLE, event, column, "job", name, shown=phase)


def _check(
    table: Table, event: str, phase: str, kind: str, name: str, *, shown: str = ""
) -> Ignore | str:
    cell = table.cell(event, phase)
    reason = ignored_reason(cell)
    if reason is not None:
        return Ignore(reason)
    if is_refused(cell):
        raise PhaseConflictError(
            f"{kind} {name} is {shown or phase}: {event} has no place there",
            phase=shown or phase,
            event=event,
        )
    return cell
