"""Shipped files over HTTP: sent by content before the submit that names them."""

import hashlib
import os
from pathlib import Path
from tempfile import NamedTemporaryFile

import anyio
import anyio.to_thread
from aiohttp import web

from primusd.api.asking import context_of
from primusd.api.blob_room import BLOB_ROOM, Upload
from primusd.errors import MalformedError, StoreFullError, TooLargeError
from primusd.views.blobs import blob_path

PART_BYTES = 1 << 20
_FULL_ERRNOS = frozenset({28, 122})
"""ENOSPC and EDQUOT."""


async def head_blob(request: web.Request) -> web.Response:
    """Tell whether a content is here already."""
    context = context_of(request)
    path = blob_path(context.blobs, request.match_info["digest"])
    size = await anyio.to_thread.run_sync(_size, path)
    if context.shared_blobs is not None:
        size = await context.shared_blobs.size(path.name)
    if size < 0:
        return web.Response(status=404)
    return web.Response(headers={"X-Primus-Bytes": str(size)})


def _size(path: Path) -> int:
    """Return the size of a content that is here, -1 of one that is not.

    Whoever asks is about to name it in a job: until then it is kept as if it had just come.
    """
    try:
        size = path.stat().st_size
        os.utime(path)
    except OSError:
        return -1
    return size


async def put_blob(request: web.Request) -> web.Response:
    """Take a content and keep it under its digest."""
    context = context_of(request)
    digest = request.match_info["digest"]
    path = blob_path(context.blobs, digest)
    most = context.config().config.blobs.file_bytes_max
    if request.content_length is not None and request.content_length > most:
        raise TooLargeError(f"a file has {request.content_length} bytes, blobs.file_max is {most}")
    try:
        async with request.app[BLOB_ROOM].upload() as upload:
            await upload.needs(request.content_length or 0)
            await _receive(request, path, digest, most, upload)
            if context.shared_blobs is not None:
                await context.shared_blobs.send(path.name, path)
    except OSError as error:
        if error.errno in _FULL_ERRNOS:
            raise StoreFullError(
                f"there is no room for the file in {context.blobs}",
                hint="free some, or name a roomier place in [blobs]",
            ) from error
        raise
    return web.Response(status=201)


async def _receive(
    request: web.Request, path: Path, digest: str, most: int, upload: Upload
) -> None:
    """Write the body beside its place, and move it there once it is whole and right."""
    await anyio.to_thread.run_sync(lambda: path.parent.mkdir(0o700, parents=True, exist_ok=True))
    sha256, byte_count = hashlib.sha256(), 0
    with NamedTemporaryFile(dir=path.parent, prefix=".incoming-", delete=False) as file:
        incoming = Path(file.name)
        try:
            async for part in request.content.iter_chunked(PART_BYTES):
                byte_count += len(part)
                if byte_count > most:
                    raise TooLargeError(f"the file is larger than blobs.file_max, {most} bytes")
                await upload.needs(byte_count)
                sha256.update(part)
                await anyio.to_thread.run_sync(file.write, part)
            if f"sha256:{sha256.hexdigest()}" != digest:
                raise MalformedError(
                    f"the content's digest is sha256:{sha256.hexdigest()}, not {digest}"
                )
            await anyio.to_thread.run_sync(_keep, file.fileno(), incoming, path)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(_remove, incoming)


def _remove(incoming: Path) -> None:
    incoming.unlink(missing_ok=True)


def _keep(descriptor: int, incoming: Path, path: Path) -> None:
    os.fchmod(descriptor, 0o600)
    os.fsync(descriptor)
    incoming.rename(path)
