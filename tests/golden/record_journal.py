"""Record a journal of a real daemon for tests/golden/journals: once per schema, then never again.

Usage: python tests/golden/record_journal.py schema-1
"""

import shutil
import sqlite3
import sys

import anyio

from primusd.recovery import recover
from primusd.state.embedded import EmbeddedJournal
from tests.golden.test_journals import JOURNALS, summary
from tests.real.conftest import Head, making

JOBS = (
    "name: hello\nroles: {chief: {command: echo chief}, worker: {command: echo, replicas: 2}}\n",
    "name: again\nroles: {worker: {command: 'test $PRIMUS_ATTEMPT = 2', restart: {delay: 1ms}}}\n",
    "name: never\nbudgets: {application: 0}\nroles: {worker: {command: exit 3}}\n",
    "name: rows\nroles: {worker: {command: [cat], data: lines, feed: stdin, replicas: 2}}\n"
    "data: {lines: {sources: [{files: ROWS}], format: text, split: {bytes: 512B}, epochs: 2}}\n",
    # Since 2026-11-30: what came to be recorded after the first journal was kept.
    "name: shuffled\nroles: {worker: {command: [cat], data: lines, feed: stdin, replicas: 2}}\n"
    "data: {lines: {sources: [{files: ROWS}], format: text, split: {bytes: 512B},"
    " shuffle: {seed: 7}}}\n",
    "name: filtered\nroles: {worker: {command: [cat], data: lines, feed: stdin}}\n"
    "data: {lines: {sources: [{files: ROWS}], format: text, filter: line contains 7}}\n",
)
SLEEPER = (
    "name: sleeper\nroles: {worker: {command: sleep 1000, replicas: {min: 1, max: 2},"
    " stop: {grace: 1s}}}\n"
)


def run_jobs(head: Head) -> None:
    """Run every job to its end on one daemon, killed once on the way."""
    rows = head.folder / "rows.txt"
    rows.write_text("".join(f"row {number}\n" for number in range(500)))
    head.start()
    for text in JOBS:
        head.ended(head.submit(text.replace("ROWS", str(rows))))
    _ask_for_all(head)
    head.kill()
    head.start()
    head.kill()


def _ask_for_all(head: Head) -> None:
    """Let a person do this and that."""
    (node,) = head.document("nodes", "list")["items"]
    head.ctl("nodes", "cordon", node["name"])
    head.ctl("nodes", "uncordon", node["name"])
    head.submit(SLEEPER)
    head.until("it runs", lambda: head.phase("sleeper") == "Running")
    head.ctl("restart", "sleeper", "worker-1")
    head.ctl("suspend", "sleeper")
    head.until("it is suspended", lambda: head.phase("sleeper") == "Suspended")
    head.ctl("resume", "sleeper")
    head.until("it runs again", lambda: head.phase("sleeper") == "Running")
    head.ctl("scale", "sleeper", "worker=1")
    head.ctl("finish", "sleeper", "--as", "succeeded", "--reason", "enough")
    head.ended("sleeper")


def main(name: str) -> None:
    """Write NAME.db and what it says."""
    with making() as head:
        run_jobs(head)
        sqlite3.connect(head.state / "journal.db").execute("PRAGMA wal_checkpoint(TRUNCATE)")
        JOURNALS.mkdir(exist_ok=True)
        shutil.copy(head.state / "journal.db", JOURNALS / f"{name}.db")
        loaded = anyio.run(EmbeddedJournal(head.state / "journal.db").load)
    (JOURNALS / f"{name}.out").write_text(summary(recover(loaded).world))


if __name__ == "__main__":
    main(sys.argv[1])
