"""How much of what this node offers is used by others: the load that placing counts with.

Others are processes that are not ours, and attempts as far as they use more than their slot has.
Measured is this host, or the control group that this node lives in where that has a memory limit of
its own, as a container has. Source: proc(5); cgroup-v1/memory.rst and cgroup-v2.rst of the kernel.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from primusd.executor.cgroup import NODE_LEAF
from primusd.executor.processes import all_pids, stat_fields
from primusd.node.host import MEMORY_PERCENT, core_count, meminfo_bytes

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
PARENT, CPU_TIMES = 1, slice(11, 15)
"""Fields of /proc/PID/stat from the state on: utime, stime, and those of children that were reaped,
so that what ends meanwhile is not lost."""


class Scope(Protocol):
    """Where is measured."""

    def cpu_ms(self) -> int:
        """Return the processor time used so far, of all its cores together."""
        ...

    def memory_available_bytes(self) -> int:
        """Return how much memory could be taken now."""
        ...


class Share(Struct, frozen=True):
    """An attempt that runs here, and what its slot has."""

    pid: int
    """Of its executor, from which all of it descends."""
    cpu_milli: int
    memory_bytes: int


class Use(Struct, frozen=True):
    """What a process with all its descendants uses."""

    cpu_ms: int = 0
    memory_bytes: int = 0


class Load(Struct, frozen=True):
    """What others use of that which is offered; -1 not known yet."""

    cpu_milli: int = -1
    memory_bytes: int = -1


class _Reading(Struct, frozen=True):
    at_ns: int
    cpu_ms: int
    uses: Mapping[int, Use]


class Meter:
    """Measures from one time to the next."""

    def __init__(self, scope: Scope, *, cpu_milli: int, memory_bytes: int) -> None:
        """Measure against what is offered.

        Args:
            scope: Where.
            cpu_milli: That this node offers; of it no more counts than there are cores.
            memory_bytes: Likewise.
        """
        self._scope = scope
        self._cores_milli = core_count() * 1000
        self._cpu_milli = min(cpu_milli, self._cores_milli)
        self._memory_bytes = memory_bytes
        self._before: _Reading | None = None

    def measure(self, shares: Sequence[Share], *, at_ns: int) -> Load:
        """Return the load since the last time; of the processor nothing is known the first time.

        Args:
            shares: What runs here.
            at_ns: Of the monotonic clock.
        """
        uses = uses_of(share.pid for share in shares)
        now = _Reading(at_ns, self._scope.cpu_ms(), uses)
        before, self._before = self._before, now
        memory = self._scope.memory_available_bytes() + sum(
            min(uses[one.pid].memory_bytes, one.memory_bytes) for one in shares
        )
        memory_bytes = max(0, self._memory_bytes - memory)
        if before is None or now.at_ns <= before.at_ns:
            return Load(-1, memory_bytes)
        return Load(self._cpu_load(before, now, shares), memory_bytes)

    def _cpu_load(self, before: _Reading, now: _Reading, shares: Sequence[Share]) -> int:
        passed_ms = max(1, (now.at_ns - before.at_ns) // 1_000_000)
        used = max(0, now.cpu_ms - before.cpu_ms) * 1000 // passed_ms
        ours = 0
        for one in shares:
            spent_ms = now.uses[one.pid].cpu_ms - before.uses.get(one.pid, Use()).cpu_ms
            ours += min(max(0, spent_ms) * 1000 // passed_ms, one.cpu_milli)
        idle = max(0, self._cores_milli - used)
        return max(0, self._cpu_milli - idle - ours)


def uses_of(roots: Iterable[int]) -> Mapping[int, Use]:
    """Return what each process and its descendants use, from one look at all processes."""
    wanted = set(roots)
    if not wanted:
        return {}
    parents: dict[int, int] = {}
    own: dict[int, Use] = {}
    for pid in all_pids():
        fields = stat_fields(pid)
        if fields is not None:
            parents[pid] = int(fields[PARENT])
            ticks = sum(map(int, fields[CPU_TIMES]))
            own[pid] = Use(ticks * 1000 // TICKS_PER_S, _private_bytes(pid))
    sums = dict.fromkeys(wanted, Use())
    for pid, use in own.items():
        root = _root_of(pid, parents, wanted)
        if root:
            before = sums[root]
            sums[root] = Use(before.cpu_ms + use.cpu_ms, before.memory_bytes + use.memory_bytes)
    return sums


def _root_of(pid: int, parents: Mapping[int, int], wanted: set[int]) -> int:
    """Return which of the wanted processes one descends from; 0 none."""
    while pid not in wanted:
        pid = parents.get(pid, 0)
        if not pid:
            return 0
    return pid


def _private_bytes(pid: int) -> int:
    """Return the memory of a process that it shares with no file: forks of one image share that."""
    try:
        fields = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()
    except OSError:
        return 0
    return max(0, int(fields[1]) - int(fields[2])) * PAGE_BYTES


class HostScope:
    """The whole host; of its cores those that this node is bound to."""

    def __init__(self, cores: Iterable[int] = ()) -> None:
        self._names = {f"cpu{core}" for core in cores or os.sched_getaffinity(0)}

    def cpu_ms(self) -> int:
        """Return the time that these cores were busy since boot."""
        busy = 0
        for line in Path("/proc/stat").read_text(encoding="ascii").splitlines():
            name, *ticks = line.split()
            if name in self._names:
                busy += sum(int(ticks[place]) for place in (0, 1, 2, 5, 6, 7))
        return busy * 1000 // TICKS_PER_S

    def memory_available_bytes(self) -> int:
        """Return what the kernel says can be taken without swapping."""
        return meminfo_bytes("MemAvailable")


class GroupScope:
    """A control group with a memory limit: what is inside, this node too."""

    def __init__(self, memory: Path, cpu: Path | None, limit_bytes: int) -> None:
        self._memory = memory
        self._cpu = cpu
        self._limit_bytes = limit_bytes
        self._host = HostScope()

    def cpu_ms(self) -> int:
        """Return the time used inside, of the host where the group does not count it."""
        if self._cpu is None:
            return self._host.cpu_ms()
        usage = self._cpu / "cpuacct.usage"
        if usage.exists():
            return int(usage.read_text(encoding="ascii")) // 1_000_000
        return _stat_of(self._cpu / "cpu.stat").get("usage_usec", 0) // 1_000

    def memory_available_bytes(self) -> int:
        """Return what is left of the limit; files that nobody uses are given up for more."""
        stat = _stat_of(self._memory / "memory.stat")
        idle = stat.get("total_inactive_file", stat.get("inactive_file", 0))
        used = _number(self._memory / "memory.usage_in_bytes") or _number(
            self._memory / "memory.current"
        )
        left = self._limit_bytes - max(0, used - idle)
        return max(0, min(left, self._host.memory_available_bytes()))


def offered_memory_bytes() -> int:
    """Return what is offered unless configured: 90 % of the host's memory, or of our group's."""
    group = _limited_memory()
    total = meminfo_bytes("MemTotal") if group is None else group[1]
    return total * MEMORY_PERCENT // 100


def _limited_memory() -> tuple[Path, int] | None:
    """Return our control group's folder and limit, None where the host's memory is the limit."""
    groups = _own_groups()
    memory = groups.get("memory") or groups.get("")
    if memory is None:
        return None
    limit_bytes = _number(memory / "memory.limit_in_bytes") or _number(memory / "memory.max")
    return (memory, limit_bytes) if 0 < limit_bytes < meminfo_bytes("MemTotal") else None


def find_scope() -> Scope:
    """Return where to measure: the control group of this process if it has a limit, or the host."""
    limited = _limited_memory()
    if limited is None:
        return HostScope()
    groups, (memory, limit_bytes) = _own_groups(), limited
    cpu = groups.get("cpuacct") or groups.get("")
    counts = cpu is not None and any(
        (cpu / name).exists() for name in ("cpuacct.usage", "cpu.stat")
    )
    return GroupScope(memory, cpu if counts else None, limit_bytes)


def _own_groups() -> Mapping[str, Path]:
    """Return this process's group in each hierarchy by controller, "" version 2; roots left out."""
    found: dict[str, Path] = {}
    own: dict[str, str] = {}
    try:
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, group = line.split(":", 2)
            own |= dict.fromkeys(controllers.split(","), group)
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    for line in mounts:
        _, mount, kind, options, *_ = line.split(" ")
        names = options.split(",") if kind == "cgroup" else [""] if kind == "cgroup2" else []
        for name in names:
            # In a container the mount may begin at its own group: then that is the one.
            for path in (Path(mount + own.get(name, "/")), Path(mount)):
                if name in own and name not in found and path.is_dir():
                    found[name] = path.parent if path.name == NODE_LEAF else path
    return found


def _number(path: Path) -> int:
    """Return the number in a file; 0 where it is not there, or says `max`."""
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0


def _stat_of(path: Path) -> dict[str, int]:
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    return {name: int(value) for name, _, value in (line.partition(" ") for line in lines)}
