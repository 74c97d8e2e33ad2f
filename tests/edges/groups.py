"""Control groups of version 1 for tests, removed again."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TREES = Path("/sys/fs/cgroup")
EMPTY_WITHIN_S = 20.0


def can_be_made() -> bool:
    """Return whether this user can make control groups here."""
    return all(os.access(TREES / kind, os.W_OK) for kind in ("memory", "cpuacct"))


class Group:
    """A control group with a memory limit, as a container has one."""

    def __init__(self, limit_bytes: int) -> None:
        name = f"primusd-test-{os.getpid()}-{time.monotonic_ns()}"
        self.memory, self.cpu = TREES / "memory" / name, TREES / "cpuacct" / name
        self.limit_bytes = limit_bytes
        self.memory.mkdir()
        self.cpu.mkdir()
        (self.memory / "memory.limit_in_bytes").write_text(str(limit_bytes))

    @property
    def procs(self) -> tuple[Path, Path]:
        """The files into which a process writes itself to enter."""
        return self.memory / "cgroup.procs", self.cpu / "cgroup.procs"

    def pids(self) -> list[int]:
        """Return what is inside, in groups below it too."""
        found = [path.read_text().split() for path in self.memory.rglob("cgroup.procs")]
        return [int(pid) for part in found for pid in part]

    def remove(self) -> None:
        """Remove it with all below, once nothing is inside."""
        for tree in (self.memory, self.cpu):
            folders = [path for path in tree.rglob("*") if path.is_dir()]
            for folder in (*sorted(folders, key=lambda one: -len(one.parts)), tree):
                end = time.monotonic() + EMPTY_WITHIN_S
                while folder.is_dir():
                    try:
                        folder.rmdir()
                    except OSError:
                        assert time.monotonic() < end, f"{folder} does not get empty"
                        time.sleep(0.01)


@contextmanager
def making_group(limit_bytes: int) -> Iterator[Group]:
    """Give a group that is removed at the end; what is inside has to be gone by then."""
    made = Group(limit_bytes)
    try:
        yield made
    finally:
        made.remove()
