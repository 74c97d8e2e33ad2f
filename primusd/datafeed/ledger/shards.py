"""Maps in 64 shards: a change copies one shard, so that 10,000 readers cost what 150 do.

Plain tuples of dicts, so that they are stored and compared like all other state. The caller names
the shard by a number that never changes for a key (never its hash, which differs by process).
"""

from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

SHARD_COUNT = 64

K = TypeVar("K")
V = TypeVar("V")

Shards = tuple[Mapping[K, V], ...]
"""Empty, or SHARD_COUNT maps."""


def find(shards: Shards[K, V], at: int, key: K) -> V | None:
    """Return a key's value, None when there is none."""
    return shards[at % SHARD_COUNT].get(key) if shards else None


def values(shards: Shards[K, V]) -> Iterator[V]:
    """Yield all values."""
    for shard in shards:
        yield from shard.values()


def items(shards: Shards[K, V]) -> Iterator[tuple[K, V]]:
    """Yield all keys with their values."""
    for shard in shards:
        yield from shard.items()


class ShardsDraft(Generic[K, V]):
    """Shards in the making: each is copied when it is first changed."""

    __slots__ = ("_before", "_own")

    def __init__(self, shards: Shards[K, V]) -> None:
        self._before = shards
        self._own: dict[int, dict[K, V]] = {}

    @property
    def is_same(self) -> bool:
        """Whether nothing was changed."""
        return not self._own

    def find(self, at: int, key: K) -> V | None:
        """Return a key's value, None when there is none."""
        number = at % SHARD_COUNT
        if number in self._own:
            return self._own[number].get(key)
        return self._before[number].get(key) if self._before else None

    def put(self, at: int, key: K, value: V) -> None:
        """Set a key's value."""
        self._shard(at)[key] = value

    def drop(self, at: int, key: K) -> None:
        """Remove a key, if it is there."""
        self._shard(at).pop(key, None)

    def result(self) -> Shards[K, V]:
        """Return the shards with the changes; the same object when there are none."""
        if not self._own:
            return self._before
        after = list(self._before or ({},) * SHARD_COUNT)
        for number, shard in self._own.items():
            after[number] = shard
        return tuple(after)

    def _shard(self, at: int) -> dict[K, V]:
        number = at % SHARD_COUNT
        own = self._own.get(number)
        if own is None:
            own = self._own[number] = dict(self._before[number]) if self._before else {}
        return own
