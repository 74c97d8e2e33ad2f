"""Heads, nodes and etcd as they are on hosts of their own, and one job with data on them."""

import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.real.conftest import WAIT_S, Head, making
from tests.real.port_ranges import own_ports
from tests.services.etcd import PLAIN, running_etcd
from tests.services.etcd_programs import need_etcd
from tests.services.processes import Service, free_ports
from tests.services.separate_hosts import Hosts, separate_hosts

HEADS = ("a", "b")
NODES = ("n1", "n2")
MEMBERS = ("e1", "e2", "e3")
ANSWER_S = 2.0
# Slow enough for a member that gets a tenth of a core, quick enough for a lease of 3 s.
_ELECTS = ("--heartbeat-interval", "100", "--election-timeout", "1000")
_QUICK = Path(__file__).with_name("quick_primusd.py")
_STATUS = """
import json, sys, urllib.request
url = f"http://{sys.argv[1]}:2379/v3/maintenance/status"
found = json.load(urllib.request.urlopen(urllib.request.Request(url, b"{}"), timeout=2))
print(found["leader"] == found["header"]["member_id"])
"""
PADDING = "x" * 1_000
"""A pipe holds 64 KiB: a few seconds of reading, not all there is."""
JOB = """
apiVersion: primus/v1
name: rows
schedule: {{replaceAfter: 65s}}
roles:
  worker:
    replicas: 2
    command: 'while read -r line; do echo "${{line%:*}}"; [ -e {hurry} ] || sleep {pause}; done'
    data: lines
    feed: stdin
    resources: {{cpu: 1, memory: 64Mi}}
data:
  lines: {{sources: [{{files: "{folder}/*"}}], format: text, split: {{bytes: 16Ki}}}}
"""


class Node:
    """A node on a host of its own.

    Attributes:
        process: None before it was started.
    """

    def __init__(
        self, name: str, prefix: tuple[str, ...], ports: tuple[int, int], *, cpu: int
    ) -> None:
        self.name = name
        self._cpu = cpu
        self.process: subprocess.Popen[bytes] | None = None
        self._prefix = prefix
        self._ports = f"{ports[0]}-{ports[1]}"

    def start(self, head: Head, environment: dict[str, str] | None = None) -> None:
        """Start it with what the head tells of itself; it is not waited for."""
        file = head.folder / f"{self.name}.json"
        if not file.exists():
            head.ctl("nodes", "add", self.name, "--out", str(file))
        # -P: the code is that of PYTHONPATH, where one is given, whatever folder this is.
        command = [*self._prefix, sys.executable, "-P", "-m", "primusd", "node"]
        command += [
            "--name",
            self.name,
            "--bootstrap",
            str(file),
            "--state-dir",
            str(self.state(head)),
        ]
        command += ["--ports", self._ports, "--cpu", str(self._cpu), "--memory", "1Gi"]
        given = {**head.environment, **(environment or {})}
        del given["PRIMUS_ADDRESS"]
        with head.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, env=given, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def state(self, head: Head) -> Path:
        """Return its state directory."""
        return head.folder / f"node-{self.name}"


