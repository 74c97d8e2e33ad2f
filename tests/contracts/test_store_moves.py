"""`primusctl store` without a daemon: moves between SQLite and a real etcd, and what it refuses."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from uuid import uuid4

import anyio
import pytest

from primusd.admission.events import TermBegan
from primusd.ctl.failures import CONFLICT, FAILED, USAGE, CtlError
from primusd.ctl.storing_offline import Places, backup, move, restore
from primusd.errors import ConfigError
from primusd.records import SCHEMA, Entry, Record, encode_entry
from primusd.state.archive import Archive, ArchivedEntry
from primusd.state.directory import StateDirectory, take_state_directory
from primusd.state.election import Identity
from primusd.state.embedded import EmbeddedJournal
from primusd.state.etcd.client import EtcdSettings
from primusd.state.etcd.identity import ClusterIdentity
from primusd.state.etcd.store import EtcdStore, opened
from primusd.state.etcd.upkeep import UpkeepLimits
from primusd.state.journal import Loaded, Snapshot
from tests.contracts.test_journal import entry
from tests.services.etcd import Etcd
from tests.services.etcd_heads import Store

WAIT_S = 60


def began(revision: int) -> Entry:
    record = Record("", -1, "engine", TermBegan("c1", "0.1.0"))
    return Entry(SCHEMA, 7, revision, 1_700_000_000_000 + revision, (record,))


LOADED = Loaded({}, tuple(began(number) for number in range(1, 30)), 7, 29)
# Nobody can replay it; it is carried over all the same, byte by byte.
LARGE = Loaded(
    {"b": Snapshot("b", 40, b"b" * 700_000)},
    tuple(entry(number, text="n" * 200_000) for number in range(40, 50)),
    7,
    49,
)


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        with anyio.fail_after(WAIT_S):
            await work()

    anyio.run(bounded)


class Cluster:
    """A cluster with an embedded store, and an etcd that is to take it.

    Attributes:
        name: Of its own, so that tests share an etcd.
        state: The state directory.
        to: The etcd as a person names it.
        places: What a person says of the daemon.
    """

    def __init__(self, folder: Path, etcd: Etcd) -> None:
        self.name = f"c{uuid4().hex[:12]}"
        self.folder = folder
        self.state = folder / "state"
        self.etcd = etcd
        self.to = etcd.url
        self.places = self.at(self.state)

    def at(self, state: Path) -> Places:
        environ = {"HOME": str(self.folder), "XDG_RUNTIME_DIR": str(self.folder)}
        return Places(environ, state_dir=str(state), cluster=self.name)

    def directory(self, state: Path | None = None) -> StateDirectory:
        return take_state_directory(state or self.state, cluster=self.name)

    def keep(self, loaded: Loaded = LOADED) -> tuple[str, bytes]:
        """Make the embedded store; return the cluster's id and secret."""
        directory = self.directory()

        async def play() -> None:
            journal = EmbeddedJournal(self.state / "journal.db")
            await journal.replace(loaded)
            await journal.close()

        run(play)
        directory.close()
        return directory.cluster_id, directory.secret

    def embedded(self, state: Path | None = None) -> Loaded:
        """Return what is in the embedded store now."""
        found: list[Loaded] = []

        async def play() -> None:
            journal = EmbeddedJournal((state or self.state) / "journal.db")
            found.append(await journal.load())
            await journal.close()

        run(play)
        return found[0]

    def in_etcd(self) -> tuple[Loaded, ClusterIdentity]:
        """Return what a head finds in etcd, and the cluster that it becomes part of."""
        found: list[tuple[Loaded, ClusterIdentity]] = []

        async def look(store: EtcdStore) -> None:
            found.append((await store.journal.load(), store.cluster))

        self.head(look)
        return found[0]

    def head(self, act: Callable[[EtcdStore], Awaitable[None]], *, member: str = "a") -> None:
        """Be a head, which stands by, while something is done."""

        async def play() -> None:
            async with opened(
                EtcdSettings(self.etcd.endpoints),
                cluster=self.name,
                own=ClusterIdentity("another", b"x" * 32),
                lived_in="",
                identity=Identity(member, home=uuid4().hex),
                ttl_ms=5_000,
                archiver=None,
                limits=UpkeepLimits(),
            ) as store:
                await act(store)

        run(play)


@pytest.fixture
def cluster(tmp_path: Path, etcd: Etcd) -> Cluster:
    return Cluster(tmp_path, etcd)


def refused(call: Callable[[], object]) -> CtlError:
    with pytest.raises(CtlError) as raised:
        call()
    return raised.value


def same(found: Loaded, wanted: Loaded) -> bool:
    return (dict(found.snapshots), found.entries) == (dict(wanted.snapshots), wanted.entries)


