"""Tables 8 to 10: which event may come in which phase of a stream, a task, a savepoint.

Copies of docs/state-machines.md; a test compares every cell. What decides a choice stands in
`ledger.py` and the modules it calls.
"""

from primusd.job.tables import parse_table

STREAM = parse_table("""
Event | Opening | Serving | Done | Failed | Closed
StreamDeclared | ! | ! | ! | ! | !
UnitsListed | Serving or Done | = or Done | · e | · e | · c
ListingFailed | = or Failed | = or Failed | · e | · e | · c
TopicsFollowed | Serving or Done | = or Done | · e | · e | · c
UnitMapped | ! | = | · o | · o | · c
ReaderOpened | = | = | = | = | · c
ReaderEnded | = | = or Done or Failed | = | = | · c
BeatReceived | = | = or Done or Failed | = or Serving | = | · c
LeaseExpired | ! | = | · o | · o | · c
TaskSkipRequested | ! | = or Done | ! | ! | !
TaskRetryRequested | ! | = | Serving | ! | !
PauseRequested | = | = | · e | · e | · c
ResumeRequested | = | = | · e | · e | · c
SavepointRequested | ! | = | = | = | =
CheckpointKept | · s | = | = | = | · c
SavepointDropped | = | = | = | = | =
RestoreRequested | = | = | Serving | ! | !
SavepointImported | = | = | = | ! | !
PositionsCarried | = | · r | · r | · e | · c
CarryingFailed | = or Failed | · o | · o | · e | · c
PositionsKept | ! | ! | ! | ! | =
TimePassed | = | = or Done or Failed | = | · e | · c
StreamClosed | Closed | Closed | Closed | Closed | · c
""")
"""`UnitMapped` is no event of its own: it is `mapped` inside BeatReceived."""

STREAM_DECIDED = parse_table("""
Event | Opening | Serving | Done | Failed | Closed
Granted | ! | = | ! | ! | !
TrimAsked | ! | = | ! | ! | !
StruckOut | ! | = | ! | ! | !
EpochEnded | ! | = | ! | ! | !
StreamEnded | ! | Done | ! | ! | =
StreamBroken | Failed | Failed | ! | ! | !
MarkingTimedOut | ! | = | = | ! | !
TailReached | ! | = | ! | ! | !
""")
"""What settle decides."""

TASK = parse_table("""
Event | Waiting | Leased | Trimming | Done | Dead
Granted | Leased | ! | ! | ! | !
Advanced | · s | = | = | · s | · s
Reached | · s | Done | Done | · s | · s
TrimAsked | ! | Trimming | ! | ! | !
Trimmed | · s | = | Leased | · s | · s
Returned | · s | Waiting | Waiting | · s | · s
HolderEnded | · s | Waiting | Waiting | · s | · s
LeaseExpired | · s | Waiting | Waiting | · s | · s
ReadFailed | · s | Waiting | Waiting | · s | · s
DataBad | · s | = or Dead | = or Dead | · s | · s
StruckOut | Dead | ! | ! | ! | !
SkipRequested | Dead | Dead | Dead | ! | =
RetryRequested | · s | · s | · s | ! | Waiting
""")
"""Tasks are ranges, so this table is kept by arithmetic; the tests drive each cell."""

SAVEPOINT = parse_table("""
Event | Marking | Sealed | Failed
MarksReceived | Marking or Sealed | · o | · o
ReaderEnded | Failed or Sealed | · o | · o
MarkingTimedOut | Failed or Sealed | ! | !
RestoreRequested | Failed | = | · o
SavepointDropped | Failed | = | =
""")
"""Marking is a `Marking` of the stream, and is reached only with delivery exactlyOnce."""
