"""What every journal promises to heads that follow it, and how etcd keeps that under faults."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from uuid import uuid4

import anyio
import pytest

from primusd.errors import NewerSchemaError
from primusd.records import SCHEMA, Entry
from primusd.state.etcd.messages import messages
from primusd.state.etcd.requests import put, transaction
from primusd.state.journal import (
    Followed,
    Journal,
    Loaded,
    MemoryFollowed,
    MemoryJournal,
    Snapshot,
    Written,
)
from tests.contracts.test_journal import entry
from tests.services.etcd import PLAIN, Etcd
from tests.services.etcd_heads import Store
from tests.services.etcd_programs import BUILT

WAIT_S = 30
LATER_ETCDS = [pytest.param(f"etcd-{one}", marks=pytest.mark.soak) for one in BUILT]


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        with anyio.fail_after(WAIT_S):
            await work()

    anyio.run(bounded)


class Heard:
    """What a follower was told.

    Attributes:
        loads: Each load.
        entries: Of the last load, and all after it.
        covers, gone, keep_from: Of what was written, added up.
    """

    def __init__(self) -> None:
        self.loads: list[Loaded] = []
        self.entries: list[Entry] = []
        self.covers: dict[str, int] = {}
        self.gone: set[str] = set()
        self.keep_from = 0

    async def load(self, loaded: Loaded) -> None:
        self.loads.append(loaded)
        self.entries = list(loaded.entries)

    def take(self, written: Written) -> None:
        self.entries += written.entries
        self.covers |= written.covers
        self.gone |= written.gone
        self.keep_from = max(self.keep_from, written.keep_from)

    @property
    def revision(self) -> int:
        return self.entries[-1].revision if self.entries else 0


@asynccontextmanager
async def following(followed: Followed) -> AsyncIterator[Heard]:
    heard = Heard()
    async with anyio.create_task_group() as group:
        group.start_soon(followed.follow, heard.load, heard.take)
        yield heard
        group.cancel_scope.cancel()


async def until(holds: Callable[[], object]) -> None:
    while not holds():  # noqa: ASYNC110 - a server tells it
        await anyio.sleep(0.01)


Pair = Callable[[], AbstractAsyncContextManager[tuple[Journal, Followed]]]


@pytest.fixture(params=["memory", f"etcd-{PLAIN}", *LATER_ETCDS])
def pair(request: pytest.FixtureRequest) -> Pair:
    """Opens a journal that is led, and the view of another head."""
    if request.param == "memory":

        @asynccontextmanager
        async def opened() -> AsyncIterator[tuple[Journal, Followed]]:
            journal = MemoryJournal()
            yield journal, MemoryFollowed(journal)

        return opened
    etcd = request.getfixturevalue("etcd_of")(request.param.removeprefix("etcd-"))

    @asynccontextmanager
    async def opened_etcd() -> AsyncIterator[tuple[Journal, Followed]]:
        cluster = uuid4().hex
        async with (
            Store(etcd.endpoints, cluster, ttl_ms=60_000) as leader,
            Store(etcd.endpoints, cluster) as other,
        ):
            await leader.lead()
            yield leader.journal, other.journal

    return opened_etcd


def test_a_follower_is_told_what_there_is_and_then_each_write_once(pair: Pair) -> None:
    async def play() -> None:
        async with pair() as (journal, followed):
            await journal.append(entry(1), (Snapshot("a", 1, b"one"), Snapshot("b", 1, b"two")))
            async with following(followed) as heard:
                await until(lambda: heard.loads)
                assert heard.entries == [entry(1)]
                assert set(heard.loads[0].snapshots) == {"a", "b"}
                for revision in range(2, 30):
                    await journal.append(entry(revision))
                await journal.append(None, (Snapshot("a", 29, b"x"), Snapshot("b", 29, b"")), 20)
                await until(lambda: heard.keep_from)

                assert heard.entries == [entry(revision) for revision in range(1, 30)]
                assert (heard.covers, heard.gone, heard.keep_from) == ({"a": 29}, {"b"}, 20)
                assert len(heard.loads) == 1

    run(play)


def test_a_write_larger_than_a_transaction_is_told_as_a_whole(pair: Pair) -> None:
    large = tuple(Snapshot(f"s{number}", 2, b"%d" % number * 9_000) for number in range(200))

    async def play() -> None:
        async with pair() as (journal, followed):
            await journal.append(entry(1))
            async with following(followed) as heard:
                await until(lambda: heard.loads)
                await journal.append(entry(2, text="é" * 700_000), large, 2)
                await journal.append(entry(3))
                await until(lambda: heard.revision == 3)

                told = [one.revision for one in heard.entries]
                assert told == [1, 2, 3]
                assert heard.entries[1] == entry(2, text="é" * 700_000)
                assert heard.covers == {one.machine: 2 for one in large}
                assert heard.keep_from == 2

    run(play)


def test_who_leads_next_goes_on_from_what_was_told(etcd: Etcd) -> None:
    cluster = uuid4().hex

    async def play() -> None:
        async with (
            Store(etcd.endpoints, cluster) as first,
            Store(etcd.endpoints, cluster) as second,
        ):
            await first.lead()
            for revision in range(1, 10):
                await first.journal.append(entry(revision))
            await first.journal.append(None, (Snapshot("a", 9, b"a" * 700_000),), 5)
            async with following(second.journal) as heard:
                await until(lambda: heard.loads)
                await first.journal.append(entry(10), (Snapshot("b", 10, b"b"),))
                await revoked(first)
                await second.election.campaign(last_term=0, wall_ms=0)

                assert await second.journal.caught_up()

                assert heard.revision == 10
                await second.journal.append(entry(11, term=8), (Snapshot("a", 11, b"a"),), 11)
                # Its own writes are no news, and what it wrote is what a cold head finds.
                loaded = await first.journal.load()
                assert heard.revision == 10
                assert loaded.entries == (entry(11, term=8),)
                assert dict(loaded.snapshots) == {
                    "a": Snapshot("a", 11, b"a"),
                    "b": Snapshot("b", 10, b"b"),
                }
                assert await second.journal.entries() == (entry(11, term=8),)

    run(play)


async def revoked(store: Store) -> None:
    """End a leadership, as its expiry does."""
    revoke = messages()["LeaseRevokeRequest"](ID=store.leadership.lease)
    await store.client.call("Lease", "LeaseRevoke", revoke, within_s=5)


@pytest.mark.parametrize("written", range(1, 8))
def test_c44_a_write_that_a_dead_leader_left_unfinished_is_told_and_finished(
    etcd: Etcd, written: int
) -> None:
    cluster = uuid4().hex
    large = (Snapshot("a", 2, b"a" * 700_000), Snapshot("b", 2, b"b" * 900_000))

    async def play() -> None:
        async with (
            Store(etcd.endpoints, cluster) as first,
            Store(etcd.endpoints, cluster) as second,
        ):
            await first.lead()
            await first.journal.append(entry(1), (Snapshot("c", 1, b"c"),))
            async with following(second.journal) as heard:
                await until(lambda: heard.loads)
                left = written
                write = first.journal._lane.write

                async def dying(operations: object) -> None:
                    nonlocal left
                    left -= 1
                    if left < 0:
                        raise NewerSchemaError("the head died here")
                    await write(operations)  # type: ignore[arg-type] # handed on as it came

                first.journal._lane.write = dying  # type: ignore[method-assign] # dies in between
                with suppress(NewerSchemaError):
                    await first.journal.append(entry(2), (*large, Snapshot("c", 2, b"")), 2)
                await revoked(first)
                await second.election.campaign(last_term=0, wall_ms=0)

                assert await second.journal.caught_up()

                cold = await first.journal.load()
                assert heard.revision == cold.revision
                assert await second.journal.entries() == cold.entries
                await second.journal.append(entry(cold.revision + 1))
                again = await first.journal.load()
                assert again.snapshots == cold.snapshots
                assert again.revision == cold.revision + 1

    run(play)


def test_a_watch_whose_revisions_were_compacted_away_heals_by_a_load(etcd: Etcd) -> None:
    cluster = uuid4().hex

    async def play() -> None:
        async with (
            Store(etcd.endpoints, cluster, ttl_ms=60_000) as first,
            Store(etcd.endpoints, cluster) as second,
        ):
            await first.lead()
            await first.journal.append(entry(1))
            async with following(second.journal) as heard:
                await until(lambda: heard.loads)
                # Its watch sleeps, as its host may, while others go on and compact.
                async with deaf(second):
                    await first.journal.append(entry(2))
                    await first.journal.append(entry(3))
                    await until(lambda: second.journal.seen().newest == 3)
                    request = messages()["RangeRequest"](key=b"x")
                    newest = await first.client.call("KV", "Range", request, within_s=5)
                    compaction = messages()["CompactionRequest"](revision=newest.header.revision)
                    await first.client.call("KV", "Compact", compaction, within_s=5)
                    assert heard.revision == 1
                await first.journal.append(entry(4))
                await until(lambda: heard.revision == 4)

                assert len(heard.loads) == 2
                assert heard.entries == [entry(revision) for revision in range(1, 5)]

    run(play)


@asynccontextmanager
async def deaf(store: Store) -> AsyncIterator[None]:
    """A watch of this head tells nothing meanwhile, as that of a member that hangs."""
    followed = store.journal._following
    began = anyio.Event()

    async def hang(take: Callable[[Written], None]) -> None:
        began.set()
        await anyio.sleep_forever()

    followed._watch_once = hang  # type: ignore[method-assign] # as a server that hangs
    followed._watch_anew()
    await began.wait()
    yield
    del followed.__dict__["_watch_once"]


def test_a_watch_that_tells_nothing_is_found_out_and_begun_anew(etcd: Etcd) -> None:
    cluster = uuid4().hex

    async def play() -> None:
        async with (
            Store(etcd.endpoints, cluster, ttl_ms=60_000) as first,
            Store(etcd.endpoints, cluster) as second,
        ):
            await first.lead()
            async with following(second.journal) as heard:
                await until(lambda: heard.loads)
                async with deaf(second):
                    await first.journal.append(entry(1))
                await until(lambda: heard.revision == 1)

                assert len(heard.loads) == 1

    run(play)


def test_a_store_that_was_put_back_is_loaded_again(etcd: Etcd) -> None:
    cluster = uuid4().hex

    async def play() -> None:
        async with (
            Store(etcd.endpoints, cluster, ttl_ms=60_000) as first,
            Store(etcd.endpoints, cluster) as second,
        ):
            await first.lead()
            await first.journal.append(entry(1))
            async with following(second.journal) as heard:
                await until(lambda: heard.loads)
                # As if what it had seen were of a later time than the store is now.
                second.journal._following._at += 1_000_000
                await until(lambda: len(heard.loads) == 2)
                await first.journal.append(entry(2))
                await until(lambda: heard.revision == 2)

    run(play)


def test_a_leader_whose_watch_tells_nothing_reads_what_is_missing(etcd: Etcd) -> None:
    cluster = uuid4().hex

    async def play() -> None:
        async with (
            Store(etcd.endpoints, cluster) as first,
            Store(etcd.endpoints, cluster) as second,
        ):
            await first.lead()
            async with following(second.journal) as heard:
                await until(lambda: heard.loads)
                async with deaf(second):
                    await first.journal.append(entry(1))
                    await revoked(first)
                    await second.election.campaign(last_term=0, wall_ms=0)
                    assert not await second.journal.caught_up()
                assert heard.revision == 0
                assert (await second.journal.load()).revision == 1
                await second.journal.append(entry(2))

    run(play)


@pytest.mark.parametrize("key", ["schema", "entry"])
def test_a_newer_version_that_writes_ends_it_with_a_sentence(etcd: Etcd, key: str) -> None:
    cluster = uuid4().hex

    async def play() -> None:
        async with (
            Store(etcd.endpoints, cluster, ttl_ms=60_000) as first,
            Store(etcd.endpoints, cluster) as second,
        ):
            await first.lead()
            await first.journal.append(entry(1))
            heard = Heard()
            told: list[NewerSchemaError] = []

            async def follow() -> None:
                try:
                    await second.journal.follow(heard.load, heard.take)
                except NewerSchemaError as error:
                    told.append(error)

            async with anyio.create_task_group() as group:
                group.start_soon(follow)
                await until(lambda: heard.loads)
                if key == "entry":
                    await first.journal.append(entry(2, schema=SCHEMA + 1))
                else:
                    newer = put(first.layout.schema, b"%d" % (SCHEMA + 1))
                    await first.client.call("KV", "Txn", transaction((), (newer,)), within_s=5)

            assert f"schema {SCHEMA + 1}; this primusd knows schemas to {SCHEMA}" in told[0].message
            # Nor does it begin anew with a store of that kind.
            with pytest.raises(NewerSchemaError):
                await second.journal.follow(heard.load, heard.take)
            assert len(heard.loads) == 1

    run(play)
