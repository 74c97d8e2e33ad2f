"""How busy a host is: the one number by which whoever places a replica chooses among hosts.

Every launcher that places for itself asks here. Counted in are what slots reserve, what was
measured beyond that, and a little for each replica that does not say what it needs.
"""

from msgspec import Struct

UNSTATED_CPU_MILLI = 250
"""What a replica without `resources.cpu` is taken to use until it is measured."""
STEP_CPU_PARTS = 4
STEP_MEMORY_PARTS = 8
"""A measured load counts as changed when it differs by a quarter of the cores, or by an eighth of
the memory."""


class Load(Struct, frozen=True, array_like=True):
    """What is used on a host beyond what slots reserve there, as measured.

    By processes that are not ours, and by attempts above their share.
    """

    cpu_milli: int = 0
    memory_bytes: int = 0


class Host(Struct, frozen=True):
    """What a host has, what is taken of it, and what was measured."""

    cpu_milli: int
    memory_bytes: int
    taken_cpu_milli: int = 0
    taken_memory_bytes: int = 0
    load: Load = Load()
    unstated: int = 0
    """Replicas on it that do not say how much processor they need."""


def busy(host: Host) -> float:
    """Return how busy a host is: 0 idle, 1 full, more where more is taken than there is."""
    cpu = host.taken_cpu_milli + host.load.cpu_milli + host.unstated * UNSTATED_CPU_MILLI
    memory = host.taken_memory_bytes + host.load.memory_bytes
    return max(cpu / max(1, host.cpu_milli), memory / max(1, host.memory_bytes))


def is_step(before: Load, after: Load, *, cpu_milli: int, memory_bytes: int) -> bool:
    """Return whether a load changed so much that it is worth recording.

    Args:
        before: The recorded one.
        after: As measured now.
        cpu_milli: What the host has.
        memory_bytes: Likewise.
    """
    cpu = abs(after.cpu_milli - before.cpu_milli) * STEP_CPU_PARTS
    memory = abs(after.memory_bytes - before.memory_bytes) * STEP_MEMORY_PARTS
    return cpu >= max(1, cpu_milli) or memory >= max(1, memory_bytes)
