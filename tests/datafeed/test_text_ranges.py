"""Text: whatever the cuts, each line comes once, whole, to the range that it begins in."""

import itertools
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from primusd.datafeed.formats import base
from primusd.datafeed.formats.base import ReadError, RowBlock, open_unit
from primusd.datafeed.formats.opening import Opener
from primusd.datafeed.formats.settings import Settings
from primusd.datafeed.protocol import Unit


def unit_of(path: Path, **options: str) -> Unit:
    found = path.stat()
    return Unit("file", str(path), found.st_size, str(found.st_mtime_ns), options)


def write(path: Path, data: bytes) -> Unit:
    path.write_bytes(data)
    return unit_of(path, format="text", compression="none")


def lines_of(blocks: list[RowBlock]) -> list[bytes]:
    found: list[Any] = []  # what a column holds is not known to its type
    for block in blocks:
        found += block.batch.column(0).to_pylist()
    return found


def read_rows(unit: Unit, lo: int, hi: int, block_bytes: int = 1 << 20) -> list[RowBlock]:
    return list(open_unit(unit, "", ()).rows(lo, hi, block_bytes=block_bytes))


def read_bytes(unit: Unit, lo: int, hi: int, framing: str = "lines") -> bytes:
    out = b""
    for piece in open_unit(unit, "", ()).pieces(lo, hi, framing=framing):
        if piece.file is not None:
            out += os.pread(piece.file.fd, piece.span_bytes, piece.offset)
        out += piece.data
    return out


def expected(data: bytes) -> list[bytes]:
    lines = data.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    ended = len(lines) if data.endswith(b"\n") else len(lines) - 1
    return [
        line.removesuffix(b"\r") if number < ended else line for number, line in enumerate(lines)
    ]


SAMPLES = {
    "unix": b"one\ntwo\n\nfour\n",
    "windows": b"one\r\ntwo\r\n\r\nfour\r\n",
    "no end": b"one\ntwo",
    "one line": b"only",
    "only ends": b"\n\n\n",
    "bad bytes and split emoji": "a😀b\n".encode() + b"\xff\x00\xfe\n" + "日本\n".encode()[:4],
}


@pytest.mark.parametrize("data", SAMPLES.values(), ids=SAMPLES.keys())
def test_every_split_point_gives_each_line_once(tmp_path: Path, data: bytes) -> None:
    """M084, C75: bytes are bytes; a bad one neither ends a stream nor moves a boundary."""
    unit = write(tmp_path / "a.txt", data)

    for cut in range(len(data) + 1):
        blocks = read_rows(unit, 0, cut) + read_rows(unit, cut, len(data))
        whole = read_bytes(unit, 0, cut) + read_bytes(unit, cut, len(data))

        assert lines_of(blocks) == expected(data)
        assert whole == data + (b"" if data.endswith(b"\n") else b"\n")


@given(
    data=st.lists(
        st.sampled_from([b"\n", b"\r\n", b"\r", b"x", b"\xff", b"\x00", "é".encode(), b"long" * 9])
    ).map(b"".join),
    cuts=st.lists(st.floats(0, 1), max_size=5),
    block_bytes=st.integers(1, 40),
)
def test_any_cuts_and_any_block_size_read_the_file_exactly_once(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, cuts: list[float], block_bytes: int
) -> None:
    """M084."""
    unit = write(tmp_path_factory.mktemp("any") / "a.txt", data)
    bounds = sorted({0, len(data), *(int(cut * len(data)) for cut in cuts)})

    blocks: list[RowBlock] = []
    for lo, hi in itertools.pairwise(bounds):
        found = read_rows(unit, lo, hi, block_bytes)
        assert found[0].lo == lo
        assert found[-1].hi == hi
        assert all(a.hi == b.lo for a, b in itertools.pairwise(found))
        blocks += found

    assert lines_of(blocks) == (expected(data) if data else [])
    assert (
        b"".join(read_bytes(unit, lo, hi, "raw") for lo, hi in itertools.pairwise(bounds)) == data
    )


@given(
    lines=st.lists(st.binary(max_size=9).filter(lambda line: b"\n" not in line), min_size=1),
    take=st.integers(0, 60),
)
def test_a_reader_that_goes_on_from_a_position_gets_the_rest_and_no_more(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], take: int
) -> None:
    unit = write(tmp_path_factory.mktemp("on") / "a.txt", b"".join(x + b"\n" for x in lines))
    (block,) = read_rows(unit, 0, unit.byte_count)
    taken = min(take, block.row_count)

    rest = read_rows(unit, block.position_after(taken), unit.byte_count)

    wanted = [line.removesuffix(b"\r") for line in lines[taken:]]
    assert lines_of(rest) == wanted


