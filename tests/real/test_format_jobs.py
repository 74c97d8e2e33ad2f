"""Jobs over files of every family, to the last row, on a whole primusd."""

import gzip
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.datafeed.format_files import PACK, ipc, jsonl, prefixed, tfrecord
from tests.real.conftest import making

ROWS = 400
TRAINER = """
import os, primus
names = os.environ["STREAMS"].split()
with open(os.environ["OUT"] + "/" + os.environ["PRIMUS_REPLICA"], "a") as out:
    for name in names:
        for batch in primus.dataset(name, batch_rows=32):
            (column,) = batch
            out.write("".join(f"{name} {int(value)}\\n" for value in batch[column]))
"""
PIPED = """
import os, sys
with open(os.environ["OUT"] + "/" + os.environ["PRIMUS_REPLICA"], "ab") as out:
    for line in sys.stdin.buffer:
        out.write(line)
"""
PAIRS = """
class Pairs:
    def __init__(self, parameters):
        self.a = parameters

    def records(self, file, location):
        at = 0
        for line in file:
            key = f"{self.a['key-prefix']}-{at}-{self.a['key-suffix']}"
            value = f"{self.a['val-prefix']}-{line.rstrip().decode()}-{self.a['val-suffix']}"
            yield f"{key}\\t{value}".encode()
            at += len(line)
"""


@pytest.fixture(scope="module")
def shared() -> Iterator[Any]:
    with making() as head:
        head.start()
        yield head