def test_a_store_moves_to_etcd_and_back_with_the_clusters_id_and_secret(cluster: Cluster) -> None:
    cluster_id, secret = cluster.keep()

    said = move(cluster.places, to=cluster.to, source="", may_replace=False)

    assert said[0].startswith("moved 0 jobs at revision 29 from the embedded store in ")
    assert not (cluster.state / "journal.db").exists()
    assert (cluster.state / "journal.db.moved").exists()
    loaded, identity = cluster.in_etcd()
    assert same(loaded, LOADED)
    assert (identity.id, identity.secret) == (cluster_id, secret)

    # And back, into another state directory, as on another host.
    other = cluster.folder / "other"
    move(cluster.at(other), to="embedded", source=cluster.to, may_replace=False)

    assert same(cluster.embedded(other), LOADED)
    directory = cluster.directory(other)
    assert (directory.cluster_id, directory.secret) == (cluster_id, secret)
    directory.close()
    # No head goes on with what was left in etcd.
    with pytest.RaisesGroup(pytest.RaisesExc(ConfigError, match="was moved from etcd to")):
        cluster.in_etcd()


def test_what_was_moved_away_may_be_moved_back_to_without_a_word(cluster: Cluster) -> None:
    cluster.keep()
    move(cluster.places, to=cluster.to, source="", may_replace=False)
    move(cluster.places, to="embedded", source=cluster.to, may_replace=False)

    said = move(cluster.places, to=cluster.to, source="embedded", may_replace=False)

    assert said[-1].startswith(f"  start primusd with --store {cluster.to};")
    assert same(cluster.in_etcd()[0], LOADED)


def test_a_large_store_moves_as_a_whole(cluster: Cluster) -> None:
    cluster.keep(LARGE)

    move(cluster.places, to=cluster.to, source="", may_replace=False)

    assert same(cluster.in_etcd()[0], LARGE)


def test_a_move_that_was_broken_off_is_finished_by_the_next(cluster: Cluster) -> None:
    cluster.keep()
    move(cluster.places, to=cluster.to, source="", may_replace=False)
    # It was killed before the old one was put aside.
    (cluster.state / "journal.db.moved").rename(cluster.state / "journal.db")

    move(cluster.places, to=cluster.to, source="", may_replace=False)

    assert not (cluster.state / "journal.db").exists()
    assert same(cluster.in_etcd()[0], LOADED)


def test_a_running_daemon_is_in_the_way_and_named(cluster: Cluster) -> None:
    cluster.keep()
    directory = cluster.directory()

    error = refused(lambda: move(cluster.places, to=cluster.to, source="", may_replace=False))

    assert "is in use by process" in error.message
    assert "trainers run on" in error.hint
    assert error.exit_code == CONFLICT
    directory.close()
    assert same(cluster.embedded(), LOADED)


def test_a_head_that_stands_by_on_etcd_is_in_the_way_and_named(cluster: Cluster) -> None:
    cluster.keep()
    errors = []

    async def try_it(_store: EtcdStore) -> None:
        def call() -> None:
            errors.append(
                refused(lambda: move(cluster.places, to=cluster.to, source="", may_replace=False))
            )

        await anyio.to_thread.run_sync(call)

    cluster.head(try_it, member="head7")

    assert errors[0].message == "heads of this cluster run: head7"
    assert errors[0].exit_code == CONFLICT
    assert (cluster.state / "journal.db").exists()


def test_a_store_that_is_not_empty_is_left_alone_unless_told(cluster: Cluster) -> None:
    cluster.keep()
    move(cluster.places, to=cluster.to, source="", may_replace=False)
    other = Cluster(cluster.folder / "second", cluster.etcd)
    other.name = cluster.name
    other.places = other.at(other.state)
    newer = Loaded({}, (*LOADED.entries, began(30)), 7, 30)
    other_id, _ = other.keep(newer)

    error = refused(lambda: move(other.places, to=cluster.to, source="", may_replace=False))

    assert "is not empty: it holds 0 jobs at revision 29" in error.message
    assert (error.exit_code, "--replace" in error.hint) == (CONFLICT, True)
    assert same(cluster.in_etcd()[0], LOADED)

    move(other.places, to=cluster.to, source="", may_replace=True)

    loaded, identity = cluster.in_etcd()
    assert same(loaded, newer)
    assert identity.id == other_id


def test_etcd_of_another_cluster_of_that_name_is_left_alone(cluster: Cluster) -> None:
    cluster.keep()

    async def nothing(_store: EtcdStore) -> None:
        return

    # A head with a state directory of its own has given the cluster its id, and led nothing yet.
    cluster.head(nothing)

    error = refused(lambda: move(cluster.places, to=cluster.to, source="", may_replace=False))

    assert "is of the cluster with id another, this is of " in error.message
    assert error.exit_code == CONFLICT