class Cluster:
    """Two heads without nodes of their own, two nodes, and one job.

    Attributes:
        heads: By name; the folder of `a` has all that is not a head's own.
        nodes: That trainers run on.
        members: Of etcd, by name.
        hosts: Where each has one of its own.
    """

    def __init__(self, heads: list[Head], url: str, hosts: Hosts | None) -> None:
        self.heads = dict(zip(HEADS, heads, strict=True))
        self.nodes: list[Node] = []
        self.members: dict[str, Service] = {}
        self.hosts = hosts
        self.url = url
        self.folder = heads[0].folder
        self.paused: set[str] = set()
        self.row_count = 0
        ports = free_ports(len(heads))
        self._listen = {
            name: f"{hosts.address(name)}:8080" if hosts else f"127.0.0.1:{port}"
            for name, port in zip(HEADS, ports, strict=True)
        }
        for name, head in self.heads.items():
            settings = Path(head.environment["PRIMUSD_CONFIG"])
            blobs = f'[blobs]\nurl = "file://{self.folder}/blobs"\n'
            settings.write_text(f'member = "{name}"\n{settings.read_text()}{blobs}')

    def clock(self, name: str) -> Path:
        """Return the file that moves a head's wall clock."""
        return self.heads[name].folder / "clock"

    def start(self, name: str, *, setup: str = "", is_awaited: bool = True) -> None:
        """Start a head; `setup` is a line of shell on its host, before."""
        prefix = self.hosts.prefix(name) if self.hosts else ()
        if setup:
            prefix += ("/bin/sh", "-c", f'{setup} && exec "$@"', "sh")
        program = (*prefix, sys.executable, str(_QUICK), str(self.clock(name)))
        flags = ("--store", self.url, "--no-node", "--insecure", "--listen", self._listen[name])
        self.heads[name].start(*flags, program=program, is_awaited=is_awaited)

    def start_node(self, name: str, ports: tuple[int, int]) -> Node:
        """Start a node; what heads listen at on their own hosts is not to be seen there."""
        hidden = tuple(head.socket.parent for head in self.heads.values())
        prefix = self.hosts.prefix(name, hidden) if self.hosts else ()
        # A core for each trainer, and where there is a network between them some more.
        made = Node(name, prefix, ports, cpu=3 if self.hosts else 1)
        made.start(self.heads["a"])
        self.nodes.append(made)
        return made

    def leads(self, name: str) -> bool:
        """Return whether a head says that it leads; one that is paused says nothing."""
        return name not in self.paused and self._answers(name, "/readyz?leads")

    def serves(self, name: str) -> bool:
        """Return whether a head answers requests, by way of the leader or itself."""
        return self._answers(name, "/readyz")

    def leader(self) -> str:
        """Return who leads, once somebody does."""
        self.heads["a"].until("somebody leads", lambda: any(map(self.leads, HEADS)))
        return next(filter(self.leads, HEADS), "") or self.leader()

    def stands_by(self, name: str) -> bool:
        """Return whether a head hands on to the leader, and is one of those who may lead next."""
        return (
            self.serves(name)
            and not self.leads(name)
            and f'"name":"{name}"' in self._asked(other(name), "/api/v1/cluster")
        )

    def is_at_rest(self, leader: str) -> None:
        """Wait until one head leads and the other one may lead next."""
        self.heads["a"].until(
            f"{leader} leads, {other(leader)} stands by",
            lambda: self.leads(leader) and self.stands_by(other(leader)),
        )

    def pause(self, name: str) -> None:
        """Let a head stand still, with all its connections open."""
        self.paused.add(name)
        os.kill(self.pid(name), signal.SIGSTOP)

    def go_on(self, name: str) -> None:
        """End that."""
        os.kill(self.pid(name), signal.SIGCONT)
        self.paused.discard(name)

    def pid(self, name: str) -> int:
        """Return the process of a head."""
        daemon = self.heads[name].daemon
        assert daemon is not None
        return daemon.pid

    def submit(self, *, rows: int, pause_s: float = 0.1) -> None:
        """Submit the job, and wait until both trainers have printed rows."""
        folder = self.folder / "input"
        folder.mkdir()
        lines = "".join(f"row {number}:{PADDING}\n" for number in range(rows))
        (folder / "rows.txt").write_text(lines)
        self.row_count = rows
        head = self.heads[self.leader()]
        words = ("nodes", "list", "-o", "json")
        head.until("both nodes are there", lambda: head.ctl(*words).stdout.count('"Ready"') == 2)
        head.submit(JOB.format(folder=folder, hurry=self.folder / "hurry", pause=pause_s))
        head.until("both print", lambda: min(self.printed().values(), default=0) > 0)

    def printed(self) -> dict[str, int]:
        """Return how many lines each attempt of the job has printed, by its folder."""
        found: dict[str, int] = {}
        for node in NODES:
            for log in self.folder.glob(f"node-{node}/jobs/*/worker-*/a*/stdout*.log"):
                name = str(log.parent.relative_to(self.folder))
                found[name] = found.get(name, 0) + log.read_bytes().count(b"row ")
        return found if len(found) > 1 else {}

    def trainers(self) -> set[int]:
        """Return the processes of trainers, without what they start."""
        found = self.heads["a"].processes("while read")
        return {pid for pid in found if _leads_session(pid)}

    def goes_on(self) -> None:
        """Wait until each trainer has printed rows that it had not yet."""
        before = self.printed()
        self.heads["a"].until(
            "both trainers go on",
            lambda: all(self.printed()[name] > count for name, count in before.items()),
        )

    def check_end(self, before: set[int]) -> None:
        """Let the job end, well: the same trainers, one attempt each, each row once.

        Args:
            before: The trainers, when they began.
        """
        assert len(before) == 2
        assert self.trainers() == before, self.story()
        (self.folder / "hurry").touch()
        head = self.heads[self.leader()]
        status = head.ended("rows")
        assert status["phase"] == "Succeeded", f"{status}\n{self.story()}"
        assert head.attempts("rows") == {"worker-0": 1, "worker-1": 1}, self.story()
        rows: Counter[str] = Counter()
        for log in self.folder.glob("node-*/jobs/*/worker-*/a*/stdout*.log"):
            rows.update(log.read_text().splitlines())
        assert rows == Counter(f"row {number}" for number in range(self.row_count)), self.story()
        proof = head.document("data", "rows", "verify")
        assert proof["ok"], proof
        assert proof["done"] == proof["listed"] > 0, proof
        assert proof["repeatedMax"] == 0, proof

    def story(self) -> str:
        """Return what heads and nodes said last."""
        told = [f"== {name}\n{head.told()}" for name, head in self.heads.items()]
        logs = sorted(self.folder.glob("node-*/jobs/*/worker-*/a*/executor.log"))
        told += [f"== {one.relative_to(self.folder)}\n{one.read_text()[-3000:]}" for one in logs]
        return "\n".join(told)

    def etcd_leader(self) -> str:
        """Return the member that leads the others, once one does."""
        self.heads["a"].until("a member leads", lambda: self._etcd_leader() != "")
        return self._etcd_leader() or self.etcd_leader()

    def _etcd_leader(self) -> str:
        assert self.hosts is not None
        for name, member in self.members.items():
            if not member.is_running:
                continue
            command = (sys.executable, "-S", "-c", _STATUS, self.hosts.address(name))
            done = subprocess.run(
                (*self.hosts.prefix(name), *command), capture_output=True, text=True, check=False
            )
            if "True" in done.stdout:
                return name
        return ""

    def _answers(self, name: str, path: str) -> bool:
        return self._asked(name, path) != ""

    def _asked(self, name: str, path: str) -> str:
        """Return what a head answers on its socket; "" nothing, or no."""
        try:
            with socket.socket(socket.AF_UNIX) as asked:
                asked.settimeout(ANSWER_S)
                return self.heard(self.sent(asked, name, path))
        except OSError:
            return ""

    def sent(self, asked: socket.socket, name: str, path: str, body: str = "") -> socket.socket:
        """Send a request to a head, by a connection that is new; return it."""
        asked.connect(str(self.heads[name].socket))
        method = "POST" if body else "GET"
        about = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        asked.sendall(f"{method} {path} HTTP/1.0\r\n{about}\r\n\r\n{body}".encode())
        return asked

    @staticmethod
    def heard(asked: socket.socket) -> str:
        """Return the answer to it; "" unless it is 200 or 201."""
        told = b"".join(iter(lambda: asked.recv(65536), b""))
        head, _, text = told.partition(b"\r\n\r\n")
        line = head.partition(b"\r\n")[0]
        return (text.decode() or "yes") if b" 200 " in line or b" 201 " in line else ""


