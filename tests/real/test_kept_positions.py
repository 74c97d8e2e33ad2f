"""A8 to A10, M118, M119, M121: positions go from one job to the next, on the real daemon."""

import json
from pathlib import Path
from typing import Any

from tests.datafeed.test_task_store import record, sized, status, task

LINE = "Hello from input-file-text-checkpoint: {file}-{line}"
ROLE = {
    "roleName": "worker",
    "num": 1,
    "vcores": 1,
    "memoryMb": 256,
    "command": "cat",
    "successPercent": 100,
    "failover": {"commonFailoverPolicy": {"restartType": "ON_FAILURE", "maxFailureTimes": 3}},
    "inputPolicy": "STREAMING",
}


def lines_of(*files: int) -> list[str]:
    return [LINE.format(file=file, line=line) for file in files for line in range(8)]


def original_job(folder: Path, name: str, staging: str) -> str:
    source = {"spec": {"pathPattern": f"{folder}/data", "namePattern": "*", "textInput": {}}}
    return json.dumps(
        {
            "name": name,
            "role": [ROLE],
            "inputManager": {
                "fileConfig": {"inputs": [source], "stopPolicy": {"taskSuccessPercent": 100}},
                "workPreserve": {
                    "dumpIntervalSec": 1,
                    "hdfsConfig": {"stagingDir": staging},
                },
                "gracefulShutdown": True,
            },
        }
    )


def printed(head: Any, name: str) -> list[str]:
    """Return what the trainer of a job wrote, without who wrote it."""
    said = head.ctl("logs", name).stdout.splitlines()
    return [
        line.partition("Hello")[1] + line.partition("Hello")[2] for line in said if "Hello" in line
    ]


def run(head: Any, name: str, staging: str = "") -> list[str]:
    head.submit(original_job(head.folder, name, staging or f"{head.folder}/keep"))
    ended = head.ended(name)
    assert ended["phase"] == "Succeeded", (ended, head.told())
    return printed(head, name)


def test_positions_stay_in_the_originals_staging_folder(head: Any) -> None:
    """A8, A9, A10: all lines, then none, then those of two files by an injected savepoint."""
    size = write_data(head.folder)
    head.start()

    first = run(head, "first")
    kept = head.folder / "keep" / "default" / "positions.json"
    head.until("positions are kept", kept.exists)
    of_first = kept.stat().st_mtime_ns
    second = run(head, "second")
    # The newer ones count: those of the second are there before the injected ones come.
    head.until("they are kept again", lambda: kept.stat().st_mtime_ns != of_first)
    for file, content in injected(head.folder, size).items():
        (kept.parent / file).write_bytes(content)
    third = run(head, "third")
    proof = head.document("data", "third", "verify")

    assert first == lines_of(0, 1, 2, 3)
    assert second == []
    assert third == lines_of(2, 3)
    assert (proof["ok"], proof["carried"], proof["done"]) == (True, 2 * size, 4 * size)


def write_data(folder: Path) -> int:
    """Write four files of eight lines; return the size of each."""
    (folder / "data").mkdir()
    texts = ["".join(f"{line}\n" for line in lines_of(file)) for file in range(4)]
    for file, text in enumerate(texts):
        (folder / f"data/data-{file}.txt").write_text(text)
    return len(texts[0])


def injected(folder: Path, size: int) -> dict[str, bytes]:
    """Return the files of a savepoint of form V2: its last record is torn, two tasks are done."""
    tasks = [sized(task(n, f"{folder}/data/data-{n}.txt", 0, size)) for n in range(4)]
    whole = record(0, success=1, running=(2,), count=2)
    torn = record(len(whole), success=3, count=4)[:-8]
    return {
        "tasks.0": b"".join(tasks),
        "tasks.index": (3).to_bytes(8, "big") + (0).to_bytes(4, "big"),
        "running_task_statuses": whole + torn,
        "success_task_statuses": b"".join(sized(status(n, 1)) for n in range(4)),
    }


JOB = """
name: {name}
roles:
  worker: {{command: [sh, -c, "{command}"], data: rows, feed: stdin}}
data:
  rows: {{sources: [{{files: "{folder}/rows/*.txt"}}], split: {{bytes: 1Ki}}, leftover: allow}}
"""


def test_a_job_starts_at_the_savepoint_of_another(head: Any) -> None:
    """M121: by name, and by a file that was exported; a new file is read from its beginning."""
    rows = head.folder / "rows"
    rows.mkdir()
    (rows / "a.txt").write_text("".join(f"Hello a-{n}\n" for n in range(100)))
    head.start()
    head.submit(JOB.format(name="before", command="cat", folder=head.folder))
    head.ended("before")
    head.ctl("data", "before", "savepoint", "create", "mine")
    kept = head.folder / "mine.json"
    head.ctl("data", "before", "savepoint", "export", "mine", "--file", str(kept))
    (rows / "b.txt").write_text("Hello b-0\nHello b-1\n")

    def job(name: str) -> str:
        return JOB.format(name=name, command="cat", folder=head.folder)

    refused = head.ctl(
        "submit", "-", "--restore", "before/nothing", stdin=job("refused"), allowed=(2,)
    )
    head.submit(job("named"), "--restore", "before/mine")
    restore = f"data.rows.restore={{file: {kept}}}"
    head.submit(job("by-file"), "--set", restore)
    for name in ("named", "by-file"):
        assert head.ended(name)["phase"] == "Succeeded"

    assert "has no savepoint nothing; it has mine" in refused.stderr
    assert printed(head, "named") == ["Hello b-0", "Hello b-1"]
    assert printed(head, "by-file") == ["Hello b-0", "Hello b-1"]
