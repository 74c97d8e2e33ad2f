"""Listing a stream piece by piece: folders by time, markers, what is missing, restarts."""

import itertools
import threading
import time
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from primusd.datafeed.ledger.listed import UnitEntry, Units
from primusd.datafeed.protocol import Credential, Unit
from primusd.datafeed.sources.files import ListingError
from primusd.datafeed.sources.listing import PIECE_UNITS, Listing, WaitingError
from primusd.datafeed.storage import schemes
from primusd.datafeed.storage.base import Entry, Handle, StorageError
from primusd.job.partitions import moments
from primusd.job.spec import Source, StreamSpec, TimeRange

DAY_MS = 86_400_000


def at_ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def timed(files: str, first: str, last: str, **other: object) -> Source:
    zone = str(other.pop("zone", "UTC"))
    return Source(files, span=TimeRange(first, last, zone), **{"missing": "wait"} | other)  # type: ignore[arg-type] # fields by name


def listing(*sources: Source, known: tuple[Unit, ...] = (), now: str = "2030-01-01") -> Listing:
    spec = StreamSpec("clicks", sources, format="text")
    units = Units((), tuple(UnitEntry(unit, -1) for unit in known))
    return Listing(spec, units, clock_ms=lambda: at_ms(now))


def everything(found: Listing, count: int = 0) -> tuple[list[Unit], tuple[str, ...]]:
    units: list[Unit] = []
    missing: tuple[str, ...] = ()
    for _ in range(1000):
        piece = found.piece(count + len(units))
        units += piece.units
        missing = tuple(dict.fromkeys(missing + piece.missing))
        if piece.is_complete:
            return units, missing
    raise AssertionError("the listing never ends")


def write(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"" if path.name.startswith("_") else b"row\n")


def names(units: list[Unit], folder: Path) -> list[str]:
    return [unit.location.removeprefix(f"{folder}/") for unit in units]


def test_a7_days_and_hours_of_two_sources_come_day_by_day(tmp_path: Path) -> None:
    """M073, M078."""
    write(tmp_path, *(f"daily/2020010{day}/data.txt" for day in (1, 2, 3, 4)))
    write(tmp_path, *(f"daily/2020010{day}/_SUCCESS" for day in (1, 2, 3, 4)))
    write(tmp_path, *(f"hourly/20200101/0{hour}/{name}" for hour in (0, 1) for name in MARKED))

    units, _ = everything(
        listing(
            timed(
                f"{tmp_path}/daily/{{{{YYYY}}}}{{{{MM}}}}{{{{DD}}}}/*",
                *("2020-01-01", "2020-01-04"),
                markers=("_SUCCESS",),
            ),
            timed(
                f"{tmp_path}/hourly/{{{{YYYY}}}}{{{{MM}}}}{{{{DD}}}}/{{{{HH}}}}/*",
                *("2020-01-01T00", "2020-01-01T01"),
                markers=("_SUCCESS",),
            ),
        )
    )

    assert names(units, tmp_path) == [
        "daily/20200101/data.txt",
        "hourly/20200101/00/data.txt",
        "hourly/20200101/01/data.txt",
        *(f"daily/2020010{day}/data.txt" for day in (2, 3, 4)),
    ]
    assert units[1].options["part"] == "2020-01-01T00"
    assert units[1].options["source"] == "1"


MARKED = ("data.txt", "_SUCCESS")
BY_DAY = "{{YYYY}}-{{MM}}-{{DD}}"
BY_HOUR = "{{YYYY}}-{{MM}}-{{DD}}/{{HH}}"


def test_a21_sources_that_overlap_follow_or_leave_a_gap_come_by_their_days(tmp_path: Path) -> None:
    """M073, M078."""
    spans = {"a": (1, 2), "b": (1, 2), "c": (3, 4), "d": (6, 6)}
    for name, (first, last) in spans.items():
        write(tmp_path, *(f"{name}/2020-01-0{day}/x.txt" for day in range(first, last + 1)))

    units, _ = everything(
        listing(
            *(
                timed(f"{tmp_path}/{name}/{BY_DAY}/", f"2020-01-0{first}", f"2020-01-0{last}")
                for name, (first, last) in spans.items()
            )
        )
    )

    days = [name.split("/")[:2] for name in names(units, tmp_path)]
    assert ["".join(part) for part in days] == [
        *("a2020-01-01", "b2020-01-01", "a2020-01-02", "b2020-01-02"),
        *("c2020-01-03", "c2020-01-04", "d2020-01-06"),
    ]


