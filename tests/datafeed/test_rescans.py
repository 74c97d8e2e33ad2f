"""M077: files that appear in a folder that was used already are added once (`rescan`)."""

import os
import random
import shutil
from pathlib import Path

import msgspec
import pytest
from msgspec import UNSET
from msgspec.structs import replace

from primusd.ctl.feed_figures import told_lines
from primusd.datafeed.ledger import machine as ledger
from primusd.datafeed.ledger.events import ListingFailed, UnitsListed
from primusd.datafeed.ledger.rescans import CHANGED_MAX
from primusd.datafeed.sources.files import ListingError
from primusd.datafeed.sources.listing import Listing, asked_of
from primusd.job.commands import ListUnits
from primusd.job.partitions import moments
from primusd.job.spec import Source, StreamSpec, TimeRange, is_endless
from primusd.views.feed_documents import RescanStatus
from primusd.views.streams import units_status
from tests.datafeed.ledger_driver import Driver, Reader
from tests.datafeed.test_stream_listing import at_ms, write

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
BY_HOUR = "{{YYYY}}-{{MM}}-{{DD}}/{{HH}}"
STEPS_MAX = 200


def hours(folder: Path, first: str, last: str, **other: object) -> Source:
    fields: dict[str, object] = {
        "missing": "wait", "rescan_ms": 10 * MINUTE_MS, "rescan_for_ms": 3 * HOUR_MS,
    }  # fmt: skip
    return Source(
        f"{folder}/{BY_HOUR}/*.txt",
        span=TimeRange(first, last, "UTC"),
        **fields | other,  # type: ignore[arg-type] # fields by name
    )


def folder_source(folder: Path, for_ms: int = 0) -> Source:
    return Source(f"{folder}/**/*.txt", rescan_ms=10 * MINUTE_MS, rescan_for_ms=for_ms)


class Scanned:
    """A stream and the listing of its sources, driven as the daemon drives them."""

    def __init__(self, *sources: Source, now: str = "2026-01-01T00:00", **fields: object) -> None:
        self.spec = StreamSpec("clicks", sources, format="text", **fields)  # type: ignore[arg-type] # fields by name
        self.driver = Driver(self.spec)
        self.driver.at_ms = at_ms(now)
        self.listing = self._listing()
        self.calls = 0
        self.look()

    def _listing(self) -> Listing:
        return Listing(self.spec, self.driver.now.units, clock_ms=lambda: self.driver.at_ms)

    def look(self) -> None:
        """List as long as that is planned."""
        for _ in range(STEPS_MAX):
            stream = self.driver.now
            if not any(isinstance(one, ListUnits) for one in ledger.plan(stream)):
                return
            self.calls += 1
            known = len(stream.units)
            self.listing.share(stream.units)
            try:
                piece = self.listing.piece(known, asked_of(stream))
            except ListingError as error:
                self.driver.propose(ListingFailed(error.message, error.permanent))
                continue
            self.driver.propose(
                UnitsListed(piece.units, known, piece.is_complete, piece.missing, piece.scan)
            )
        raise AssertionError("the listing never rests")

    def restart(self) -> None:
        """Let the daemon begin anew: nothing is known but the stream."""
        self.driver.reload()
        self.listing = self._listing()

    def wait(self, by_ms: int) -> None:
        """Let time pass; what is due is listed when it is."""
        end_ms = self.driver.at_ms + by_ms
        while self.driver.now.phase in ("Opening", "Serving"):
            due_ms = ledger.deadline_ms(self.driver.now)
            if not 0 < due_ms <= end_ms:
                break
            self.driver.wait(max(0, due_ms - self.driver.at_ms))
            self.look()
        self.driver.at_ms = end_ms

    def is_listed(self) -> bool:
        return self.driver.now.is_listed

    @property
    def names(self) -> list[str]:
        """The names of all files, in the order of their units."""
        return [entry.unit.location.rpartition("/")[2] for entry in self.driver.now.units]

    def told(self, reason: str) -> list[str]:
        return [one.message for one in self.driver.now.moments if one.reason == reason]


def test_m077_files_that_come_into_a_used_folder_are_added_once(tmp_path: Path) -> None:
    write(tmp_path, "a/1.txt", "b/5.txt")
    world = Scanned(folder_source(tmp_path))
    assert world.names == ["1.txt", "5.txt"]

    write(tmp_path, "a/0.txt", "a/2.txt", "c/9.txt")
    world.wait(9 * MINUTE_MS)
    assert world.names == ["1.txt", "5.txt"]
    world.wait(2 * MINUTE_MS)

    assert world.names == ["1.txt", "5.txt", "0.txt", "2.txt", "9.txt"]
    assert world.told("FilesCameLate")[0].startswith(f"{tmp_path}/a/0.txt")
    assert world.driver.now.scanning.late_count == 3
    write(tmp_path, "a/3.txt")
    world.wait(50 * MINUTE_MS)
    assert world.names == ["1.txt", "5.txt", "0.txt", "2.txt", "9.txt", "3.txt"]
    assert world.driver.now.scanning.count == 6


