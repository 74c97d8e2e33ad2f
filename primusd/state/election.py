"""The election port, and its form for a store with one head."""

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Protocol

import anyio
from msgspec import Struct


class Identity(Struct, frozen=True, rename="camel"):
    """A head, as it names itself to the others."""

    member: str
    addresses: tuple[str, ...] = ()
    """As executors, nodes and other heads dial it."""
    home: str = ""
    """Made once with its state directory: who holds that one's lock is this head, and no other."""
    version: str = ""
    schema: int = 0
    """The highest that it can read."""
    ready: bool = True
    """Whether it could take over at once; one whose version does not say so is taken to be."""


class Heads(Struct, frozen=True):
    """Who is there, as last read."""

    leader: Identity | None = None
    """None: nobody leads, or it is not known."""
    term: int = 0
    members: tuple[Identity, ...] = ()

    def others(self, own: str) -> tuple[Identity, ...]:
        """Return all but the one of this name."""
        return tuple(one for one in self.members if one.member != own)


class News:
    """Wakes who waits for another leader, or another head."""

    def __init__(self) -> None:
        self._told: anyio.Event | None = None
        self._listeners: list[Callable[[], None]] = []

    def tell(self) -> None:
        """Wake whoever waits."""
        told, self._told = self._told, None
        if told is not None:
            told.set()
        for listener in tuple(self._listeners):
            listener()

    @contextmanager
    def told_to(self, listener: Callable[[], None]) -> Iterator[None]:
        """Call somebody with each news meanwhile."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    async def wait(self) -> None:
        """Return once there is news."""
        if self._told is None:
            self._told = anyio.Event()
        await self._told.wait()


async def others_once_ready(
    heads: Callable[[], Heads], news: News, own: str, *, within_s: float
) -> tuple[Identity, ...]:
    """Return the other heads, as soon as one of them could take over at once, or none is there.

    Args:
        heads: Who is there now.
        news: Told when that changes.
        own: Name of this head.
        within_s: Then they are returned as they are.
    """
    with anyio.move_on_after(within_s):
        while (found := heads().others(own)) and not any(one.ready for one in found):
            await news.wait()
    return heads().others(own)


class Election(Protocol):
    """Who leads."""

    async def campaign(self, *, last_term: int, wall_ms: int) -> int:
        """Wait until this daemon leads and return its term, higher than any before."""
        ...

    async def resign(self) -> None:
        """Let another lead."""
        ...

    def held(self) -> AbstractAsyncContextManager[None]:
        """Return a scope that is cancelled when leadership is lost."""
        ...


def embedded_term(*, last_term: int, wall_ms: int) -> int:
    """Return the term of an embedded store: a restored copy cannot give out a number twice.

    Milliseconds, not seconds: a copy may be put back within the second in which the last one led.
    """
    return max(last_term + 1, wall_ms)
