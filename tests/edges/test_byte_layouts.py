"""Rows as bytes over the socket: layouts `lines` and `raw` of every kind of format (M104)."""

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import primus
from bench.grantor import Grantor
from primusd.datafeed.formats.base import RowBlock
from primusd.datafeed.formats.encoding import framed_rows, pieces_of
from tests.edges.fed_trainer import fed, units_of

COLLECT = """
    import json, sys
    import primus

    rows, joined, full = [], b"", []
    for batch in primus.dataset(batch_rows=7, layout=sys.argv[1]):
        assert len(batch) == batch.rows == len(list(batch))
        assert batch[-1] == list(batch)[-1] and batch[1:3] == list(batch)[1:3]
        rows += [row.decode("latin-1") for row in batch]
        joined += batch.data
        full.append((batch.epoch, batch.rows, batch.receipt))
    print(json.dumps([rows, joined.decode("latin-1"), full]))
"""


def told(grantor: Grantor, layout: str) -> tuple[list[bytes], bytes, list[list[int]]]:
    """Return the rows, all batches joined, and the epoch, rows and receipt of each."""

    async def main() -> str:
        async with fed(grantor) as one:
            return await one.finish(one.start_script(COLLECT, layout))

    rows, joined, full = json.loads(anyio.run(main))
    return [row.encode("latin-1") for row in rows], joined.encode("latin-1"), full


def test_lines_of_text_come_as_they_stand_in_full_batches_and_all_epochs(tmp_path: Path) -> None:
    lines = [b"row %d \xff" % number for number in range(40)] + [b""]
    (tmp_path / "a.txt").write_bytes(b"\n".join(lines[:20]) + b"\n")
    (tmp_path / "b.txt").write_bytes(b"\r\n".join(lines[20:]) + b"\r\n")
    grantor = Grantor("rows", units_of(tmp_path), granule=100, epochs=2)

    rows, joined, full = told(grantor, "lines")

    assert sorted(rows) == sorted(lines * 2)
    assert joined == b"".join(row + b"\n" for row in rows)
    assert [count for epoch, count, _ in full if epoch == 0] == [7, 7, 7, 7, 7, 6]
    assert full[-1][2] == 2 * len(lines)
    assert grantor.is_done


def test_rows_with_columns_come_as_json_objects(tmp_path: Path) -> None:
    table = pa.table({"n": range(30), "word": [f"naïve\n{number}" for number in range(30)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=8)

    rows, joined, _ = told(Grantor("rows", units_of(tmp_path)), "lines")

    assert [json.loads(row) for row in rows] == table.to_pylist()
    assert joined == b"".join(row + b"\n" for row in rows)


def test_chunks_of_a_raw_file_give_back_its_bytes(tmp_path: Path) -> None:
    data = bytes(range(256)) * 1000 + b"end"
    (tmp_path / "a.bin").write_bytes(data)
    (tmp_path / "b.bin.gz").write_bytes(gzip.compress(data[::-1]))

    rows, joined, _ = told(Grantor("rows", units_of(tmp_path, format_name="raw")), "raw")

    assert joined == b"".join(rows) == data + data[::-1]


def test_a_raw_file_comes_as_a_column_of_chunks(tmp_path: Path) -> None:
    """Layout numpy, of the whole pair."""
    data = bytes(range(256)) * 1000 + b"end"
    (tmp_path / "a.bin").write_bytes(data)
    script = """
        import hashlib, primus
        sum = hashlib.sha256()
        for batch in primus.dataset(batch_rows=3):
            assert list(batch) == ["chunk"]
            for chunk in batch["chunk"]:
                sum.update(chunk)
        print(sum.hexdigest())
    """

    async def main() -> str:
        async with fed(Grantor("rows", units_of(tmp_path, format_name="raw"))) as one:
            return await one.finish(one.start_script(script))

    assert anyio.run(main).strip() == hashlib.sha256(data).hexdigest()


def test_columns_are_refused_as_raw_with_what_to_take(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [1], "m": [2]}), tmp_path / "a.parquet")
    script = """
        import primus
        try:
            next(primus.dataset(layout="raw"))
        except primus.FeedError as error:
            print(error)
    """

    async def main() -> str:
        async with fed(Grantor("rows", units_of(tmp_path))) as one:
            return await one.finish(one.start_script(script))

    assert "(n, m) are no bytes to be had as raw; lines gives one JSON" in anyio.run(main)


@pytest.mark.parametrize("layout", ["lines", "raw"])
def test_files_read_without_a_job_give_the_same(tmp_path: Path, layout: Any) -> None:
    lines = [b"row %d" % number for number in range(20)]
    (tmp_path / "a.txt").write_bytes(b"\n".join(lines))

    feed = primus.dataset(tmp_path / "a.txt", batch_rows=6, layout=layout, epochs=2)
    batches: list[Any] = list(feed)

    assert [row for batch in batches for row in batch] == lines * 2
    gap = b"\n" if layout == "lines" else b""
    assert b"".join(batch.data for batch in batches) == b"".join(one + gap for one in lines * 2)


@pytest.mark.parametrize("framing", ["lines", "lines0", "len32", "raw"])
@pytest.mark.parametrize("name", ["line", "n"])
def test_a_pipe_and_a_batch_have_the_same_bytes(framing: str, name: str) -> None:
    if framing == "raw" and name == "n":
        pytest.skip("columns are no bytes")
    values = [b"a", b"", b"long one", None]
    batch = pa.RecordBatch.from_pydict({name: pa.array(values, pa.binary())})

    data, ends = framed_rows(batch, framing)

    piped = b"".join(one.data for one in pieces_of([RowBlock(batch, 0, 4)], framing))
    assert data == piped
    assert ends[-1] == len(data)
    assert len(ends) == 4
