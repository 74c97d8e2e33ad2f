"""Table 9: each cell is what happens to a task of 100 positions (and table 10, to a savepoint)."""

import pytest
from msgspec.structs import replace

from primusd.datafeed.ledger import events as ev
from primusd.datafeed.ledger import machine as ledger
from primusd.datafeed.ledger.tables import SAVEPOINT, TASK
from primusd.datafeed.protocol import BadRange, FeedReport, Held
from primusd.errors import NotFoundError
from primusd.job.machine import IGNORE_REASONS, At, Ignore
from primusd.job.tables import ignored_reason, is_refused
from tests.datafeed.ledger_driver import Driver, attempt_id, stream_spec, text_unit

HOLDER = attempt_id(0)
TASK_SIZE = 100


def task_in(phase: str) -> Driver:
    """Return a stream whose unit 0 is one task in a phase; unit 1 keeps it Serving.

    Token 1 was the holder's in any case.
    """
    driver = Driver(stream_spec(on_bad="deadLetter", bad_rows=-1))
    holder = driver.open(0)
    driver.list_all([text_unit(TASK_SIZE), text_unit(TASK_SIZE)], is_complete=False)
    holder.beat(1)
    held = holder.obey()[0]
    if phase == "Waiting":
        driver.propose(ev.LeaseExpired(HOLDER, ()))
    elif phase == "Trimming":
        driver.propose(ev.TrimAsked((ev.Trim(HOLDER, 1, 50),)))
    elif phase == "Done":
        holder.beat(0, held=(replace(held, position=TASK_SIZE),))
    elif phase == "Dead":
        driver.propose(bad(0, TASK_SIZE, "vanished"))
    assert phase_of(driver) == phase
    return driver


def phase_of(driver: Driver) -> str:
    """Return the phase of the task at position 0 of unit 0, by what the ledger lists."""
    for phase in ("leased", "waiting", "dead"):
        for task in ledger.tasks(driver.now, phase):
            if task.unit == 0 and task.lo == 0:
                leases = [one for one in driver.now.leases.values() if one.unit == 0]
                is_trimming = any(one.trim >= 0 for one in leases)
                return "Trimming" if is_trimming else phase.capitalize()
    return "Done" if driver.now.consumed else "nowhere"


def beat(**changes: object) -> ev.BeatReceived:
    held = Held("clicks", 0, 0, 0, 1, 0, TASK_SIZE)
    return ev.BeatReceived(HOLDER, "a", FeedReport("clicks", (replace(held, **changes),), 0))


def bad(lo: int, hi: int, kind: str) -> ev.BeatReceived:
    held = Held("clicks", 0, 0, 0, 1, 0, TASK_SIZE)
    report = FeedReport("clicks", (held,), 0, bad=(BadRange(held, lo, hi, kind, "test"),))
    return ev.BeatReceived(HOLDER, "a", report)


def returned() -> ev.BeatReceived:
    held = Held("clicks", 0, 0, 0, 1, 0, TASK_SIZE)
    return ev.BeatReceived(HOLDER, "a", FeedReport("clicks", (), 0, returned=(held,)))


def event_of(name: str, driver: Driver) -> ev.StreamEvent:
    token = driver.now.last_token + 1
    events: dict[str, ev.StreamEvent] = {
        "Granted": ev.Granted((ev.Grant(0, 0, 0, TASK_SIZE, token, HOLDER),)),
        "Advanced": beat(position=50),
        "Reached": beat(position=TASK_SIZE),
        "TrimAsked": ev.TrimAsked((ev.Trim(HOLDER, 1, 50),)),
        "Trimmed": beat(hi=60),
        "Returned": returned(),
        "HolderEnded": ev.ReaderEnded(HOLDER, (), has_completed=False, was_own_fault=False),
        "LeaseExpired": ev.LeaseExpired(HOLDER, (1,)),
        "ReadFailed": bad(0, TASK_SIZE, "transient"),
        "DataBad": bad(10, 20, "data"),
        "StruckOut": ev.StruckOut(0, 0, 0, TASK_SIZE, "test"),
        "SkipRequested": ev.TaskSkipRequested(0, 0, 0, "test"),
        "RetryRequested": ev.TaskRetryRequested(0, 0, 0),
    }
    return events[name]


@pytest.mark.parametrize("phase", TASK.columns)
@pytest.mark.parametrize("name", TASK.rows)
def test_cell_is_what_happens_to_the_task(name: str, phase: str) -> None:
    cell = TASK.cell(name, phase)
    driver = task_in(phase)
    before = driver.now
    event = event_of(name, driver)
    at = At(driver.at_ms, 99, 0, "test")

    if is_refused(cell):
        # Settle decided it: our bug. A person asked: told so.
        with pytest.raises((AssertionError, StopIteration, NotFoundError)):
            ledger.apply(before, event, at)
        return
    after = ledger.apply(before, event, at)

    if ignored_reason(cell) is not None:
        if isinstance(after, Ignore):
            assert after.reason == IGNORE_REASONS["s"]
        else:
            # The end of a reader is recorded; the task stays as it was.
            driver.stream = after
            assert phase_of(driver) == phase
        return
    assert not isinstance(after, Ignore)
    driver.stream = after
    expected = {phase if word == "=" else word for word in cell.split(" or ")}
    assert phase_of(driver) in expected


def test_a_bad_range_to_the_end_of_a_lease_leaves_nothing_to_read_in_it() -> None:
    """`= or Dead`: all that is left is dead."""
    driver = task_in("Leased")

    driver.propose(bad(0, TASK_SIZE, "vanished"))
    driver.propose(beat(position=TASK_SIZE))

    assert phase_of(driver) == "Dead"
    assert (driver.now.consumed, driver.now.skipped) == (0, TASK_SIZE)


# Table 10: what of it is carried out; Marking needs delivery exactlyOnce.


def test_a_sealed_savepoint_stays_until_it_is_dropped() -> None:
    assert SAVEPOINT.cell("RestoreRequested", "Sealed") == "="
    driver = task_in("Leased")
    driver.propose(ev.SavepointRequested("s"))

    driver.propose(ev.RestoreRequested("s"))
    driver.propose(ev.ReaderEnded(HOLDER, (), has_completed=True, was_own_fault=False))

    assert [(one.name, one.phase) for one in driver.now.savepoints] == [("s", "Sealed")]
    driver.propose(ev.SavepointDropped("s"))
    assert driver.now.savepoints == ()
    assert driver.propose(ev.SavepointDropped("s")) == "already so"


def test_a_name_is_sealed_once() -> None:
    driver = task_in("Leased")
    driver.propose(ev.SavepointRequested("s"))

    assert driver.propose(ev.SavepointRequested("s")) == "repeat"
