"""What the etcd store has to show beyond the contracts, against real servers."""

import random
import subprocess
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from uuid import uuid4

import anyio
import anyio.lowlevel
import pytest
from grpc.aio import AioRpcError

from primusd.errors import (
    ConfigError,
    DeposedError,
    NewerSchemaError,
    PrimusdError,
    StoreUnavailableError,
)
from primusd.records import SCHEMA
from primusd.state.election import Identity
from primusd.state.etcd import election
from primusd.state.etcd.client import EtcdClient, EtcdSettings, Tls
from primusd.state.etcd.identity import ClusterIdentity, shared_identity
from primusd.state.etcd.leadership import boot_s
from primusd.state.etcd.members import Members
from primusd.state.etcd.messages import messages
from primusd.state.etcd.moved import moved_to
from primusd.state.etcd.redo import Change
from primusd.state.etcd.requests import created_at, prefix_end, put, transaction
from primusd.state.etcd.versions import check_versions, judge
from primusd.state.etcd.watching import Event, watch
from primusd.state.journal import Loaded, Snapshot
from tests.contracts.test_journal import entry
from tests.services.etcd import Etcd, running_etcd
from tests.services.etcd_heads import Store

WAIT_S = 30
TTL_MS = 2_000


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        with anyio.fail_after(WAIT_S):
            await work()

    anyio.run(bounded)


async def deposed(store: Store, act: Callable[[], Awaitable[None]]) -> set[str]:
    """Act as the leader until that is over; return what ended it."""
    found: set[str] = set()
    try:
        async with store.election.held():
            await act()
    except* PrimusdError as group:
        found = {type(one).__name__ for one in group.exceptions}
    return found


def test_the_second_head_waits_until_the_first_lets_go_and_has_a_higher_term(etcd: Etcd) -> None:
    cluster = uuid4().hex
    order: list[str] = []

    async def play() -> None:
        async with (
            Store(etcd.endpoints, cluster) as first,
            Store(etcd.endpoints, cluster) as second,
        ):
            term = await first.lead()
            led = anyio.Event()

            async def wait() -> None:
                assert await second.lead() > term
                order.append("second leads")
                led.set()

            async with anyio.create_task_group() as group:
                async with first.election.held():
                    group.start_soon(wait)
                    with anyio.move_on_after(0.3):
                        await led.wait()
                    await first.journal.append(entry(1, term=term))
                    order.append("first wrote")
                await led.wait()
            assert (await second.journal.load()).revision == 1

    run(play)
    assert order == ["first wrote", "second leads"]


