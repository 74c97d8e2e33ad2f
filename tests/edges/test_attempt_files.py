"""What an attempt leaves on disk: exit records, locks, logs with their index."""

import errno
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from primusd.datafeed.protocol import Held
from primusd.executor.directory import (
    EXIT_RECORD_BYTES,
    Holder,
    allocate_exit_record,
    attempt_path,
    find_attempts,
    is_lock_held,
    read_exit_record,
    read_holder,
    take_lock,
    write_exit_record,
)
from primusd.executor.logs import LogWriter, Patterns, Tail, read_index, read_log
from primusd.executor.protocol import Exit
from primusd.job.ids import AttemptId

EXIT = Exit(3, None, None, "", 1, 4096, 10, 20, "hung", (0, 2), "last\n", ())
HOLDER = Holder(1, 2, "boot")


def held(number: int) -> Held:
    return Held("clicks", 0, number, 0, number, 1 << 40, 1 << 41)


def test_an_exit_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "exit.json"
    allocate_exit_record(path)
    assert read_exit_record(path) is None

    write_exit_record(path, EXIT)

    assert read_exit_record(path) == EXIT
    assert path.stat().st_size == EXIT_RECORD_BYTES


def test_allocating_again_keeps_what_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "exit.json"
    write_exit_record(path, EXIT)

    allocate_exit_record(path)

    assert read_exit_record(path) == EXIT


@given(length=st.integers(0, 200))
def test_a_torn_exit_record_is_none(tmp_path_factory: pytest.TempPathFactory, length: int) -> None:
    path = tmp_path_factory.mktemp("torn") / "exit.json"
    write_exit_record(path, EXIT)
    whole = path.read_bytes()
    body_end = whole.rindex(b"]")

    path.write_bytes(whole[: min(length, body_end)] + bytes(EXIT_RECORD_BYTES))

    assert read_exit_record(path) is None


def test_a_record_that_finds_no_more_room_loses_lines_before_positions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int, _offset: int, _length: int) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    path = tmp_path / "exit.json"
    allocate_exit_record(path)
    monkeypatch.setattr("primusd.executor.directory.os.posix_fallocate", full)
    few = tuple(held(number) for number in range(40))
    many = tuple(held(number) for number in range(400))

    write_exit_record(path, replace(EXIT, last_lines="\x01" * 4096, positions=few))
    kept = read_exit_record(path)
    write_exit_record(path, replace(EXIT, positions=many))
    cut = read_exit_record(path)

    assert kept is not None
    assert kept.positions == few
    assert len(kept.last_lines) < 4096
    assert cut is not None
    assert (cut.code, cut.last_lines) == (3, "")
    assert 0 < len(cut.positions) < 400
    assert path.stat().st_size == EXIT_RECORD_BYTES


def test_a_record_takes_more_room_where_there_is_some(tmp_path: Path) -> None:
    path = tmp_path / "exit.json"
    allocate_exit_record(path)
    long = replace(EXIT, positions=tuple(held(number) for number in range(400)))

    write_exit_record(path, long)

    assert read_exit_record(path) == long