@given(
    lines=st.lists(st.sampled_from([b"", b"a", b"bb" * 7]), min_size=1, max_size=12),
    limit=st.integers(0, 200),
)
def test_a_block_cut_short_leaves_exactly_the_lines_that_begin_at_or_above_the_limit(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], limit: int
) -> None:
    unit = write(tmp_path_factory.mktemp("cut") / "a.txt", b"".join(x + b"\n" for x in lines))
    (block,) = read_rows(unit, 0, unit.byte_count)
    limit = min(limit, unit.byte_count)

    kept = block.up_to(limit)
    rest = read_rows(unit, limit, unit.byte_count)

    assert lines_of([kept, *rest]) == lines
    assert kept.hi == limit


@given(
    lines=st.lists(st.binary(max_size=9).filter(lambda line: b"\n" not in line), min_size=1),
    lost=st.integers(0, 90),
)
def test_a_place_in_a_pipe_is_rounded_down_to_the_line_it_cuts(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], lost: int
) -> None:
    data = b"\n".join(lines) or b"x"
    unit = write(tmp_path_factory.mktemp("pipe") / "a.txt", data)
    pieces = list(open_unit(unit, "", ()).pieces(0, len(data), framing="lines"))
    assert len(pieces) == 1
    went = min(lost, pieces[0].byte_count)

    position = pieces[0].locate(went)

    sent = (data + (b"" if data.endswith(b"\n") else b"\n"))[:went]
    assert position == min(len(data), sent.rfind(b"\n") + 1)


def test_a_line_longer_than_a_block_comes_whole(tmp_path: Path) -> None:
    data = b"a\n" + b"x" * 5_000 + b"\nb\n"
    unit = write(tmp_path / "a.txt", data)

    assert lines_of(read_rows(unit, 0, len(data), 100)) == [b"a", b"x" * 5_000, b"b"]
    assert lines_of(read_rows(unit, 10, 4_000, 100)) == []
    assert read_rows(unit, 10, 4_000, 100)[-1].hi == 4_000


def test_a_line_longer_than_a_pipe_block_is_one_piece(tmp_path: Path) -> None:
    line = b"x" * (3 << 20) + b"\n"
    unit = write(tmp_path / "a.txt", b"a\n" + line + b"b\n")

    pieces = list(open_unit(unit, "", ()).pieces(0, unit.byte_count, framing="lines"))

    assert [piece.span_bytes for piece in pieces] == [2, len(line), 2]


def test_a_line_longer_than_memory_allows_is_refused_by_the_range_it_begins_in(
    tmp_path: Path,
) -> None:
    """M098."""
    data = b"one\n\x7fELF" + b"x" * 500_000 + b"\nend\n"
    unit = write(tmp_path / "a.txt", data)
    small = Settings(memory_bytes=400_000)
    found: list[RowBlock] = []

    def read(lo: int, hi: int) -> None:
        found.extend(Opener(small).open(unit).rows(lo, hi, block_bytes=1 << 20))

    with pytest.raises(ReadError, match="no record ends within 100000 bytes, a quarter") as caught:
        read(0, 200_000)
    read(200_000, len(data))

    assert lines_of(found) == [b"one", b"end"]
    assert (caught.value.kind, caught.value.lo, caught.value.hi) == ("data", 4, len(data) - 4)
    assert caught.value.head.startswith(b"\x7fELF")


def test_raw_framing_adds_nothing(tmp_path: Path) -> None:
    unit = write(tmp_path / "a.txt", b"one\ntwo")

    assert read_bytes(unit, 0, 7, "raw") == b"one\ntwo"
    assert read_bytes(unit, 0, 7, "lines") == b"one\ntwo\n"


def test_a_file_that_changed_since_its_listing_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    unit = write(path, b"one\n")
    path.write_bytes(b"one\ntwo\n")

    with pytest.raises(ReadError, match="has 8 bytes and had 4") as caught:
        open_unit(unit, "", ())

    assert caught.value.kind == "changed"
    assert caught.value.head == b"one\ntwo\n"


def test_a_file_that_changes_while_it_is_read_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    unit = write(path, b"one\ntwo\n")
    opened = open_unit(unit, "", ())
    os.utime(path, ns=(1, 1))

    with pytest.raises(ReadError, match="was written again") as caught:
        next(opened.rows(0, 8, block_bytes=10))

    assert caught.value.kind == "changed"


def test_a_file_that_is_gone_is_told_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    unit = write(path, b"one\n")
    path.unlink()

    with pytest.raises(ReadError, match=r"a\.txt is gone since it was listed") as caught:
        open_unit(unit, "", ())

    assert caught.value.kind == "vanished"


def test_an_input_error_is_transient_and_a_refusal_is_not() -> None:
    unit = Unit("file", "/data/a.txt", 1, "")

    assert base.read_error(unit, OSError(5, "Input/output error")).kind == "transient"
    assert base.read_error(unit, OSError(13, "Permission denied")).kind == "data"