def test_a22_the_days_at_the_ends_of_an_hourly_range_are_clipped(tmp_path: Path) -> None:
    """M073."""
    write(tmp_path, *(f"a/2020-01-0{day}/x.txt" for day in (1, 2)))
    write(tmp_path, *(f"b/2020-01-0{day}/{hour:02}/x.txt" for day in (1, 2) for hour in range(24)))

    units, _ = everything(
        listing(
            timed(f"{tmp_path}/a/{BY_DAY}", "2020-01-01", "2020-01-02"),
            timed(f"{tmp_path}/b/{BY_HOUR}", "2020-01-01T13", "2020-01-02T12"),
        )
    )

    parts = [unit.options["part"] for unit in units]
    assert parts == [
        *("2020-01-01", *(f"2020-01-01T{hour:02}" for hour in range(13, 24))),
        *("2020-01-02", *(f"2020-01-02T{hour:02}" for hour in range(13))),
    ]


def test_a20_an_open_end_goes_on_for_ever_and_waits_for_what_is_not_over(tmp_path: Path) -> None:
    """M073, M075."""
    write(tmp_path, "2020-01-01/00/a.txt", "2020-01-01/01/a.txt", "2020-01-01/02/a.txt")
    source = timed(f"{tmp_path}/{BY_HOUR}/*.txt", "2020-01-01", "now")
    found = listing(source, now="2020-01-01T02:30")

    piece = found.piece(0)

    assert (len(piece.units), piece.is_complete) == (2, False)
    with pytest.raises(WaitingError, match=r"2020-01-01/02/\*\.txt is not over"):
        found.piece(2)
    later = listing(source, known=piece.units, now="2020-01-01T03:00")
    assert names([*later.piece(2).units], tmp_path) == ["2020-01-01/02/a.txt"]
    with pytest.raises(WaitingError):
        later.piece(3)
    labels = [one.label for one in itertools.islice(moments("2020-01", "now", "month", "UTC"), 500)]
    assert labels[-1] == "2061-08"


def test_m080_a_delayed_source_comes_beside_what_is_so_much_younger(tmp_path: Path) -> None:
    """Clicks of a day with the labels of the day before, which are there two days later."""
    write(tmp_path, *(f"clicks/2020-01-0{day}/x.txt" for day in (1, 2, 3)))
    write(tmp_path, *(f"labels/2020-01-0{day}/x.txt" for day in (1, 2)))
    clicks = timed(f"{tmp_path}/clicks/{BY_DAY}", "2020-01-01", "2020-01-03")
    labels = timed(f"{tmp_path}/labels/{BY_DAY}", "2020-01-01", "now", delay_ms=DAY_MS)

    piece = listing(labels, clicks, now="2020-01-04").piece(0)

    assert names([*piece.units], tmp_path) == [
        "clicks/2020-01-01/x.txt",
        *("labels/2020-01-01/x.txt", "clicks/2020-01-02/x.txt"),
        *("labels/2020-01-02/x.txt", "clicks/2020-01-03/x.txt"),
    ]
    for stop in range(1, 5):
        rest = listing(labels, clicks, known=piece.units[:stop], now="2020-01-04").piece(stop)
        assert rest.units == piece.units[stop:]


@pytest.mark.parametrize("markers", [(), ("_SUCCESS",)])
def test_a_delayed_folder_is_not_taken_before_its_delay(
    tmp_path: Path, markers: tuple[str, ...]
) -> None:
    """Also where its marker is there: late files come meanwhile."""
    write(tmp_path, "2020-01-01/x.txt", "2020-01-01/_SUCCESS")
    source = timed(
        f"{tmp_path}/{BY_DAY}", *("2020-01-01",) * 2, markers=markers, delay_ms=6 * 3_600_000
    )

    with pytest.raises(WaitingError, match="2020-01-01 comes 6h after its time"):
        listing(source, now="2020-01-02T05:59").piece(0)

    assert len(listing(source, now="2020-01-02T06:00").piece(0).units) == 1


def test_m073_months_years_and_leap_days_have_their_own_length(tmp_path: Path) -> None:
    write(tmp_path, "2023-12/x.txt", "2024-01/x.txt", "2024-02/x.txt", "2024-03/x.txt")
    write(tmp_path, *(f"days/2024-{day}/x.txt" for day in ("02-28", "02-29", "03-01")))
    months = timed(f"{tmp_path}/{{{{YYYY}}}}-{{{{MM}}}}", "2023-12", "2024-02")
    days = timed(f"{tmp_path}/days/{BY_DAY}", "2024-02-28", "2024-03-01")

    units, missing = everything(listing(months, days))

    assert ([unit.options["part"] for unit in units], missing) == (
        ["2023-12", "2024-01", "2024-02", "2024-02-28", "2024-02-29", "2024-03-01"],
        (),
    )


