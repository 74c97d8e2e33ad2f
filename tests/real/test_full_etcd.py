"""Etcd is full, or away, while a job with data runs: nothing of it ends, and it goes on after."""

import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import anyio
import pytest

from primusd.ctl.client import Client
from primusd.errors import StoreFullError
from primusd.state.etcd.client import EtcdClient, EtcdSettings
from primusd.state.etcd.figures import alarms, measure
from primusd.state.etcd.layout import Layout
from primusd.state.etcd.leadership import Leadership
from primusd.state.etcd.messages import messages
from primusd.state.etcd.upkeep import Upkeep, UpkeepLimits
from tests.real.conftest import Head
from tests.real.printed_rows import JOB
from tests.services.etcd import Etcd, running_etcd

ROWS = 400
MIB = 1 << 20
AWAY_S = 60
QUOTA = 24 * MIB
SHORT = "name: short\nroles: {worker: {command: 'true'}}\n"


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    with running_etcd(tmp_path, "--quota-backend-bytes", str(QUOTA)) as made:
        yield made


def ask(etcd: Etcd, act: Callable[[EtcdClient], Awaitable[None]]) -> None:
    """Do something with etcd beside the daemon."""

    async def play() -> None:
        client = EtcdClient(EtcdSettings(etcd.endpoints))
        try:
            with anyio.fail_after(60):
                await act(client)
        finally:
            await client.close()

    anyio.run(play)


async def fill(client: EtcdClient) -> None:
    """Write one key again and again until etcd takes no more."""
    put = messages()["PutRequest"](key=b"somebody's", value=bytes(MIB))
    is_full = False
    while not is_full:
        try:
            await client.call("KV", "Put", put, within_s=10)
        except StoreFullError:
            is_full = True


async def make_room(client: EtcdClient) -> None:
    """Do as an operator does: compact, defragment, disarm."""
    limits = UpkeepLimits(quota_byte_count=QUOTA)
    upkeep = Upkeep(client, Layout("operator"), Leadership(), limits)
    while await alarms(client):
        await upkeep.look()
        await anyio.sleep(0.1)


def start(head: Head, etcd: Etcd, **settings: str) -> None:
    """Start a daemon on this etcd, with a job that reads rows."""
    file = Path(head.environment["PRIMUSD_CONFIG"])
    lines = "".join(f"{name} = {value}\n" for name, value in settings.items())
    # This etcd is one that does not tell its quota.
    file.write_text(f'{file.read_text()}cpu = 2\n[store.etcd]\nquota = "24Mi"\n{lines}')
    head.start("--store", etcd.url)
    head.until("it leads", lambda: head.ctl("list", allowed=(0, 1, 5)).returncode == 0)
    folder = head.folder / "input"
    folder.mkdir()
    (folder / "a").write_text("".join(f"row {number}\n" for number in range(ROWS)))
    head.submit(JOB.format(folder=head.folder))
    head.until("some rows are done", lambda: printed(head) > 20)
    head.until("both trainers run", lambda: len(head.shells("while read")) == 2)


def printed(head: Head) -> int:
    logs = head.state.glob("jobs/*/*/a*/stdout.log")
    return sum(log.read_text().count("row") for log in logs)


def metrics(head: Head) -> str:
    client = Client(f"unix:{head.socket}", timeout_s=20)
    return b"".join(client.parts("/metrics")).decode()


def condition(head: Head, kind: str) -> bool:
    found = head.document("get", "rows")["status"]["conditions"]
    return any(one["type"] == kind and one["status"] for one in found)


def check_end(head: Head) -> None:
    """The job ends well, each row was printed once, by the first attempt of its replica."""
    status = head.ended("rows")
    assert status["phase"] == "Succeeded", f"{status}\n{head.story()}"
    assert head.attempts("rows") == {"worker-0": 1, "worker-1": 1}
    said = head.ctl("logs", "rows").stdout.splitlines()
    rows = Counter(line.partition(" ")[2].strip() for line in said)
    assert rows == Counter(f"row {number}" for number in range(ROWS)), head.story()
    assert head.document("data", "rows", "verify")["ok"]


@pytest.mark.timeout(240)
def test_c45_a_full_etcd_of_others_stops_no_replica_until_its_operator_made_room(
    head: Head, etcd: Etcd
) -> None:
    start(head, etcd, compact="false")
    before = head.shells("while read")

    ask(etcd, fill)

    head.until("it is said to be behind", lambda: condition(head, "JournalBehind"))
    head.until("it says so in its log", lambda: "etcd.quota_used_up" in head.told())
    refused = head.ctl("submit", "-", stdin=SHORT, allowed=(1,)).stderr
    assert "etcd has used" in refused or "quota of etcd is used up" in refused
    status = head.ctl("store").stdout
    assert "no new job is taken from 85 % on" in status, status
    assert "primus_store_full 1.0" in metrics(head)
    told = head.ctl("doctor", allowed=(0, 1)).stdout
    assert re.search(r"warning +store: 1\d\d % of its quota used", told), told
    assert head.shells("while read") == before
    ask(etcd, make_room)

    head.until("it is not behind any more", lambda: not condition(head, "JournalBehind"))
    assert head.shells("while read") <= before
    head.until("jobs are taken again", lambda: not head.document("store").get("refuses"))
    head.submit(SHORT)
    check_end(head)


@pytest.mark.timeout(240)
def test_c45_the_leader_makes_room_by_itself_where_etcd_is_ours_alone(
    head: Head, etcd: Etcd
) -> None:
    start(head, etcd)
    before = head.shells("while read")

    ask(etcd, fill)

    head.until("the alarm is over", lambda: "etcd.alarm_disarmed" in head.told())
    assert head.shells("while read") <= before
    check_end(head)

    async def measured(client: EtcdClient) -> None:
        found = await measure(client)
        assert not found.is_full
        assert found.byte_count < QUOTA // 2

    ask(etcd, measured)


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_c46_etcd_is_away_for_a_minute_and_trainers_do_not_notice(head: Head, etcd: Etcd) -> None:
    start(head, etcd)
    before = head.shells("while read")

    etcd.stop()
    end_s = time.monotonic() + AWAY_S
    head.until("a minute is over", lambda: time.monotonic() > end_s, within_s=2 * AWAY_S)

    assert head.daemon is not None
    assert head.daemon.poll() is None
    assert head.shells("while read") == before
    assert "leadership.ended" in head.told()
    etcd.start()
    head.until("it leads again", lambda: head.ctl("list", allowed=(0, 1, 5)).returncode == 0)
    assert head.shells("while read") <= before
    check_end(head)
