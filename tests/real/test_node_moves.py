"""Several nodes on one host: where replicas go, and how a node is emptied. M026, C22, C71."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.edges.groups import Group, can_be_made, making_group
from tests.real.port_ranges import own_ports
from tests.real.second_node import Second, first_name, placed, started

GIB = 1 << 30
HOLD = "import sys; held = bytearray(b'x') * (1 << 30); print('held', flush=True); sys.stdin.read()"


def job(command: str, **changes: object) -> str:
    """Return a job file with workers that restart at once."""
    role = {"command": command, "resources": {"cpu": 1}, **changes}
    return json.dumps({"apiVersion": "primus/v1", "name": "moves", "roles": {"worker": role}})


def waiting_for(path: Path) -> str:
    return f"echo attempt $PRIMUS_ATTEMPT; while ! test -e {path}; do sleep 0.02; done"


def test_a_node_is_emptied_one_replica_at_a_time_at_nobodys_cost_C22(
    head: Any, second: Second
) -> None:
    started(head, second)
    first, go = first_name(head), head.folder / "go"
    head.ctl("nodes", "cordon", first)
    nothing = {"application": 0, "infrastructure": 0}
    name = head.submit(job(waiting_for(go), replicas=2, budgets=nothing))
    head.until("it runs", lambda: head.phase(name) == "Running")
    assert set(placed(head, name).values()) == {"b"}
    head.ctl("nodes", "uncordon", first)

    said = head.ctl("nodes", "drain", "b").stdout

    assert set(placed(head, name).values()) == {first}
    assert head.attempts(name) == {"worker-0": 2, "worker-1": 2}
    assert said.splitlines()[-1] == "b Cordoned (drained)"
    events = [(one["reason"], one["message"]) for one in head.document("events", name)["items"]]
    stops = [place for place, one in enumerate(events) if one[0] == "StopDecided"]
    starts = [
        place for place, one in enumerate(events) if one[0] == "TrainerStarted"
    ]  # of second attempts
    assert [events[place][1] for place in stops] == [
        f"worker-{index} stop (drained): node b is being emptied" for index in (0, 1)
    ]
    assert stops[0] < starts[0] < stops[1] < starts[1]
    go.touch()
    assert head.ended(name)["phase"] == "Succeeded"
    assert second.document()["faults"] == []


def test_a_drain_waits_where_nothing_else_fits_and_says_so(head: Any, second: Second) -> None:
    started(head, second)
    first, go = first_name(head), head.folder / "go"
    name = head.submit(job(waiting_for(go), placement={"nodes": {"zone": "x"}}))
    head.until("it runs", lambda: head.phase(name) == "Running")

    done = head.ctl("nodes", "drain", "b", "--timeout", "300ms", allowed=(6,))
    (left,) = second.document()["drain"]["left"]
    reason = head.document("get", name)["status"]["reason"]
    asked_again = head.ctl("nodes", "drain", "b", "--no-wait").stdout.splitlines()
    as_listed = head.ctl("nodes", "list").stdout
    head.ctl("nodes", "uncordon", "b")

    assert "1 replica is still on b; the drain goes on" in done.stderr
    assert left["state"] == "waiting"
    assert asked_again[-1] == "b Cordoned (draining, 1 left)"
    assert "Cordoned (draining, 1 left)" in as_listed
    assert (
        "1 of worker needs a place to move to: 1 of 2 nodes with zone=x, 0 ready"
        in (left["message"])
    )
    assert reason == "WaitingForPlacement"
    assert "drain" not in second.document()
    go.touch()
    assert head.ended(name)["phase"] == "Succeeded"
    assert head.attempts(name) == {"worker-0": 1}
    assert placed(head, name) == {"worker-0": "b"}
    assert first


def test_labels_and_limits_per_node_are_kept_and_what_nothing_could_meet_is_refused_M026(
    head: Any, second: Second
) -> None:
    started(head, second)
    one_a_node = {"maxPerNode": 1, "apart": ["ps"], "nodes": {"zone": "x"}}
    roles = {
        "worker": {"command": "true", "placement": one_a_node},
        "ps": {"command": "true"},
    }
    name = head.submit(json.dumps({"name": "kept", "roles": roles}))
    nowhere = job("true", placement={"nodes": {"zone": "y"}})
    refused = head.ctl("submit", "-", stdin=nowhere, allowed=(2,))
    contrary = job("true", replicas=2, placement={"near": ["worker"], "maxPerNode": 1})
    contradicted = head.ctl("submit", "-", stdin=contrary, allowed=(2,))

    assert head.ended(name)["phase"] == "Succeeded"
    assert placed(head, name) == {"worker-0": "b", "ps-0": first_name(head)}
    assert "no node has zone=y; labels known: zone=x (1)" in refused.stderr
    assert "2 replicas belong on one node, at most 1 may" in contradicted.stderr


def test_a_node_left_out_gets_nothing_until_it_is_forgiven_M043_C71(
    head: Any, second: Second
) -> None:
    started(head, second)
    head.ctl("nodes", "exclude", "b", "--for", "1h", "--reason", "a fan is loud")
    shown = second.document()
    name = head.submit(job("true"))
    assert head.ended(name)["phase"] == "Succeeded"

    head.ctl("nodes", "forgive", "b")
    assert (shown["phase"], shown["excludedReason"]) == ("Excluded", "a fan is loud")
    assert set(placed(head, name).values()) == {first_name(head)}
    assert second.document()["phase"] == "Ready"


@contextmanager
def foreign_load(group: Group) -> Iterator[None]:
    """Let a process that is not ours hold 1 GiB beside a node."""
    enter = "; ".join(f"echo 0 > {path}" for path in group.procs)
    command = ["/bin/sh", "-c", f'{enter}; exec "$@"', "sh", sys.executable, "-c", HOLD]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as one:
        try:
            assert one.stdout is not None
            assert one.stdout.readline() == b"held\n"
            yield
        finally:
            one.kill()


@pytest.mark.root
def test_the_next_replica_goes_to_the_idle_node_although_it_holds_more(head: Any) -> None:
    """Two nodes, each in a control group of its own, as in a container; one has a busy neighbour.

    So each measures its own group, and what else runs on the host of the test does not count.
    """
    if not can_be_made():
        pytest.skip("no control groups of version 1 can be made here")
    with ExitStack() as stack:
        groups = {name: stack.enter_context(making_group(2 * GIB)) for name in ("a", "b")}
        stack.callback(head.end_all)
        stack.enter_context(foreign_load(groups["a"]))
        head.start()
        head.until("one is ready", lambda: bool(head.document("nodes", "list")["items"]))
        (own,) = head.document("nodes", "list")["items"]
        head.ctl("nodes", "cordon", own["name"])
        nodes = {name: Second(head, stack.enter_context(own_ports()), name) for name in ("a", "b")}
        for name, one in nodes.items():
            stack.callback(one.end)
            one.flags = ["--cpu", "2", "--memory", "2Gi"]
            one.procs = groups[name].procs
            one.introduce()
            one.start()
        head.until("its load is known", lambda: "load" in nodes["a"].document())
        go = head.folder / "go"
        name = head.submit(job(waiting_for(go), replicas=3, resources={}))
        head.until("it runs", lambda: head.phase(name) == "Running")

        load = nodes["a"].document()["load"]
        where = placed(head, name)
        listed = head.ctl("nodes", "list", "-o", "wide").stdout
        go.touch()

        assert head.ended(name)["phase"] == "Succeeded"
        assert 0.9 * GIB < load["memoryBytes"] < 1.3 * GIB
        assert "load" not in nodes["b"].document()
        assert where == {"worker-0": "b", "worker-1": "b", "worker-2": "b"}
        assert "OTHERS" in listed
