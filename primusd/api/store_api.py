"""The store as it is: its figures, and all that it holds."""

from collections.abc import Iterator

import anyio.to_thread
from aiohttp import web
from msgspec import UNSET

from primusd.api.asking import answer, context_of
from primusd.api.auth import CALLER
from primusd.errors import ForbiddenError
from primusd.records import SCHEMA
from primusd.state.backup import backup_of, written
from primusd.state.figures import ServerFigures
from primusd.views import cluster_documents as documents


async def show_store(request: web.Request) -> web.Response:
    """Tell where the journal is kept, how large it is, and what it may take."""
    context = context_of(request)
    config, engine = context.config().config, context.engine
    found, refusal = await context.figures(), context.refusal()
    has_quota = found.quota_byte_count > 0
    return answer(
        documents.Store(
            store=found.kind,
            place=found.place,
            cluster=config.cluster,
            cluster_id=context.cluster_id,
            schema=SCHEMA,
            term=engine.term,
            revision=str(engine.revision),
            bytes=found.byte_count,
            quota_bytes=found.quota_byte_count or UNSET,
            used_percent=found.used_percent if has_quota else UNSET,
            stop_percent=config.store.etcd.quota_stop_percent if has_quota else UNSET,
            free_bytes=found.free_byte_count or UNSET,
            etcd_revision=found.revision or UNSET,
            compacted_revision=found.compacted or UNSET,
            servers=tuple(map(_server, found.servers)),
            refuses=refusal.message if refusal is not None else UNSET,
        )
    )


def _server(found: ServerFigures) -> documents.StoreServer:
    if found.error:
        return documents.StoreServer(url=found.address, error=found.error)
    return documents.StoreServer(
        url=found.address,
        version=found.version,
        bytes=found.byte_count,
        bytes_in_use=found.used_byte_count or UNSET,
        leads=found.is_leader,
    )


async def send_backup(request: web.Request) -> web.StreamResponse:
    """Send all that the store holds as of one revision; the loop goes on meanwhile."""
    context, caller = context_of(request), request[CALLER]
    if caller.role != "admin":
        raise ForbiddenError(
            f"{caller.name} may not take a backup: the cluster's secret is in it",
            hint="take the token of an admin",
        )
    config = context.config().config
    made = backup_of(
        await context.load(),
        cluster=config.cluster,
        cluster_id=context.cluster_id,
        secret=context.secret,
        store=config.store.kind,
        version=context.version,
        wall_ms=context.clock.wall_ms(),
    )
    response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
    await response.prepare(request)
    pieces = written(made)
    while piece := await anyio.to_thread.run_sync(_next, pieces):
        await response.write(piece)
    await response.write_eof()
    return response


def _next(pieces: Iterator[bytes]) -> bytes:
    return next(pieces, b"")
