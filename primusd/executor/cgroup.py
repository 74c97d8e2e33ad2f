"""A control group for one trainer, where one can be had: limits, the out-of-memory counter, kill.

Version 1 keeps memory and cpu in trees of their own; a version 2 tree beside them (hybrid) still
can kill. Only groups below our own are ever touched. Source: cgroups(7), and the kernel's
Documentation/admin-guide/cgroup-v1/memory.rst and cgroup-v2.rst.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from primusd.job.ids import AttemptId

CPU_PERIOD_US = 100_000
OUR_FOLDER = "primusd"
NODE_LEAF = "node"
"""Where a node of a version 2 host sits: a group with processes in it can limit no others."""
CONTROLLERS = frozenset({"memory", "cpu"})
NOBODY_COUNTS = -1


class Trees(Struct, frozen=True):
    """The writable trees of this host: our own group in each; None where there is none."""

    memory_v1: Path | None = None
    cpu_v1: Path | None = None
    cpuacct_v1: Path | None = None
    unified: Path | None = None
    """Version 2, alone or beside version 1."""


def find_trees(enforce: str) -> Trees:
    """Return the trees in which this process may make groups; none where `enforce` is `none`."""
    if enforce == "none":
        return Trees()
    mounts = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    own = _own_groups(Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines())
    found: dict[str, Path] = {}
    for line in mounts:
        _, mount, kind, options, *_ = line.split(" ")
        names = options.split(",") if kind == "cgroup" else [""] if kind == "cgroup2" else []
        for name in names:
            path = Path(mount + own.get(name, "/"))
            if kind == "cgroup2" and path.name == NODE_LEAF:
                path = path.parent
            if name in own and name not in found and os.access(path, os.W_OK):
                found[name] = path
    return Trees(
        memory_v1=found.get("memory"),
        cpu_v1=found.get("cpu"),
        cpuacct_v1=found.get("cpuacct"),
        unified=found.get(""),
    )


def delegate(controllers: frozenset[str] = CONTROLLERS) -> bool:
    """Let groups beside this process have limits, where version 2 alone keeps them.

    Moves this process into a leaf of its group; to be called by a node before it forks. Returns
    whether limits can be kept by version 2 now.
    """
    trees = find_trees("auto")
    own = trees.unified
    if own is None or trees.memory_v1 is not None:
        return False
    try:
        there = (own / "cgroup.controllers").read_text(encoding="ascii").split()
        wanted = " ".join(f"+{name}" for name in sorted(controllers) if name in there)
        leaf = own / NODE_LEAF
        leaf.mkdir(exist_ok=True)
        (leaf / "cgroup.procs").write_text("0", encoding="ascii")
        (own / OUR_FOLDER).mkdir(exist_ok=True)
        for folder in (own, own / OUR_FOLDER):
            (folder / "cgroup.subtree_control").write_text(wanted, encoding="ascii")
    except OSError:
        return False
    return bool(wanted)


def _own_groups(lines: list[str]) -> Mapping[str, str]:
    own: dict[str, str] = {}
    for line in lines:
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            own[name] = path
    return own


def group_name(attempt: AttemptId) -> str:
    """Return what the groups of an attempt are called."""
    return f"{attempt.job}-{attempt.replica}-a{attempt.attempt}"


def make_group(trees: Trees, attempt: AttemptId) -> "Group":
    """Make the groups of an attempt, where they can be had."""
    folders = _folders(trees, group_name(attempt))
    return Group({kind: folder for kind, folder in folders.items() if _make(folder)})


def group_of(trees: Trees, attempt: AttemptId) -> "Group":
    """Return the groups that an attempt has now."""
    folders = _folders(trees, group_name(attempt))
    return Group({kind: folder for kind, folder in folders.items() if folder.is_dir()})


def _folders(trees: Trees, name: str) -> dict[str, Path]:
    found = {
        "memory_v1": trees.memory_v1,
        "cpu_v1": trees.cpu_v1,
        "cpuacct_v1": trees.cpuacct_v1,
        "unified": trees.unified,
    }
    return {kind: tree / OUR_FOLDER / name for kind, tree in found.items() if tree is not None}


class Group:
    """The groups of one attempt; empty where none can be had."""

    def __init__(self, folders: dict[str, Path]) -> None:
        self._folders = folders
        self._oom_before = self._oom_count()

    @property
    def procs(self) -> tuple[str, ...]:
        """The files into which a process writes itself to enter."""
        return tuple(str(folder / "cgroup.procs") for folder in self._folders.values())

    @property
    def can_kill(self) -> bool:
        """Whether all that is inside can be ended at once."""
        unified = self._folders.get("unified")
        return unified is not None and (unified / "cgroup.kill").exists()

    def limit(self, *, cpu_milli: int, memory_bytes: int) -> None:
        """Set the limits that the host's trees can keep; 0 is none."""
        if memory_bytes:
            self._write("memory_v1", "memory.limit_in_bytes", str(memory_bytes))
            self._write("memory_v1", "memory.memsw.limit_in_bytes", str(memory_bytes))
            self._write("unified", "memory.max", str(memory_bytes))
            self._write("unified", "memory.oom.group", "1")
        if cpu_milli:
            quota_us = cpu_milli * CPU_PERIOD_US // 1000
            self._write("cpu_v1", "cpu.cfs_period_us", str(CPU_PERIOD_US))
            self._write("cpu_v1", "cpu.cfs_quota_us", str(quota_us))
            self._write("unified", "cpu.max", f"{quota_us} {CPU_PERIOD_US}")

    def oom_kills(self) -> int:
        """Return by how much the kernel's counter rose since the group was made; -1 none counts."""
        count = self._oom_count()
        if count is None or self._oom_before is None:
            return NOBODY_COUNTS
        return max(0, count - self._oom_before)

    def kill(self) -> None:
        """End everything inside at once, where the kernel can."""
        if self.can_kill:
            self._write("unified", "cgroup.kill", "1")

    def remove(self) -> None:
        """Remove the groups; one that is not empty stays."""
        for folder in self._folders.values():
            _try_rmdir(folder)
        self._folders.clear()

    def _oom_count(self) -> int | None:
        for kind, file in (("memory_v1", "memory.oom_control"), ("unified", "memory.events")):
            count = self._read_key(kind, file, "oom_kill")
            if count is not None:
                return count
        return None

    def cpu_ms(self) -> int | None:
        """Return the processor time used inside; None where it is not counted."""
        usec = self._read_key("unified", "cpu.stat", "usage_usec")
        folder = self._folders.get("cpuacct_v1")
        if folder is not None:
            try:
                return int((folder / "cpuacct.usage").read_text(encoding="ascii")) // 1_000_000
            except (OSError, ValueError):
                return None
        return None if usec is None else usec // 1000

    def _read_key(self, kind: str, file: str, key: str) -> int | None:
        folder = self._folders.get(kind)
        if folder is None:
            return None
        try:
            text = (folder / file).read_text(encoding="ascii")
        except OSError:
            return None
        for line in text.splitlines():
            name, _, value = line.partition(" ")
            if name == key:
                return int(value)
        return None

    def _write(self, kind: str, file: str, value: str) -> None:
        folder = self._folders.get(kind)
        if folder is None or not (folder / file).exists():
            return
        try:
            (folder / file).write_text(value, encoding="ascii")
        except OSError:
            # A limit that the kernel does not take here is not kept; the trainer runs without.
            return


def _make(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return True


def _try_rmdir(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return
