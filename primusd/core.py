"""One step for the whole daemon: pure, so that the simulator drives the same function.

For each proposal in order: apply its event to its machine, settle that machine, apply the
consequences for other machines (first caused, first applied, at most 4 deep). All records of a
step are one journal entry. Source: docs/state-machines.md §1.
"""

from collections.abc import Mapping

from msgspec import Struct

from primusd.datafeed.model import Stream
from primusd.errors import PrimusdError
from primusd.job.admission_model import Admission
from primusd.job.model import Job
from primusd.records import Entry


class World(Struct, frozen=True):
    """Every machine there is."""

    admission: Admission = Admission()
    jobs: Mapping[str, Job] = {}
    streams: Mapping[str, Stream] = {}
    """By machine key: `<uid>/<stream>`."""


class Recorded(Struct, frozen=True):
    """The proposal was recorded; `revision` is that of its entry once it is durable."""

    revision: int


class Ignored(Struct, frozen=True):
    """The table says that it changes nothing, with the reason."""

    reason: str


class Rejected(Struct, frozen=True):
    """Refused: answered to the proposer; a bug when one of our edges sent it."""

    error: PrimusdError


class Raised(Struct, frozen=True):
    """`apply` or `settle` raised: our bug; the machine is to be wedged."""

    machine: str
    text: str


Answer = Recorded | Ignored | Rejected | Raised


class Step(Struct, frozen=True):
    """What a step came to."""

    world: World
    entry: Entry | None
    """None: nothing is to be recorded."""
    answers: tuple[Answer, ...]
    """One per proposal, in order."""
    touched: tuple[str, ...]
    """Machines whose value changed."""
