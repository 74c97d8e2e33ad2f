"""A second node on one host, as another host would be one: C57, C72."""

import json
import subprocess
from pathlib import Path
from shutil import which
from typing import Any

import pytest

from tests.real.conftest import WAIT_S, with_kill
from tests.real.second_node import Second, cordon_first, placed, started, submit, worker
from tests.real.test_deaths import trainer_of


def logged(head: Any, name: str, *flags: str) -> dict[str, list[str]]:
    """Return the lines of each replica."""
    found: dict[str, list[str]] = {}
    for line in head.ctl("logs", name, *flags).stdout.splitlines():
        replica, _, text = line.partition(" ")
        found.setdefault(replica, []).append(text.strip())
    return found


TELL = 'cat hi.txt; echo "$PRIMUS_HOST $PRIMUS_PORT"; echo $(cat $PRIMUS_PEERS_FILE)'


def test_a_full_first_node_leaves_the_rest_to_the_second(head: Any, second: Second) -> None:
    """Files, ports, peers and logs are right on both; copies are made of the second's logs only."""
    started(head, second)
    shown = second.document()
    name = submit(head, TELL, replicas={"min": 5, "max": 5})

    assert head.ended(name)["phase"] == "Succeeded"

    assert (shown["capacity"]["cpuMilli"], shown["capacity"]["ports"]) == (3_000, 64)
    assert (shown["labels"], shown["capacity"]["memoryBytes"]) == ({"zone": "x"}, 4 << 30)
    on_b = {replica for replica, node in placed(head, name).items() if node == "b"}
    assert len(on_b) == 3
    lines = logged(head, name)
    assert len(lines) == 5
    peers = json.loads(lines["worker-0"][2])["roles"]["worker"]
    for number in range(5):
        said = lines[f"worker-{number}"]
        assert said[0] == "shipped"
        host, port = said[1].split()
        assert peers[number]["host"] == host
        assert peers[number]["ports"] == {"main": int(port)}
        is_ours = second.ports[0] <= int(port) <= second.ports[1]
        assert is_ours == (f"worker-{number}" in on_b)
    copied = {path.parent.name for path in head.state.glob("logs/jobs/*/*/a1")}
    assert copied == on_b


def test_all_four_logs_of_a_replica_elsewhere_are_readable_afterwards_c72(
    head: Any, second: Second
) -> None:
    """Restarted three times, cleaned up, its node and even its disk gone."""
    started(head, second)
    cordon_first(head)
    name = submit(head, "echo attempt $PRIMUS_ATTEMPT; test $PRIMUS_ATTEMPT -ge 4")
    status = head.ended(name)
    second.kill()
    for path in second.state.glob("jobs/*"):
        subprocess.run(["rm", "-rf", path], check=True)

    each = [logged(head, name, "--attempt", str(number)) for number in range(1, 5)]
    previous = logged(head, name, "--previous")
    everything = logged(head, name)

    assert status["phase"] == "Succeeded"
    assert each == [{"worker-0": [f"attempt {number}"]} for number in range(1, 5)]
    assert previous == {"worker-0": ["attempt 3"]}
    assert everything == {"worker-0": [f"attempt {number}" for number in range(1, 5)]}


def test_a_long_log_elsewhere_keeps_its_end_and_says_what_is_cut_off_c72(
    head: Any, second: Second
) -> None:
    started(head, second)
    cordon_first(head)
    name = submit(head, "seq -w 1 180000; echo done")
    assert head.ended(name)["phase"] == "Succeeded"

    lines = logged(head, name)["worker-0"]
    tail = logged(head, name, "--tail", "2")["worker-0"]

    assert lines[0].endswith("bytes are no longer kept]")
    gap = int(lines[0].lstrip("[").split()[0])
    assert lines[1] == f"{gap // 7 + 1:06d}"
    assert lines[-2:] == ["180000", "done"]
    assert len(lines) - 2 == 180_000 - gap // 7
    assert (1 << 20) - 7 < (len(lines) - 2) * 7 + 5 <= 1 << 20
    assert tail == ["180000", "done"]


