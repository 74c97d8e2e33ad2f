"""Rows by their ids, as trainers wrote them down: cases by number, on a whole primusd."""

import os
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.real.conftest import FINAL, making, with_kill

TRAINER = """
import os, primus, time
with open(os.environ["OUT"] + "/" + os.environ["PRIMUS_REPLICA"], "a", buffering=1) as out:
    for batch in primus.dataset(batch_rows=int(os.environ["ROWS"])):
        out.write("".join(f"{number}\\n" for number in batch["id"]))
        time.sleep(float(os.environ["PAUSE"]))
"""


@pytest.fixture(scope="module")
def shared() -> Iterator[Any]:
    """One head for the jobs that leave the daemon alone."""
    with making() as head:
        head.start()
        yield head


def rows_for(head: Any, name: str, *, files: int, rows: int, group_rows: int = 50) -> Path:
    """Write a job's numbered rows and return its folder."""
    folder = Path(head.folder / name)
    (folder / "in").mkdir(parents=True)
    for file in range(files):
        table = pa.table({"id": list(range(file * rows, (file + 1) * rows))})
        pq.write_table(table, folder / f"in/{file:02}.parquet", row_group_size=group_rows)
    return folder


def submit(
    head: Any,
    folder: Path,
    data: str = "",
    *,
    workers: int = 2,
    rows: int = 64,
    pause: float = 0,
    rest: str = "",
) -> str:
    """Submit a job whose trainers write down each id that they get."""
    (folder / "out").mkdir()
    (folder / "trainer.py").write_text(TRAINER)
    name: str = head.submit(f"""
apiVersion: primus/v1
name: {folder.name}
{rest}
roles:
  worker:
    replicas: {workers}
    command: [{sys.executable}, {folder}/trainer.py]
    env: {{OUT: "{folder}/out", ROWS: "{rows}", PAUSE: "{pause}"}}
    data: rows
    restart: {{delay: 50ms, delayMax: 100ms}}
    stop: {{grace: 1s}}
data:
  rows: {{sources: [{{files: "{folder}/in/*.parquet"}}]{data}}}
""")
    return name


def ids(folder: Path) -> list[int]:
    """Return every id that a trainer wrote down, but for a line that is not yet whole."""
    texts = [path.read_text() for path in (folder / "out").iterdir()]
    return [int(line) for text in texts for line in text.splitlines(keepends=True) if "\n" in line]


def proof(head: Any, name: str) -> dict[str, Any]:
    """Return the ledger's proof, which must hold."""
    found: dict[str, Any] = head.document("data", name, "verify")
    assert found["ok"], found
    return found


def test_C54_a_thousand_rows_in_batches_of_64_for_3_workers_add_up(shared: Any) -> None:
    folder = rows_for(shared, "c54", files=4, rows=250)
    name = submit(shared, folder, ", split: {rows: 100}", workers=3)

    status = shared.ended(name)

    assert (status["phase"], status["verdict"]["reason"]) == ("Succeeded", "Completed")
    assert sorted(ids(folder)) == list(range(1000))
    found = proof(shared, name)
    assert (found["listed"], found["done"], found["repeatedMax"]) == (1000, 1000, 0)
    assert (status["verdict"]["rowsRead"], status["verdict"]["rowsSkipped"]) == (1000, 0)


def spoil(path: Path) -> None:
    """Write over the pages of the first row group, and leave size and time as they were."""
    before = path.stat()
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(0)
    first = chunk.dictionary_page_offset or chunk.data_page_offset
    with path.open("r+b") as file:
        file.seek(first)
        file.write(b"\xff" * chunk.total_compressed_size)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_C48_a_bad_row_group_fails_the_job_and_names_its_rows(shared: Any) -> None:
    folder = rows_for(shared, "c48-fail", files=3, rows=100)
    spoil(folder / "in/01.parquet")
    name = submit(shared, folder)

    status = shared.ended(name)

    assert (status["phase"], status["verdict"]["reason"]) == ("Failed", "DataFailed")
    assert "01.parquet rows 0-50" in status["verdict"]["message"]
    assert not set(range(100, 150)) & set(ids(folder))
    assert status["verdict"]["rowsSkipped"] == 50
    # 1 when the end came before the other rows were done.
    proof = shared.ctl("data", name, "verify", allowed=(0, 1)).stdout
    assert "50 left out" in proof


def test_C48_dead_letters_are_listed_and_counted_in_the_verdict(shared: Any) -> None:
    folder = rows_for(shared, "c48-dead", files=3, rows=100)
    spoil(folder / "in/01.parquet")
    name = submit(shared, folder, ", onBad: deadLetter")

    status = shared.ended(name)

    assert (status["phase"], status["verdict"]["reason"]) == ("Succeeded", "PartialSuccess")
    assert "50 rows of stream rows were left out" in status["verdict"]["message"]
    assert (status["verdict"]["rowsRead"], status["verdict"]["rowsSkipped"]) == (250, 50)
    assert sorted(ids(folder)) == [n for n in range(300) if n not in range(100, 150)]
    (dead,) = shared.document("data", name, "dead")["items"]
    assert (dead["location"], dead["lo"], dead["hi"]) == (f"{folder}/in/01.parquet", 0, 50)
    found = proof(shared, name)
    assert (found["done"], found["dead"], found["listed"]) == (250, 50, 300)


