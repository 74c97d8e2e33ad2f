"""Identities of jobs, replicas and attempts."""

from collections.abc import Iterable

from msgspec import Struct

CROCKFORD = "0123456789abcdefghjkmnpqrstvwxyz"
UID_LENGTH = 16


class AttemptId(Struct, frozen=True, array_like=True, order=True, cache_hash=True):
    """One run of one replica: `worker-3/2` of a job."""

    job: str
    """Uid of the job."""
    role: str
    index: int
    attempt: int
    """Counts from 1 and never falls, also over a restart of the job."""

    @property
    def replica(self) -> str:
        """The replica's name: `worker-3`."""
        return replica_name(self.role, self.index)

    @property
    def label(self) -> str:
        """What people read: `worker-3/2`."""
        return f"{self.replica}/{self.attempt}"


class Span(Struct, frozen=True, array_like=True, order=True):
    """Replicas `low` to `high` of a role, both included; internal events name replicas by spans."""

    role: str
    low: int
    high: int


def replica_name(role: str, index: int) -> str:
    """Return the name a replica has everywhere: `worker-3`."""
    return f"{role}-{index}"


def parse_replica(name: str) -> tuple[str, int]:
    """Return role and index of `worker-3`.

    Raises:
        ValueError: The name is no replica's.
    """
    role, _, index = name.rpartition("-")
    if not role or not index.isdecimal():
        raise ValueError(f"{name!r} is not a replica; a replica is called like worker-3")
    return role, int(index)


def spans(replicas: Iterable[tuple[str, int]]) -> tuple[Span, ...]:
    """Return the given (role, index) pairs as sorted spans without overlap."""
    found: list[Span] = []
    for role, index in sorted(set(replicas)):
        last = found[-1] if found else None
        if last is not None and last.role == role and last.high == index - 1:
            found[-1] = Span(role, last.low, index)
        else:
            found.append(Span(role, index, index))
    return tuple(found)


def make_uid(created_ms: int, random_32: int) -> str:
    """Return a job uid: 48 bits of creation time and 32 random ones, in Crockford's base 32.

    Args:
        created_ms: Milliseconds since the Unix epoch.
        random_32: A number below 2**32.

    Source: https://www.crockford.com/base32.html (lower case here); sorts by age.
    """
    value = (created_ms & ((1 << 48) - 1)) << 32 | (random_32 & 0xFFFFFFFF)
    digits = []
    for _ in range(UID_LENGTH):
        value, digit = divmod(value, 32)
        digits.append(CROCKFORD[digit])
    return "".join(reversed(digits))


def is_uid(text: str) -> bool:
    """Return whether the text has the form of a job uid."""
    return len(text) == UID_LENGTH and all(character in CROCKFORD for character in text)