@pytest.mark.parametrize(
    ("zone", "day", "left_out"),
    [
        ("Europe/Berlin", "2026-03-29", {"02"}),
        ("Europe/Berlin", "2026-10-25", set[str]()),
        ("America/New_York", "2026-03-08", {"02"}),
        ("America/New_York", "2026-11-01", set[str]()),
        ("Africa/Cairo", "2026-04-24", {"00"}),
        ("Africa/Cairo", "2026-10-29", set[str]()),
        # By half an hour: of the hour that begins with a leap the second half is there.
        ("Australia/Lord_Howe", "2026-10-04", set[str]()),
        ("Australia/Lord_Howe", "2026-04-05", set[str]()),
    ],
)
def test_C77_each_hour_comes_once_where_the_clock_is_changed(
    tmp_path: Path, zone: str, day: str, left_out: set[str]
) -> None:
    """M073."""
    hours = [f"{hour:02}" for hour in range(24) if f"{hour:02}" not in left_out]
    write(tmp_path, *(f"{day}/{hour}/x.txt" for hour in hours))

    units, missing = everything(listing(timed(f"{tmp_path}/{BY_HOUR}", day, day, zone=zone)))

    assert [unit.options["part"] for unit in units] == [f"{day}T{hour}" for hour in hours]
    assert missing == ()
    ends = [one.ends_ms for one in moments(day, day, "hour", zone)]
    assert ends == sorted(set(ends))
    midnight = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone)) + timedelta(days=1)
    assert ends[-1] == int(midnight.timestamp() * 1000)


def test_a_folder_is_taken_once_all_its_markers_are_there(tmp_path: Path) -> None:
    """M074."""
    write(tmp_path, "2020-01-01/a.txt", "2020-01-01/_ONE")
    source = timed(f"{tmp_path}/{BY_DAY}", "2020-01-01", "2020-01-01", markers=("_ONE", "_TWO"))
    found = listing(source)

    with pytest.raises(WaitingError, match="2020-01-01/_TWO is not there"):
        found.piece(0)
    write(tmp_path, "2020-01-01/_TWO")

    piece = found.piece(0)
    assert (len(piece.units), piece.is_complete) == (1, True)


def test_a_folder_that_is_whole_may_be_empty(tmp_path: Path) -> None:
    write(tmp_path, "2020-01-01/_SUCCESS", "2020-01-02/_SUCCESS", "2020-01-02/b.txt")
    source = timed(f"{tmp_path}/{BY_DAY}", "2020-01-01", "2020-01-02", markers=("_SUCCESS",))

    units, missing = everything(listing(source))

    assert (names(units, tmp_path), missing) == (["2020-01-02/b.txt"], ())


@pytest.mark.parametrize(
    ("policy", "now", "result"),
    [
        ({"missing": "skip", "skip_after_ms": 6 * 3_600_000}, "2020-01-03T05:59", "waits"),
        ({"missing": "skip", "skip_after_ms": 6 * 3_600_000}, "2020-01-03T06:00", "passed"),
        ({"missing": "skip"}, "2020-01-03T00:00", "passed"),
        ({"missing": "wait"}, "2029-01-01", "waits"),
        ({"missing": "fail"}, "2020-01-03T00:00", "fails"),
    ],
)
def test_what_follows_a_folder_that_does_not_come(
    tmp_path: Path, policy: dict[str, object], now: str, result: str
) -> None:
    """M076; the folder's time was over at midnight before the third."""
    write(tmp_path, "2020-01-01/a.txt", "2020-01-03/c.txt")
    found = listing(timed(f"{tmp_path}/{BY_DAY}", "2020-01-01", "2020-01-02", **policy), now=now)

    if result == "passed":
        units, missing = everything(found)
        assert (len(units), ["2020-01-02" in one for one in missing]) == (1, [True])
        return
    assert len(found.piece(0).units) == 1
    with pytest.raises(ListingError) as caught:
        found.piece(1)
    assert caught.value.permanent is (result == "fails")
    assert "2020-01-02" in caught.value.message


def test_files_without_times_can_be_waited_for(tmp_path: Path) -> None:
    source = Source(f"{tmp_path}/in/*.txt", markers=("_SUCCESS",), missing="wait")
    found = listing(source)

    with pytest.raises(WaitingError, match="in/_SUCCESS is not there"):
        found.piece(0)
    write(tmp_path, "in/_SUCCESS")
    with pytest.raises(WaitingError, match="matches no file"):
        found.piece(0)
    write(tmp_path, "in/a.txt")

    assert found.piece(0).is_complete