@pytest.mark.parametrize("what", ["vanish", "change"])
def test_C54_files_that_go_or_change_midway_are_counted_row_by_row(shared: Any, what: str) -> None:
    # More files than a reader asks for ahead: some are still closed when they go.
    files, rows = 40, 200 * 40
    folder = rows_for(shared, f"c54-{what}", files=files, rows=200)
    name = submit(shared, folder, ", onBad: deadLetter", rows=16, pause=0.05)
    shared.until("some are read", lambda: len(ids(folder)) > 50)

    if what == "vanish":
        shutil.rmtree(folder / "in")
    else:
        for path in (folder / "in").iterdir():
            path.write_bytes(b"\xff" * 5_000)

    status = shared.ended(name)
    found = proof(shared, name)
    seen = ids(folder)
    assert status["verdict"]["reason"] == "PartialSuccess", status
    assert len(seen) == len(set(seen)) == found["done"] < rows
    assert set(seen) <= set(range(rows))
    dead = shared.document("data", name, "dead")["items"]
    assert {one["fault"] for one in dead} == {"vanished" if what == "vanish" else "changed"}
    known = sum(one["hi"] - one["lo"] for one in dead if "hi" in one)
    unopened = [one for one in dead if "hi" not in one]
    assert found["dead"] == known + len(unopened)
    assert found["done"] + known + 200 * len(unopened) == rows
    if unopened:
        assert f"{len(unopened)} file" in status["verdict"]["message"]
        assert "without knowing where they end" in found["text"]


def test_one_row_no_rows_and_three_readers(shared: Any) -> None:
    folder = rows_for(shared, "one-row", files=1, rows=1)
    pq.write_table(pa.table({"id": pa.array([], pa.int64())}), folder / "in/empty.parquet")
    name = submit(shared, folder, workers=3)

    assert shared.ended(name)["phase"] == "Succeeded"
    assert ids(folder) == [0]
    assert proof(shared, name)["listed"] == 1


def test_epochs_of_text_give_every_line_once_each_to_two_roles_that_share_it(
    shared: Any,
) -> None:
    folder = Path(shared.folder / "epochs")
    (folder / "in").mkdir(parents=True)
    (folder / "in/a.txt").write_text("".join(f"line {number}\n" for number in range(100)))
    (folder / "in/b.txt").write_text("the last one has no end")
    shared.submit(f"""
apiVersion: primus/v1
name: epochs
roles:
  left: {{replicas: 2, command: "cat > {folder}/left$PRIMUS_INDEX", data: text, feed: stdin}}
  right: {{command: "cat > {folder}/right0", data: text, feed: stdin}}
  all: {{command: "cat > {folder}/all0", data: {{text: all}}, feed: stdin}}
data:
  text: {{sources: [{{files: "{folder}/in/*.txt"}}], epochs: 3, split: {{bytes: 64B}}}}
""")

    assert shared.ended("epochs")["phase"] == "Succeeded"
    shared_lines = [
        line for side in ("left0", "left1", "right0") for line in lines_of(folder / side)
    ]
    assert set(Counter(shared_lines).values()) == {3}
    assert len(set(shared_lines)) == 101
    assert set(Counter(lines_of(folder / "all0")).values()) == {3}
    assert len(lines_of(folder / "all0")) == 303
    shared.ctl("data", "epochs", "verify")


def lines_of(path: Path) -> list[str]:
    """Return the lines of a file."""
    return path.read_text().splitlines()


def test_a_stream_that_nobody_reads_is_told_at_submit_and_has_no_vote(shared: Any) -> None:
    folder = rows_for(shared, "unread", files=1, rows=10)
    done = shared.ctl(
        "submit",
        "-",
        stdin=f"""
apiVersion: primus/v1
name: unread
roles:
  worker: {{command: "true"}}
data:
  rows: {{sources: [{{files: "{folder}/in/*.parquet"}}]}}
""",
    )

    assert "no role reads it" in done.stderr
    assert shared.ended("unread")["phase"] == "Succeeded"
    assert shared.ctl("data", "unread", "verify", allowed=(1,)).returncode == 1


def test_C53_trainers_killed_at_random_read_every_row(shared: Any) -> None:
    folder = rows_for(shared, "c53", files=4, rows=500, group_rows=100)
    name = submit(
        shared,
        folder,
        ", split: {rows: 64}",
        workers=4,
        rows=16,
        pause=0.1,
        rest="budgets: {application: 1000, infrastructure: 1000}",
    )
    chance = random.Random(7)
    end = time.monotonic() + 5
    while time.monotonic() < end and shared.phase(name) not in FINAL:
        victims = shared.trainers(f"worker-{chance.randrange(4)}", name)
        if victims:
            with_kill(chance.choice(victims))

    status = shared.ended(name)

    seen = ids(folder)
    assert status["phase"] == "Succeeded", status
    assert set(seen) == set(range(2000))
    found = proof(shared, name)
    assert found["done"] == found["listed"] == 2000
    assert len(seen) - 2000 <= found["repeatedMax"]
    assert sum(shared.attempts(name).values()) > 4


def test_a_program_without_the_sdk_reads_two_streams_through_fifos(shared: Any) -> None:
    for stream in ("clicks", "views"):
        lines = "".join(f"{stream} {number}\n" for number in range(500))
        (shared.folder / f"{stream}.txt").write_text(lines)
    shared.submit(
        f"""
apiVersion: primus/v1
name: fifos
data:
  clicks: {{sources: [{{files: {shared.folder}/clicks.txt}}]}}
  views: {{sources: [{{files: {shared.folder}/views.txt}}], epochs: 2}}
roles:
  worker:
    feed: fifo
    data: [clicks, views]
    command: 'cd "${{PRIMUS_FEED#fifo:}}"; wc -l < views; tail -n 1 clicks'
"""
    )

    assert shared.ended("fifos")["phase"] == "Succeeded"
    said = [line.split(maxsplit=1)[1] for line in shared.ctl("logs", "fifos").stdout.splitlines()]
    assert said == ["1000", "clicks 499"]
    shared.ctl("data", "fifos", "verify")