def test_between_two_looks_nothing_is_listed_and_the_next_one_is_known(tmp_path: Path) -> None:
    write(tmp_path, "a/1.txt")
    world = Scanned(folder_source(tmp_path))
    began_ms, calls = world.driver.at_ms, world.calls

    assert world.driver.now.scanning.next_ms == began_ms + 10 * MINUTE_MS
    assert ledger.deadline_ms(world.driver.now) == began_ms + 10 * MINUTE_MS
    world.wait(9 * MINUTE_MS)
    assert world.calls == calls
    world.wait(1 * MINUTE_MS)
    assert world.calls == calls + 1
    assert world.driver.now.scanning.next_ms == began_ms + 20 * MINUTE_MS


@pytest.mark.parametrize("stop", range(6))
def test_m077_restarts_add_nothing_twice_and_miss_nothing(tmp_path: Path, stop: int) -> None:
    """Also where the last unit known is a late one, of a folder of before."""
    late = ["a/2.txt", "b/6.txt", "z/7.txt", "a/0.txt", "m/4.txt", "z/9.txt"]
    write(tmp_path, "a/1.txt", "b/5.txt", "m/3.txt", "z/8.txt")
    world = Scanned(folder_source(tmp_path))
    for number, name in enumerate(late):
        write(tmp_path, name)
        if number == stop:
            world.restart()
        world.wait(10 * MINUTE_MS)
        if number == stop:
            world.restart()

    assert sorted(world.names) == [f"{one}.txt" for one in range(10)]
    assert world.names[:4] == ["1.txt", "5.txt", "3.txt", "8.txt"]
    assert not world.is_listed()


def test_m077_late_files_of_hours_are_added_until_their_time_is_over(tmp_path: Path) -> None:
    for hour in range(6):
        write(tmp_path, f"2026-01-01/0{hour}/{hour}a.txt")
    world = Scanned(hours(tmp_path, "2026-01-01T00", "2026-01-01T05"), now="2026-01-01T06:00")
    assert world.names == ["0a.txt", "1a.txt", "2a.txt", "3a.txt", "4a.txt", "5a.txt"]

    for hour in range(6):
        write(tmp_path, f"2026-01-01/0{hour}/{hour}b.txt")
    world.wait(15 * MINUTE_MS)

    # The time of the third one was over at 06:00, when it was listed.
    assert world.names[6:] == ["3b.txt", "4b.txt", "5b.txt"]
    assert not world.is_listed()


def test_a_stream_whose_late_files_have_an_end_is_done_after_the_last_look(tmp_path: Path) -> None:
    write(tmp_path, "2026-01-01/00/a.txt", "2026-01-01/01/b.txt")
    source = hours(tmp_path, "2026-01-01T00", "2026-01-01T01", rescan_for_ms=HOUR_MS)
    world = Scanned(source, now="2026-01-01T02:00")
    reader = world.driver.open(0)
    reading(reader)
    assert world.driver.now.phase == "Serving"
    assert not is_endless(world.spec)

    world.wait(59 * MINUTE_MS)
    write(tmp_path, "2026-01-01/01/c.txt")
    world.wait(21 * MINUTE_MS)

    assert world.names == ["a.txt", "b.txt", "c.txt"]
    assert world.is_listed()
    reading(reader)
    assert world.driver.now.phase == "Done"


def test_a_folder_without_times_is_done_after_its_last_look(tmp_path: Path) -> None:
    write(tmp_path, "a.txt")
    world = Scanned(folder_source(tmp_path, for_ms=25 * MINUTE_MS))
    reader = world.driver.open(0)
    reading(reader)

    world.wait(22 * MINUTE_MS)
    write(tmp_path, "b.txt")
    world.restart()
    world.wait(10 * MINUTE_MS)
    assert world.names == ["a.txt", "b.txt"]
    assert not world.is_listed()
    world.wait(20 * MINUTE_MS)

    assert world.is_listed()
    reading(reader)
    assert world.driver.now.phase == "Done"


def test_a_stream_that_is_looked_at_for_ever_has_no_end(tmp_path: Path) -> None:
    write(tmp_path, "a.txt")
    world = Scanned(folder_source(tmp_path))
    reader = world.driver.open(0)
    reading(reader)

    world.wait(3 * DAY_MS)

    assert is_endless(world.spec)
    assert world.driver.now.phase == "Serving"
    assert world.driver.now.scanning.count == 3 * 144


