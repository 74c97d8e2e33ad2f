"""How much of the time a trainer waits for data is added up over half a minute of reports."""

from msgspec.structs import replace

from primusd.api.live_values import WAITS_OVER_MS, LiveValues
from primusd.clock import ManualClock
from primusd.datafeed.protocol import FeedReport
from primusd.executor.protocol import Report
from primusd.job.ids import AttemptId
from primusd.views.live import LiveWait

WORKER = AttemptId("j1", "worker", 0, 1)
REPORT = Report(1, "running", 0, None, None)


def told(*waits: tuple[int, int, int]) -> dict[tuple[AttemptId, str], LiveWait]:
    """Return what is shown after reports: after so long, waited and blocked for so long."""
    clock = ManualClock()
    live = LiveValues(clock)
    live.reported(WORKER, replace(REPORT, feeds=(FeedReport("clicks", (), 0),)))
    for passed_ms, waited_ms, blocked_ms in waits:
        clock.advance(passed_ms)
        feed = FeedReport("clicks", (), 0, waited_ms=waited_ms, blocked_ms=blocked_ms)
        live.reported(WORKER, replace(REPORT, feeds=(feed,)))
    return dict(live.live().waits)


def test_waits_are_shares_of_the_time_between_reports() -> None:
    shown = told((1_000, 500, 100), (1_000, 1_000, 0))

    assert shown == {(WORKER, "clicks"): LiveWait(2_000, 75, 5)}


def test_what_was_long_ago_counts_less_and_less() -> None:
    shown = told((WAITS_OVER_MS + 2_000, WAITS_OVER_MS + 2_000, 0), *[(8_000, 0, 0)] * 8)

    assert shown[WORKER, "clicks"].waited_percent < 25


def test_a_first_report_says_nothing_yet() -> None:
    assert told() == {}


def test_rows_and_bytes_a_second_are_told_from_what_readers_add_up() -> None:
    clock = ManualClock()
    live = LiveValues(clock)
    for rows, bytes_read in ((100, 10_000), (300, 30_000), (50, 400)):
        feed = FeedReport("clicks", (), 0, rows=rows, bytes_read=bytes_read)
        live.reported(WORKER, replace(REPORT, feeds=(feed,)))
        clock.advance(1_000)

    # The last one is of a reader that began anew, so it adds nothing.
    assert live.live().waits[WORKER, "clicks"] == LiveWait(2_000, 0, 0, 100, 10_000)
