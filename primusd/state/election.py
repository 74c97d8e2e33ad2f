"""The election port, and its form for a store with one head."""

from contextlib import AbstractAsyncContextManager
from typing import Protocol

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


class Heads(Struct, frozen=True):
    """Who is there, as last read."""

    leader: Identity | None = None
    """None: nobody leads, or it is not known."""
    term: int = 0
    members: tuple[Identity, ...] = ()


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
