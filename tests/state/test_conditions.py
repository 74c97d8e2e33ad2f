"""The conditions of a job: each holds when it should, says why, and no other one is shown."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from primusd.admission.events import MachineWedged
from primusd.clock import ManualClock
from primusd.datafeed.ledger.events import ListingFailed, TopicsFollowed, UnitsListed
from primusd.datafeed.protocol import Credential, FeedReport, Unit
from primusd.job import events as ev
from primusd.job.spec import KafkaSource, Reading, Source, StreamSpec
from primusd.journal_lag import JournalLag
from primusd.views.conditions import TYPES
from primusd.views.documents import Condition, Job
from primusd.views.jobs import job_document
from primusd.views.live import NOTHING_LIVE, Live, LiveWait
from tests.state.job_driver import UID, Cluster, role, spec

PAGE = Path(__file__).parents[2] / "docs" / "api-documents.md"


def shown(cluster: Cluster, live: Live = NOTHING_LIVE) -> dict[str, Condition]:
    document = job_document(cluster.job, cluster.world, at_ms=cluster.now_ms, live=live)
    assert isinstance(document, Job)
    return {one.type: one for one in document.status.conditions}


def running(replicas: int = 2) -> Cluster:
    cluster = Cluster()
    cluster.run(spec(role("worker", replicas, delay_ms=60_000)))
    return cluster


def crashed() -> tuple[Cluster, Live]:
    cluster = running()
    cluster.exit("worker-1", code=1)
    return cluster, NOTHING_LIVE


def short() -> tuple[Cluster, Live]:
    cluster = Cluster()
    cluster.run(spec(role("worker", 2, minimum=1, delay_ms=60_000)))
    cluster.exit("worker-1", code=1)
    return cluster, NOTHING_LIVE


def hanging() -> tuple[Cluster, Live]:
    cluster = running()
    cluster.say(ev.TrainerHung(cluster.id("worker-1"), "no step for 10 min"), by="executor")
    return cluster, NOTHING_LIVE


def wedged() -> tuple[Cluster, Live]:
    cluster = running()
    cluster.say(MachineWedged(UID, "KeyError"), machine="", by="engine")
    return cluster, NOTHING_LIVE


def expiring() -> tuple[Cluster, Live]:
    """C81: a token of a minute, seven seconds before its end; the wall clock is what counts."""
    cluster = Cluster()
    clicks = StreamSpec("clicks", (Source("/data/*.txt"),))
    cluster.run(spec(role("worker", 2, data=(Reading("clicks"),)), streams=(clicks,)))
    token = Credential("the token in /t", 7_000, 67_000, "replace it")
    lasting = Credential("the token in /u", 7_000, 8_000_000, "replace it")
    report = FeedReport("clicks", (), 0, credentials=(token, lasting))
    feeds = {cluster.id(f"worker-{index}"): (report,) for index in (0, 1)}
    skew_ms = 60_000 - cluster.now_ms
    return cluster, replace(NOTHING_LIVE, feeds=feeds, clock_skew_ms=skew_ms)


HOLDS: dict[str, tuple[Callable[[], tuple[Cluster, Live]], str, str]] = {
    "Admitted": (lambda: (running(), NOTHING_LIVE), "SlotsReserved", ""),
    "GateOpen": (lambda: (running(), NOTHING_LIVE), "GangComplete", ""),
    "Restarting": (crashed, "RetryDelayed", ""),
    "Degraded": (short, "FewerThanAsked", "worker: 1 fewer than asked"),
    "CredentialExpires": (
        expiring,
        "ExpiresSoon",
        "worker-0 and 1 more: the token in /t expires in 7 s, at 1970-01-01T00:01:07.000Z; "
        "replace it",
    ),
    "JournalBehind": (
        lambda: (running(), replace(NOTHING_LIVE, journal_lag_ms=2_500)),
        "SlowStore",
        "what happens is durable, and shown, only 2 s later",
    ),
    "Hanging": (hanging, "NoProgress", "worker-1: no step for 10 min"),
    "Wedged": (wedged, "OurBug", "KeyError"),
    "ClockSkewed": (
        lambda: (running(), replace(NOTHING_LIVE, clock_skew_ms=-90_000)),
        "WallClockMoved",
        "the wall clock of the head is 1 min 30 s behind journal time; deadlines follow journal "
        "time",
    ),
}


@pytest.mark.parametrize("type_", HOLDS)
def test_a_condition_says_why_it_holds(type_: str) -> None:
    make, reason, message = HOLDS[type_]

    found = shown(*make())[type_]

    assert (found.status, found.reason, found.message or "") == (True, reason, message)


@pytest.mark.parametrize("type_", sorted(HOLDS.keys() - {"Admitted", "GateOpen"}))
def test_a_condition_does_not_hold_while_all_is_well(type_: str) -> None:
    assert shown(running())[type_] == Condition(type=type_, status=False)


def test_the_page_has_the_closed_list() -> None:
    (line,) = re.findall(r"^\| `condition.type` \| (.*) \|$", PAGE.read_text("utf-8"), re.MULTILINE)

    assert tuple(re.sub(r" \(.*?\)", "", line).split()) == TYPES
    assert set(HOLDS) | {"DataStarved"} == set(TYPES)


def starved(*waits: LiveWait) -> Condition:
    cluster = Cluster()
    clicks = StreamSpec("clicks", (Source("/data/*.txt"),))
    cluster.run(spec(role("worker", 2, data=(Reading("clicks"),)), streams=(clicks,)))
    unit = Unit("file", "/data/1.txt", 1_000, "1", {"format": "text"})
    cluster.say(UnitsListed((unit,), 0, is_complete=True), machine=f"{UID}/clicks")
    attempts = [cluster.id(f"worker-{index}") for index in range(len(waits))]
    known = {(one, "clicks"): wait for one, wait in zip(attempts, waits, strict=True)}
    return shown(cluster, replace(NOTHING_LIVE, waits=known))["DataStarved"]


def test_trainers_that_wait_for_data_most_of_the_time_starve() -> None:
    found = starved(LiveWait(30_000, 40, 0), LiveWait(30_000, 90, 0))

    assert (found.status, found.message) == (
        True, "clicks: trainers wait for data 65 % of the time",
    )  # fmt: skip


def test_a_reader_is_not_judged_after_a_moment() -> None:
    assert not starved(LiveWait(5_000, 100, 0), LiveWait(30_000, 10, 60)).status


def following(*events: TopicsFollowed | ListingFailed) -> Condition:
    cluster = Cluster()
    clicks = StreamSpec("clicks", (Source(kafka=KafkaSource(("k1:9092",), ("clicks",))),))
    cluster.run(spec(role(data=(Reading("clicks"),)), streams=(clicks,)))
    for event in events:
        cluster.say(event, machine=f"{UID}/clicks")
    waits = {(cluster.id("worker-0"), "clicks"): LiveWait(30_000, 99, 0)}
    return shown(cluster, replace(NOTHING_LIVE, waits=waits))["DataStarved"]


def test_trainers_that_wait_for_a_broker_starve_and_those_that_have_read_all_do_not() -> None:
    unit = Unit("kafka", "clicks/0", 0, "", {"source": "0"})
    empty = TopicsFollowed((unit,), (5,), (), 0, is_complete=False)
    more = TopicsFollowed((), (), ((0, 9),), 1, is_complete=False)
    away = ListingFailed("kafka k1:9092: refused", is_permanent=False)

    messages = [
        following(*some).message for some in ((empty,), (empty, more), (empty, away), (away,))
    ]

    starve = "clicks: trainers wait for data 99 % of the time"
    named = f"{starve}: kafka k1:9092: refused"
    assert messages == [UNSET, starve, named, named]


def test_a_hanging_trainer_that_moves_again_does_not_hang() -> None:
    cluster, _ = hanging()
    cluster.say(ev.TrainerHung(cluster.id("worker-1"), ""), by="executor")

    assert not shown(cluster)["Hanging"].status


def test_the_lag_of_the_journal_grows_while_a_write_hangs() -> None:
    clock = ManualClock()
    lag = JournalLag(clock)

    lag.begin()
    clock.advance(5)
    lag.end()
    assert lag.ms() == 5
    lag.begin()
    clock.advance(3_000)
    lag.begin()
    assert lag.ms() == 3_000
    lag.end()
    lag.begin()
    lag.end()
    assert lag.ms() == 0
