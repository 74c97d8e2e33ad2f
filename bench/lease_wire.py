"""Durable leases over the wire, beside DLRover's master; thousands of readers on one daemon."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psutil
from msgspec import Struct

from bench import feeding
from bench.figures import Figure
from bench.rivals import RivalAbsentError, rival_says

READERS = 4_000
SECONDS = 2.0
BATCH = 32
CLIENTS = 8
PER_S = 2_000
ROUNDS = 2
TICK_S = 0.01
"""What the kernel counts CPU in."""
OVER_ONE, OVER_MANY, OVER_BATCHED = 1.0, 1.5, 10.0
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

    def measure(
        self,
        first: int,
        *,
        want: int = 1,
        way: str = "websocket",
        processes: int = 1,
        readers: int = 1,
        per_s: int = 0,
    ) -> Wire:
        """Return what so many processes, each of so many readers from `first` on, are answered."""
        commands = [
            [first + number * readers, readers, want, way, per_s, self.seconds]
            for number in range(processes)
        ]
        with _clients(self.words, commands) as clients:
            used_s = self._used_s()
            found = [json.loads(_said(client, "\n")) for client in clients]
            used_s = max(TICK_S, self._used_s() - used_s)
        leases, exchanges = (sum(one[number] for one in found) for number in (0, 1))
        seconds = max(one[2] for one in found)
        half, most = (max(one[number] for one in found) for number in (3, 4))
        return Wire(leases / seconds, exchanges / seconds, half, most, used_s / exchanges * 1e6)

    def _used_s(self) -> float:
        used = psutil.Process(self.pid).cpu_times()
        return float(used.user + used.system)


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
def _clients(
    words: Sequence[str], commands: Sequence[Sequence[object]]
) -> Iterator[list[subprocess.Popen[str]]]:
    made = [
        subprocess.Popen(
            [sys.executable, "-m", "bench.lease_clients", *words, *map(str, command)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=feeding.ROOT,
        )
        for command in commands
    ]
    try:
        for client in made:
            assert client.stdout is not None
            assert client.stdout.readline() == "ready\n", "a client could not connect"
        for client in made:
            assert client.stdin is not None
            client.stdin.write("go\n")
            client.stdin.flush()
        yield made
    finally:
        for client in made:
            client.kill()
            client.communicate()


def _said(client: "subprocess.Popen[str]", end: str) -> str:
    assert client.stdout is not None
    line = client.stdout.readline()
    assert line.endswith(end), "a client ended early"
    return line


def run(*, readers: int = READERS, rounds: int = ROUNDS, seconds: float = SECONDS) -> list[Figure]:
    """Measure pairs of leases and reports in rounds with DLRover's, then many readers at once."""
    with lease_head(readers + rounds * (CLIENTS + 2), seconds) as head:
        figures = _beside_dlrover(head, readers, rounds)
        return [*figures, *_many(head, readers)]


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


def _many(head: LeaseHead, readers: int) -> list[Figure]:
    """Measure exchanges of very many readers, by what they cost the daemon."""
    figures = []
    for way, goal in PER_CORE.items():
        # The second half of the readers, so that each says its first word by one way.
        first = 0 if way == "post" else readers // 2
        found = head.measure(first, way=way, readers=readers // 2)
        figures.append(
            Figure(
                f"{readers // 2:,} readers by {way}, exchanges a core",
                1e6 / found.head_us,
                "/s",
                f"≥ {goal:,}/s",
                1e6 / found.head_us >= goal,
                f"{found.head_us:.0f} µs of CPU each, a durable lease in it",
            )
        )
    paced = head.measure(readers // 2, readers=readers // 2, per_s=PER_S)
    figures.append(
        Figure(
            f"the same, {PER_S:,} exchanges a second asked for, p99",
            paced.most_ms,
            "ms",
            f"< {GOAL_P99_MS:g} ms",
            paced.most_ms < GOAL_P99_MS,
            f"{paced.exchanges_per_s:,.0f}/s came, p50 {paced.half_ms:.1f} ms, "
            f"{paced.head_us * paced.exchanges_per_s / 1e4:.0f}% of a core",
        )
    )
    return figures
