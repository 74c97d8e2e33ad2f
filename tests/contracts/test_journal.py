"""What every journal promises: in memory, SQLite and etcd; and what SQLite alone has to show."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from uuid import uuid4

import anyio
import pytest

from primusd.admission.events import NodeWentAway, TermBegan
from primusd.errors import DeposedError, NewerSchemaError, StoreFullError, StoreUnavailableError
from primusd.records import SCHEMA, Entry, Record
from primusd.state.archive import Archive
from primusd.state.ballast import Ballast
from primusd.state.embedded import VALUE_BYTES_MAX, EmbeddedJournal
from primusd.state.journal import Journal, Loaded, MemoryJournal, Snapshot
from tests.services.etcd import PLAIN
from tests.services.etcd_heads import LeadingJournal
from tests.services.etcd_programs import BUILT

Open = Callable[[], Journal]


def entry(revision: int, *, term: int = 7, text: str = "x", schema: int = SCHEMA) -> Entry:
    record = Record("", -1, "engine", NodeWentAway(text))
    return Entry(schema, term, revision, 1_700_000_000_000 + revision, (record,))


def run(work: Callable[[], Awaitable[None]]) -> None:
    anyio.run(work)


LATER_ETCDS = [pytest.param(f"etcd-{one}", marks=pytest.mark.soak) for one in BUILT]


@pytest.fixture(params=["memory", "sqlite", f"etcd-{PLAIN}", *LATER_ETCDS])
def reopened(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens the same journal again, as a daemon that starts anew does."""
    if request.param == "memory":
        kept = MemoryJournal()
        return lambda: kept
    if request.param != "sqlite":
        etcd = request.getfixturevalue("etcd_of")(request.param.removeprefix("etcd-"))
        endpoints, cluster = etcd.endpoints, uuid4().hex
        return lambda: LeadingJournal(endpoints, cluster)
    return lambda: EmbeddedJournal(tmp_path / "journal.db")


def test_a_new_journal_is_empty(reopened: Open) -> None:
    async def play() -> None:
        loaded = await reopened().load()

        assert (loaded.entries, dict(loaded.snapshots)) == ((), {})
        assert (loaded.term, loaded.revision) == (0, 0)

    run(play)


def test_what_was_appended_is_there_for_the_next_daemon(reopened: Open) -> None:
    async def play() -> None:
        first = reopened()
        await first.load()
        await first.append(entry(1))
        await first.append(entry(2, term=8), (Snapshot("", 1, b"abc"),))
        await first.close()

        second = reopened()
        loaded = await second.load()

        assert loaded.entries == (entry(1), entry(2, term=8))
        assert dict(loaded.snapshots) == {"": Snapshot("", 1, b"abc")}
        assert (loaded.term, loaded.revision) == (8, 2)
        await second.close()

    run(play)


def test_an_older_term_is_refused_and_nothing_of_it_is_written(reopened: Open) -> None:
    async def play() -> None:
        journal = reopened()
        await journal.load()
        await journal.append(entry(1, term=9))

        with pytest.raises(DeposedError):
            await journal.append(entry(2, term=8), (Snapshot("", 1, b"late"),))

        loaded = await journal.load()
        assert (loaded.revision, dict(loaded.snapshots)) == (1, {})
        await journal.close()

    run(play)


def test_a_snapshot_replaces_the_older_one_and_an_empty_one_removes_it(reopened: Open) -> None:
    async def play() -> None:
        journal = reopened()
        await journal.load()
        await journal.append(entry(1), (Snapshot("a", 1, b"one"), Snapshot("b", 1, b"two")))
        await journal.append(None, (Snapshot("a", 1, b"three" * 100_000), Snapshot("b", 1, b"")))

        loaded = await journal.load()

        assert dict(loaded.snapshots) == {"a": Snapshot("a", 1, b"three" * 100_000)}
        await journal.close()

    run(play)


def test_entries_below_the_kept_revision_go_and_the_numbers_go_on(reopened: Open) -> None:
    async def play() -> None:
        journal = reopened()
        await journal.load()
        for revision in range(1, 6):
            await journal.append(entry(revision))
        await journal.append(None, (Snapshot("", 5, b"all"),), 4)
        await journal.append(entry(6))
        await journal.close()

        again = reopened()
        loaded = await again.load()

        assert [one.revision for one in loaded.entries] == [4, 5, 6]
        assert loaded.revision == 6
        await again.close()

    run(play)


def test_a_large_entry_comes_back_whole(reopened: Open) -> None:
    async def play() -> None:
        journal = reopened()
        await journal.load()
        large = entry(1, text="é" * 700_000)
        await journal.append(large)

        assert (await journal.load()).entries == (large,)
        await journal.close()

    run(play)


