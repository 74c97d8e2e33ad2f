"""Heads, nodes and members of etcd on hosts of their own: each is cut off, killed or paused.

In the middle of a job with data; whatever happens, no trainer is begun anew and no row is lost.
"""

import json
import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.real.quick_primusd import LEADER_TTL_MS
from tests.real.separate_heads import HEADS, MEMBERS, NODES, Cluster, on_separate_hosts, other
from tests.services.separate_hosts import Hosts

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]
ROWS = 2_000
JOBS = "/api/v1/namespaces/default/jobs"
LOST = '"head.'
DAY_MS = 86_400_000
LOST_S = 200
"""Longer than the 30 s after which an executor is lost, and the 65 s until it is replaced."""
DISK = "96m"
"""More than the ballast, which a head takes at its start."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with on_separate_hosts(tmp_path) as made:
        yield made


def running(cluster: Cluster) -> tuple[str, set[int], Hosts]:
    """Let the job run; return who leads, the trainers, and the hosts."""
    cluster.submit(rows=ROWS)
    before = cluster.trainers()
    assert len(before) == 2
    assert cluster.hosts is not None
    return cluster.leader(), before, cluster.hosts


def replaced(cluster: Cluster, leader: str) -> str:
    """Wait until the other head leads, and return it; trainers go on with it."""
    cluster.heads[leader].until("the other one leads", lambda: cluster.leads(other(leader)))
    cluster.goes_on()
    return other(leader)


def test_c39_a_leader_whose_words_or_whose_answers_from_etcd_are_lost_is_replaced(
    cluster: Cluster,
) -> None:
    leader, before, hosts = running(cluster)

    hosts.cut(leader, *MEMBERS)
    second = replaced(cluster, leader)
    # By its own clock, for nobody could tell it.
    cluster.heads["a"].until("it stopped", lambda: not cluster.leads(leader))
    hosts.heal()
    cluster.is_at_rest(second)

    for member in MEMBERS:
        hosts.cut(member, second)
    assert replaced(cluster, second) == leader
    hosts.heal()
    cluster.is_at_rest(leader)

    cluster.check_end(before)


def marked(cluster: Cluster, name: str) -> str:
    """Return a job that writes a line, as JSON."""
    command = f"echo {name} >> {cluster.folder}/marks"
    worker = {"command": command, "resources": {"cpu": 1, "memory": "16Mi"}}
    return json.dumps({"apiVersion": "primus/v1", "name": name, "roles": {"worker": worker}})


def marks(cluster: Cluster) -> Counter[str]:
    """Return how often each of those jobs was carried out."""
    file = cluster.folder / "marks"
    return Counter(file.read_text().split()) if file.exists() else Counter()


def test_c39_a_leader_that_slept_launches_nothing_twice(cluster: Cluster) -> None:
    leader, before, _ = running(cluster)
    second = other(leader)
    # What it has recorded and not yet carried out, and what it is asked for in its sleep.
    early, late = [f"early-{n}" for n in range(4)], [f"late-{n}" for n in range(6)]
    with ExitStack() as held:
        sockets = {one: held.enter_context(socket.socket(socket.AF_UNIX)) for one in early + late}
        for name in early:
            cluster.sent(sockets[name], leader, JOBS, marked(cluster, name))
        taken = {name for name in early if cluster.heard(sockets[name])}
        cluster.pause(leader)
        paused_s = time.monotonic()
        assert taken == set(early)
        for name in late:
            cluster.sent(sockets[name], leader, JOBS, marked(cluster, name))
        assert replaced(cluster, leader) == second
        cluster.heads[second].until("all are done", lambda: set(marks(cluster)) == taken)
        over_s = paused_s + 2 * LEADER_TTL_MS / 1000
        cluster.heads[second].until("its lease is long over", lambda: time.monotonic() > over_s)
        cluster.go_on(leader)
        taken |= {name for name in late if cluster.heard(sockets[name])}

    cluster.is_at_rest(second)
    cluster.heads[second].until("all are done", lambda: set(marks(cluster)) >= taken)
    assert set(marks(cluster).values()) == {1}, marks(cluster)
    listed = set(cluster.heads[second].ctl("list", "-o", "name").stdout.split())
    assert set(marks(cluster)) == {one.rpartition("/")[2] for one in listed} - {"rows"}
    cluster.check_end(before)


@pytest.mark.soak
@pytest.mark.parametrize("way", ["both", "out", "in"])
def test_c40_a_leader_cut_off_from_nodes_and_executors_for_a_while_loses_none(
    cluster: Cluster, way: str
) -> None:
    leader, before, hosts = running(cluster)

    for node in NODES:
        if way != "in":
            hosts.cut(leader, node)
        if way != "out":
            hosts.cut(node, leader)
    stands_still(cluster)
    assert cluster.leads(leader)
    hosts.heal()

    cluster.goes_on()
    assert cluster.leads(leader)
    cluster.check_end(before)


def stands_still(cluster: Cluster) -> None:
    """Wait until executors have missed several beats: their connections are over."""
    logs = list(cluster.folder.glob("node-*/jobs/*/worker-*/a1/executor.log"))
    assert len(logs) == 2
    lost = {log: log.read_text().count(LOST) for log in logs}
    cluster.heads["a"].until(
        "executors look for another head",
        lambda: all(log.read_text().count(LOST) > lost[log] for log in logs),
    )


@pytest.mark.soak
def test_c40_a_leader_cut_off_from_its_follower_leads_on(cluster: Cluster) -> None:
    leader, before, hosts = running(cluster)
    follower = other(leader)

    hosts.cut_off(leader, follower)
    said = cluster.heads[follower]
    said.until("it says so", lambda: not cluster.serves(follower))
    cluster.goes_on()
    assert cluster.leads(leader)
    assert said.ctl("get", "rows", allowed=(5,)).returncode == 5
    hosts.heal()

    said.until("it hands on again", lambda: cluster.serves(follower))
    assert said.phase("rows") == "Running"
    cluster.check_end(before)


@pytest.mark.soak
def test_c40_a_leader_whose_host_is_cut_off_from_all_is_replaced(cluster: Cluster) -> None:
    leader, before, hosts = running(cluster)

    hosts.cut_off(leader, other(leader), *MEMBERS, *NODES)
    second = replaced(cluster, leader)
    hosts.heal()

    cluster.is_at_rest(second)
    cluster.check_end(before)


@pytest.mark.soak
def test_c46_members_of_etcd_are_killed_its_leader_first_and_the_majority_comes_back(
    cluster: Cluster,
) -> None:
    _, before, _ = running(cluster)
    first = cluster.etcd_leader()
    cluster.members[first].kill()
    cluster.goes_on()
    cluster.leader()

    second = cluster.etcd_leader()
    assert second != first
    cluster.members[second].kill()
    a = cluster.heads["a"]
    a.until("nobody leads", lambda: not any(map(cluster.leads, HEADS)))
    assert cluster.trainers() == before
    cluster.members[first].start()
    cluster.members[second].start()

    cluster.is_at_rest(cluster.leader())
    cluster.goes_on()
    cluster.check_end(before)


@pytest.mark.soak
def test_c39_wall_clocks_that_jump_make_no_second_leader_and_end_nothing(cluster: Cluster) -> None:
    leader, before, _ = running(cluster)
    for jump_ms in (DAY_MS, -DAY_MS):
        cluster.clock(leader).write_text(str(jump_ms))
        cluster.goes_on()
        assert cluster.leads(leader)
        assert not cluster.leads(other(leader))
    # The next one's clock is right, and the journal's time does not go back.
    cluster.clock(leader).write_text(str(DAY_MS))
    cluster.goes_on()
    cluster.heads[leader].kill()
    second = replaced(cluster, leader)
    cluster.start(leader)
    cluster.is_at_rest(second)
    cluster.check_end(before)


@pytest.mark.soak
def test_the_disk_of_the_leader_is_full_and_trainers_do_not_notice(cluster: Cluster) -> None:
    leader, before, _ = running(cluster)
    follower = other(leader)
    assert cluster.heads[follower].stop() == 0
    state = cluster.heads[follower].state
    # A host whose disk is small: its state directory begins anew.
    cluster.start(follower, setup=f"mount -t tmpfs -o size={DISK} none {state}")
    cluster.is_at_rest(leader)
    cluster.heads[leader].kill()
    assert replaced(cluster, leader) == follower
    cluster.start(leader)
    cluster.is_at_rest(follower)

    inside = Path(f"/proc/{cluster.pid(follower)}/root{state}")
    fill(inside / "filler")
    cluster.goes_on()
    cluster.is_at_rest(follower)
    (inside / "filler").unlink()

    cluster.check_end(before)


def fill(path: Path) -> None:
    """Take all the room that a file can have where it lies."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(65_536))


@pytest.mark.soak
def test_c41_a_node_that_was_cut_off_for_too_long_ends_what_was_replaced(cluster: Cluster) -> None:
    leader, before, hosts = running(cluster)
    head = cluster.heads[leader]
    folder = next(iter(cluster.printed())).partition("/")[0]
    old = {one for one in before if folder in Path(f"/proc/{one}/environ").read_text()}
    assert old

    hosts.cut_off(folder.removeprefix("node-"), *HEADS)
    head.until("it is replaced", lambda: 2 in head.attempts("rows").values(), within_s=LOST_S)
    head.until("both run", lambda: len(cluster.trainers()) == 2 + len(old))
    # It cannot know yet, and reads no more than it had a lease for.
    assert old <= cluster.trainers()
    hosts.heal()

    head.until("it was told", lambda: not old & cluster.trainers())
    (cluster.folder / "hurry").touch()
    assert head.ended("rows")["phase"] == "Succeeded", cluster.story()
    assert sum(head.attempts("rows").values()) == 2 + len(old)
    proof = head.document("data", "rows", "verify")
    assert proof["ok"], proof
    assert proof["done"] == proof["listed"] > 0, proof
