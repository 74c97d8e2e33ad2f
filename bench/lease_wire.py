"""Durable leases over the wire, beside DLRover's master; 10,000 readers on one daemon.

What an exchange of very many costs is the daemon's CPU, journal and all, by the exchanges that it
answered: once a beat alone, which tells how far a trainer got, and once with a lease that ends and
another one that is granted. Both are in the journal before they are answered. Beats of trainers
that read nothing are in no journal.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from msgspec import Struct

from bench import feeding
from bench.figures import Figure
from bench.rivals import RivalAbsentError, rival_says

READERS = 10_000
SECONDS = 2.0
ROUND_S = 6.0
"""Each of so many readers beats once in it."""
BATCH = 32
CLIENTS = 8
PER_S = 2_000
ROUNDS = 2
OVER_ONE, OVER_MANY, OVER_BATCHED = 1.0, 1.5, 10.0
PULSES_CORE_PERCENT_MAX = 15.0
GOAL_P99_MS = 50.0
PER_CORE = {"post": 8_000, "websocket": 20_000}


class Wire(Struct, frozen=True):
    """What some clients of one daemon saw."""

    leases_per_s: float
    exchanges_per_s: float
    half_ms: float
    most_ms: float
    head_us: float
    """CPU of the daemon an exchange."""


class LeaseHead(Struct, frozen=True):
    """A daemon that leases."""

    seconds: float
    """For how long each measurement goes on."""
    pid: int
    words: tuple[str, ...]

    def measure(self, first: int, *, want: int = 1, processes: int = 1) -> Wire:
        """Return what so many processes, each of one reader from `first` on, are answered."""
        with self.clients(first, processes=processes) as clients:
            return clients.measure(want, seconds=self.seconds)

    @contextmanager
    def clients(
        self, first: int, *, way: str = "websocket", processes: int = 1, readers: int = 1
    ) -> Iterator["Clients"]:
        """Give so many processes, each of so many readers from `first` on, connected."""
        with ExitStack() as stack:
            made = [
                stack.enter_context(_client(self.words, first + number * readers, readers, way))
                for number in range(processes)
            ]
            for client in made:
                assert _said(client) == "ready\n", "a client could not connect"
            yield Clients(made, (~self.pid << 3) | 2)


class Clients:
    """Readers that are connected."""

    def __init__(self, made: "Sequence[subprocess.Popen[str]]", head_clock: int) -> None:
        """Take processes of them over.

        Args:
            made: The processes.
            head_clock: Of the CPU of their daemon, as clock_getcpuclockid(3) makes it.
        """
        self._made = made
        self._head_clock = head_clock

    def measure(self, want: int, *, seconds: float, per_s: int = 0) -> Wire:
        """Return what they are answered for so long."""
        used_s = time.clock_gettime(self._head_clock)
        for client in self._made:
            assert client.stdin is not None
            client.stdin.write(f"{want} {per_s} {seconds}\n")
            client.stdin.flush()
        found = [json.loads(_said(client)) for client in self._made]
        used_s = time.clock_gettime(self._head_clock) - used_s
        leases, exchanges = (sum(one[number] for one in found) for number in (0, 1))
        took_s = max(one[2] for one in found)
        half, most = (max(one[number] for one in found) for number in (3, 4))
        return Wire(leases / took_s, exchanges / took_s, half, most, used_s / exchanges * 1e6)


@contextmanager
def lease_head(readers: int, seconds: float) -> Iterator[LeaseHead]:
    """Give a daemon with a stream that so many readers may read."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "bench.lease_head", folder, str(readers)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, cwd=feeding.ROOT
        ) as process:
            try:
                assert process.stdout is not None
                words = process.stdout.readline().split()
                assert len(words) == 3, "the daemon did not start"
                yield LeaseHead(seconds, process.pid, tuple(words))
            finally:
                process.kill()


@contextmanager
def _client(
    words: Sequence[str], first: int, readers: int, way: str
) -> "Iterator[subprocess.Popen[str]]":
    command = [sys.executable, "-m", "bench.lease_clients", *words, str(first), str(readers), way]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=feeding.ROOT
    ) as client:
        try:
            yield client
        finally:
            client.kill()


def _said(client: "subprocess.Popen[str]") -> str:
    assert client.stdout is not None
    line = client.stdout.readline()
    assert line.endswith("\n"), "a client ended early"
    return line


