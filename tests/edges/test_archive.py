"""The archive: daily files that zstd reads, whole after any crash, bounded."""

import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest
import zstandard

from primusd.admission.events import NodeWentAway
from primusd.records import SCHEMA, Entry, Record, encode_entry
from primusd.state.archive import FRAME_ENTRIES_MAX, Archive, ArchivedEntry

DAY_MS = 86_400_000
FIRST_MS = 1_767_225_600_000  # 2026-01-01


def entry(revision: int, *, day: int = 0, machine: str = "") -> Entry:
    record = Record(machine, -1, "engine", NodeWentAway(f"n{revision}"))
    return Entry(SCHEMA, 7, revision, FIRST_MS + day * DAY_MS + revision, (record,))


def archived(*entries: Entry) -> list[ArchivedEntry]:
    return [ArchivedEntry(one.revision, one.at_ms, encode_entry(one)) for one in entries]


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive(tmp_path / "archive")


def test_an_archive_without_a_folder_is_empty(archive: Archive) -> None:
    assert list(archive.read()) == []
    assert archive.files() == ()


def test_entries_are_kept_one_file_a_day_and_come_back_in_order(archive: Archive) -> None:
    entries = [entry(1), entry(2), entry(3, day=1), entry(4, day=2)]
    archive.append(archived(*entries[:2]))
    archive.append(archived(*entries[2:]))

    names = [path.name for path in archive.files()]
    assert names == ["2026-01-01.zst", "2026-01-02.zst", "2026-01-03.zst"]
    assert list(archive.read()) == entries
    assert list(archive.read(3)) == entries[2:]


def test_a_repeat_after_a_crash_is_left_out_also_by_the_next_process(archive: Archive) -> None:
    archive.append(archived(entry(1), entry(2)))
    archive.append(archived(entry(1), entry(2), entry(3)))

    again = Archive(archive.folder)
    again.append(archived(entry(2), entry(3), entry(4)))

    assert [one.revision for one in again.read()] == [1, 2, 3, 4]


def test_entries_of_one_job_and_its_streams_are_found(archive: Archive) -> None:
    archive.append(
        archived(entry(1, machine="u1"), entry(2, machine="u2"), entry(3, machine="u1/clicks"))
    )

    assert [one.revision for one in archive.read(job="u1")] == [1, 3]


def test_a_frame_that_a_crash_cut_short_is_left_out_and_written_anew(archive: Archive) -> None:
    archive.append(archived(entry(1)))
    (path,) = archive.files()
    whole = path.stat().st_size
    archive.append(archived(entry(2)))
    for size in range(whole, path.stat().st_size):
        data = path.read_bytes()[:size]
        path.write_bytes(data)
        cut = Archive(archive.folder)
        assert [one.revision for one in cut.read()] == [1]

        cut.append(archived(entry(2)))
        assert [one.revision for one in cut.read()] == [1, 2]


def test_many_entries_are_cut_into_frames(archive: Archive) -> None:
    entries = [entry(number) for number in range(1, 2 * FRAME_ENTRIES_MAX + 2)]
    archive.append(archived(*entries))

    assert list(archive.read(FRAME_ENTRIES_MAX)) == entries[FRAME_ENTRIES_MAX - 1 :]


def test_other_tools_read_it(archive: Archive) -> None:
    archive.append(archived(entry(1), entry(2)))
    (path,) = archive.files()
    if shutil.which("zstd"):
        data = subprocess.run(
            ["zstd", "-dc", str(path)], capture_output=True, check=True, timeout=20
        ).stdout
    else:
        reader = zstandard.ZstdDecompressor().stream_reader(
            path.read_bytes(), read_across_frames=True
        )
        data = reader.read()

    assert msgspec.msgpack.decode(data, type=list[Entry]) == [entry(1), entry(2)]


def test_old_files_go_and_todays_stays(archive: Archive) -> None:
    archive.append(archived(*(entry(day + 1, day=day) for day in range(10))))
    now_ms = FIRST_MS + 9 * DAY_MS + 5_000

    removed = archive.prune(now_ms=now_ms, keep_ms=3 * DAY_MS, bytes_max=1 << 30)

    assert [path.stem for path in removed] == [f"2026-01-0{day}" for day in range(1, 7)]
    assert [one.revision for one in archive.read()] == [7, 8, 9, 10]

    archive.prune(now_ms=now_ms, keep_ms=30 * DAY_MS, bytes_max=1)
    assert [path.stem for path in archive.files()] == ["2026-01-10"]


def test_a_full_disk_leaves_the_files_as_they_were(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive.append(archived(entry(1)))
    (path,) = archive.files()
    before = path.read_bytes()

    def full(*_arguments: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.posix_fallocate", full)
        with pytest.raises(OSError, match="No space"):
            archive.append(archived(entry(2)))
    assert path.read_bytes() == before

    archive.append(archived(entry(2)))
    assert [one.revision for one in archive.read()] == [1, 2]
