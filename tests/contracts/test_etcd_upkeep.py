"""A real etcd that fills up: warned of, kept from filling, and brought back when it was full."""

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from uuid import uuid4

import anyio
import pytest
from structlog.testing import capture_logs

from primusd.errors import StoreFullError, StoreUnavailableError
from primusd.state.etcd.client import EtcdClient, EtcdSettings
from primusd.state.etcd.figures import QUOTA_BYTES, alarms, compaction_point, measure
from primusd.state.etcd.messages import messages
from primusd.state.etcd.upkeep import Upkeep, UpkeepLimits
from primusd.state.journal import Snapshot
from tests.contracts.test_etcd_store import add_user
from tests.contracts.test_journal import entry
from tests.services.etcd import Etcd, running_etcd
from tests.services.etcd_heads import Store

WAIT_S = 60
MIB = 1 << 20
QUOTA = 24 * MIB
OFTEN_S = 0.05


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        with anyio.fail_after(WAIT_S):
            await work()

    anyio.run(bounded)


def upkeep_of(store: Store, **limits: int | float | bool) -> Upkeep:
    # Any: the limits are of several types, each as its field has it.
    chosen: dict[str, object] = {"look_s": OFTEN_S, **limits}
    return Upkeep(
        store.client,
        store.layout,
        store.leadership,
        UpkeepLimits(**chosen),  # type: ignore[arg-type] # see above
    )


async def fill(store: Store, revision: int = 0) -> int:
    """Overwrite a snapshot until etcd takes no more; return the last revision that counts."""
    told = ""
    while not told:
        body = bytes([revision % 251]) * MIB
        try:
            await store.journal.append(entry(revision + 1), (Snapshot("a", revision + 1, body),))
            revision += 1
        except StoreUnavailableError as error:
            told = error.message
            # A write larger than a transaction counts before it is carried out.
            revision += not isinstance(error, StoreFullError)
    assert "NOSPACE" in told or "what was written last counts" in told
    assert revision > 3
    return revision


@pytest.mark.parametrize("room_for", range(8))
def test_whoever_is_told_that_nothing_was_recorded_for_lack_of_room_can_rely_on_it(
    etcd: Etcd, room_for: int
) -> None:
    cluster = uuid4().hex

    async def play() -> None:
        async with Store(etcd.endpoints, cluster, home="h", ttl_ms=60_000) as store:
            await store.lead()
            left = room_for
            write = store.journal._lane.write

            async def with_little_room(operations: object) -> None:
                nonlocal left
                if left == 0:
                    raise StoreFullError("no room")
                left -= 1
                await write(operations)  # type: ignore[arg-type] # handed on as it came

            store.journal._lane.write = with_little_room  # type: ignore[method-assign] # see above
            told = "recorded"
            try:
                await store.journal.append(entry(1), (Snapshot("a", 1, b"a" * 2 * MIB),))
            except StoreFullError:
                told = "nothing was recorded"
            except StoreUnavailableError:
                told = "it counts"
        async with Store(etcd.endpoints, cluster, home="h", ttl_ms=60_000) as other:
            await other.lead()
            loaded = await other.journal.load()
            assert loaded.revision == (0 if told == "nothing was recorded" else 1)

    run(play)


@pytest.fixture
def small(tmp_path: Path, version: str) -> Iterator[Etcd]:
    """A server whose quota is a hundredth of the usual one."""
    with running_etcd(tmp_path, "--quota-backend-bytes", str(QUOTA), version=version) as etcd:
        yield etcd


