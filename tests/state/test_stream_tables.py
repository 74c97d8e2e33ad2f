"""Tables 8 to 10: the code's cells are the page's, and each cell of table 8 is what happens."""

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from primusd.datafeed.ledger import events as ev
from primusd.datafeed.ledger import machine as ledger
from primusd.datafeed.ledger.listed import Units
from primusd.datafeed.ledger.model import STREAM_PHASES, CarriedUnit, Marking, Range, Stream
from primusd.datafeed.ledger.tables import SAVEPOINT, STREAM, STREAM_DECIDED, TASK
from primusd.datafeed.protocol import FeedReport, UnitMap
from primusd.errors import NotFoundError, PhaseConflictError
from primusd.job.events import TimePassed
from primusd.job.machine import IGNORE_REASONS, At, Ignore
from primusd.job.tables import Table
from tests.datafeed.ledger_driver import (
    JOB,
    Driver,
    Event,
    attempt_id,
    rows_unit,
    stream_spec,
    text_unit,
)

CARRIED = CarriedUnit("/data/part.txt", 10, "1", 10, ((0, (Range(0, 4),)),))
PAGE = Path(__file__).parents[2] / "docs" / "state-machines.md"


def page_rows(columns: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Return the rows of all tables on the page that have these columns."""
    found: dict[str, tuple[str, ...]] = {}
    inside = False
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if cells[:2] == ["event", "from"]:
            inside = tuple(cells[2:]) == columns
        elif inside and line.startswith("| `"):
            found[cells[0].strip("`")] = tuple(cell.replace("**!**", "!") for cell in cells[2:])
        elif not line.startswith("|"):
            inside = False
    return found


def test_tables_of_the_stream_are_the_pages() -> None:
    page = page_rows(STREAM_PHASES)

    assert {**STREAM.rows, **STREAM_DECIDED.rows} == page


@pytest.mark.parametrize("table", [TASK, SAVEPOINT], ids=["task", "savepoint"])
def test_table_is_the_pages(table: Table) -> None:
    assert table.rows == page_rows(table.columns)


def test_every_event_of_the_stream_has_a_row() -> None:
    names = {kind.__name__ for kind in ev.StreamEvent.__args__} | {"TimePassed"}

    assert names == ({*STREAM.rows} | {*STREAM_DECIDED.rows}) - {"UnitMapped"}


def in_phase(phase: str) -> Driver:
    """Return a stream in a phase, with a reader, a savepoint, and something dead."""
    driver = Driver(stream_spec(on_bad="deadLetter", bad_rows=-1))
    reader = driver.open(0)
    if phase == "Opening":
        return driver
    driver.list_all([text_unit(10), text_unit(10)], is_complete=phase != "Serving")
    driver.propose(ev.TaskSkipRequested(0, 0, 0, "test"))
    driver.propose(ev.SavepointRequested("early"))
    if phase == "Done":
        reader.beat(1)
        reader.take(10)
        reader.beat(1)
    elif phase == "Failed":
        # A dead range where none is allowed any more.
        driver.stream = replace(driver.now, failure="broken")
        driver.propose(ev.PauseRequested())
    elif phase == "Closed":
        driver.propose(ev.StreamClosed())
    assert driver.now.phase == phase
    return driver


def events_of(name: str) -> Event:
    attempt = attempt_id(0)
    report = FeedReport("clicks", (), 1)
    events: dict[str, Event] = {
        "StreamDeclared": ev.StreamDeclared(JOB, "clicks", stream_spec(), ("worker",)),
        "UnitsListed": ev.UnitsListed((text_unit(5),), 2, is_complete=True),
        "ListingFailed": ev.ListingFailed("no such folder", is_permanent=False),
        "TopicsFollowed": ev.TopicsFollowed((), (), ((0, 3),), 0, is_complete=True),
        "ReaderOpened": ev.ReaderOpened(attempt_id(1), "b"),
        "ReaderEnded": ev.ReaderEnded(attempt, (), has_completed=True, was_own_fault=False),
        "BeatReceived": ev.BeatReceived(attempt, "a", report),
        "LeaseExpired": ev.LeaseExpired(attempt, ()),
        "TaskSkipRequested": ev.TaskSkipRequested(0, 1, 0, "test"),
        "TaskRetryRequested": ev.TaskRetryRequested(0, 0, 0),
        "PauseRequested": ev.PauseRequested(),
        "ResumeRequested": ev.ResumeRequested(),
        "SavepointRequested": ev.SavepointRequested("other"),
        "CheckpointKept": ev.CheckpointKept("early"),
        "SavepointDropped": ev.SavepointDropped("early"),
        "RestoreRequested": ev.RestoreRequested("early"),
        "SavepointImported": ev.SavepointImported("brought", (CARRIED,)),
        "PositionsCarried": ev.PositionsCarried((CARRIED,), 0, is_complete=True),
        "CarryingFailed": ev.CarryingFailed("no such folder", is_permanent=False),
        "PositionsKept": ev.PositionsKept(),
        "TimePassed": TimePassed(),
        "StreamClosed": ev.StreamClosed(),
        "Granted": ev.Granted(()),
        "TrimAsked": ev.TrimAsked(()),
        "StruckOut": ev.StruckOut(0, 1, 3, 4, "test"),
        "EpochEnded": ev.EpochEnded(0, 0, 0),
        "StreamEnded": ev.StreamEnded(),
        "StreamBroken": ev.StreamBroken("test"),
        "MarkingTimedOut": ev.MarkingTimedOut("early"),
        "TailReached": ev.TailReached(0, 1),
    }
    return events[name]


@pytest.mark.parametrize("phase", STREAM_PHASES)
@pytest.mark.parametrize(
    "name", [*sorted(STREAM.rows.keys() - {"UnitMapped"}), *STREAM_DECIDED.rows]
)
def test_cell_is_what_happens(name: str, phase: str) -> None:
    table = STREAM if name in STREAM.rows else STREAM_DECIDED
    cell = table.cell(name, phase)
    state = in_phase(phase).now
    event = events_of(name)
    if isinstance(event, ev.UnitsListed):
        event = replace(event, first=len(state.units))
    if isinstance(event, ev.MarkingTimedOut):
        state = replace(state, markings=(Marking("early", 1, state.phase_since_ms),))
    if isinstance(event, ev.PositionsCarried | ev.CarryingFailed):
        state = replace(state, is_carrying=phase == "Opening")

    outcome = outcome_of(state, event, cell)

    assert outcome in expected(cell, phase)


@pytest.mark.parametrize("phase", STREAM_PHASES)
def test_a_map_counts_only_while_serving(phase: str) -> None:
    """UnitMapped comes inside a beat, so its cells are about the map alone."""
    cell = STREAM.cell("UnitMapped", phase)
    driver = in_phase(phase)
    if driver.now.units:
        unopened = (driver.now.units[0], replace(driver.now.units[1], size=-1))
        driver.stream = replace(driver.now, units=Units((), unopened), unsized_units=1, known=10)
    report = FeedReport("clicks", (), 3, mapped=(UnitMap(1, (7,), 7),))

    driver.checks = False
    driver.propose(ev.BeatReceived(attempt_id(0), "a", report))

    assert bool(driver.now.found) == (cell == "=")


def outcome_of(state: Stream, event: Event, cell: str) -> str:
    """Return the phase after an event, why it was ignored, or `!`."""
    at = At(state.phase_since_ms + 1, 99, 0, "test")
    try:
        after = ledger.apply(state, event, at)
    except PhaseConflictError as error:
        return "!" if (error.phase, error.event) == (state.phase, type(event).__name__) else "?"
    except NotFoundError:
        # In Opening nothing has a name yet; the cell speaks of the phase only.
        return state.phase
    if isinstance(after, Ignore):
        return after.reason if cell.startswith("·") else state.phase
    while (decided := ledger.settle(after, at.at_ms)) is not None:
        settled = ledger.apply(after, decided, at)
        assert isinstance(settled, Stream)
        after = settled
    return after.phase


def expected(cell: str, phase: str) -> set[str]:
    if cell.startswith("·"):
        return {IGNORE_REASONS[cell[1:].strip()]}
    return {phase if word == "=" else word for word in re.split(r" or ", cell)}


def test_choices_of_table_8_are_all_reached() -> None:
    """Each `or` of Opening and Serving, one by one."""
    listed_empty = Driver()
    listed_empty.list_all([])
    failed_at_once = Driver()
    failed_at_once.propose(ev.ListingFailed("no such folder", is_permanent=True))
    failed_later = Driver()
    failed_later.list_all([text_unit(5)], is_complete=False)
    failed_later.propose(ev.ListingFailed("gone", is_permanent=True))
    listed_to_its_end = Driver()
    reader = listed_to_its_end.open(0)
    listed_to_its_end.list_all([text_unit(5)], is_complete=False)
    reader.beat(1)
    reader.take(5)
    reader.beat(1)
    waits_for_listing = listed_to_its_end.now.phase
    listed_to_its_end.list_all([])
    skipped_last = Driver()
    skipped_last.list_all([rows_unit()])
    skipped_last.propose(ev.TaskSkipRequested(0, 0, 0, "bad file"))

    phases = [
        one.now.phase
        for one in (listed_empty, failed_at_once, failed_later, listed_to_its_end, skipped_last)
    ]

    assert waits_for_listing == "Serving"
    assert phases == ["Done", "Failed", "Failed", "Done", "Done"]