def test_following_a_replica_elsewhere_loses_no_line_c73(head: Any, second: Second) -> None:
    """The last lines come out of the copy: nobody had asked for them when the trainer ended."""
    started(head, second)
    cordon_first(head)
    go = head.folder / "go"
    name = submit(head, f"seq 5000; while ! test -e {go}; do sleep 0.02; done; seq 5001 60000")
    with (head.folder / "followed").open("w") as out:
        following = subprocess.Popen(
            ["primusctl", "logs", name, "-f"], env=head.environment, stdout=out
        )
        path = head.folder / "followed"
        head.until("it follows", lambda: path.read_text().endswith(" 5000\n"))
        live_tail = logged(head, name, "--tail", "2")
        go.touch()
        code = following.wait(timeout=WAIT_S)

    lines = [line.split()[1] for line in path.read_text().splitlines()]
    assert code == 0
    assert live_tail == {"worker-0": ["4999", "5000"]}
    assert lines == [str(number) for number in range(1, 60_001)]


def test_trainers_outlive_their_node_and_the_daemon_c57(head: Any, second: Second) -> None:
    started(head, second)
    cordon_first(head)
    go = head.folder / "go"
    name = submit(head, f"echo begun; while ! test -e {go}; do sleep 0.02; done; echo over")
    head.until("it runs", lambda: head.phase(name) == "Running")
    head.until("it says so live", lambda: logged(head, name) == {"worker-0": ["begun"]})
    # Its shell: what that starts comes and goes.
    shell = trainer_of(head)

    second.kill()
    head.kill()
    assert trainer_of(head) == shell
    head.start()
    second.start()
    head.until("it runs", lambda: head.phase(name) == "Running")
    go.touch()

    assert head.ended(name)["phase"] == "Succeeded"
    assert head.attempts(name) == {"worker-0": 1}
    assert logged(head, name) == {"worker-0": ["begun", "over"]}
    assert shell


def test_a_trainer_that_ends_while_its_node_is_dead_is_recorded(head: Any, second: Second) -> None:
    """Its executor reports by itself; that it is gone is told by the node's return."""
    started(head, second)
    cordon_first(head)
    go = head.folder / "go"
    name = submit(
        head, f"while ! test -e {go}; do sleep 0.02; done; echo over; exit 3", success="any"
    )
    head.until("it runs", lambda: head.phase(name) == "Running")

    second.kill()
    go.touch()
    head.until(
        "its end is known",
        lambda: head.document("get", name, "--replicas")["items"][0]["attempts"][0].get("outcome"),
    )
    assert logged(head, name) == {"worker-0": ["over"]}
    second.start()
    head.until("it runs again", lambda: head.attempts(name)["worker-0"] > 1)


def test_rows_are_leased_to_workers_on_both_nodes_and_all_counted(
    head: Any, second: Second
) -> None:
    """Those on the second one are killed on the way, and read on."""
    lines = [f"line {number:05d}" for number in range(800)]
    (head.folder / "rows").mkdir()
    for part in range(8):
        text = "".join(f"{line}\n" for line in lines[part * 100 : part * 100 + 100])
        (head.folder / "rows" / f"{part}.txt").write_text(text)
    started(head, second)
    dies = f"test $PRIMUS_ATTEMPT$n = 120 && test $PRIMUS_PORT -ge {second.ports[0]}"
    dies += f" && test $PRIMUS_PORT -le {second.ports[1]} && kill -9 $$"
    # All of them are there before the first row is read: none comes too late to get any.
    meet = f"touch {head.folder}/began.$PRIMUS_INDEX"
    meet += f"; until test 5 = $(ls {head.folder} | grep -c began); do sleep 0.02; done"
    take = f'while read -r line; do echo "$line"; n=$((n+1)); {dies}; sleep 0.001; done'
    slow = f"test $PRIMUS_ATTEMPT != 1 || {{ {meet}; }}; n=0; {take}"
    job = json.loads(worker(slow, replicas=5, data="rows", feed="stdin"))
    source = {"files": f"{head.folder}/rows/*.txt"}
    job["data"] = {"rows": {"sources": [source], "format": "text"}}
    job["files"] = []
    name = head.submit(json.dumps(job))

    assert head.ended(name)["phase"] == "Succeeded"
    head.ctl("data", name, "verify")
    on_b = {replica for replica, node in placed(head, name).items() if node == "b"}
    restarted = {replica for replica, count in head.attempts(name).items() if count == 2}
    assert restarted
    assert restarted <= on_b
    read = [line for some in logged(head, name).values() for line in some]
    assert set(lines) <= set(read)