def test_what_a_journal_held_is_replaced_as_a_whole_and_goes_on_from_there(reopened: Open) -> None:
    large = Snapshot("b", 41, b"b" * 900_000)
    kept = Loaded(
        {"": Snapshot("", 40, b"admission"), "b": large},
        tuple(entry(number, term=9, text="n" * 300_000) for number in (41, 42, 43, 44)),
        9,
        44,
    )

    async def play() -> None:
        first = reopened()
        await first.load()
        await first.append(entry(1), (Snapshot("a", 1, b"a" * 600_000), Snapshot("", 1, b"old")))
        await first.append(entry(2))
        await first.replace(kept)
        loaded = await first.load()
        assert (dict(loaded.snapshots), loaded.entries) == (dict(kept.snapshots), kept.entries)
        assert (loaded.term, loaded.revision) == (9, 44)
        await first.append(entry(45, term=10), (Snapshot("b", 44, b"small"),), 44)
        await first.close()

        second = reopened()
        loaded = await second.load()
        assert loaded.entries == (*kept.entries[3:], entry(45, term=10))
        assert loaded.snapshots["b"] == Snapshot("b", 44, b"small")
        await second.replace(Loaded({}, (), 0, 0))
        assert (await second.load()).is_empty
        await second.close()

    run(play)


def test_c44_no_stored_value_is_over_its_limit(tmp_path: Path) -> None:
    async def play() -> None:
        journal = EmbeddedJournal(tmp_path / "journal.db")
        await journal.load()
        await journal.append(entry(1, text="e" * 900_000), (Snapshot("uid", 1, b"s" * 900_000),))
        await journal.close()

    run(play)

    with sqlite3.connect(tmp_path / "journal.db") as db:
        sizes = [row[0] for row in db.execute("SELECT length(body) FROM journal")]
        sizes += [row[0] for row in db.execute("SELECT length(body) FROM snapshots")]
    db.close()
    assert len(sizes) == 8
    assert max(sizes) <= VALUE_BYTES_MAX == 256 << 10


def test_a_store_of_a_newer_version_is_refused_and_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"

    async def write() -> None:
        journal = EmbeddedJournal(path)
        await journal.load()
        await journal.append(entry(1))
        await journal.close()

    run(write)
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version={SCHEMA + 1}")
    db.close()
    before = {one: one.read_bytes() for one in tmp_path.iterdir()}

    async def read() -> None:
        with pytest.raises(NewerSchemaError, match=str(SCHEMA + 1)):
            await EmbeddedJournal(path).load()

    run(read)
    assert {one: one.read_bytes() for one in tmp_path.iterdir()} == before


def test_a_store_says_the_newer_schema_once_a_newer_version_has_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older one that reads no entry of it any more is refused all the same."""
    path = tmp_path / "journal.db"

    async def play(*, is_refused: bool = False) -> None:
        journal = EmbeddedJournal(path)
        if is_refused:
            with pytest.raises(NewerSchemaError, match=str(SCHEMA + 1)):
                await journal.load()
            return
        revision = (await journal.load()).revision + 1
        await journal.append(entry(revision))
        await journal.close()

    run(play)
    with monkeypatch.context() as newer:
        newer.setattr("primusd.state.embedded.SCHEMA", SCHEMA + 1)
        newer.setattr("primusd.state.schema.SCHEMA", SCHEMA + 1)
        run(play)
    run(partial(play, is_refused=True))


def test_an_entry_of_a_newer_schema_is_refused_even_when_it_would_not_decode(
    tmp_path: Path,
) -> None:
    path = tmp_path / "journal.db"

    async def play() -> None:
        journal = EmbeddedJournal(path)
        await journal.load()
        await journal.append(entry(1, schema=SCHEMA + 1))
        await journal.close()
        with sqlite3.connect(path) as db:
            db.execute("UPDATE journal SET body = ?", (b"\x92\x02\xa3new",))
        db.close()

        again = EmbeddedJournal(path)
        with pytest.raises(NewerSchemaError):
            await again.load()
        await again.close()

    run(play)


def test_a_damaged_file_is_told_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    path.write_bytes(b"this is no database, and long enough to have a header" * 20)

    async def play() -> None:
        with pytest.raises(StoreUnavailableError, match="journal"):
            await EmbeddedJournal(path).load()

    run(play)


def test_a_file_that_another_process_holds_is_not_written(tmp_path: Path) -> None:
    async def play() -> None:
        holder = EmbeddedJournal(tmp_path / "journal.db")
        await holder.load()
        await holder.append(entry(1))

        with pytest.raises(StoreUnavailableError):
            await EmbeddedJournal(tmp_path / "journal.db").load()
        await holder.append(entry(2))
        await holder.close()

    run(play)


WRITER = """
import sys, anyio
from pathlib import Path
from primusd.state.embedded import EmbeddedJournal
from primusd.state.journal import Snapshot
from primusd.records import Entry, Record, SCHEMA
from primusd.admission.events import NodeWentAway