def numbers(first: int) -> list[int]:
    return list(range(first, first + ROWS // 2))


def write_all(folder: Path) -> dict[str, str]:
    """Write two files of each format; return each stream's part of a job file."""
    (folder / "in").mkdir(parents=True)
    (folder / "out").mkdir()
    for part, first in enumerate((0, ROWS // 2)):
        found = numbers(first)
        texts = [b"%d" % number for number in found]
        columns = pa.table({"n": found, "other": ["x"] * len(found)})
        whole = {
            "gz.txt.gz": gzip.compress(b"\n".join(texts)),
            "zst.txt.zst": PACK["zst"](b"\n".join(texts) + b"\n"),
            "json.jsonl": jsonl([{"n": number, "other": "x"} for number in found]),
            "csv.csv": b"n,other\n" + b"".join(b"%d,x\n" % number for number in found),
            "tf.tfrecord": tfrecord(texts),
            "records.bin": prefixed(texts, "u32be"),
            "fixed.dat": b"".join(text.rjust(6) for text in texts),
            "arrow.arrow": ipc(columns.to_batches(max_chunksize=50), is_stream=False),
        }
        for name, data in whole.items():
            (folder / f"in/{part}-{name}").write_bytes(data)
        pq.write_table(columns, folder / f"in/{part}-parquet.parquet", row_group_size=60)

    def stream(pattern: str, rest: str = "") -> str:
        return f'{{sources: [{{files: "{folder}/in/*-{pattern}"}}]{rest}}}'

    return {
        "gz": stream("gz.txt.gz"),
        "zst": stream("zst.txt.zst"),
        "json": stream("json.jsonl", ", columns: [n], split: {bytes: 1000B}"),
        "csv": stream("csv.csv", ", columns: [n], types: {n: int32}, split: {bytes: 500B}"),
        "tf": stream("tf.tfrecord", ", split: {bytes: 999B}"),
        "records": stream("records.bin", ", format: {name: records, prefix: u32be}"),
        "fixed": stream("fixed.dat", ", format: {name: records, size: 6}, split: {bytes: 100B}"),
        "arrow": stream("arrow.arrow", ", columns: [n], split: {rows: 70}"),
        "parquet": stream("parquet.parquet", ", columns: [n], filter: n >= 100"),
    }


def test_every_row_of_every_format_comes_once(shared: Any) -> None:
    """M094."""
    folder = shared.folder / "formats"
    streams = write_all(folder)
    (folder / "trainer.py").write_text(TRAINER)
    data = "\n".join(f"  {name}: {part}" for name, part in streams.items())
    name = shared.submit(f"""
name: formats
roles:
  worker:
    replicas: 2
    command: [{sys.executable}, {folder}/trainer.py]
    env: {{OUT: {folder}/out, STREAMS: {" ".join(streams)}}}
    data: [{", ".join(streams)}]
data:
{data}
""")

    status = shared.ended(name)

    assert status["verdict"]["reason"] == "PartialSuccess", status["verdict"]
    assert "100 rows were left out by the filter" in status["verdict"]["message"]
    lines = [line for path in (folder / "out").iterdir() for line in path.read_text().splitlines()]
    for stream in streams:
        found = [int(line.split()[1]) for line in lines if line.split()[0] == stream]
        first = 100 if stream == "parquet" else 0
        assert sorted(found) == list(range(first, ROWS)), stream
    proofs = shared.document("data", name, "verify")["items"]
    assert [(one["stream"], one["ok"], one["repeatedMax"]) for one in proofs] == [
        (stream, True, 0) for stream in streams
    ]


def test_M092_a_class_of_the_users_feeds_standard_input_in_order(shared: Any) -> None:
    """A6: the original's customised source, four files of four lines, by a Python class."""
    folder = shared.folder / "pairs"
    (folder / "in").mkdir(parents=True)
    (folder / "out").mkdir()
    lines = [f"line {number}".ljust(37) for number in range(4)]
    for part in range(4):
        (folder / f"in/{part}").write_text("\n".join(lines) + ("\n" if part == 0 else ""))
    (folder / "pairs.py").write_text(PAIRS)
    (folder / "trainer.py").write_text(PIPED)
    parameters = "{key-prefix: KP, key-suffix: KS, val-prefix: VP, val-suffix: VS}"
    name = shared.submit(f"""
name: pairs
roles:
  worker:
    replicas: 1
    workdir: {folder}
    command: [{sys.executable}, trainer.py]
    env: {{OUT: {folder}/out}}
    data: rows
    feed: stdin
data:
  rows:
    sources: [{{files: {folder}/in}}]
    format: {{name: class, class: "pairs:Pairs", parameters: {parameters}}}
""")

    status = shared.ended(name)

    assert status["verdict"]["reason"] == "Completed", status["verdict"]
    found = (folder / "out/worker-0").read_text().splitlines()
    assert found == [
        f"KP-{38 * number}-KS\tVP-{line.rstrip()}-VS"
        for _ in range(4)
        for number, line in enumerate(lines)
    ]


def folder_for(head: Any, name: str) -> Path:
    """Return a job's folder, with places for its files and what its trainer writes."""
    folder = Path(head.folder / name)
    (folder / "in").mkdir(parents=True)
    (folder / "out").mkdir()
    return folder


def submit_rows(head: Any, folder: Path, stream: str) -> str:
    """Submit a job with one worker and one stream."""
    (folder / "trainer.py").write_text(TRAINER)
    name: str = head.submit(f"""
name: {folder.name}
roles:
  worker:
    command: [{sys.executable}, {folder}/trainer.py]
    env: {{OUT: {folder}/out, STREAMS: rows}}
    data: rows
data:
  rows: {stream}
""")
    return name


def test_files_with_other_columns_are_left_out_named_and_counted(shared: Any) -> None:
    folder = folder_for(shared, "schemas")
    for part in range(4):
        columns = {"n": [part * 10 + number for number in range(10)]}
        if part == 2:
            columns["new"] = columns["n"]
        pq.write_table(pa.table(columns), folder / f"in/{part}.parquet")
    stream = f'{{sources: [{{files: "{folder}/in/*.parquet"}}], onSchema: skip}}'
    name = submit_rows(shared, folder, stream)

    status = shared.ended(name)

    assert status["phase"] == "Succeeded", status["verdict"]
    assert status["verdict"]["rowsSkipped"] == 10
    found = [int(line.split()[1]) for line in (folder / "out/worker-0").read_text().splitlines()]
    assert sorted(found) == [number for number in range(40) if not 20 <= number < 30]
    (dead,) = shared.document("data", name, "dead")["items"]
    assert (dead["location"], dead["fault"]) == (f"{folder}/in/2.parquet", "schema")
    assert "column new is not in the files before" in dead["text"]


def test_a_file_that_is_not_of_its_format_fails_the_job_and_names_it(
    shared: Any,
) -> None:
    folder = folder_for(shared, "wrong")
    (folder / "in/a.tfrecord").write_bytes(b"<html>not found</html>")
    name = submit_rows(shared, folder, f"{{sources: [{{files: {folder}/in/a.tfrecord}}]}}")

    status = shared.ended(name)

    assert status["verdict"]["reason"] == "DataFailed"
    assert "the CRC of a record's length is wrong" in status["verdict"]["message"]
    (dead,) = shared.document("data", name, "dead")["items"]
    assert (dead["location"], dead["lo"]) == (f"{folder}/in/a.tfrecord", 0)