def test_c45_a_full_etcd_is_compacted_defragmented_and_disarmed_by_the_leader(small: Etcd) -> None:
    async def play() -> None:
        async with Store(small.endpoints, uuid4().hex, ttl_ms=60_000) as store:
            await store.lead()
            upkeep = upkeep_of(store)
            revision = await fill(store)
            term = store.leadership.created
            assert (await measure(store.client)).is_full

            async with anyio.create_task_group() as group:
                group.start_soon(upkeep.run)
                loaded = await store.journal.load()
                while await alarms(store.client):  # noqa: ASYNC110 - a server is asked.
                    await anyio.sleep(OFTEN_S)
                group.cancel_scope.cancel()

            # All that was acknowledged is there, the same head leads, and it goes on.
            assert loaded.revision == revision
            assert loaded.snapshots["a"].covers == revision
            assert store.leadership.created == term
            await store.journal.load()
            await store.journal.append(entry(revision + 1))
            found = await upkeep.measured()
            assert not found.is_full
            assert found.byte_count < QUOTA // 2
            assert found.compacted > 0
            assert upkeep.refusal() is None

    run(play)


def test_c45_a_head_that_starts_while_etcd_is_full_makes_room_before_it_can_join(
    small: Etcd,
) -> None:
    cluster = uuid4().hex

    async def play() -> None:
        async with Store(small.endpoints, cluster, ttl_ms=60_000) as store:
            await store.lead()
            revision = await fill(store)
            revoke = messages()["LeaseRevokeRequest"](ID=store.leadership.lease)
            await store.client.call("Lease", "LeaseRevoke", revoke, within_s=5)
        async with Store(small.endpoints, cluster, ttl_ms=60_000) as other:
            async with anyio.create_task_group() as group:
                group.start_soon(upkeep_of(other).run)
                await other.lead()
                group.cancel_scope.cancel()
            assert (await other.journal.load()).revision == revision

    run(play)


def test_an_etcd_that_is_not_ours_alone_is_left_to_its_operator(small: Etcd) -> None:
    async def play() -> None:
        async with Store(small.endpoints, uuid4().hex, ttl_ms=60_000) as store:
            await store.lead()
            upkeep = upkeep_of(store, is_alone=False)
            await fill(store)

            with capture_logs() as logs:
                await upkeep.look()
                await upkeep.look()

            assert [one["event"] for one in logs] == ["etcd.quota_used_up"]
            assert await alarms(store.client)
            refused = upkeep.refusal()
            assert refused is not None
            assert "leaves that to its operator" in refused.hint
            assert await compaction_point(store.client, store.layout.schema) == 0

    run(play)


def test_a_user_that_may_not_defragment_is_told_and_nothing_else_fails(small: Etcd) -> None:
    cluster = uuid4().hex

    async def play() -> None:
        async with Store(small.endpoints, cluster, ttl_ms=60_000) as store:
            await store.lead()
            await fill(store)
            upkeep = upkeep_of(store)
            await upkeep.look()
            await store.journal.load()
        await add_user(small, "primus", "s3cret")
        settings = EtcdSettings(small.endpoints, user="primus", password="s3cret", try_ms=2_000)
        async with Store((), uuid4().hex, settings=settings, ttl_ms=60_000) as store:
            await store.lead()
            # Old revisions go without a role.
            before = upkeep_of(store, compact_s=0.0)
            await before.look()
            await store.journal.append(entry(1))
            await before.look()
            assert await compaction_point(store.client, store.layout.schema) > 0
            await fill(store, 1)

            with capture_logs() as logs:
                await upkeep_of(store, quota_byte_count=QUOTA).look()

            events = [one["event"] for one in logs]
            assert "etcd.not_defragmented" in events
            assert "etcd.stays_full" in events or "etcd.alarm_kept" in events

    run(play)


def test_70_and_85_percent_are_told_once_each_and_from_85_on_no_new_job_is_taken(
    etcd: Etcd,
) -> None:
    async def play() -> None:
        async with Store(etcd.endpoints, uuid4().hex) as store:
            await store.lead()
            size = (await measure(store.client)).byte_count
            events = []
            for percent, wanted in (
                (50, []),
                (75, ["etcd.quota_filling"]),
                (90, ["etcd.quota_nearly_used_up"]),
                (60, []),
            ):
                quota = size * 100 // percent
                upkeep = upkeep_of(store, quota_byte_count=quota, is_alone=False)
                with capture_logs() as logs:
                    await upkeep.look()
                    await upkeep.look()
                events.append([one["event"] for one in logs])
                assert events[-1] == wanted
                assert (upkeep.refusal() is not None) == (percent == 90)
                refused = upkeep.refusal()
                if refused is not None:
                    assert "from 85 % on" in refused.message
                    assert refused.code == "StoreFull"

    run(play)


