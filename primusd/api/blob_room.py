"""Room for shipped files: what no job ships any more goes, and the rest stays within its bound."""

import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import structlog
from aiohttp import web

from primusd.api.shared_blobs import SharedBlobs
from primusd.core import World
from primusd.errors import StoreFullError, StoreUnavailableError, TooLargeError
from primusd.units import bytes_words

log = structlog.get_logger()

UNUSED_KEEP_MS = 3_600_000
"""A file is sent before the job that names it: so long it waits for that, an upload for its end."""
SWEEP_EVERY_S = 600.0
DIGEST_PREFIX = "sha256:"


class BlobRoom:
    """What the folder of shipped files may still take, uploads on their way counted in."""

    def __init__(
        self,
        folder: Path,
        *,
        bytes_max: Callable[[], int],
        world: Callable[[], World],
        shared: SharedBlobs | None = None,
    ) -> None:
        """Make it; nothing is read yet.

        Args:
            folder: Of the contents, by digest.
            bytes_max: Of all of them together.
            world: Its jobs ship what is not to go.
            shared: Where they are kept for all heads; None: in that folder.
        """
        self._folder = folder
        self._shared = shared
        self._bytes_max = bytes_max
        self._world = world
        self._promised = 0

    async def run(self) -> None:
        """Drop what no job ships any more, now and then, until cancelled."""
        while True:
            try:
                if dropped := await self.sweep():
                    log.info("blobs.dropped", files=dropped)
            except StoreUnavailableError as error:
                log.warning("blobs.not_swept", text=error.message)
            await anyio.sleep(SWEEP_EVERY_S)

    async def sweep(self) -> int:
        """Drop what no job ships any more; return how many files went."""
        world = self._world()
        if world.admission.wedged:
            # A job that cannot be loaded now may ship what no other does.
            return 0
        shipped = {
            file.digest.removeprefix(DIGEST_PREFIX)
            for job in world.jobs.values()
            for file in job.spec.files
        }
        now_ms = time.time_ns() // 1_000_000
        look = partial(drop_unused, self._folder, shipped, now_ms=now_ms)
        dropped = await anyio.to_thread.run_sync(look)
        if self._shared is None:
            return dropped
        return await self._shared.drop_unused(shipped, now_ms=now_ms, keep_ms=UNUSED_KEEP_MS)

    async def _stored_bytes(self) -> int:
        if self._shared is not None:
            return await self._shared.byte_count()
        return await anyio.to_thread.run_sync(stored_bytes, self._folder)

    @asynccontextmanager
    async def upload(self) -> AsyncIterator["Upload"]:
        """Yield what an upload asks for room."""
        upload = Upload(self)
        try:
            yield upload
        finally:
            self._promised -= upload.promised

    async def promise(self, byte_count: int) -> None:
        """Set room aside.

        Raises:
            TooLargeError: It would not fit into an empty folder either.
            StoreFullError: There is no room.
        """
        bytes_max = self._bytes_max()
        if byte_count > bytes_max:
            raise TooLargeError(
                f"the file has {bytes_words(byte_count)}, and blobs.bytes_max, "
                f"which holds for all files together, is {bytes_words(bytes_max)}"
            )
        stored = await self._stored_bytes()
        if stored + self._promised + byte_count > bytes_max and await self.sweep():
            stored = await self._stored_bytes()
        if stored + self._promised + byte_count > bytes_max:
            raise StoreFullError(
                f"shipped files have {bytes_words(stored)}, blobs.bytes_max is "
                f"{bytes_words(bytes_max)}: there is no room for {bytes_words(byte_count)} more",
                hint="primusctl delete jobs that are over, or raise blobs.bytes_max",
            )
        self._promised += byte_count


class Upload:
    """Room set aside for one upload, until it is over."""

    def __init__(self, room: BlobRoom) -> None:
        self._room = room
        self.promised = 0

    async def needs(self, byte_count: int) -> None:
        """Set room aside for so many bytes in all.

        Raises:
            TooLargeError: It would not fit into an empty folder either.
            StoreFullError: There is no room.
        """
        if byte_count > self.promised:
            await self._room.promise(byte_count - self.promised)
            self.promised = byte_count


BLOB_ROOM: web.AppKey[BlobRoom] = web.AppKey("blob_room", BlobRoom)


def stored_bytes(folder: Path) -> int:
    """Return what all contents have together, uploads on their way left out."""
    try:
        with os.scandir(folder) as entries:
            return sum(one.stat().st_size for one in entries if not one.name.startswith("."))
    except FileNotFoundError:
        # Nothing was ever sent, or a content went just now: it counts nothing.
        return 0


def drop_unused(folder: Path, shipped: set[str], *, now_ms: int) -> int:
    """Remove contents that no job ships, and uploads that nobody goes on with; return how many."""
    count = 0
    try:
        entries = list(folder.iterdir())
    except FileNotFoundError:
        return 0
    for path in entries:
        if path.name in shipped:
            continue
        try:
            if now_ms - path.stat().st_mtime_ns // 1_000_000 > UNUSED_KEEP_MS:
                path.unlink()
                count += 1
        except FileNotFoundError:
            continue
    return count
