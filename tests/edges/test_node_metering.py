"""What a node measures of its host, or of its control group: real processes, real counters."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from primusd.node.host import core_count, meminfo_bytes
from primusd.node.metering import GroupScope, HostScope, Load, Meter, Share, uses_of
from tests.edges.groups import Group, can_be_made, making_group

MIB = 1 << 20
CORES_MILLI = core_count() * 1000
S_NS = 1_000_000_000
WAIT_S = 30
SPIN = "while True: pass"
HOLD = (
    "import sys; held = bytearray(b'x') * ({} << 20); print('held', flush=True); sys.stdin.read()"
)
REAPS = """
import subprocess, sys
subprocess.run([sys.executable, "-c", "for _ in range(3_000_000): pass"])
print("reaped", flush=True)
sys.stdin.read()
"""


class Scripted:
    """A scope whose counters the test sets."""

    def __init__(self, available: int = 0) -> None:
        self.spent_ms = 0
        self.available = available

    def cpu_ms(self) -> int:
        return self.spent_ms

    def memory_available_bytes(self) -> int:
        return self.available


@contextmanager
def process(code: str, *, says: str = "", group: Group | None = None) -> Iterator[int]:
    """Run Python code, in a control group from its first instruction on; yield its pid."""
    enter = ""
    if group is not None:
        enter = "".join(f"open({str(path)!r}, 'w').write('0'); " for path in group.procs)
    command = [sys.executable, "-c", f"{enter}\n{code}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as one:
        try:
            assert one.stdout is not None
            if says:
                assert one.stdout.readline() == f"{says}\n".encode()
            yield one.pid
        finally:
            one.kill()
            one.wait()


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end, "it never came about"
        time.sleep(0.01)


@pytest.fixture
def group() -> Iterator[Group]:
    if not can_be_made():
        pytest.skip("no control groups of version 1 can be made here")
    with making_group(1024 * MIB) as made:
        yield made


def scope_of(group: Group) -> GroupScope:
    return GroupScope(group.memory, group.cpu, group.limit_bytes)


def test_what_is_idle_besides_what_is_offered_is_no_load() -> None:
    scope = Scripted(available=8 << 30)
    meter = Meter(scope, cpu_milli=1_000, memory_bytes=4 << 30)
    meter.measure((), at_ns=0)

    scope.spent_ms = (CORES_MILLI - 1_000) * 10
    found = meter.measure((), at_ns=10 * S_NS)

    assert found == Load(0, 0)


def test_load_is_what_is_missing_of_the_offer() -> None:
    scope = Scripted(available=1 << 30)
    meter = Meter(scope, cpu_milli=CORES_MILLI, memory_bytes=4 << 30)
    first = meter.measure((), at_ns=0)

    scope.spent_ms = 5_000
    found = meter.measure((), at_ns=10 * S_NS)

    assert first == Load(-1, 3 << 30)
    assert found == Load(500, 3 << 30)


def test_cores_that_are_offered_and_not_there_are_no_load() -> None:
    scope = Scripted(available=8 << 30)
    meter = Meter(scope, cpu_milli=CORES_MILLI * 50, memory_bytes=1 << 30)
    meter.measure((), at_ns=0)

    assert meter.measure((), at_ns=S_NS) == Load(0, 0)


def test_process_counts_with_its_children_also_with_those_that_have_ended() -> None:
    with process(REAPS, says="reaped") as pid:
        found = uses_of([pid])[pid]

    assert found.cpu_ms >= 20


def test_processes_of_others_are_not_counted_to_an_attempt() -> None:
    with process(HOLD.format(64), says="held"), process(HOLD.format(16), says="held") as pid:
        found = uses_of([pid])[pid]

    assert 16 * MIB <= found.memory_bytes < 60 * MIB


def test_a_host_has_the_memory_that_the_kernel_says_and_cores_that_get_busy() -> None:
    scope = HostScope()
    before = scope.cpu_ms()

    with process(SPIN):
        until(lambda: scope.cpu_ms() >= before + 50)

    assert 0 < scope.memory_available_bytes() <= meminfo_bytes("MemTotal")


@pytest.mark.root
def test_what_a_foreign_process_takes_of_a_control_group_is_load(group: Group) -> None:
    scope = scope_of(group)
    meter = Meter(scope, cpu_milli=CORES_MILLI, memory_bytes=1024 * MIB)
    before = meter.measure((), at_ns=0)

    with process(HOLD.format(300), says="held", group=group), process(SPIN, group=group):
        spent_ms = scope.cpu_ms()
        until(lambda: scope.cpu_ms() >= spent_ms + 100)
        found = meter.measure((), at_ns=S_NS)

    assert before.memory_bytes < 20 * MIB
    assert 280 * MIB <= found.memory_bytes <= 380 * MIB
    assert found.cpu_milli >= 100


@pytest.mark.root
def test_what_an_attempt_takes_is_load_only_above_what_its_slot_has(group: Group) -> None:
    scope = scope_of(group)
    meter = Meter(scope, cpu_milli=CORES_MILLI, memory_bytes=1024 * MIB)

    with process(HOLD.format(300), says="held", group=group) as pid:
        within = meter.measure((Share(pid, 1_000, 512 * MIB),), at_ns=0)
        above = meter.measure((Share(pid, 1_000, 100 * MIB),), at_ns=S_NS)
        unstated = meter.measure((Share(pid, 0, 0),), at_ns=2 * S_NS)

    assert within.memory_bytes < 40 * MIB
    assert 180 * MIB <= above.memory_bytes <= 280 * MIB
    assert 280 * MIB <= unstated.memory_bytes <= 380 * MIB


@pytest.mark.root
def test_node_in_a_control_group_with_a_limit_measures_and_offers_that_group(group: Group) -> None:
    code = """
from primusd.node.metering import find_scope, offered_memory_bytes
scope = find_scope()
offered = offered_memory_bytes()
print(type(scope).__name__, scope.memory_available_bytes() >> 20, offered >> 20, flush=True)
import sys; sys.stdin.read()
"""
    enter = "".join(f"open({str(path)!r}, 'w').write('0'); " for path in group.procs)
    done = subprocess.run(
        [sys.executable, "-c", f"{enter}\n{code}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )

    name, mebibytes, offered = done.stdout.split()
    assert (name, offered) == ("GroupScope", str(1024 * 9 // 10))
    assert 800 < int(mebibytes) < 1024
