"""How row groups of Parquet are read: whole, through buffers, by windows; and what is refused."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from primusd.datafeed.formats.base import ReadError, open_pinned
from primusd.datafeed.formats.budget import Budget
from primusd.datafeed.formats.parquet import ParquetUnit
from primusd.datafeed.formats.parquet_memory import Chunk, buffered_plan, rows_within
from primusd.datafeed.formats.parquet_pages import Page, pages_of
from primusd.datafeed.formats.parquet_window import Windows
from primusd.datafeed.formats.settings import Settings
from primusd.datafeed.storage.remote import RemoteFile
from tests.datafeed.format_files import unit_of
from tests.datafeed.test_remote_files import Far

MIB = 1 << 20
ROWS = 60_000


def odd_table(rows: int = ROWS) -> pa.Table:
    """Columns whose pages are small, large, empty of values, or behind a dictionary."""
    numbers = np.arange(rows)
    return pa.table(
        {
            "even": numbers,
            "few": numbers % 3,
            "some": pa.array([None if n % 5 else n for n in range(rows)], pa.int64()),
            "none": pa.nulls(rows, pa.float32()),
            "flag": numbers % 2 == 0,
            "text": [f"{n}" * (n % 7) for n in range(rows)],
            "word": [f"word {n % 40}" for n in range(rows)],
            "both": pa.array([{"a": n, "b": None if n % 3 else str(n)} for n in range(rows)]),
        }
    )


def opened(path: Path, memory_bytes: int, **settings: Any) -> ParquetUnit:  # any of its fields
    unit = unit_of(path, format="parquet")
    return ParquetUnit(unit, open_pinned(unit), Settings(memory_bytes=memory_bytes, **settings))


def read(unit: ParquetUnit, lo: int = 0, hi: int = ROWS, block_bytes: int = 64 << 10) -> pa.Table:
    blocks = list(unit.rows(lo, hi, block_bytes=block_bytes))
    return pa.Table.from_batches([block.batch for block in blocks])


def way_of(unit: ParquetUnit, block_bytes: int = 64 << 10) -> str:
    return unit._reader.planned(0, block_bytes)[1].way


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("page_rows", [1, 500, 20_000])
def test_windows_give_the_rows_that_are_in_the_file(
    tmp_path: Path, compression: str, version: str, page_rows: int
) -> None:
    rows = 2_000 if page_rows == 1 else ROWS
    table = odd_table(rows)
    path = tmp_path / "a.parquet"
    # Any: its stubs take names of codecs only as literals.
    options: dict[str, Any] = {"compression": compression, "data_page_version": version}
    options |= {"max_rows_per_page": page_rows, "write_batch_size": min(page_rows, 1024)}
    pq.write_table(table, path, **options)
    unit = opened(path, 128 * MIB)
    reader = unit._reader
    chunks = reader.looked_at(0, reader.chunks(0), is_whole=True)
    assert all(chunk.has_rows for chunk in chunks)

    for step in (1_000, 1_001, 20_000, ROWS):
        found = list(reader.windowed(0, chunks, step))
        assert pa.Table.from_batches(found).equals(table)


def test_a_window_has_only_the_pages_of_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"n": np.arange(1_000_000)})
    pq.write_table(table, path, use_dictionary=False, compression="none")
    unit = opened(path, 128 * MIB)
    chunks = unit._reader.looked_at(0, unit._reader.chunks(0), is_whole=True)
    file = open_pinned(unit_of(path, format="parquet"))
    windows = Windows(file, chunks)
    windows.move(0, 10_000)
    view: Any = windows.arrow()  # The stubs lack what pyarrow's own code calls.
    view.seek(chunks[0].offset)
    region = np.frombuffer(view.read_buffer(chunks[0].packed_bytes), np.uint8)

    ends = np.cumsum([page.file_bytes for page in chunks[0].pages])
    for first in range(0, 900_000, 30_000):
        windows.move(first, first + 30_000)

        # From the page of the row before to that of the row after.
        has = [
            bool(region[begin + 4096 : end - 4096].any())
            for begin, end in zip([0, *ends[:-1]], ends, strict=True)
        ]
        number = max(0, first - 1) // 20_000
        assert [place for place, one in enumerate(has) if one] == [
            *range(number, (first + 30_000) // 20_000 + 1)
        ]


def test_small_pages_in_a_large_group_are_read_by_windows(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({f"c{n}": np.arange(400_000) // 50 for n in range(20)})
    pq.write_table(table, path, use_dictionary=False, compression="snappy")
    unit = opened(path, 8 * MIB)

    assert way_of(unit) == "windows"
    assert read(unit, 0, 400_000).equals(table)
    assert read(unit, 123_456, 300_000).equals(table.slice(123_456, 300_000 - 123_456))
    assert way_of(opened(path, 1024 * MIB)) == "whole"


def test_large_pages_and_lists_are_read_through_buffers(tmp_path: Path) -> None:
    numbers = np.arange(1_000_000)
    lists = pa.ListArray.from_arrays(
        pa.array(range(0, 1_000_001, 2), pa.int32()), pa.array(numbers)
    )
    table = pa.table({"n": numbers[::2], "l": lists})
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, use_dictionary=False, compression="none")
    unit = opened(path, 8 * MIB)

    assert way_of(unit) == "buffered"
    assert read(unit, 0, 500_000).equals(table)


def test_what_open_pages_take_is_refused_with_the_memory_that_it_needs(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({f"c{n}": np.arange(40_000) for n in range(200)})
    pq.write_table(table, path, use_dictionary=False, compression="none")

    with pytest.raises(ReadError, match=r"row group 0 has 200 columns, 61 MiB") as caught:
        read(opened(path, 16 * MIB), 0, 40_000)

    assert (caught.value.kind, caught.value.lo, caught.value.hi) == ("data", 0, 40_000)
    found = re.search(r"set memory to (\d+)Mi, or read fewer columns", caught.value.message)
    assert found is not None
    assert read(opened(path, int(found[1]) * MIB), 0, 40_000).equals(table)
    assert read(opened(path, 16 * MIB, columns=("c3", "c7")), 0, 40_000).num_columns == 2


def test_a_dictionary_that_memory_has_no_room_for_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    texts = pa.array([f"{n:0100d}" for n in range(50_000)])
    table = pa.table({"s": pa.DictionaryArray.from_arrays(np.arange(50_000), texts)})
    pq.write_table(table, path, dictionary_pagesize_limit=64 * MIB)

    with pytest.raises(ReadError, match="set memory to"):
        read(opened(path, 8 * MIB), 0, 50_000)
    rows = read(opened(path, 64 * MIB), 0, 50_000)

    assert rows["s"].to_pylist() == texts.to_pylist()


def test_batches_with_a_dictionary_are_not_cut_to_rows_by_its_size(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    texts = pa.array([f"{n:0100d}" for n in range(20_000)])
    places = np.arange(200_000) % 20_000
    table = pa.table({"s": pa.DictionaryArray.from_arrays(places, texts)})
    pq.write_table(table, path, row_group_size=40_000)
    unit = opened(path, 256 * MIB)

    counts = [one.row_count for one in unit.rows(0, 200_000, block_bytes=MIB)]

    assert sum(counts) == 200_000
    assert len(counts) <= 4 * 5


def test_where_texts_are_long_fewer_rows_are_read_at_once() -> None:
    def page(rows: int, byte_count: int) -> Page:
        return Page(byte_count, byte_count, rows, is_dictionary=False)

    pages = (page(20_000, 200_000), *[page(100, MIB)] * 20, page(20_000, 200_000))
    chunk = Chunk(0, 0, 22 * MIB, 22 * MIB, is_packed=False, pages=pages, has_rows=True)

    rows = rows_within([chunk], 20_000, block_bytes=2 * MIB)

    assert 100 <= rows <= 250
    assert rows_within([replace_pages(chunk, pages[:1])], 20_000, block_bytes=2 * MIB) == 20_000


def replace_pages(chunk: Chunk, pages: tuple[Page, ...]) -> Chunk:
    return Chunk(0, 0, MIB, MIB, is_packed=chunk.is_packed, pages=pages, has_rows=True)


def test_a_run_of_small_pages_is_charged_to_its_buffer() -> None:
    small, large = (Page(size, 160_000, 1, is_dictionary=False) for size in (10_000, 100_000))

    def held(*pages: Page) -> int:
        packed = sum(page.file_bytes for page in pages)
        chunk = Chunk(0, 0, packed, 8 * MIB, is_packed=True, pages=pages, has_rows=True)
        return buffered_plan([chunk], memory_bytes=128 * MIB, is_far=False).held_bytes

    assert held(*[small] * 100, large) > held(*[small, large] * 50) + 900_000


def test_heads_of_pages_add_up_to_their_chunk(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(odd_table(), path, compression="gzip", write_page_checksum=True)
    file = open_pinned(unit_of(path, format="parquet"))
    group = pq.ParquetFile(path).metadata.row_group(0)

    for place in range(group.num_columns):
        column = group.column(place)
        offset = column.dictionary_page_offset or column.data_page_offset
        pages = pages_of(file, offset, column.total_compressed_size, most=1_000)
        data = [page for page in pages if not page.is_dictionary]
        assert sum(page.value_count for page in data) == ROWS
        assert sum(page.file_bytes for page in pages) == column.total_compressed_size
        assert len(pages) - len(data) == column.has_dictionary_page
        # Bytes that are no heads end the list, whatever they are.
        for wrong in range(1, 40):
            pages_of(file, offset + wrong, 2_000, most=50)


def test_the_budget_gives_rows_what_is_left() -> None:
    waits: list[int] = []
    budget = Budget(128 * MIB, wait=lambda: waits.append(budget.rows_max))
    before = budget.rows_max

    with budget.holding(60 * MIB):
        within = budget.rows_max
    budget.make_room(200 * MIB)

    assert before == budget.rows_max == 64 * MIB
    assert within == (128 - 60 - 2 * 8 - 12) * MIB
    assert waits == [within, 0]
    assert Budget(128 * MIB, shares=4).ahead_bytes == 8 * MIB


def far_unit(data: bytes, memory_bytes: int) -> tuple[ParquetUnit, Far]:
    far = Far(data)
    unit = far.unit()
    file = RemoteFile(unit, far)
    return ParquetUnit(unit, file, Settings(memory_bytes=memory_bytes, columns=("a",))), far


@pytest.mark.parametrize("memory_bytes", [128 * MIB, 4 * MIB])
def test_the_footer_of_a_file_is_read_once_for_all_of_its_leases(memory_bytes: int) -> None:
    sink = pa.BufferOutputStream()
    numbers = np.arange(2_000_000)
    table = pa.table({"a": numbers, "b": numbers * 7})
    pq.write_table(table, sink, row_group_size=200_000, compression="none", use_dictionary=False)
    data = sink.getvalue().to_pybytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    unit, far = far_unit(data, memory_bytes)

    found = []
    for lo in range(0, 2_000_000, 200_000):
        found += list(unit.rows(lo, lo + 200_000, block_bytes=MIB))

    assert pa.Table.from_batches([one.batch for one in found]).equals(table.select(["a"]))
    assert len([at for at, count in far.reads if at + count > footer]) == 1
    # Nor is any other byte asked for twice.
    assert sum(count for _, count in far.reads) < 0.6 * len(data)
