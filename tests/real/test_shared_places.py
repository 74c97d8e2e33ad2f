"""Two heads that keep shipped files and history in S3: one dies, the other has them."""

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyarrow.fs import FileSelector

from tests.real.conftest import Head, making
from tests.real.test_several_heads import Heads, nodes
from tests.services.etcd import running_etcd
from tests.services.stores import Store, running_s3

KEYS = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "tests"}
BLOCKER = """
apiVersion: primus/v1
name: blocker
roles: {worker: {replicas: 4, command: [sleep, "500"], resources: {cpu: 1, memory: 64Mi}}}
"""
READER = """
apiVersion: primus/v1
name: reader
files: [note.txt]
roles: {worker: {replicas: 1, command: [cat, note.txt], resources: {cpu: 1, memory: 64Mi}}}
"""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in KEYS.items():
            patch.setenv(name, value)
        with running_s3(tmp_path) as running:
            running.files.create_dir("bucket")
            yield running


def settle(head: Head, store: Store) -> None:
    """Let a head keep what it shares in the bucket."""
    file = Path(head.environment["PRIMUSD_CONFIG"])
    text = file.read_text().partition("[blobs]")[0]
    options = ", ".join(f'{name} = "{value}"' for name, value in store.options.items())
    for section in ("blobs", "history"):
        text += f'[{section}]\nurl = "{store.url}/{section}"\noptions = {{{options}}}\n'
    file.write_text(text + '[store]\nsnapshot_every = "1s"\n')
    head.environment.update(KEYS)


def names(store: Store, folder: str) -> list[str]:
    selector = FileSelector(f"bucket/{folder}", recursive=True, allow_not_found=True)
    return [one.path for one in store.files.get_file_info(selector) if one.is_file]


@pytest.mark.timeout(300)
def test_a_file_and_a_history_of_a_dead_head_are_there_for_the_next(
    tmp_path: Path, store: Store
) -> None:
    with ExitStack() as held:
        etcd = held.enter_context(running_etcd(tmp_path))
        heads = Heads(etcd, [held.enter_context(making()) for _ in range(2)])
        for head in heads.all:
            settle(head, store)
            heads.start(head)
        leader, other = heads.leader()
        leader.until("both nodes are there", lambda: len(nodes(leader)) == 2)
        leader.submit(BLOCKER)
        leader.until("it has all slots", lambda: leader.phase("blocker") == "Running")
        (leader.folder / "note.txt").write_text("what was shipped\n")
        leader.submit(READER)
        assert leader.phase("reader") == "Queued"
        then = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        leader.until("history has it", lambda: bool(names(store, "history/entries")))
        assert len(names(store, "blobs/sha256")) == 1
        # A head that stands by hands on what it is asked for: the store is the leader's.
        other.ctl("store", "backup", str(tmp_path / "a.backup"))
        assert b'"store":"etcd"' in (tmp_path / "a.backup").read_bytes()[:500]

        leader.kill()
        other.until("the other one leads", lambda: heads.is_ready(other))
        other.ctl("cancel", "blocker")

        status = other.ended("reader")
        assert status["phase"] == "Succeeded", f"{status}\n{other.story()}"
        assert "what was shipped" in other.ctl("logs", "reader").stdout
        assert "Queued" in other.ctl("replay", "reader", "--at", then).stdout
        other.until(
            "both have written",
            lambda: len({one.rpartition("-")[2] for one in names(store, "history/entries")}) == 2,
        )


@pytest.mark.timeout(120)
def test_a_place_that_cannot_be_written_is_told_at_the_start(head: Head, store: Store) -> None:
    settle(head, store)
    file = Path(head.environment["PRIMUSD_CONFIG"])
    file.write_text(file.read_text().replace("bucket/blobs", "nobucket/blobs"))

    head.start(is_awaited=False)

    assert head.daemon is not None
    assert head.daemon.wait(timeout=60) == 2
    assert "blobs.url s3://nobucket/blobs cannot be used" in head.told()