def run(*, readers: int = READERS, rounds: int = ROUNDS, seconds: float = SECONDS) -> list[Figure]:
    """Measure pairs of leases and reports in rounds with DLRover's, then many readers at once."""
    with lease_head(rounds * (CLIENTS + 2), seconds) as head:
        figures = _beside_dlrover(head, 0, rounds)
    for way, goal in PER_CORE.items():
        with (
            lease_head(readers, seconds) as head,
            head.clients(0, way=way, readers=readers) as connected,
        ):
            figures += _many(connected, readers, way, goal, seconds)
            if way == "websocket":
                figures += _pulses(connected, readers, seconds)
    return figures


def _beside_dlrover(head: LeaseHead, first: int, rounds: int) -> list[Figure]:
    ours: dict[str, list[float]] = {"one": [], "many": [], "batched": []}
    theirs: dict[str, list[float]] = {"one": [], "many": []}
    absent = ""
    for _ in range(rounds):
        ours["one"].append(head.measure(first).leases_per_s)
        ours["batched"].append(head.measure(first + 1, want=BATCH).leases_per_s)
        ours["many"].append(head.measure(first + 2, processes=CLIENTS).leases_per_s)
        first += CLIENTS + 2
        try:
            for name, clients in (("one", 1), ("many", CLIENTS)):
                if not absent:
                    theirs[name] += rival_says("dlrover", "leases_rivals", "wire", clients)
        except RivalAbsentError as error:
            absent = str(error)
    said = (
        ("durable leases over the wire, 1 client", "one", "one", OVER_ONE),
        (f"durable leases over the wire, {CLIENTS} clients", "many", "many", OVER_MANY),
        (f"the same, 1 client, {BATCH} an exchange", "batched", "one", OVER_BATCHED),
    )
    return [
        _pairs(name, max(ours[which]), max(theirs[other], default=0.0), goal, absent)
        for name, which, other, goal in said
    ]


def _pairs(name: str, ours: float, theirs: float, goal: float, absent: str) -> Figure:
    text = f"≥ {goal:g} times DLRover"
    if not theirs:
        return Figure(name, ours, "leases/s", "", met=False, rival=absent)
    told = f"DLRover, gRPC, in memory: {theirs:,.0f} pairs/s, so {ours / theirs:.1f} times"
    return Figure(name, ours, "leases/s", text, ours >= goal * theirs, told)


def _many(clients: Clients, readers: int, way: str, goal: int, seconds: float) -> Iterator[Figure]:
    """Yield what exchanges of very many readers cost the daemon, and how long they take."""
    name = f"{readers:,} readers by {way}"
    kinds = (("a beat", 0, "no lease in it"), ("a lease", 1, "one ended and one granted"))
    for kind, want, told in kinds:
        found = clients.measure(want, seconds=seconds)
        a_core = 1e6 / found.head_us
        yield Figure(
            f"{name}, {kind} each, exchanges a core",
            a_core,
            "/s",
            f"≥ {goal:,}/s",
            a_core >= goal,
            f"{found.head_us:.0f} µs of CPU each, durable, {told}",
        )
    paced = clients.measure(0, seconds=max(seconds, min(ROUND_S, 3 * seconds)), per_s=PER_S)
    yield Figure(
        f"{name}, {PER_S:,} beats a second asked for, p99",
        paced.most_ms,
        "ms",
        f"< {GOAL_P99_MS:g} ms",
        paced.most_ms < GOAL_P99_MS,
        f"{paced.exchanges_per_s:,.0f}/s came, p50 {paced.half_ms:.1f} ms, "
        f"{paced.head_us * paced.exchanges_per_s / 1e4:.0f}% of a core",
    )


def _pulses(clients: Clients, readers: int, seconds: float) -> Iterator[Figure]:
    """Yield what beats cost that no journal has, as often as very many executors are let beat."""
    name = f"{readers:,} executors that read nothing, {PER_S:,} beats a second"
    found = clients.measure(-1, seconds=max(seconds, min(ROUND_S, 3 * seconds)), per_s=PER_S)
    percent = found.head_us * found.exchanges_per_s / 1e4
    yield Figure(
        f"{name}: of a core",
        percent,
        "%",
        f"≤ {PULSES_CORE_PERCENT_MAX:g} %",
        percent <= PULSES_CORE_PERCENT_MAX,
        f"{found.exchanges_per_s:,.0f}/s came, {found.head_us:.0f} µs of CPU each",
    )
    yield Figure(
        f"{name}, p99",
        found.most_ms,
        "ms",
        f"< {GOAL_P99_MS:g} ms",
        found.most_ms < GOAL_P99_MS,
        f"p50 {found.half_ms:.1f} ms",
    )
