"""What every machine is: a value with five pure functions of the same names and shapes.

A machine's module (`job/job.py`, `admission/machine.py`, `datafeed/ledger/machine.py`) offers

- `apply(state, event, at) -> state | None | Ignore`: the fact is true now; None when the machine is
  gone; `Ignore` when the table says that it changes nothing; raises a PrimusdError for a cell that
  is refused. `state` is None before the event that makes the machine. The returned value is the
  same object when nothing changed.
- `settle(state, at_ms) -> event | None`: the next internal event that is due, None when none is.
- `consequences(before, after, event) -> tuple[Proposed, ...]`: events for other machines.
- `plan(state) -> tuple[Command, ...]`: what must be in motion.
- `deadline_ms(state) -> int`: journal time at which the timer has to say TimePassed; 0 none.
"""

from msgspec import Struct

from primusd.admission.events import AdmissionEvent
from primusd.datafeed.ledger.events import StreamEvent
from primusd.job.events import JobEvent


class At(Struct, frozen=True):
    """Where and when in the journal an event is applied."""

    at_ms: int
    """Journal time of the step."""
    revision: int
    """Of the entry."""
    position: int
    """Of the record in the entry."""
    by: str
    """Who said it; `settle` for internal events."""
    cause: int = -1
    """Position of the record it follows from; -1 none."""
    term: int = 0
    """Of the entry."""


class Ignore(Struct, frozen=True):
    """A cell that changes nothing, and why."""

    reason: str


class Proposed(Struct, frozen=True):
    """A consequence for another machine."""

    machine: str
    event: JobEvent | AdmissionEvent | StreamEvent


IGNORE_REASONS = {
    "a": "already so",
    "c": "closed",
    "d": "an earlier launch lives",
    "e": "ended",
    "g": "already retired",
    "k": "keeps its result",
    "l": "late, all is over",
    "n": "nothing runs",
    "o": "overtaken by a newer fact",
    "r": "repeat",
    "s": "stale token",
    "t": "told to leave",
    "w": "no longer wanted",
}
"""The reasons that table cells give, by their letter in docs/state-machines.md §3."""