def test_who_resigned_stands_aside_until_another_one_leads_and_no_longer(
    etcd: Etcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(election, "ASIDE_S", 2.0 * WAIT_S)
    cluster = uuid4().hex
    terms: list[int] = []

    async def play() -> None:
        async with (
            Store(etcd.endpoints, cluster) as first,
            Store(etcd.endpoints, cluster) as second,
        ):
            await first.lead()

            async def resign() -> None:
                await first.election.resign()
                await anyio.sleep_forever()

            async def lead_again() -> None:
                terms.append(await first.lead())

            assert await deposed(first, resign) == {"DeposedError"}
            async with anyio.create_task_group() as group:
                group.start_soon(lead_again)
                await anyio.sleep(0.2)
                assert not terms
                term = await second.lead()
                async with second.election.held():
                    pass
            assert terms > [term]

    run(play)


def test_etcd_says_the_newer_schema_once_a_newer_version_has_written(
    etcd: Etcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older one that reads no entry of it any more is refused all the same."""
    cluster = uuid4().hex

    async def play() -> None:
        async with Store(etcd.endpoints, cluster, home="one") as store:
            term = await store.lead()
            revision = (await store.journal.load()).revision + 1
            await store.journal.append(entry(revision, term=term))

    run(play)
    with monkeypatch.context() as newer:
        newer.setattr("primusd.state.etcd.journal.SCHEMA", SCHEMA + 1)
        newer.setattr("primusd.state.schema.SCHEMA", SCHEMA + 1)
        run(play)
    with pytest.raises(NewerSchemaError, match=str(SCHEMA + 1)):
        run(play)


def test_c39_no_write_of_a_leader_that_was_replaced_lands(etcd: Etcd) -> None:
    cluster = uuid4().hex

    async def play() -> None:
        async with (
            Store(etcd.endpoints, cluster) as zombie,
            Store(etcd.endpoints, cluster) as other,
        ):
            await zombie.lead()
            await zombie.journal.append(entry(1))
            created, lease = zombie.leadership.created, zombie.leadership.lease
            stale = zombie.journal._lane._revision
            revoke = messages()["LeaseRevokeRequest"](ID=lease)
            await other.client.call("Lease", "LeaseRevoke", revoke, within_s=5)
            await other.lead()
            await other.journal.append(entry(2, term=8))
            lane = zombie.journal._lane
            newest = other.journal._lane._revision
            for number in range(1_000):
                # Its own clock is made to let it, as that of a host that slept would; and even the
                # lane is as it should be, by half of its writes.
                zombie.leadership.created = created
                zombie.leadership.deadline_s = boot_s() + 60
                lane._revision = newest if number % 2 else stale
                with pytest.raises(DeposedError, match="another daemon leads"):
                    await zombie.journal.append(entry(2, text="late"))
            loaded = await other.journal.load()
            assert loaded.entries == (entry(1), entry(2, term=8))

    run(play)


def test_a_late_repeat_of_a_write_undoes_nothing_while_the_term_alone_would_let_it(
    etcd: Etcd,
) -> None:
    cluster = uuid4().hex

    async def play() -> None:
        async with Store(etcd.endpoints, cluster) as store:
            await store.lead()
            sent: list[object] = []
            call = store.client.call

            async def spied(service: str, method: str, request: object, **limits: float) -> object:
                if method == "Txn":
                    sent.append(request)
                return await call(service, method, request, **limits)

            store.client.call = spied  # type: ignore[method-assign] # looks on only
            await store.journal.append(entry(1), (Snapshot("a", 1, b"old"),))
            await store.journal.append(None, (Snapshot("a", 1, b"new"),))

            # A member that hung carries it out only now.
            late = await call("KV", "Txn", sent[0], within_s=5)
            assert not late.succeeded
            assert (await store.journal.load()).snapshots["a"].body == b"new"

            key = store.layout.prefix + b"x"
            fence = created_at(store.layout.leader, store.leadership.created)
            first = transaction((fence,), (put(key, b"old"),))
            await call("KV", "Txn", first, within_s=5)
            await call("KV", "Txn", transaction((fence,), (put(key, b"new"),)), within_s=5)
            assert (await call("KV", "Txn", first, within_s=5)).succeeded

    run(play)


def test_a_write_that_landed_without_an_answer_is_known_to_have_landed(etcd: Etcd) -> None:
    cluster = uuid4().hex

    async def play() -> None:
        async with Store(etcd.endpoints, cluster) as store:
            await store.lead()
            once = store.client.once
            lost: list[object] = []

            async def without_answer(
                position: int, service: str, method: str, request: object, *, within_s: float
            ) -> object:
                answer = await once(position, service, method, request, within_s=within_s)
                if method == "Txn" and not lost:
                    lost.append(answer)
                    await once(position, "Maintenance", "Status", request_status, within_s=1e-9)
                return answer

            request_status = messages()["StatusRequest"]()
            store.client.once = without_answer  # type: ignore[method-assign] # loses one answer
            await store.journal.append(entry(1))

            assert lost
            assert (await store.journal.load()).entries == (entry(1),)
            await store.journal.append(entry(2))
            assert (await store.journal.load()).revision == 2

    run(play)


LARGE = (Snapshot("a", 2, b"a" * 700_000), Snapshot("b", 2, b"b" * 900_000), Snapshot("c", 2, b""))


def die_after(store: Store, count: int) -> None:
    """Let whoever writes die once so many transactions were carried out."""
    left = count
    write = store.journal._lane.write

    async def dying(operations: object) -> None:
        nonlocal left
        if left == 0:
            raise StoreUnavailableError("the writer died here")
        left -= 1
        await write(operations)  # type: ignore[arg-type] # handed on as it came

    store.journal._lane.write = dying  # type: ignore[method-assign] # dies in between


@pytest.mark.parametrize("written", range(9))
def test_c44_a_write_larger_than_a_transaction_is_there_as_a_whole_or_not_at_all(
    etcd: Etcd, written: int
) -> None:
    cluster = uuid4().hex

    async def play() -> None:
        async with Store(etcd.endpoints, cluster) as store:
            await store.lead()
            await store.journal.append(entry(1), (Snapshot("c", 1, b"c"),))
            await store.journal.load()
            die_after(store, written)
            died = False
            try:
                await store.journal.append(entry(2), LARGE, 2)
            except StoreUnavailableError:
                died = True
            revoke = messages()["LeaseRevokeRequest"](ID=store.leadership.lease)
            await store.client.call("Lease", "LeaseRevoke", revoke, within_s=5)
            async with Store(etcd.endpoints, cluster) as other:
                await other.election.campaign(last_term=0, wall_ms=0)
                loaded = await other.journal.load()
                if loaded.revision == 1:
                    assert died
                    assert loaded.entries == (entry(1),)
                    assert dict(loaded.snapshots) == {"c": Snapshot("c", 1, b"c")}
                else:
                    assert loaded.entries == (entry(2),)
                    assert dict(loaded.snapshots) == {one.machine: one for one in LARGE[:2]}
                # And it goes on from there.
                await other.journal.append(entry(loaded.revision + 1), (Snapshot("d", 1, b"d"),))
                again = await other.journal.load()
                assert again.revision == loaded.revision + 1
                assert again.snapshots == {**loaded.snapshots, "d": Snapshot("d", 1, b"d")}
                prefix = store.layout.prefix
                request = messages()["RangeRequest"](key=prefix, range_end=prefix + b"\xff")
                answer = await other.client.call("KV", "Range", request, within_s=5)
                assert max(len(one.value) for one in answer.kvs) <= 256 << 10

    run(play)


@pytest.mark.parametrize("written", range(12))
def test_a_store_is_replaced_as_a_whole_or_not_at_all(etcd: Etcd, written: int) -> None:
    cluster = uuid4().hex
    new = Loaded({one.machine: one for one in LARGE[:2]}, (entry(7), entry(8)), 7, 8)

    async def play() -> None:
        async with Store(etcd.endpoints, cluster) as store:
            await store.lead()
            await store.journal.append(entry(1), (Snapshot("c", 1, b"c"),))
            await store.journal.load()
            die_after(store, written)
            died = False
            try:
                await store.journal.replace(new, (Change(store.layout.moved, b"away"),))
            except StoreUnavailableError:
                died = True
            revoke = messages()["LeaseRevokeRequest"](ID=store.leadership.lease)
            await store.client.call("Lease", "LeaseRevoke", revoke, within_s=5)
            async with Store(etcd.endpoints, cluster) as other:
                await other.election.campaign(last_term=0, wall_ms=0)
                loaded = await other.journal.load()
                if loaded.revision == 1:
                    assert died
                    assert loaded.entries == (entry(1),)
                    assert dict(loaded.snapshots) == {"c": Snapshot("c", 1, b"c")}
                else:
                    assert (dict(loaded.snapshots), loaded.entries) == (
                        dict(new.snapshots),
                        new.entries,
                    )
                # Whatever is left to do is done with the next write, and what went beside it, too.
                await other.journal.append(entry(loaded.revision + 1))
                # Nor does what was written down and came to nothing take room for ever.
                request = messages()["RangeRequest"](
                    key=store.layout.redo, range_end=prefix_end(store.layout.redo)
                )
                assert not (await other.client.call("KV", "Range", request, within_s=5)).kvs
                marked = await moved_to(other.client, other.layout)
                assert marked == ("away" if loaded.revision == 8 else "")

    run(play)


def test_more_snapshots_than_a_transaction_has_room_for(etcd: Etcd) -> None:
    cluster = uuid4().hex
    many = tuple(Snapshot(f"j{number}", 1, b"%d" % number) for number in range(400))

    async def play() -> None:
        async with Store(etcd.endpoints, cluster) as store:
            await store.lead()
            await store.journal.append(entry(1), many)
            assert dict((await store.journal.load()).snapshots) == {
                one.machine: one for one in many
            }

    run(play)


def test_a_head_that_is_started_anew_does_not_wait_for_its_own_lease(etcd: Etcd) -> None:
    cluster = uuid4().hex

    async def play() -> None:
        async with Store(etcd.endpoints, cluster, home="h", ttl_ms=60_000) as killed:
            await killed.lead()
        async with Store(etcd.endpoints, cluster, home="h", ttl_ms=60_000) as again:
            await again.lead()

    run(play)


def test_a_leader_without_etcd_stops_before_its_lease_can_expire_and_leads_again(
    tmp_path: Path, version: str
) -> None:
    cluster = uuid4().hex

    async def play(etcd: Etcd) -> None:
        async with Store(etcd.endpoints, cluster, ttl_ms=TTL_MS) as store:
            await store.lead()
            asked_s = boot_s()
            etcd.members[0].pause()
            ended_s = []

            async def act() -> None:
                try:
                    await anyio.sleep_forever()
                finally:
                    ended_s.append(boot_s())

            assert await deposed(store, act) == {"DeposedError"}
            assert ended_s[0] < asked_s + TTL_MS / 1000
            with pytest.raises(DeposedError):
                await store.journal.append(entry(1))
            etcd.members[0].go_on()
            await store.lead()
            await store.journal.append(entry(1))

    with running_etcd(tmp_path, version=version) as etcd:
        run(lambda: play(etcd))


def test_c56_what_was_acknowledged_survives_a_kill_of_etcd_at_a_random_write(
    tmp_path: Path, version: str
) -> None:
    cluster, chance = uuid4().hex, random.Random(version)

    async def play(etcd: Etcd) -> None:
        async with Store(etcd.endpoints, cluster, ttl_ms=60_000) as store:
            await store.lead()
            revision = 0

            async def write() -> None:
                nonlocal revision
                while True:
                    await store.journal.append(entry(revision + 1, text="x" * 500))
                    revision += 1

            for _ in range(3):
                async with anyio.create_task_group() as group:
                    group.start_soon(write)
                    wanted = revision + chance.randrange(5, 60)
                    while revision < wanted:
                        await anyio.lowlevel.checkpoint()
                    etcd.stop()
                    group.cancel_scope.cancel()
                acknowledged = revision
                etcd.start()
                loaded = await store.journal.load()
                revision = loaded.revision
                # The write that was cut off may have landed.
                assert acknowledged <= revision <= acknowledged + 1
                assert [one.revision for one in loaded.entries] == list(range(1, revision + 1))

    with running_etcd(tmp_path, version=version) as etcd:
        run(lambda: play(etcd))


def test_c46_a_lease_that_somebody_revoked_ends_the_leadership(etcd: Etcd) -> None:
    async def play() -> None:
        async with Store(etcd.endpoints, uuid4().hex, ttl_ms=TTL_MS) as store:
            await store.lead()
            revoke = messages()["LeaseRevokeRequest"](ID=store.leadership.lease)

            async def act() -> None:
                await store.client.call("Lease", "LeaseRevoke", revoke, within_s=5)
                await anyio.sleep_forever()

            assert await deposed(store, act) == {"DeposedError"}

    run(play)


def test_members_of_etcd_come_and_go_and_the_leader_stays(tmp_path: Path, version: str) -> None:
    cluster = uuid4().hex

    async def play(etcd: Etcd) -> None:
        async with Store(etcd.endpoints, cluster, ttl_ms=5_000) as store:
            term = await store.lead()
            revision = 0
            lanes: list[int] = []
            async with store.election.held(), anyio.create_task_group() as group:
                group.start_soon(watched, store, term + 1, lanes)
                for member in etcd.members:
                    for act, undo in ((member.pause, member.go_on), (member.kill, member.start)):
                        act()
                        for _ in range(3):
                            revision += 1
                            await store.journal.append(entry(revision))
                        undo()
                        # It must be one of the majority before the next one goes.
                        await settled(store, etcd)
                assert store.leadership.created == term
                loaded = await store.journal.load()
                newest = store.journal._lane._revision
                while newest not in lanes:  # noqa: ASYNC110 - looks on
                    await anyio.sleep(0.02)
                group.cancel_scope.cancel()
            # Each write once and in order, whichever member the watch was at.
            assert lanes == sorted(set(lanes))
            assert len(lanes) >= revision
            assert [one.revision for one in loaded.entries] == list(range(1, revision + 1))

    with running_etcd(tmp_path, version=version, count=3) as etcd:
        run(lambda: play(etcd))


async def watched(store: Store, first: int, lanes: list[int]) -> None:
    """Note at which revisions of etcd the lane is written."""

    def heard(events: Sequence[Event]) -> bool:
        lanes.extend(one.kv.mod_revision for one in events)
        return False

    await watch(store.client, store.layout.lane, b"", first, heard)


async def settled(store: Store, etcd: Etcd) -> None:
    """Return once every member answers a read of the majority."""
    request = messages()["RangeRequest"](key=b"x")
    for position in range(len(etcd.endpoints)):
        while True:
            try:
                await store.client.once(position, "KV", "Range", request, within_s=0.5)
                break
            except AioRpcError:
                await anyio.sleep(0.05)


def test_user_and_password_and_a_token_that_is_not_known_any_more(
    tmp_path: Path, version: str
) -> None:
    cluster = uuid4().hex

    async def play(etcd: Etcd) -> None:
        await add_user(etcd, "primus", "s3cret")
        # A password takes the server a while on a busy host, and so does its start.
        settings = EtcdSettings(etcd.endpoints, user="primus", password="s3cret", try_ms=2_000)
        async with Store((), cluster, settings=settings, ttl_ms=60_000) as store:
            term = await store.lead()
            lanes: list[int] = []
            async with anyio.create_task_group() as group:
                group.start_soon(watched, store, term + 1, lanes)
                await store.journal.append(entry(1))
                etcd.stop()
                # A server that was started anew knows no token of before.
                etcd.start()
                await store.journal.append(entry(2))
                newest = store.journal._lane._revision
                while newest not in lanes:  # noqa: ASYNC110 - looks on
                    await anyio.sleep(0.02)
                group.cancel_scope.cancel()
            assert lanes == sorted(set(lanes))
            assert (await store.journal.load()).revision == 2
            assert await store.client.keep_alive(store.leadership.lease, within_s=1) > 0
        wrong = EtcdSettings(etcd.endpoints, user="primus", password="x", try_ms=2_000)
        async with Store((), cluster, settings=wrong) as store:
            with pytest.raises(StoreUnavailableError, match="authentication failed") as raised:
                await store.journal.load()
            assert "password_file" in raised.value.hint

    with running_etcd(tmp_path, version=version) as etcd:
        run(lambda: play(etcd))


async def add_user(etcd: Etcd, name: str, password: str) -> None:
    known = messages()
    client = EtcdClient(EtcdSettings(etcd.endpoints))
    for user in ("root", name):
        request = known["AuthUserAddRequest"](name=user, password=password)
        await client.call("Auth", "UserAdd", request, within_s=5)
    for role in ("root", "head"):
        await client.call("Auth", "RoleAdd", known["AuthRoleAddRequest"](name=role), within_s=5)
    everything = next(
        one.message_type
        for one in known["AuthRoleGrantPermissionRequest"].DESCRIPTOR.fields
        if one.name == "perm"
    )
    grant = known["AuthRoleGrantPermissionRequest"](name="head")
    assert everything.full_name == "authpb.Permission"
    grant.perm.permType, grant.perm.key, grant.perm.range_end = 2, b"/primusd/", b"/primusd0"
    await client.call("Auth", "RoleGrantPermission", grant, within_s=5)
    for user, role in (("root", "root"), (name, "head")):
        request = known["AuthUserGrantRoleRequest"](user=user, role=role)
        await client.call("Auth", "UserGrantRole", request, within_s=5)
    await client.call("Auth", "AuthEnable", known["AuthEnableRequest"](), within_s=5)
    await client.close()


def test_tls_with_certificates_on_both_sides(tmp_path: Path, version: str) -> None:
    make_certificates(tmp_path)
    flags = ("--cert-file", "server.pem", "--key-file", "server.key", "--client-cert-auth")
    own = Tls(*((tmp_path / name).read_bytes() for name in ("ca.pem", "client.pem", "client.key")))

    async def play(etcd: Etcd) -> None:
        async with Store(
            (), uuid4().hex, settings=EtcdSettings(etcd.endpoints, tls=own, try_ms=500)
        ) as store:
            await store.lead()
            await store.journal.append(entry(1))
        for tls in (Tls(own.ca), None):
            client = EtcdClient(EtcdSettings(etcd.endpoints, tls=tls, try_ms=200))
            request = messages()["RangeRequest"](key=b"x")
            with pytest.raises(StoreUnavailableError):
                await client.call("KV", "Range", request, within_s=0.5)
            await client.close()

    trusted = ("--trusted-ca-file", "ca.pem")
    with running_etcd(tmp_path, *flags, *trusted, version=version, scheme="https") as etcd:
        run(lambda: play(etcd))


def make_certificates(folder: Path) -> None:
    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True, timeout=60)

    name = ("-subj", "/CN=ca", "-days", "2")
    openssl(
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-keyout",
        "ca.key",
        "-out",
        "ca.pem",
        *name,
    )
    (folder / "ext").write_text(
        "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n"
    )
    for who in ("server", "client"):
        new = ("-newkey", "rsa:2048", "-nodes", "-keyout", f"{who}.key", "-out", f"{who}.csr")
        openssl("req", *new, "-subj", "/CN=127.0.0.1")
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2")
        openssl(
            "x509", "-req", "-in", f"{who}.csr", *signed, "-extfile", "ext", "-out", f"{who}.pem"
        )


def test_where_no_server_answers_it_says_what_to_look_at() -> None:
    async def play() -> None:
        client = EtcdClient(EtcdSettings(("127.0.0.1:1",)))
        try:
            with pytest.raises(StoreUnavailableError, match=r"127\.0\.0\.1:1") as caught:
                await check_versions(client)
        finally:
            await client.close()
        assert caught.value.hint == "see that a majority of it runs"

    run(play)


def test_a_real_server_that_loses_writes_is_refused(tmp_path: Path) -> None:
    async def play(etcd: Etcd) -> None:
        async with Store(etcd.endpoints, uuid4().hex) as store:
            with pytest.raises(ConfigError, match=r"3\.5\.1 loses writes"):
                await check_versions(store.client)

    with running_etcd(tmp_path, version="3.5.1") as etcd:
        run(lambda: play(etcd))


@pytest.mark.parametrize(
    ("version", "told"), [("3.3.27", "too old"), ("3.5.0", "loses"), ("3.5.2", "loses")]
)
def test_versions_that_are_refused(version: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as raised:
        judge(version)
    assert "3.5.6" in raised.value.hint


@pytest.mark.parametrize(
    ("version", "told"), [("3.4.21", "faults"), ("3.5.5", "faults"), ("4.x", "nobody has tried")]
)
def test_versions_that_are_warned_about(version: str, told: str) -> None:
    assert told in judge(version)


@pytest.mark.parametrize("version", ["3.4.22", "3.4.23", "3.5.6", "3.6.16", "3.7.3"])
def test_versions_that_are_good(version: str) -> None:
    assert judge(version) == ""


def test_who_comes_first_gives_the_cluster_its_id_and_its_secret(etcd: Etcd) -> None:
    async def play() -> None:
        async with Store(etcd.endpoints, uuid4().hex) as store:
            first, second = ClusterIdentity("one", b"1" * 32), ClusterIdentity("two", b"2" * 32)
            assert await shared_identity(store.client, store.layout, first) == first
            assert await shared_identity(store.client, store.layout, second) == first

    run(play)


def test_a_store_without_the_cluster_that_our_jobs_are_in_is_another_one(etcd: Etcd) -> None:
    async def play() -> None:
        async with Store(etcd.endpoints, uuid4().hex) as store:
            own = ClusterIdentity("one", b"1" * 32)
            with pytest.raises(ConfigError, match=r"while the jobs of .* are in etcd://a:1"):
                await shared_identity(store.client, store.layout, own, lived_in="etcd://a:1")
            assert await shared_identity(store.client, store.layout, own) == own
            there = await shared_identity(store.client, store.layout, own, lived_in="etcd://a:1")
            assert there == own

    run(play)


def test_heads_know_of_each_other_until_they_leave(etcd: Etcd) -> None:
    async def play() -> None:
        async with Store(etcd.endpoints, uuid4().hex) as store:
            one = Members(store.client, store.layout, Identity("a", ("http://a:1",)))
            two = Members(store.client, store.layout, Identity("b", ("http://b:1",)))
            async with anyio.create_task_group() as group:
                group.start_soon(one.run)
                async with anyio.create_task_group() as inner:
                    inner.start_soon(two.run)
                    while {head.member for head in one.heads.members} != {"a", "b"}:
                        await anyio.sleep(0.02)
                        await one.look()
                    assert one.heads.members[1].addresses == ("http://b:1",)
                    for is_ready in (False, True):
                        two.tell_ready(is_ready)
                        while one.heads.members[1].ready is not is_ready:
                            await one.news.wait()
                    inner.cancel_scope.cancel()
                await one.look()
                assert [head.member for head in one.heads.members] == ["a"]
                group.cancel_scope.cancel()

    run(play)
