"""Two heads and one etcd: the leader goes, orderly or not, in the middle of a job with data."""

import json
import signal
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.real.conftest import FINAL, WAIT_S, Head, making
from tests.real.printed_rows import JOB
from tests.services.etcd import Etcd, running_etcd
from tests.services.processes import free_ports

ROWS = 240
RECORDS_OF_A_MOMENT = 20
SHORT = """
apiVersion: primus/v1
name: short
roles:
  worker: {replicas: 1, command: "true", resources: {cpu: 1, memory: 64Mi}}
"""


class Heads:
    """Two heads, a and b, of one cluster.

    Attributes:
        etcd: That they share.
        all: Both.
    """

    def __init__(self, etcd: Etcd, heads: list[Head]) -> None:
        self.etcd = etcd
        self.all = heads
        self._ports = dict(zip(map(id, heads), free_ports(len(heads)), strict=True))
        for name, head in zip("ab", heads, strict=True):
            settings = Path(head.environment["PRIMUSD_CONFIG"])
            ports = settings.read_text()
            ttl = '[store.etcd]\nleader_ttl = "5s"\n'
            blobs = f'[blobs]\nurl = "file://{heads[0].folder}/blobs"\n'
            settings.write_text(f'member = "{name}"\n{ports}cpu = 2\n{ttl}{blobs}')

    def start(self, head: Head) -> None:
        address = f"127.0.0.1:{self._ports[id(head)]}"
        head.start("--store", self.etcd.url, "--listen", address)

    def is_ready(self, head: Head, *, leads: bool = True) -> bool:
        """Return whether a head leads, or at least hands on to who does."""
        try:
            url = f"http://127.0.0.1:{self._ports[id(head)]}/readyz{'?leads' if leads else ''}"
            with urllib.request.urlopen(url, timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def leader(self) -> tuple[Head, Head]:
        """Return who leads and the other one, once the leader can tell executors of both."""
        one = self.all[0]
        one.until("one of them leads", lambda: any(map(self.is_ready, self.all)))
        found = sorted(self.all, key=self.is_ready, reverse=True)
        one.until("they know each other", lambda: "stands by" in found[0].ctl("leader").stdout)
        return found[0], found[1]


@pytest.fixture
def heads(tmp_path: Path) -> Iterator[Heads]:
    with ExitStack() as held:
        etcd = held.enter_context(running_etcd(tmp_path))
        made = Heads(etcd, [held.enter_context(making()) for _ in range(2)])
        for head in made.all:
            made.start(head)
        yield made


def submit(leader: Head) -> None:
    """Submit the job, once the nodes of both heads are there."""
    leader.until("both nodes are there", lambda: len(nodes(leader)) == 2)
    folder = leader.folder / "input"
    folder.mkdir()
    for part in range(2):
        lines = range(ROWS // 2 * part, ROWS // 2 * (part + 1))
        (folder / f"{part}.txt").write_text("".join(f"row {one}\n" for one in lines))
    leader.submit(JOB.format(folder=leader.folder))


def nodes(head: Head) -> list[str]:
    found = head.ctl("nodes", "list", "-o", "json", allowed=(0, 4, 5)).stdout
    items = json.loads(found)["items"] if found else []
    return [one["name"] for one in items if one["phase"] == "Ready"]


def printed(made: Heads) -> int:
    """Return how many rows trainers have printed."""
    logs = [log for head in made.all for log in head.state.glob("jobs/*/*/a*/stdout.log")]
    return sum(log.read_text().count("row") for log in logs)


def trainers(made: Heads) -> set[int]:
    """Return the processes of trainers, without what they start."""
    return {pid for head in made.all for pid in head.shells("while read")}


def check_end(made: Heads, head: Head) -> None:
    """The job ends well, with each row printed once by a first attempt."""
    status = head.ended("rows")
    told = "\n".join(one.story() for one in made.all)
    assert status["phase"] == "Succeeded", f"{status}\n{told}"
    assert head.attempts("rows") == {"worker-0": 1, "worker-1": 1}, told
    said = head.ctl("logs", "rows").stdout.splitlines()
    rows = Counter(line.partition(" ")[2].strip() for line in said)
    assert rows == Counter(f"row {number}" for number in range(ROWS)), told
    proof = head.document("data", "rows", "verify")
    assert proof["ok"], f"{proof}\n{told}"
    assert proof["done"] == proof["listed"], proof


def took_over(head: Head) -> dict[str, int]:
    """Return what a head said when it led last."""
    lines = [line for line in head.log.read_text().splitlines() if '"engine.took_over"' in line]
    found: dict[str, int] = json.loads(lines[-1])
    return found


def name_of(head: Head) -> str:
    return str(head.document("leader")["member"])


def check_copy(head: Head) -> None:
    """A head that stands by has all that the leader has recorded."""

    def is_whole() -> bool:
        found = head.document("leader")["copy"]
        return bool(found["behind"] == 0 and found.get("ageMs", 10_000) < 5_000)

    head.until("the copy is whole", is_whole)
    assert head.document("leader")["jobs"] == 2


@pytest.mark.timeout(240)
def test_c40_a_leader_killed_in_the_middle_of_a_job_restarts_nothing_and_loses_no_row(
    heads: Heads,
) -> None:
    leader, other = heads.leader()
    submit(leader)
    leader.until("both trainers run", lambda: len(trainers(heads)) == 2)
    leader.until("some rows are done", lambda: printed(heads) > 20)
    before = trainers(heads)

    leader.kill()

    other.until("the other one leads", lambda: heads.is_ready(other))
    assert trainers(heads) == before
    taken = took_over(other)
    assert taken["revision"] > 10
    # What was written while it was elected, at the most; all else it knew.
    assert taken["records"] <= RECORDS_OF_A_MOMENT, taken
    check_end(heads, other)
    # The dead one's machine comes back as a head that stands by.
    heads.start(leader)
    leader.until("it hands on", lambda: heads.is_ready(leader, leads=False))
    assert not heads.is_ready(leader)
    # Who may ask it may ask the leader by way of it, and watch the leader.
    assert "rows" in leader.ctl("list").stdout
    assert "row 7" in leader.ctl("logs", "rows").stdout
    leader.submit(SHORT)
    assert leader.ended("short")["phase"] == "Succeeded"
    told = leader.document("events", "short")["items"]
    assert any(str(one.get("by", "")).endswith(f" via {name_of(leader)}") for one in told), told
    check_copy(leader)
    other.until("they know each other", lambda: "stands by" in other.ctl("leader").stdout)
    other.ctl("leader", "resign")
    leader.until("the first one leads", lambda: heads.is_ready(leader), within_s=4)


@pytest.mark.timeout(240)
def test_c39_a_leader_that_slept_finds_itself_replaced_and_leads_again_when_it_is_its_turn(
    heads: Heads,
) -> None:
    leader, other = heads.leader()
    submit(leader)
    leader.until("some rows are done", lambda: printed(heads) > 20)
    assert leader.daemon is not None
    assert other.daemon is not None

    leader.daemon.send_signal(signal.SIGSTOP)
    other.until("the other one leads", lambda: heads.is_ready(other))
    leader.daemon.send_signal(signal.SIGCONT)

    leader.until("it knows", lambda: "leadership.ended" in leader.told())
    assert not heads.is_ready(leader)
    other.daemon.send_signal(signal.SIGTERM)
    # Of a lease that was given back; it would have lived for seconds.
    leader.until("the first one leads", lambda: heads.is_ready(leader), within_s=4)
    assert other.daemon.wait(timeout=WAIT_S) == 0
    check_end(heads, leader)


@pytest.mark.timeout(240)
def test_c46_etcd_is_away_for_longer_than_the_lease_and_all_goes_on_by_itself(
    heads: Heads,
) -> None:
    leader, other = heads.leader()
    submit(leader)
    leader.until("both trainers run", lambda: len(trainers(heads)) == 2)
    leader.until("some rows are done", lambda: printed(heads) > 20)
    before = trainers(heads)

    heads.etcd.stop()
    leader.until("it does not act any more", lambda: not heads.is_ready(leader))
    told = ("leadership.ended", "engine.store_failed")
    leader.until("it says so", lambda: any(word in leader.told() for word in told))
    leader.until("its lease is over", lambda: "leadership.ended" in leader.told())
    assert all(one.daemon is not None and one.daemon.poll() is None for one in (leader, other))
    heads.etcd.start()

    found: Any
    found, _ = heads.leader()
    assert trainers(heads) <= before
    check_end(heads, found)
    assert found.document("get", "rows")["status"]["phase"] in FINAL
