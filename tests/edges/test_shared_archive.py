"""History that heads share: its segments, and what it does while the place is away."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from primusd.shared_places import SharedPlace
from primusd.state import shared_archive
from primusd.state.archiving import ArchiveLimits, Archiver
from primusd.state.places import PlaceError
from primusd.state.shared_archive import SharedArchive
from tests.edges.test_archive import archived, entry


class Flaky(SharedPlace):
    """A place that can be away.

    Attributes:
        is_away: Nothing can be written now.
        written: Names, in order.
        was_read: Names.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(f"file://{folder}", {})
        self.is_away = False
        self.written: list[str] = []
        self.was_read: list[str] = []

    def write(self, name: str, data: bytes) -> None:
        if self.is_away:
            raise PlaceError("it is away")
        self.written.append(name)
        super().write(name, data)

    def read(self, name: str) -> bytes:
        self.was_read.append(name)
        return super().read(name)


@pytest.fixture
def place(tmp_path: Path) -> Flaky:
    return Flaky(tmp_path / "shared")


@pytest.fixture
def archive(place: Flaky) -> SharedArchive:
    return SharedArchive(place, home="a" * 32)


def revisions(archive: SharedArchive, first: int = 0) -> list[int]:
    return [one.revision for one in archive.read(first)]


def test_a_segment_grows_until_it_is_another_day_or_hour_or_large(
    archive: SharedArchive, place: Flaky, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive.append(archived(entry(1), entry(2)))
    archive.append(archived(entry(3)))
    assert len(set(place.written)) == 1
    archive.append(archived(entry(4, day=1)))
    assert len(set(place.written)) == 2
    monkeypatch.setattr(shared_archive, "SEGMENT_BYTES_MAX", 10)
    archive.append(archived(entry(5, day=1)))
    archive.append(archived(entry(6, day=1)))
    assert len(set(place.written)) == 4
    # A gap: it stood by meanwhile.
    monkeypatch.setattr(shared_archive, "SEGMENT_BYTES_MAX", 1 << 20)
    archive.append(archived(entry(9, day=1)))
    assert len(set(place.written)) == 5
    assert revisions(archive) == [1, 2, 3, 4, 5, 6, 9]


def test_what_comes_again_after_a_write_of_the_journal_failed_is_kept_once(
    archive: SharedArchive,
) -> None:
    archive.append(archived(entry(1), entry(2)))
    archive.append(archived(entry(1), entry(2), entry(3)))

    assert revisions(archive) == [1, 2, 3]


def test_what_could_not_be_written_is_written_with_the_next(
    archive: SharedArchive, place: Flaky
) -> None:
    place.is_away = True
    for one in (entry(1), entry(2), entry(3, day=1)):
        with pytest.raises(PlaceError):
            archive.append(archived(one))
    place.is_away = False

    archive.append(archived(entry(4, day=1)))

    assert revisions(archive) == [1, 2, 3, 4]


def test_a_place_that_is_away_for_long_costs_the_oldest_and_no_more_memory(
    archive: SharedArchive, place: Flaky
) -> None:
    place.is_away = True
    with capture_logs() as logs:
        for number in range(1, 41):
            with pytest.raises(PlaceError):
                archive.append(archived(entry(number * 2)))
    place.is_away = False
    archive.append(archived(entry(100)))

    assert sum(one["event"] == "archive.segment_lost" for one in logs) == 24
    assert len(revisions(archive)) == shared_archive.UNWRITTEN_MAX


def test_the_journal_goes_on_while_the_place_is_away(archive: SharedArchive, place: Flaky) -> None:
    place.is_away = True
    archiver = Archiver(archive, ArchiveLimits())

    with capture_logs() as logs:
        going = archived(entry(1))
        assert archiver.archive(going, revision=2, at_ms=entry(2).at_ms) == ""

    assert [one["event"] for one in logs] == ["archive.write_failed"]


def test_only_the_segments_that_are_needed_are_read(
    archive: SharedArchive, place: Flaky, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_archive, "SEGMENT_BYTES_MAX", 1)
    for number in range(1, 20):
        archive.append(archived(entry(number)))
    other = SharedArchive(place, home="b")
    other.append(archived(entry(20), entry(21)))

    assert revisions(other, 18) == [18, 19, 20, 21]

    assert len(place.was_read) == 3


def test_a_segment_that_was_pruned_meanwhile_is_a_gap(archive: SharedArchive, place: Flaky) -> None:
    archive.append(archived(entry(1), entry(2, day=1)))
    first = place.written[0]
    real = place.read

    def gone(name: str) -> bytes:
        place.remove(first)
        return real(name)

    place.read = gone  # type: ignore[method-assign] # it goes at the moment of the read
    with capture_logs() as logs:
        assert revisions(archive) == [2]
    assert [one["event"] for one in logs] == ["archive.segment_unreadable"]


def test_what_is_too_much_goes_oldest_first_and_todays_stays(archive: SharedArchive) -> None:
    for day in range(4):
        archive.append(archived(entry(day + 1, day=day)))

    removed = archive.prune(now_ms=entry(1, day=3).at_ms, keep_ms=1 << 40, bytes_max=1)

    assert len(removed) == 3
    assert revisions(archive) == [4]


def test_foreign_files_are_passed_over(archive: SharedArchive, place: Flaky) -> None:
    archive.append(archived(entry(1)))
    place.write("entries/2026-01-01/notes.txt", b"x")
    place.write("bases/README", b"x")

    assert revisions(archive) == [1]
    assert archive.bases() == ()