def test_a_lock_lives_as_long_as_its_process(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not is_lock_held(path)

    descriptor = take_lock(path, HOLDER)
    assert descriptor is not None
    assert is_lock_held(path)
    assert take_lock(path, HOLDER) is None
    assert read_holder(path) == HOLDER
    # What is executed does not inherit it.
    child = subprocess.Popen(["sleep", "600"], close_fds=False)
    os.close(descriptor)

    assert not is_lock_held(path)
    child.kill()
    child.wait()


def test_attempts_are_found_until_they_are_released(tmp_path: Path) -> None:
    attempts = (AttemptId("a", "data-loader", 3, 2), AttemptId("b", "ps", 0, 11))
    for attempt in attempts:
        path = attempt_path(tmp_path, attempt)
        path.mkdir(parents=True)
        (path / "place.json").write_text("{}")
    (tmp_path / "jobs" / "a" / "data-loader-3" / "a9").mkdir()

    assert tuple(attempt for attempt, _ in find_attempts(tmp_path)) == attempts


# Logs.


def writer(folder: Path, *, file_bytes_max: int = 1 << 20, files_max: int = 3) -> LogWriter:
    return LogWriter(folder, "stdout", file_bytes_max=file_bytes_max, files_max=files_max)


@given(
    parts=st.lists(st.binary(min_size=1, max_size=50), max_size=30),
    file_bytes_max=st.integers(1, 100),
    offset=st.integers(-100, 500),
    byte_count=st.integers(0, 300),
)
def test_a_stream_is_one_sequence_of_bytes_over_all_its_files(
    tmp_path_factory: pytest.TempPathFactory,
    parts: list[bytes],
    file_bytes_max: int,
    offset: int,
    byte_count: int,
) -> None:
    folder = tmp_path_factory.mktemp("log")
    log = writer(folder, file_bytes_max=file_bytes_max, files_max=3)
    for at_ms, part in enumerate(parts):
        log.write(part, at_ms * 100)
    log.close(0)
    whole = b"".join(parts)

    piece = read_log(folder, "stdout", offset, byte_count)

    assert piece.size == len(whole)
    assert len(list(folder.glob("stdout*.log"))) <= 3
    assert piece.data == whole[piece.offset : piece.offset + len(piece.data)]
    first = max(0, len(whole) + offset) if offset < 0 else min(offset, len(whole))
    assert piece.offset >= first
    kept = sum(path.stat().st_size for path in folder.glob("stdout*.log"))
    if first >= len(whole) - kept:
        assert piece.offset == first
        assert piece.data == whole[first : first + byte_count]


def test_the_index_says_when_what_came(tmp_path: Path) -> None:
    log = writer(tmp_path)
    for at_ms, data in ((1_000, b"one\n"), (1_004, b"two\n"), (1_500, b"three\n")):
        log.write(data, at_ms)
    log.close(2_000)

    found = [(entry.offset, entry.at_ms, entry.lost) for entry in read_index(tmp_path, "stdout")]

    assert found == [(0, 1_000, 0), (8, 1_500, 0)]


def test_output_that_finds_no_room_is_counted_and_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = writer(tmp_path)
    log.write(b"before\n", 1_000)
    real_write = os.write

    def full(_descriptor: int, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr("primusd.executor.logs.os.write", full)
    log.write(b"lost 1\n", 2_000)
    log.write(b"lost 2\n", 2_001)
    monkeypatch.setattr("primusd.executor.logs.os.write", real_write)
    log.write(b"after\n", 3_000)
    log.close(3_000)

    text = (tmp_path / "stdout.log").read_text()
    assert text == (
        "before\n\n[primusd: 14 bytes of output were lost: no room on the disk]\nafter\n"
    )
    marks = [(entry.offset, entry.lost) for entry in read_index(tmp_path, "stdout") if entry.lost]
    assert marks == [(7, 14)]


def test_what_comes_after_the_end_is_dropped(tmp_path: Path) -> None:
    log = writer(tmp_path)
    log.write(b"all\n", 1)
    log.close(1)

    log.write(b"late\n", 2)
    log.close(2)

    assert read_log(tmp_path, "stdout", 0, 100).data == b"all\n"


@given(st.lists(st.binary(max_size=3000), max_size=8))
def test_the_last_lines_are_at_most_4_kib_of_text(parts: list[bytes]) -> None:
    tail = Tail()
    for part in parts:
        tail.add(part)

    text = tail.text()

    assert len(text.encode()) <= 4096
    assert text.endswith(b"".join(parts).decode(errors="replace")[-200:])


@given(cuts=st.lists(st.integers(1, 40), max_size=8))
def test_a_pattern_is_found_however_the_line_is_cut(cuts: list[int]) -> None:
    text = "all is well\nNCCL error: unhandled cuda 漢字\ntail".encode()
    patterns = Patterns(("NCCL error.*漢字$", "never"))

    while cuts and text:
        length = cuts.pop()
        patterns.search("stdout", text[:length])
        text = text[length:]
    patterns.search("stdout", text + b"\n")

    assert patterns.matched == (0,)
