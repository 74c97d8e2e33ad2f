"""Whatever a reader reports, however wrong, the ledger neither raises nor loses its balance."""

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from primusd.datafeed.ledger import events as ev
from primusd.datafeed.ledger.model import OPEN_END
from primusd.datafeed.protocol import BadRange, FeedAsk, FeedReport, Held, UnitMap
from tests.datafeed.ledger_driver import Driver, attempt_id, rows_unit, stream_spec, text_unit

PLACES = st.one_of(
    st.integers(-2, 60), st.sampled_from([-(1 << 63), OPEN_END - 1, OPEN_END, (1 << 63) - 1])
)
SMALL = st.integers(-1, 3)
HELD = st.builds(
    Held, st.just("clicks"), st.integers(0, 1), SMALL, st.integers(0, 40), st.integers(0, 9),
    PLACES, PLACES,
)  # fmt: skip
BAD = st.builds(
    BadRange, HELD, PLACES, PLACES,
    st.sampled_from(["transient", "data", "changed", "vanished", "nonsense"]), st.text(max_size=3),
)  # fmt: skip
MAPS = st.builds(UnitMap, SMALL, st.lists(PLACES, max_size=4).map(tuple), PLACES)
REPORTS = st.builds(
    FeedReport,
    st.just("clicks"),
    st.lists(HELD, max_size=4).map(tuple),
    PLACES,
    returned=st.lists(HELD, max_size=2).map(tuple),
    bad=st.lists(BAD, max_size=2).map(tuple),
    mapped=st.lists(MAPS, max_size=2).map(tuple),
    asks=st.lists(
        st.builds(FeedAsk, SMALL, st.text(max_size=3), st.text(max_size=3)), max_size=1
    ).map(tuple),
    rows_per_s=PLACES,
)
READERS = st.integers(0, 2).map(attempt_id)
EVENTS = st.one_of(
    st.builds(ev.BeatReceived, READERS, st.just("a"), REPORTS),
    st.builds(ev.BeatReceived, READERS, st.just("a"), REPORTS),
    st.builds(ev.ReaderOpened, READERS, st.just("a")),
    st.builds(
        ev.ReaderEnded, READERS, st.lists(HELD, max_size=3).map(tuple), st.booleans(), st.booleans()
    ),
    st.builds(ev.LeaseExpired, READERS, st.lists(st.integers(0, 9), max_size=2).map(tuple)),
)


def aimed(event: ev.StreamEvent, driver: Driver) -> ev.StreamEvent:
    """Return the event with most of what it names turned into leases that its reader holds."""

    def aim(held: Held) -> Held:
        leases = sorted(
            (one for one in driver.now.leases.values() if one.attempt == attempt),
            key=lambda one: one.token,
        )
        if not leases or held.lo % 4 == 3:
            return held
        one = leases[held.token % len(leases)]
        return Held("clicks", one.epoch, one.unit, one.lo, one.token, held.position, held.hi)

    match event:
        case ev.ReaderEnded():
            attempt = event.attempt
            return replace(event, positions=tuple(aim(held) for held in event.positions))
        case ev.BeatReceived():
            attempt = event.attempt
            report = replace(
                event.report,
                held=tuple(aim(held) for held in event.report.held),
                returned=tuple(aim(held) for held in event.report.returned),
                bad=tuple(replace(bad, held=aim(bad.held)) for bad in event.report.bad),
            )
            return replace(event, report=report)
        case _:
            return event


@given(st.lists(EVENTS, max_size=15), st.sampled_from(["fail", "deadLetter"]), st.integers(0, 8))
@settings(max_examples=200)
def test_no_report_makes_the_ledger_raise_or_lose_its_balance(
    events: list[ev.StreamEvent], on_bad: str, split: int
) -> None:
    driver = Driver(stream_spec(on_bad=on_bad, bad_rows=-1, epochs=2, split={"byte_count": split}))
    driver.list_all([text_unit(40), rows_unit(), rows_unit(), text_unit(0)])
    for index in range(2):
        driver.propose(ev.ReaderOpened(attempt_id(index), "a"))
        # A want that is believable, so that there are leases to lie about.
        driver.propose(ev.BeatReceived(attempt_id(index), "a", FeedReport("clicks", (), 2)))

    for event in events:
        driver.at_ms += 700
        driver.propose(aimed(event, driver))  # Raises on a broken invariant.

    assert driver.now.phase in {"Serving", "Done", "Failed"}
    assert driver.replay() == driver.now


def test_a_map_that_ends_before_a_trimmed_lease_narrows_it_too() -> None:
    driver = Driver()
    holder, other = driver.open(0), driver.open(1)
    driver.list_all([rows_unit()])
    holder.beat(1)
    holder.trim(9, min(holder.held))
    holder.beat(0)

    other.beat(0, mapped=(UnitMap(0, (5,), 5),))

    assert [one.hi for one in driver.now.leases.values()] == [5]
    assert driver.now.epochs[0].leased == 5