def test_up_to_now_late_files_come_beside_new_hours(tmp_path: Path) -> None:
    """M075."""
    write(tmp_path, "2026-01-01/00/0a.txt")
    world = Scanned(hours(tmp_path, "2026-01-01T00", "now"), now="2026-01-01T01:00")
    assert world.names == ["0a.txt"]

    write(tmp_path, "2026-01-01/00/0b.txt", "2026-01-01/01/1a.txt")
    world.wait(30 * MINUTE_MS)
    assert world.names == ["0a.txt", "0b.txt"]
    world.restart()
    world.wait(HOUR_MS)

    assert world.names == ["0a.txt", "0b.txt", "1a.txt"]
    assert world.driver.now.waiting_for[0].endswith("/2026-01-01/02/*.txt is not over")


def test_a_folder_that_was_passed_over_is_taken_when_it_comes(tmp_path: Path) -> None:
    write(tmp_path, "2026-01-01/00/a.txt", "2026-01-01/02/c.txt")
    source = hours(
        tmp_path, "2026-01-01T00", "2026-01-01T02", missing="skip", markers=("_SUCCESS",)
    )
    write(tmp_path, "2026-01-01/00/_SUCCESS", "2026-01-01/02/_SUCCESS", "2026-01-01/01/b.txt")
    world = Scanned(source, now="2026-01-01T03:00")
    assert world.names == ["a.txt", "c.txt"]
    world.wait(10 * MINUTE_MS)
    assert world.names == ["a.txt", "c.txt"]

    write(tmp_path, "2026-01-01/01/_SUCCESS")
    world.wait(10 * MINUTE_MS)

    assert world.names == ["a.txt", "c.txt", "b.txt"]


def test_a_file_that_changed_is_named_once_and_not_read_again(tmp_path: Path) -> None:
    write(tmp_path, "a.txt", "b.txt")
    world = Scanned(folder_source(tmp_path))
    (tmp_path / "a.txt").write_bytes(b"row\nanother\n")

    world.wait(30 * MINUTE_MS)

    assert world.names == ["a.txt", "b.txt"]
    assert world.told("FileChanged") == [f"{tmp_path}/a.txt was changed since it was listed"]
    (changed,) = world.driver.now.scanning.changed
    assert (changed.unit, changed.byte_count) == (0, 12)
    world.restart()
    os.utime(tmp_path / "a.txt", ns=(1, 1))
    world.wait(30 * MINUTE_MS)
    assert len(world.told("FileChanged")) == 2
    assert world.names == ["a.txt", "b.txt"]


def test_a_file_that_is_gone_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path, "a/1.txt")
    world = Scanned(folder_source(tmp_path))
    shutil.rmtree(tmp_path / "a")

    world.wait(10 * MINUTE_MS)

    assert world.names == ["1.txt"]
    assert world.driver.now.phase == "Serving"
    write(tmp_path, "a/1.txt", "a/2.txt")
    world.wait(10 * MINUTE_MS)
    assert world.names == ["1.txt", "2.txt"]


def test_a_look_that_fails_is_tried_again_as_any_listing(tmp_path: Path) -> None:
    write(tmp_path, "a/1.txt")
    world = Scanned(folder_source(tmp_path))
    write(tmp_path, "a/2.txt")
    world.driver.wait(10 * MINUTE_MS)
    world.driver.propose(ListingFailed("the share is away", is_permanent=False))

    assert "the share is away" in world.driver.now.waiting_for
    world.wait(2_000)

    assert world.names == ["1.txt", "2.txt"]
    assert not world.driver.now.waiting_for


def test_a_lost_and_a_doubled_word_of_late_files_add_them_once(tmp_path: Path) -> None:
    write(tmp_path, "a/1.txt")
    world = Scanned(folder_source(tmp_path))
    write(tmp_path, "a/2.txt")
    world.driver.wait(10 * MINUTE_MS)
    stream = world.driver.now

    lost = world.listing.piece(1, asked_of(stream))
    again = world.listing.piece(1, asked_of(stream))
    event = UnitsListed(again.units, 1, again.is_complete, again.missing, again.scan)
    world.driver.propose(event)
    world.driver.propose(event)

    assert lost == again
    assert world.names == ["1.txt", "2.txt"]
    assert world.driver.now.scanning.late_count == 1


def test_many_files_that_changed_are_named_up_to_a_bound(tmp_path: Path) -> None:
    count = CHANGED_MAX + 20
    write(tmp_path, *(f"{number:05}.txt" for number in range(count)))
    world = Scanned(folder_source(tmp_path))
    for number in range(count):
        (tmp_path / f"{number:05}.txt").write_bytes(b"longer than a row\n")

    world.wait(20 * MINUTE_MS)

    assert len(world.driver.now.scanning.changed) == CHANGED_MAX
    assert (
        world.told("FileChanged")[-1]
        == f"{CHANGED_MAX - 8} more files were changed since they were listed"
    )
    assert len(world.names) == count


