"""What a stream's figures are told as: waits, slow readers, skew, sources, what is left out."""

import pytest
from msgspec import UNSET

from primusd.datafeed.ledger.events import BeatReceived
from primusd.datafeed.ledger.places import partition_places
from primusd.datafeed.protocol import BadRange, FeedReport, Held, Unit
from primusd.job.ids import AttemptId
from primusd.views.feed_documents import LeftOut, SourceStatus
from primusd.views.feed_findings import (
    figures_of,
    has_caught_up,
    skew,
    slow_readers,
    starved_words,
    waits_words,
)
from primusd.views.feed_sources import left_out, source_statuses
from primusd.views.live import Live, LiveWait
from tests.datafeed.ledger_driver import Driver, attempt_id, stream_spec, text_unit

Reports = dict[AttemptId, tuple[FeedReport, ...]]


def driver(count: int = 1, **fields: object) -> Driver:
    made = Driver(stream_spec(**fields))
    made.list_all([text_unit(100_000)])
    for index in range(count):
        made.open(index).beat(want=1)
    return made


def live(*readers: tuple[int, int, int], passed_ms: int = 20_000) -> Live:
    """Return what readers said: rows a second, and two percentages."""
    waits = {}
    feeds: Reports = {}
    for index, (rate, waited, blocked) in enumerate(readers):
        waits[attempt_id(index), "clicks"] = LiveWait(
            passed_ms, waited, blocked, rate, rate * (1 << 10)
        )
        report = FeedReport("clicks", (), 0, rows_per_s=rate, buffered_bytes=1 << 20, rows=7)
        feeds[attempt_id(index)] = (report,)
    return Live(waits=waits, feeds=feeds)


@pytest.mark.parametrize(
    ("reader", "words"),
    [
        ((100, 62, 1), "trainers wait for data 62 % of the time: reading is what limits"),
        ((100, 2, 80), "data waits for trainers 80 % of the time: they are what limits"),
        ((100, 9, 0), "trainers wait for data 9 % of the time only: they are what limits"),
        ((100, 10, 20), "neither limits: trainers wait for data 10 % of the time"),
    ],
)
def test_one_sentence_tells_who_waits_for_whom(reader: tuple[int, int, int], words: str) -> None:
    one = driver()

    assert waits_words(one.now, figures_of(one.now, live(reader))).startswith(words)


def test_nothing_is_said_of_readers_that_were_seen_for_a_moment() -> None:
    one = driver()
    shortly = live((100, 90, 0), passed_ms=5_000)

    assert waits_words(one.now, figures_of(one.now, shortly)) == ""
    assert waits_words(one.now, figures_of(one.now, Live())) == ""
    assert slow_readers(one.now, shortly) == ()


def test_who_has_read_all_of_a_topic_is_not_called_slow() -> None:
    kafka = {"bootstrap": ["k:9092"], "topics": ["t"], "until": {"kind": "never"}}
    one = Driver(stream_spec(sources=[{"kafka": kafka}]))
    one.open(0).beat(want=1)

    assert has_caught_up(one.now)
    assert "all that there is was read" in waits_words(
        one.now, figures_of(one.now, live((10, 90, 0)))
    )


def test_a_reader_far_below_the_median_is_named() -> None:
    one = driver(4)

    (slow,) = slow_readers(one.now, live((1_000, 0, 0), (900, 0, 0), (1_100, 0, 0), (200, 0, 0)))

    assert slow.subject == "worker-3"
    assert slow.message == "worker-3 takes 200 rows/s, the median is 950"
    assert slow.numbers == {"rowsPerS": 200, "medianRowsPerS": 950}


def test_of_two_readers_the_slower_one_is_measured_by_the_other() -> None:
    one = driver(2)

    assert [note.subject for note in slow_readers(one.now, live((1_000, 0, 0), (299, 0, 0)))] == [
        "worker-1"
    ]
    assert slow_readers(one.now, live((1_000, 0, 0), (300, 0, 0))) == ()