def test_the_same_piece_is_given_again_when_it_got_lost(tmp_path: Path) -> None:
    write(tmp_path, *(f"{number:04}.txt" for number in range(PIECE_UNITS + 5)))
    found = listing(Source(f"{tmp_path}/"))

    first = found.piece(0)
    assert found.piece(0) is first
    second = found.piece(PIECE_UNITS)
    assert found.piece(PIECE_UNITS) is second

    assert (len(first.units), first.is_complete) == (PIECE_UNITS, False)
    assert (len(second.units), second.is_complete) == (5, True)
    assert not found.is_at(7)


@pytest.mark.parametrize("stop", range(9))
def test_a_listing_goes_on_where_it_was_wherever_that_is(tmp_path: Path, stop: int) -> None:
    """Restarts tell nothing twice and miss nothing; late files in closed folders are left out."""
    write(tmp_path, "a/1.txt", "a/b/2.txt", "a/b/3.txt", "a/c.txt", "a/d/4.txt", "z.txt")
    write(tmp_path, "t/2020-01-01/5.txt", "t/2020-01-02/6.txt")
    sources = (
        Source(f"{tmp_path}/a/**/*.txt"),
        Source(f"{tmp_path}/*.txt"),
        timed(f"{tmp_path}/t/{BY_DAY}/", "2020-01-01", "2020-01-02"),
    )
    whole, _ = everything(listing(*sources))
    assert len(whole) == 8

    rest, _ = everything(listing(*sources, known=tuple(whole[:stop])), stop)

    assert whole[:stop] + rest == whole


def test_a_new_file_in_the_folder_where_a_listing_stood_is_taken_in(tmp_path: Path) -> None:
    """M077."""
    write(tmp_path, *(f"in/{name}.txt" for name in "abde"))
    known, _ = everything(listing(Source(f"{tmp_path}/in/*.txt")))
    write(tmp_path, "in/c.txt", "in/f.txt", "in/g.txt")

    rest, _ = everything(listing(Source(f"{tmp_path}/in/*.txt"), known=tuple(known)), 4)

    assert names(rest, tmp_path) == ["in/c.txt", "in/f.txt", "in/g.txt"]


def test_M077_a_late_file_in_a_folder_that_was_taken_is_not_read(tmp_path: Path) -> None:
    """Nor after a restart, once the listing went on to the next folder."""
    write(tmp_path, "2026-01-01/a.txt", "2026-01-02/a.txt")
    days = timed(f"{tmp_path}/{BY_DAY}", "2026-01-01", "2026-01-03")
    found = listing(days)
    first = found.piece(0).units
    with pytest.raises(WaitingError):
        found.piece(len(first))
    write(tmp_path, "2026-01-01/late.txt", "2026-01-03/a.txt")

    rest, _ = everything(found, len(first))
    again, _ = everything(listing(days, known=first), len(first))

    assert names(list(first), tmp_path) == ["2026-01-01/a.txt", "2026-01-02/a.txt"]
    assert names(rest, tmp_path) == names(again, tmp_path) == ["2026-01-03/a.txt"]


class SlowYear:
    """A year of hourly folders with 100 files each; every call takes 5 ms."""

    reads_by_name = True

    def __init__(self) -> None:
        self.calls = 0
        self.at_once = self.most_at_once = 0
        self._lock = threading.Lock()

    def _call(self) -> None:
        with self._lock:
            self.calls += 1
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        time.sleep(0.005)
        with self._lock:
            self.at_once -= 1

    def entries(self, folder: str, is_wanted: Callable[[str], bool]) -> list[Entry]:
        self._call()
        files = [f"{folder}/{number:03}.txt" for number in range(100)]
        return [Entry(one, byte_count=100, pin="1") for one in files if is_wanted(one[-7:])]

    def find(self, location: str) -> Entry | None:
        self._call()
        return None if "*" in location else Entry(location, is_folder=True)

    def open(self, location: str) -> Handle:
        raise StorageError(location, kind="data")

    def credential(self) -> Credential | None:
        return None


def test_a_year_of_hours_is_listed_no_further_than_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """M089: the first rows need a few of 17,520 calls; what was not asked for takes no memory."""
    year = SlowYear()
    monkeypatch.setattr(schemes, "_clients", {("slow", "year", ()): year})
    found = listing(timed(f"slow://year/{BY_HOUR}/*.txt", "2026-01-01", "2026-12-31"))

    first = found.piece(0)
    calls = year.calls
    tracemalloc.start()
    count = len(first.units)
    for _ in range(20):
        count += len(found.piece(count).units)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert 100 <= len(first.units) <= PIECE_UNITS
    assert calls < 100
    assert 8 <= year.most_at_once <= 32
    assert count > 10_000
    assert peak_bytes < 16 << 20
