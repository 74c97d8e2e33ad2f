"""Memory that single replicas have beyond what their role asks for, after ends by want of it.

It is a wish, never a condition: whoever grows gets what is free on its node, or a place where there
is enough; where there is neither it runs again with what it had.
"""

from bisect import bisect_left

from msgspec.structs import replace

from primusd.admission.events import RoleDemand
from primusd.admission.model import Held


def asked_bytes(want: RoleDemand, index: int) -> int:
    """Return what a replica asks for; 0: as its role does."""
    place = bisect_left(want.memory, (index + 1,)) - 1
    if place < 0:
        return 0
    _, high, byte_count = want.memory[place]
    return byte_count if index <= high else 0


def is_answered(want: RoleDemand, index: int, held: Held) -> bool:
    """Return whether a slot was given when its replica asked for as much as it does now."""
    return not want.memory or held.asked_bytes >= asked_bytes(want, index)


def has_bytes(want: RoleDemand, held: Held) -> int:
    """Return how much memory a slot has; 0 no limit."""
    return held.memory_bytes or want.memory_bytes


def with_memory(want: RoleDemand, byte_count: int) -> RoleDemand:
    """Return the demand as if all of its role asked for so much."""
    return replace(want, memory_bytes=byte_count, memory=())