def test_an_empty_store_is_not_moved(cluster: Cluster) -> None:
    cluster.directory().close()

    error = refused(lambda: move(cluster.places, to=cluster.to, source="", may_replace=False))

    assert error.message.endswith("it is empty")


def test_a_newer_store_is_not_moved(cluster: Cluster) -> None:
    cluster.keep(Loaded({}, (entry(1, schema=SCHEMA + 1),), 7, 1))

    error = refused(lambda: move(cluster.places, to=cluster.to, source="", may_replace=False))

    assert f"schema {SCHEMA + 1}" in error.message
    assert error.exit_code == FAILED
    assert (cluster.state / "journal.db").exists()


def test_an_etcd_that_does_not_answer_is_told_within_seconds(cluster: Cluster) -> None:
    cluster.keep()
    to = "etcd://127.0.0.1:1"

    error = refused(lambda: move(cluster.places, to=to, source="", may_replace=False))

    assert "127.0.0.1:1" in error.message
    assert (cluster.state / "journal.db").exists()


def test_a_backup_of_one_store_is_restored_into_the_other(cluster: Cluster) -> None:
    cluster_id, secret = cluster.keep()
    file = cluster.folder / "a.backup"
    file.write_bytes(b"".join(backup(cluster.places)))

    said = restore(cluster.places, file, to=cluster.to, may_replace=False)

    assert said[0].startswith("restored 0 jobs at revision 29 into etcd at ")
    loaded, identity = cluster.in_etcd()
    assert same(loaded, LOADED)
    assert (identity.id, identity.secret) == (cluster_id, secret)

    from_etcd = Places(
        {**cluster.places.environ, "PRIMUSD_STORE": cluster.to}, cluster=cluster.name
    )
    file.write_bytes(b"".join(backup(from_etcd)))
    other = cluster.folder / "other"
    restore(cluster.at(other), file, to="embedded", may_replace=False)

    assert same(cluster.embedded(other), LOADED)
    directory = cluster.directory(other)
    assert directory.secret == secret
    directory.close()


def test_a_state_directory_of_another_cluster_takes_no_backup_unless_told(
    cluster: Cluster,
) -> None:
    cluster.keep()
    file = cluster.folder / "a.backup"
    file.write_bytes(b"".join(backup(cluster.places)))
    other = cluster.folder / "other"
    own = cluster.directory(other)
    own.close()

    error = refused(lambda: restore(cluster.at(other), file, to="", may_replace=False))

    assert f"is of the cluster with id {own.cluster_id}" in error.message
    assert not (other / "journal.db").exists()
    restore(cluster.at(other), file, to="", may_replace=True)
    assert same(cluster.embedded(other), LOADED)


def test_history_that_is_later_than_the_backup_is_put_aside(cluster: Cluster) -> None:
    cluster.keep()
    file = cluster.folder / "a.backup"
    file.write_bytes(b"".join(backup(cluster.places)))
    archive(cluster.state / "archive", 35)

    said = restore(cluster.places, file, to="", may_replace=True)

    assert "history goes to revision 35, which is later" in said[1]
    assert (cluster.state / "archive-35.moved").is_dir()
    assert not (cluster.state / "archive").exists()


def archive(folder: Path, newest: int) -> None:
    some = [entry(number) for number in range(1, newest + 1)]
    Archive(folder).append(
        [ArchivedEntry(one.revision, one.at_ms, encode_entry(one)) for one in some]
    )


def test_a_state_directory_without_permission_is_told(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.keep()
    (cluster.folder / "file").write_text("no folder")

    error = refused(
        lambda: restore(
            cluster.at(cluster.folder / "file" / "state"), sealed(cluster), to="", may_replace=False
        )
    )

    assert "cannot be used: Not a directory" in error.message
    assert error.exit_code == USAGE


def sealed(cluster: Cluster) -> Path:
    file = cluster.folder / "a.backup"
    file.write_bytes(b"".join(backup(cluster.places)))
    return file


def test_a_head_that_was_killed_with_this_state_directory_is_not_waited_for(
    cluster: Cluster,
) -> None:
    cluster.keep()
    move(cluster.places, to=cluster.to, source="", may_replace=False)
    directory = cluster.directory()
    home = directory.home()
    directory.close()

    async def die() -> None:
        async with Store(cluster.etcd.endpoints, cluster.name, home=home, ttl_ms=60_000) as killed:
            await killed.lead()

    run(die)

    move(cluster.places, to="embedded", source=cluster.to, may_replace=False)

    assert same(cluster.embedded(), LOADED)
