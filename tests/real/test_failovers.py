"""C40: one leader after the other goes, in every way, within one job with data."""

import signal
import time
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path

import pytest

from tests.real.conftest import WAIT_S
from tests.real.separate_heads import Cluster, on_one_host, other

WAYS = ("killed", "stopped", "sleeps", "resigns")
"""Who resigned stays aside for 2 s: a leader that is killed next is missed for longer anyhow."""
FEW, MANY = 5, 100
ROWS_PER_FAILOVER = 600
"""More than two trainers read while the heads change as slowly as they may."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with on_one_host(tmp_path) as made:
        yield made


def fail_over(cluster: Cluster, way: str) -> float:
    """Let the leader go, and be there again to stand by; return for how long nobody led."""
    leader = cluster.leader()
    second, head = other(leader), cluster.heads[leader]
    assert head.daemon is not None
    begun_s = time.monotonic()
    match way:
        case "killed":
            head.kill()
        case "resigns":
            head.ctl("leader", "resign")
        case "stopped":
            head.daemon.send_signal(signal.SIGTERM)
        case _:
            cluster.pause(leader)
    head.until("the other one leads", lambda: cluster.leads(second))
    took_s = time.monotonic() - begun_s
    if way == "sleeps":
        cluster.go_on(leader)
    elif way != "resigns":
        assert head.daemon.wait(timeout=WAIT_S) == (0 if way == "stopped" else -signal.SIGKILL)
        cluster.start(leader, is_awaited=False)
    cluster.is_at_rest(second)
    return took_s


def fail_overs(cluster: Cluster, count: int) -> None:
    """Change the leader so often, and let the job end well."""
    cluster.submit(rows=ROWS_PER_FAILOVER * count)
    before = cluster.trainers()
    took_s: dict[str, list[float]] = {way: [] for way in WAYS}
    for way in islice(cycle(WAYS), count):
        took_s[way].append(fail_over(cluster, way))
        cluster.goes_on()
    for way, found in took_s.items():
        half = sorted(found)[len(found) // 2]
        print(f"{way}: {len(found)} times, median {half:.2f} s, at most {max(found):.2f} s")  # noqa: T201 what a soak is for
    cluster.check_end(before)


@pytest.mark.timeout(300)
def test_c40_five_changes_of_leader_within_one_job(cluster: Cluster) -> None:
    fail_overs(cluster, FEW)


@pytest.mark.soak
def test_c40_a_hundred_changes_of_leader_within_one_job(cluster: Cluster) -> None:
    fail_overs(cluster, MANY)