def test_people_see_what_came_late_and_when_the_next_look_is(tmp_path: Path) -> None:
    write(tmp_path, "a.txt", "b.txt")
    world = Scanned(folder_source(tmp_path))
    (tmp_path / "a.txt").write_bytes(b"row\nanother\n")
    write(tmp_path, "c.txt")
    world.wait(25 * MINUTE_MS)

    status = units_status(world.driver.now)

    assert isinstance(status.rescan, RescanStatus)
    assert (status.rescan.count, status.rescan.late) == (2, 1)
    assert status.rescan.next_at == "2026-01-01T00:30:00.000Z"
    assert status.rescan.changed == (f"{tmp_path}/a.txt",)
    document = msgspec.json.decode(msgspec.json.encode({"phase": "Serving", "units": status}))
    assert told_lines(document) == [
        "1 file came late, in 2 looks at folders that were listed; the next one is at "
        "2026-01-01T00:30:00.000Z",
        f"changed since it was listed, not read again: {tmp_path}/a.txt",
    ]
    assert units_status(Driver().now).rescan is UNSET


def test_what_is_waited_for_is_said_once() -> None:
    waits = ["waits: /data/_SUCCESS is not there", "kafka k1:9092 does not answer"]

    assert told_lines({"phase": "Opening", "units": {"waitingFor": waits}})[-2:] == [
        "waits: /data/_SUCCESS is not there",
        "waits: kafka k1:9092 does not answer",
    ]


def test_late_files_are_read_as_all_others(tmp_path: Path) -> None:
    write(tmp_path, "a.txt", "c.txt")
    world = Scanned(folder_source(tmp_path))
    reader = world.driver.open(0)
    reading(reader)
    write(tmp_path, "b.txt")

    world.wait(10 * MINUTE_MS)

    assert reading(reader) == [2]
    assert world.driver.now.consumed == 12


def reading(reader: Reader) -> list[int]:
    """Read all that is there; return the units."""
    units: list[int] = []
    for _ in range(STEPS_MAX):
        reader.beat(2)
        if not reader.held:
            return units
        for held in list(reader.held.values()):
            units += [held.unit] if held.position < held.hi else []
            reader.held[held.token] = replace(held, position=held.hi)
    raise AssertionError("it never ends")


@pytest.mark.parametrize("seed", range(40))
def test_m077_whenever_files_come_each_is_added_once(tmp_path: Path, seed: int) -> None:
    """Restarts at any time; late by up to the time that the source says, and by more."""
    chosen = random.Random(seed)
    is_timed = chosen.random() < 0.5
    for_ms = chosen.choice((HOUR_MS, 2 * HOUR_MS))
    every_ms = chosen.choice((MINUTE_MS, 17 * MINUTE_MS, HOUR_MS))
    first = at_ms("2026-01-01T00:00")
    folders = [one.label for one in moments("2026-01-01T00", "2026-01-01T03", "hour", "UTC")]
    coming: list[tuple[int, str, bool]] = []
    for number in range(chosen.randint(1, 25)):
        hour = chosen.randrange(4)
        end_ms = first + (hour + 1) * HOUR_MS
        at = end_ms + chosen.randint(-HOUR_MS // 2, for_ms + (HOUR_MS if is_timed else 0))
        is_in_time = at <= end_ms + for_ms or not is_timed
        name = folders[hour].replace("T", "/") + f"/{chosen.randrange(100):02}-{number}.txt"
        coming.append((at, name, is_in_time))
    coming += [(first, label.replace("T", "/") + "/00-first.txt", True) for label in folders]
    source = (
        hours(tmp_path, "2026-01-01T00", "2026-01-01T03") if is_timed else folder_source(tmp_path)
    )
    source = replace(source, rescan_ms=every_ms, rescan_for_ms=for_ms if is_timed else 0)
    write(tmp_path, *(name for at, name, _ in coming if at == first))
    world = Scanned(source, now="2026-01-01T00:00")
    for at, name, _ in sorted(coming):
        if at > first:
            world.wait(max(0, at - world.driver.at_ms))
            write(tmp_path, name)
        if chosen.random() < 0.3:
            world.restart()
    world.wait(6 * HOUR_MS)

    found = [entry.unit.location.removeprefix(f"{tmp_path}/") for entry in world.driver.now.units]
    assert len(found) == len(set(found))
    assert set(found) >= {name for _, name, is_in_time in coming if is_in_time}
    assert world.is_listed() == is_timed