async def main():
    journal = EmbeddedJournal(Path(sys.argv[1]))
    revision = (await journal.load()).revision
    while True:
        revision += 1
        record = Record("", -1, "engine", NodeWentAway("x" * (revision % 7 * 30_000)))
        entry = Entry(SCHEMA, 7, revision, revision, (record,))
        snapshots = (Snapshot("", revision, str(revision).encode()),) if revision % 3 == 0 else ()
        await journal.append(entry, snapshots, revision - 20 if revision % 50 == 0 else 0)
        print(revision, flush=True)

anyio.run(main)
"""


@pytest.mark.parametrize("seed", range(6))
def test_c56_m062_what_was_acknowledged_survives_a_kill_at_a_random_write(
    tmp_path: Path, seed: int
) -> None:
    path = tmp_path / "journal.db"
    seeded = random.Random(seed)
    acknowledged = 0
    for _ in range(2):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE
        ) as writer:
            assert writer.stdout is not None
            count = seeded.randrange(1, 60)
            for line in writer.stdout:
                acknowledged = int(line)
                count -= 1
                if count == 0:
                    os.kill(writer.pid, signal.SIGKILL)
                    break
            for line in writer.stdout:
                acknowledged = int(line)

        async def look(least: int = acknowledged) -> None:
            journal = EmbeddedJournal(path)
            loaded = await journal.load()
            await journal.close()
            revisions = [one.revision for one in loaded.entries]
            assert least <= loaded.revision <= least + 1
            assert revisions == list(range(revisions[0], loaded.revision + 1))
            covers = loaded.snapshots[""].covers if "" in loaded.snapshots else 0
            assert covers >= loaded.revision // 3 * 3 - 3
            assert revisions[0] <= covers + 1

        run(look)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 6 MiB."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a small file system")
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=6m", "none", str(folder)], check=False
    )
    if mounted.returncode:
        pytest.skip("this container may not mount")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.root
def test_a_full_disk_is_told_and_nothing_is_half_written_m062(small_disk: Path) -> None:
    async def play() -> None:
        ballast = Ballast(small_disk / "ballast", byte_count=1 << 20)
        assert ballast.take()
        journal = EmbeddedJournal(small_disk / "journal.db", ballast=ballast)
        await journal.load()
        revision = 0
        with pytest.raises(StoreFullError, match="full"):  # noqa: PT012 - the one that fails.
            for revision in range(200):
                await journal.append(entry(revision + 1, text="x" * 100_000))

        assert ballast.is_given_up
        assert (await journal.load()).revision == revision
        # What the ballast held lets jobs end in order.
        await journal.append(entry(revision + 1))
        assert (await journal.load()).revision == revision + 1
        await journal.close()

    run(play)


@pytest.mark.root
def test_a_store_that_does_not_fit_is_not_replaced(small_disk: Path) -> None:
    large = Loaded({}, tuple(entry(number, text="x" * 100_000) for number in range(1, 99)), 7, 98)

    async def play() -> None:
        journal = EmbeddedJournal(small_disk / "journal.db")
        await journal.load()
        await journal.append(entry(1), (Snapshot("a", 1, b"kept"),))
        with pytest.raises(StoreFullError, match="full"):
            await journal.replace(large)
        loaded = await journal.load()
        assert (loaded.entries, loaded.snapshots["a"].body) == ((entry(1),), b"kept")
        await journal.close()

    run(play)


def test_entries_that_go_are_in_the_archive_first(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "archive")

    async def play() -> None:
        journal = EmbeddedJournal(tmp_path / "journal.db", archive=archive)
        await journal.load()
        for revision in range(1, 8):
            await journal.append(entry(revision))
        await journal.append(None, (Snapshot("", 7, b"all"),), 5)
        await journal.append(None, (), 7)
        await journal.close()

    run(play)
    assert list(archive.read()) == [entry(revision) for revision in range(1, 7)]


def test_an_archive_that_cannot_be_written_does_not_stop_the_journal(tmp_path: Path) -> None:
    (tmp_path / "archive").write_text("a file where the folder should be")

    async def play() -> None:
        journal = EmbeddedJournal(tmp_path / "journal.db", archive=Archive(tmp_path / "archive"))
        await journal.load()
        await journal.append(entry(1))
        await journal.append(entry(2), (), 2)

        assert [one.revision for one in (await journal.load()).entries] == [2]
        await journal.close()

    run(play)


def test_a_term_began_is_read_back(reopened: Open) -> None:
    began = Entry(SCHEMA, 3, 1, 5, (Record("", -1, "engine", TermBegan("id", "0.1.0")),))

    async def play() -> None:
        journal = reopened()
        await journal.load()
        await journal.append(began)

        assert (await journal.load()).entries == (began,)
        await journal.close()

    run(play)