def test_cordoned_nodes_get_nothing_and_uncordoned_ones_do(head: Any, second: Second) -> None:
    started(head, second)
    first = cordon_first(head)
    head.ctl("nodes", "cordon", "b")
    name = submit(head, "echo here", replicas=2)
    head.until("it waits", lambda: "cordoned" in head.ctl("describe", name).stdout.lower())
    assert second.document()["phase"] == "Cordoned"

    head.ctl("nodes", "uncordon", "b")

    assert head.ended(name)["phase"] == "Succeeded"
    assert set(placed(head, name).values()) == {"b"}
    head.ctl("nodes", "uncordon", first)
    assert {one["phase"] for one in head.document("nodes", "list")["items"]} == {"Ready"}


@pytest.mark.soak
def test_a_node_that_is_gone_for_good_is_removed_and_its_replicas_begin_elsewhere(
    head: Any, second: Second
) -> None:
    """Node, executor and trainer die as with their host; nobody waits for `replaceAfter`."""
    started(head, second)
    first, go = cordon_first(head), head.folder / "go"
    name = submit(head, f"while ! test -e {go}; do sleep 0.02; done")
    head.until("it runs", lambda: head.phase(name) == "Running")
    early = head.ctl("nodes", "remove", "b", "--lost", allowed=(4,))
    head.ctl("nodes", "uncordon", first)

    second.kill()
    for pid in head.processes(str(second.state)):
        with_kill(pid)
    head.until("it is away", lambda: second.document().get("phase") == "Away")
    asked = head.ctl("nodes", "remove", "b", allowed=(4,))
    removed = head.ctl("nodes", "remove", "b", "--lost").stdout
    head.until("it runs elsewhere", lambda: placed(head, name) == {"worker-0": first})
    go.touch()

    assert "only a node that is away can be removed" in early.stderr
    assert "it is not known that worker-0 of two ended on b" in asked.stderr
    assert removed == "b removed\n"
    assert head.ended(name)["phase"] == "Succeeded"
    assert head.attempts(name) == {"worker-0": 2}
    assert second.document() == {}
    causes = [
        one["outcome"]["cause"]
        for one in head.document("get", name, "--replicas")["items"][0]["attempts"]
    ]
    # Its executor is given up after the same half minute as its node.
    assert causes in (["Lost", "Completed"], ["NodeLost", "Completed"])


def secure(head: Any) -> None:
    """Let the daemon serve TLS with a certificate that signs nothing, not even itself."""
    key, cert = head.folder / "tls.key", head.folder / "tls.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-keyout", str(key), "-out", str(cert), "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    command += ["-addext", "basicConstraints=critical,CA:FALSE"]
    subprocess.run(command, check=True, capture_output=True)
    settings = Path(head.environment["PRIMUSD_CONFIG"])
    listen = f'[listen]\ntls_cert = "{cert}"\ntls_key = "{key}"\n'
    settings.write_text(listen + settings.read_text())


@pytest.mark.parametrize(
    "scheme",
    [
        "http",
        pytest.param("https", marks=pytest.mark.skipif(not which("openssl"), reason="no openssl")),
    ],
)
def test_a_second_node_joins_over_tcp_where_no_socket_of_the_daemon_is(
    head: Any, second: Second, scheme: str
) -> None:
    """As on another host: nodes and executors find the path of no socket, and dial the address."""
    if scheme == "https":
        secure(head)
    head.start("--listen", "127.0.0.1:0")
    head.until("the first node is ready", lambda: bool(head.document("nodes", "list")["items"]))
    second.introduce()
    moved = head.socket.with_name("moved.sock")
    head.socket.rename(moved)
    head.environment["PRIMUS_ADDRESS"] = f"unix:{moved}"
    second.start()
    cordon_first(head)

    name = submit(head, TELL)

    assert head.ended(name)["phase"] == "Succeeded"
    heads = json.loads(second.file.read_text())["heads"]
    assert [one.partition(":")[0] for one in heads] == ["unix", scheme]
    assert placed(head, name) == {"worker-0": "b"}
    assert logged(head, name)["worker-0"][0] == "shipped"