def _leads_session(pid: int) -> bool:
    """Return whether it is a trainer itself; what it forks looks like it for a moment."""
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False


def other(name: str) -> str:
    """Return the other one of two heads."""
    return HEADS[1 - HEADS.index(name)]


@contextmanager
def on_separate_hosts(folder: Path) -> Iterator[Cluster]:
    """Give a cluster, each of its processes on a host of its own, with three members of etcd."""
    program = need_etcd(PLAIN)
    with separate_hosts(*HEADS, *NODES, *MEMBERS) as hosts, ExitStack() as held:
        heads = [held.enter_context(making()) for _ in HEADS]
        url = f"etcd://{','.join(hosts.address(one) for one in MEMBERS)}"
        made = Cluster(heads, url, hosts)
        peers = ",".join(f"{one}=http://{hosts.address(one)}:2380" for one in MEMBERS)
        for name in MEMBERS:
            client, peer = (f"http://{hosts.address(name)}:{port}" for port in (2379, 2380))
            words = (
                *("--name", name, "--data-dir", str(folder / name), "--initial-cluster", peers),
                *("--listen-client-urls", client, "--advertise-client-urls", client),
                *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                *("--logger", "zap", "--log-level", "warn"),
                *_ELECTS,
            )
            command = (*hosts.prefix(name), *program, *words)
            member = made.members[name] = Service(name, command, folder)
            held.callback(member.kill)
            member.start()
        _start_all(made, held)
        yield made


@contextmanager
def on_one_host(folder: Path) -> Iterator[Cluster]:
    """Give a cluster whose processes share a host, with one member of etcd."""
    with running_etcd(folder) as etcd, ExitStack() as held:
        made = Cluster([held.enter_context(making()) for _ in HEADS], etcd.url, None)
        _start_all(made, held)
        yield made


def _start_all(made: Cluster, held: ExitStack) -> None:
    for name in HEADS:
        made.start(name, is_awaited=False)
    leader = made.leader()
    made.is_at_rest(leader)
    for name in NODES:
        node = made.start_node(name, held.enter_context(own_ports()))
        held.callback(_end, node)


def _end(node: Node) -> None:
    if node.process is not None:
        node.process.kill()
        node.process.wait(timeout=WAIT_S)