def test_a_starved_stream_is_told_with_its_numbers() -> None:
    one = driver(2)

    words = starved_words(one.now, live((1_024, 60, 0), (100, 60, 0)))

    assert words == (
        "2 readers give 1,124 rows/s (1Mi/s), 2Mi are read ahead; "
        "worker-1 takes 100 rows/s, the median is 1,024"
    )


def test_one_file_with_most_of_the_bytes_is_named() -> None:
    one = Driver()
    sizes = [100, 100, 120, 5_000]
    one.list_all([text_unit(size, f"{number}.txt") for number, size in enumerate(sizes)])

    (note,) = skew(one.now, (), ())

    assert note.message == (
        "/data/3.txt has 93 % of the bytes: 5,000, the others 100 in the middle"
    )


def test_one_source_with_most_of_the_bytes_is_named() -> None:
    one = Driver(stream_spec(sources=[{"files": "/a"}, {"files": "/b"}]))
    sources = [
        SourceStatus(source=0, name="/a", units=1, bytes=10, done=0),
        SourceStatus(source=1, name="/b", units=1, bytes=900, done=0),
    ]

    (note,) = skew(one.now, (), sources)

    assert (note.reason, note.subject) == ("Skew", "/b")


def test_a_source_that_is_one_file_is_named_once() -> None:
    one = Driver(stream_spec(sources=[{"files": "/data/a.txt"}, {"files": "/data/b.txt"}]))
    one.list_all([sourced(10, "a.txt", 0), sourced(900, "b.txt", 1)])
    sources = [
        SourceStatus(source=0, name="/data/a.txt", units=1, bytes=10, done=0),
        SourceStatus(source=1, name="/data/b.txt", units=1, bytes=900, done=0),
    ]

    (note,) = skew(one.now, (), sources)

    assert note.subject == "/data/b.txt"


def test_even_files_are_not_called_uneven() -> None:
    one = Driver()
    one.list_all([text_unit(size, f"{size}.txt") for size in (100, 300, 399)])

    assert skew(one.now, tuple(partition_places(one.now)), ()) == ()


def sourced(size: int, name: str, source: int) -> Unit:
    return Unit("file", f"/data/{name}", size, "1", {"format": "text", "source": str(source)})


def test_each_source_has_its_done_rate_and_time_left() -> None:
    one = Driver(stream_spec(sources=[{"files": "/a"}, {"files": "/b"}]))
    one.list_all([sourced(1_000, "a", 0), sourced(4_000, "b", 1), sourced(6_000, "c", 1)])
    reader = one.open(0)
    reader.beat(want=1)
    while one.now.consumed < 1_500:
        reader.take(250)
        one.wait(1_000)
        reader.beat(want=1)
    taken = one.now.consumed

    first, second = _found(one)

    assert (first.name, first.units, first.bytes, first.done, first.total) == (
        "/a", 1, 1_000, 1_000, 1_000,
    )  # fmt: skip
    assert (second.name, second.units, second.done, second.total) == (
        "/b",
        2,
        taken - 1_000,
        10_000,
    )
    assert second.per_second == sum(one.per_s for one in one.now.readers.values())
    assert isinstance(second.per_second, int)
    assert second.eta_ms == (11_000 - taken) * 1_000 // second.per_second


def _found(one: Driver) -> tuple[SourceStatus, ...]:
    found = source_statuses(one.now, ())
    assert isinstance(found, tuple)
    return found


def test_what_is_left_out_is_counted_by_reason() -> None:
    one = Driver(stream_spec(on_bad="deadLetter", bad_rows=-1))
    one.list_all([text_unit(1_000)])
    one.open(0).beat(want=1)
    (lease,) = one.now.leases.values()
    held = Held("clicks", 0, 0, lease.lo, lease.token, lease.position, lease.hi)
    bad = BadRange(held, 10, 30, "data", "no JSON")

    assert left_out(one.now) is UNSET
    one.propose(BeatReceived(attempt_id(0), "a", FeedReport("clicks", (held,), 0, bad=(bad,))))

    assert left_out(one.now) == {"data": LeftOut(ranges=1, positions=20)}
