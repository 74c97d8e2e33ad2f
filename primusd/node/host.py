"""What this host has and uses: cores, memory, disk, network, GPUs."""

import os
import shutil
import subprocess
from pathlib import Path

from primusd.executor.protocol import Usage
from primusd.executor.trainer import network_bytes

GPU_QUERY = ("nvidia-smi", "--query-gpu=uuid,name,memory.total", "--format=csv,noheader,nounits")
GPU_QUERY_S = 10.0
MEMORY_PERCENT = 90
"""Of the host's memory that is offered unless configured."""
PRETENDED_GPU_BYTES = 16 << 30
KIB = 1 << 10
MIB = 1 << 20

Gpu = tuple[str, str, int]
"""Uuid, model, memory in bytes."""


def core_count() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


def memory_free_bytes() -> int:
    """Return how much memory could be taken now; -1 unknown."""
    return meminfo_bytes("MemAvailable") or -1


def meminfo_bytes(key: str) -> int:
    """Return a line of /proc/meminfo; 0 where there is none."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0]) * KIB
    return 0


def disk_free_bytes(folder: Path) -> int:
    """Return the room left where a folder lies; -1 unknown."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return -1


def find_gpus(wanted: str | int | tuple[str, ...]) -> tuple[Gpu, ...]:
    """Return the GPUs to offer.

    Args:
        wanted: `auto` asks nvidia-smi, `none`, a number of pretended ones, or uuids to keep to.
    """
    if isinstance(wanted, int):
        return tuple(
            (f"GPU-pretended-{number}", "pretended", PRETENDED_GPU_BYTES)
            for number in range(wanted)
        )
    if wanted == "none":
        return ()
    found = _query_gpus()
    if isinstance(wanted, str):
        return found
    return tuple(gpu for gpu in found if gpu[0] in wanted)


def _query_gpus() -> tuple[Gpu, ...]:
    try:
        done = subprocess.run(  # noqa: S603 a constant command
            GPU_QUERY, capture_output=True, text=True, timeout=GPU_QUERY_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ()
    gpus = []
    for line in done.stdout.splitlines():
        uuid, model, mebibytes = (part.strip() for part in line.split(","))
        gpus.append((uuid, model, int(float(mebibytes)) * MIB))
    return tuple(gpus)


def usage() -> Usage:
    """Return what the whole host has used since it booted."""
    ticks = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
    busy = sum(int(ticks[position]) for position in (0, 1, 2, 5, 6, 7))
    used = meminfo_bytes("MemTotal") - meminfo_bytes("MemAvailable")
    net_in, net_out = network_bytes()
    return Usage(busy * 1000 // os.sysconf("SC_CLK_TCK"), used, 0, 0, net_in, net_out, ())
