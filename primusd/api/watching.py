"""Watches over HTTP: NDJSON, or server-sent events for those who ask for them.

A reader that does not take what is sent to it is cut off; nothing is buffered without bound.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress

import anyio
import msgspec
from aiohttp import web
from msgspec import UNSET, Raw, Struct, UnsetType

from primusd.api.asking import context_of, flag, number
from primusd.api.limits import WATCHES_MAX
from primusd.api.problems import problem_document
from primusd.errors import PrimusdError, ResourceVersionTooOldError, TooManyRequestsError
from primusd.subscription import CutOffError
from primusd.watch import BOOKMARK, WatchEvent

NDJSON = "application/x-ndjson"
EVENT_STREAM = "text/event-stream"
WRITE_TIMEOUT_S = 20.0
"""Two bookmarks: whoever takes nothing for so long is gone or too slow."""
REVISION_MAX = 2**63 - 1
OPEN_WATCHES: web.AppKey[set[object]] = web.AppKey("open_watches", set)


class Line(Struct, frozen=True, rename="camel"):
    """One line of a watch."""

    type: str
    object: Raw | UnsetType = UNSET
    resource_version: str | UnsetType = UNSET
    problem: Raw | UnsetType = UNSET


def is_watch(request: web.Request) -> bool:
    """Return whether the request asks for a watch."""
    return flag(request, "watch")


async def serve_watch(
    request: web.Request,
    kinds: Iterable[str],
    *,
    wants: Callable[[Struct], bool],
) -> web.StreamResponse:
    """Tell what changes until the reader goes.

    Args:
        request: Has `resourceVersion` (or `Last-Event-ID`) and `coalesce`.
        kinds: Of the objects.
        wants: Whether a document is told.

    Raises:
        ResourceVersionTooOldError: Revisions from there on are no longer kept.
        TooManyRequestsError: There are too many watches already.
    """
    context = context_of(request)
    open_watches = request.app[OPEN_WATCHES]
    if len(open_watches) >= WATCHES_MAX:
        raise TooManyRequestsError(f"{WATCHES_MAX} watches are open already", hint="close some")
    since = number(request, "resourceVersion", _last_event_id(request), high=REVISION_MAX)
    coalesces = request.query.get("coalesce") is None or flag(request, "coalesce")
    watcher = context.watch.open(kinds, since=since, wants=wants, coalesces=coalesces)
    open_watches.add(watcher)
    stream = Stream(request)
    try:
        await stream.response.prepare(request)
        while True:
            await stream.write(await watcher.next())
    except CutOffError as error:
        await stream.fail(ResourceVersionTooOldError(error.message, oldest=context.watch.oldest))
    except (ConnectionResetError, TimeoutError):
        cut_off(request)
    finally:
        open_watches.discard(watcher)
        watcher.close()
    return stream.response


def cut_off(request: web.Request) -> None:
    """End the connection of a reader that is gone or takes nothing; what it missed is lost."""
    if request.transport is not None:
        request.transport.abort()


def _last_event_id(request: web.Request) -> int:
    """Return where a browser's event source stopped; 0 when it comes for the first time."""
    text = request.headers.get("Last-Event-ID", "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else 0


class Stream:
    """The body of a watch, in the form that was asked for."""

    def __init__(self, request: web.Request) -> None:
        self._is_sse = EVENT_STREAM in request.headers.get("Accept", "")
        self.response = web.StreamResponse(
            headers={
                "Content-Type": EVENT_STREAM if self._is_sse else NDJSON,
                "Cache-Control": "no-store",
                "X-Accel-Buffering": "no",
            }
        )

    async def write(self, found: Iterable[WatchEvent]) -> None:
        """Send what changed.

        Raises:
            TimeoutError: The reader does not take it.
            ConnectionResetError: The reader is gone.
        """
        data = b"".join(self._encoded(one) for one in found)
        with anyio.fail_after(WRITE_TIMEOUT_S):
            await self.response.write(data)

    async def fail(self, error: PrimusdError) -> None:
        """Send why the watch ends, as far as it can still be told."""
        problem = Raw(msgspec.json.encode(problem_document(error)))
        line = msgspec.json.encode(Line("ERROR", problem=problem))
        with anyio.move_on_after(1), suppress(ConnectionResetError):
            await self.response.write(self._framed(line, "ERROR", ""))

    def _encoded(self, event: WatchEvent) -> bytes:
        revision = str(event.revision)
        if event.type == BOOKMARK:
            line = Line(BOOKMARK, resource_version=revision)
        else:
            line = Line(event.type, object=Raw(msgspec.json.encode(event.object)))
        return self._framed(msgspec.json.encode(line), event.type, revision)

    def _framed(self, line: bytes, kind: str, revision: str) -> bytes:
        if not self._is_sse:
            return line + b"\n"
        head = f"id: {revision}\n" if revision else ""
        return f"{head}event: {kind}\ndata: ".encode() + line + b"\n\n"