def test_over_85_percent_the_leader_makes_room_before_there_is_an_alarm(
    tmp_path: Path, version: str
) -> None:
    async def play(etcd: Etcd) -> None:
        async with Store(etcd.endpoints, uuid4().hex, ttl_ms=60_000) as store:
            await store.lead()
            upkeep = upkeep_of(store, quota_byte_count=QUOTA)
            for revision in range(1, 25):
                body = bytes([revision]) * MIB
                await store.journal.append(entry(revision), (Snapshot("a", revision, body),))
            await upkeep.look()
            found = upkeep.figures
            assert found is not None
            assert found.used_percent < 50
            assert upkeep.refusal() is None
            assert (await store.journal.load()).revision == 24

    with running_etcd(tmp_path, version=version) as etcd:
        run(lambda: play(etcd))


def test_old_revisions_are_let_go_of_a_minute_later_by_the_leader_alone(etcd: Etcd) -> None:
    async def play() -> None:
        async with Store(etcd.endpoints, uuid4().hex) as store:
            quick = {"compact_s": 0.0}
            follower = upkeep_of(store, **quick)
            await follower.look()
            await follower.look()
            await store.lead()
            await store.journal.append(entry(1))
            leader = upkeep_of(store, **quick)
            await leader.look()
            between = (await measure(store.client)).revision
            await store.journal.append(entry(2))

            await leader.look()

            # As far as it stood at the look before, so that a watch goes on undisturbed.
            assert await compaction_point(store.client, store.layout.schema) == between

    run(play)


def test_what_servers_tell_and_what_is_taken_where_they_do_not(
    tmp_path: Path, version: str
) -> None:
    async def play(etcd: Etcd) -> None:
        settings = EtcdSettings((*etcd.endpoints, "127.0.0.1:1"), try_ms=500)
        client = EtcdClient(settings)
        found = await measure(client)
        here, gone = found.servers
        assert here.version.startswith(version)
        assert here.is_leader
        assert 0 < here.used_byte_count <= here.byte_count == found.byte_count
        assert gone.error.startswith("it does not answer")
        # Servers tell their quota since 3.6; before, etcd's own default is what they have.
        told = QUOTA if version in ("3.6", "3.7") else QUOTA_BYTES
        assert found.quota_byte_count == told
        assert (await measure(client, quota_byte_count=5 * MIB)).quota_byte_count == 5 * MIB
        await client.close()

    with running_etcd(tmp_path, "--quota-backend-bytes", str(QUOTA), version=version) as etcd:
        run(lambda: play(etcd))


def test_c44_values_of_several_mib_are_stored_in_parts_of_256_kib(etcd: Etcd) -> None:
    large = entry(1, text="e" * (2 * MIB))
    snapshot = Snapshot("a", 1, bytes(range(256)) * (20 << 10))

    async def play() -> None:
        async with Store(etcd.endpoints, uuid4().hex) as store:
            await store.lead()
            await store.journal.append(large, (snapshot,))
            loaded = await store.journal.load()
            assert loaded.entries == (large,)
            assert loaded.snapshots["a"] == snapshot
            prefix = store.layout.prefix
            request = messages()["RangeRequest"](key=prefix, range_end=prefix + b"\xff")
            answer = await store.client.call("KV", "Range", request, within_s=5)
            sizes = [len(one.value) for one in answer.kvs]
            assert max(sizes) <= 256 << 10
            assert sum(sizes) > 7 * MIB
            # A smaller one takes its further parts away.
            await store.journal.append(entry(2), (Snapshot("a", 2, b"small"),), 2)
            answer = await store.client.call("KV", "Range", request, within_s=5)
            assert sum(len(one.value) for one in answer.kvs) < MIB

    run(play)
