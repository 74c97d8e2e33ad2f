"""Which cells of the transition tables a run reached: every look into a table is noted.

What no seed reaches is either not needed, or no test of whole lives drives it; the list of such
cells is short, and each has its reason.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from primusd.admission.events import CapacityChanged, NodeSeen
from primusd.admission.machine import DEMAND_TABLE
from primusd.admission.nodes import NODE_TABLE
from primusd.core import World
from primusd.datafeed.ledger.tables import STREAM, STREAM_DECIDED
from primusd.job.events import TimePassed
from primusd.job.job_tables import ATTEMPT_TABLE, JOB_TABLE, REPLICA_TABLE
from primusd.job.tables import Table, is_refused
from primusd.records import Entry

Cell = tuple[str, str, str]
"""Table, event, phase."""

TABLES: dict[str, Table] = {
    "attempt": ATTEMPT_TABLE,
    "replica": REPLICA_TABLE,
    "job": JOB_TABLE,
    "demand": DEMAND_TABLE,
    "node": NODE_TABLE,
    "stream": STREAM,
    "stream settles": STREAM_DECIDED,
}
_NAMES = {id(table): name for name, table in TABLES.items()}

NOT_BY_SEEDS: dict[tuple[str, str], str] = {
    ("job", "any attempt event"): "it is table 4's, and looked up there",
    ("stream", "UnitMapped"): "no event of its own: it is `mapped` inside BeatReceived",
    ("stream", "LeaseExpired"): "for readers without an executor, which do not exist yet",
    ("demand", "CapacityChanged"): "nobody sends it: for back ends that place for themselves",
}
"""Rows (table, event) that whole lives cannot reach yet, with the reason."""


@contextmanager
def noted(reached: set[Cell]) -> Iterator[None]:
    """Note every cell that is looked up meanwhile."""
    looked = Table.cell

    def cell(self: Table, event: str, phase: str) -> str:
        reached.add((_NAMES.get(id(self), ""), event, str(phase)))
        return looked(self, event, phase)

    Table.cell = cell  # type: ignore[method-assign] # and put back below
    try:
        yield
    finally:
        Table.cell = looked  # type: ignore[method-assign] # as it was


def note_step(reached: set[Cell], before: World, entry: Entry) -> None:
    """Note the cells of events that go to all demands and nodes at once, without a look-up."""
    admission = before.admission
    for record in entry.records:
        if record.machine:
            continue
        event = record.event
        name = type(event).__name__
        if isinstance(event, TimePassed | CapacityChanged):
            reached |= {("demand", name, str(one.phase)) for one in admission.demands.values()}
            reached |= {("node", name, str(one.phase)) for one in admission.nodes.values()}
        elif isinstance(event, NodeSeen) and event.node in admission.nodes:
            reached.add(("node", name, str(admission.nodes[event.node].phase)))


CELLS_NOT_BY_SEEDS: dict[Cell, str] = {
    ("demand", "DemandEvicted", "Waiting"): "settle stops only what has all that it wants",
    ("job", "VerdictReached", "Suspended"): "a stream that fails in the moments of the stop",
    ("replica", "ReplicaRecalled", "Failed"): "in a job that goes on without it",
    ("stream settles", "StreamEnded", "Closed"): "only journals from before have it",
    ("stream settles", "MarkingTimedOut", "Done"): "a mark after the last row: group_world.py",
    ("stream settles", "TailReached", "Serving"): "test_lockstep_tails_property.py",
}
"""Cells that other tests drive, tests/state most, and no whole life of these seeds comes to."""


def wanted() -> set[Cell]:
    """Return every cell that is not refused."""
    return {
        (name, event, phase)
        for name, table in TABLES.items()
        for event, row in table.rows.items()
        for phase, cell in zip(table.columns, row, strict=True)
        if not is_refused(cell)
        and (name, event) not in NOT_BY_SEEDS
        and (name, event, phase) not in CELLS_NOT_BY_SEEDS
    }


def missing(reached: set[Cell]) -> list[Cell]:
    """Return the cells that are neither refused nor reached."""
    return sorted(wanted() - reached)
