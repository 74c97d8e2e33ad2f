"""Shipped files where all heads reach them: in HDFS or an object store, with a copy on this host.

The folder of this host is a cache then: what is asked for and is not in it is fetched, and checked
by its digest. What no job ships any more goes, an hour after this head saw so first.
"""

import hashlib
import secrets
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.to_thread

from primusd.errors import NotFoundError, StoreUnavailableError
from primusd.state.places import Place, PlaceError

FOLDER = "sha256"
AT_ONCE_MAX = 4
PIECE_BYTES = 1 << 20
T = TypeVar("T")


class SharedBlobs:
    """Contents by digest in a place that other heads read and write too."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._limiter = anyio.CapacityLimiter(AT_ONCE_MAX)
        self._known: set[str] = set()
        """Digests that are there, as far as this head was told since it began."""
        self._unused_ms: dict[str, int] = {}

    def is_known(self, digest: str) -> bool:
        """Return whether a content was there when somebody asked for it last."""
        return digest in self._known

    async def size(self, digest: str) -> int:
        """Return how many bytes a content has, -1 of one that is not there.

        Whoever asks is about to name it in a job: until then it is kept as if it had just come.

        Args:
            digest: 64 hexadecimal digits, here and below.

        Raises:
            StoreUnavailableError: Nobody can tell.
        """
        found = await self._run(partial(self._place.size, _name(digest)))
        self._unused_ms.pop(digest, None)
        if found < 0:
            self._known.discard(digest)
        else:
            self._known.add(digest)
        return found

    async def learn(self, digests: Iterable[str]) -> None:
        """Look which contents are there.

        Raises:
            StoreUnavailableError: Nobody can tell.
        """
        for digest in digests:
            if digest not in self._known:
                await self.size(digest)

    async def send(self, digest: str, path: Path) -> None:
        """Copy a content there.

        Raises:
            StoreUnavailableError: It did not arrive.
        """
        await self._run(partial(self._place.upload, _name(digest), path))
        self._known.add(digest)

    async def fetch(self, digest: str, path: Path) -> None:
        """Copy a content to this host, where it is whole or not at all.

        Raises:
            NotFoundError: It is not there, or is not what its name says.
            StoreUnavailableError: It did not arrive.
        """
        if await self.size(digest) < 0:
            raise NotFoundError(f"sha256:{digest} is not in this store")
        await self._run(partial(self._fetch, digest, path))

    async def byte_count(self) -> int:
        """Return what all contents have together."""
        items = await self._run(partial(self._place.items, FOLDER))
        return sum(one.byte_count for one in items)

    async def drop_unused(self, shipped: set[str], *, now_ms: int, keep_ms: int) -> int:
        """Remove contents that no job ships for a while now; return how many.

        Args:
            shipped: Digests that jobs name.
            now_ms: Of a clock that this head keeps.
            keep_ms: How long one waits for the job that will name it.
        """
        there = {one.name for one in await self._run(partial(self._place.items, FOLDER))}
        unused = there - shipped
        self._unused_ms = {digest: self._unused_ms.get(digest, now_ms) for digest in sorted(unused)}
        going = [one for one, since_ms in self._unused_ms.items() if now_ms - since_ms > keep_ms]
        for digest in going:
            await self._run(partial(self._place.remove, _name(digest)))
            self._known.discard(digest)
            del self._unused_ms[digest]
        return len(going)

    def _fetch(self, digest: str, path: Path) -> None:
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        incoming = path.with_name(f".incoming-{secrets.token_hex(8)}")
        try:
            self._place.download(_name(digest), incoming)
            if _digest_of(incoming) != digest:
                raise NotFoundError(
                    f"what {self._place.url} has as sha256:{digest} is another content"
                )
            incoming.chmod(0o600)
            incoming.rename(path)
        finally:
            incoming.unlink(missing_ok=True)

    async def _run(self, work: Callable[[], T]) -> T:
        try:
            return await anyio.to_thread.run_sync(work, limiter=self._limiter)
        except PlaceError as error:
            raise StoreUnavailableError(
                f"shipped files cannot be reached: {error.strerror}",
                hint="see that blobs.url can be reached from this head",
            ) from error


def _name(digest: str) -> str:
    return f"{FOLDER}/{digest}"


def _digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
