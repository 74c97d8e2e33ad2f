"""Follows the journal by a watch, so that who takes over reads next to nothing."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import anyio
import anyio.to_thread
import structlog
from msgspec import Struct

from primusd.errors import NewerSchemaError, StoreUnavailableError
from primusd.state.etcd.client import EtcdClient
from primusd.state.etcd.contents import Contents, number, read_contents
from primusd.state.etcd.layout import Layout, split
from primusd.state.etcd.leadership import boot_s
from primusd.state.etcd.messages import messages
from primusd.state.etcd.reading import read_all
from primusd.state.etcd.requests import get, prefix_end, transaction
from primusd.state.etcd.watching import CompactedError, Event, watch
from primusd.state.journal import Loaded, Seen, Written
from primusd.state.schema import check_schema

log = structlog.get_logger()

LOOK_S = 1.0
"""How often it is asked whether something was missed: a hung member keeps its watches open."""
ASK_S = 3.0
CATCH_UP_S = (0.3, 2.0)
"""How long a new leader waits for the watch, and for the next one after that, before it reads all
of the store."""


class Newest(Struct, frozen=True):
    """What stood in the store when it was asked."""

    store: int
    """Revision of etcd, which only grows."""
    lane_revision: int
    """The same, at which the lane was written, as each write of a leader does; 0 never."""
    lane: bytes
    entry: int
    """Revision of the last entry; 0 none."""


class Following:
    """One head's view of a journal that another one writes."""

    def __init__(self, client: EtcdClient, layout: Layout) -> None:
        self._client = client
        self._layout = layout
        self._contents: Contents | None = None
        self._at = 0
        """Of etcd: all up to this revision was told."""
        self._moved = anyio.Event()
        self._watching = anyio.CancelScope()
        self._is_over = False
        self._seen = Seen()

    @property
    def seen(self) -> Seen:
        """How far it is."""
        entry = self._contents.revision if self._contents is not None else 0
        return Seen(max(self._seen.newest, entry), self._seen.complete_ms)

    async def run(
        self, load: Callable[[Loaded], Awaitable[None]], take: Callable[[Written], None]
    ) -> None:
        """Tell what there is and what is written, until `caught_up` or cancelled.

        Raises:
            NewerSchemaError: A newer version writes it.
        """
        self._is_over, self._contents = False, None
        newer: NewerSchemaError | None = None
        async with anyio.create_task_group() as group:
            group.start_soon(self._look_on)
            try:
                await self._follow(load, take)
            except NewerSchemaError as error:
                newer = error
            group.cancel_scope.cancel()
        if newer is not None:
            self._contents = None
            raise newer

    async def caught_up(self) -> tuple[Contents, Newest] | None:
        """Return, as the leader, what the store holds; None where that was not told in time.

        Nobody else can write any more: what stands in the lane now is the last write.

        Raises:
            StoreUnavailableError: Etcd does not answer.
        """
        newest = await self._newest()
        for patience_s in CATCH_UP_S:
            if self._contents is None:
                break
            with anyio.move_on_after(patience_s):
                while self._at < newest.lane_revision:
                    await self._moved.wait()
                break
            self._watch_anew()
        contents, self._contents, self._is_over = self._contents, None, True
        self._watching.cancel()
        if contents is None or self._at < newest.lane_revision:
            log.warning("store.not_followed", text="the watch did not come up to the last write")
            return None
        if contents.revision != newest.entry and not contents.unfinished:
            text = f"entry {contents.revision} was the last one told, {newest.entry} is there"
            log.error("store.not_followed", text=text)
            return None
        return contents, newest

    async def _follow(
        self, load: Callable[[Loaded], Awaitable[None]], take: Callable[[Written], None]
    ) -> None:
        failures, told = 0, ""
        while not self._is_over:
            try:
                await self._load(load)
                failures, told = 0, ""
                await self._watch(take)
            except CompactedError as error:
                log.info("store.followed_anew", text=error.message)
            except StoreUnavailableError as error:
                failures += 1
                if error.message != told:
                    told = error.message
                    log.warning("store.not_followed", text=told)
                await self._client.pause(failures + len(self._client.settings.endpoints))

    async def _load(self, load: Callable[[Loaded], Awaitable[None]]) -> None:
        """Read everything, decode it beside the loop, and tell it."""
        self._contents = None
        layout = self._layout
        request = messages()["RangeRequest"](key=layout.schema)
        answer = await self._client.call("KV", "Range", request, within_s=ASK_S)
        for one in answer.kvs:
            check_schema(number(one.value))
        read = await read_all(self._client, layout.prefix)
        contents, loaded = await anyio.to_thread.run_sync(partial(read_contents, layout, read))
        await load(loaded)
        if not self._is_over:
            self._contents = contents
            self._come_to(read.revision)

    async def _watch(self, take: Callable[[Written], None]) -> None:
        while not self._is_over and self._contents is not None:
            with anyio.CancelScope() as self._watching:
                await self._watch_once(take)

    async def _watch_once(self, take: Callable[[Written], None]) -> None:
        prefix = self._layout.prefix
        sink = partial(self._take, take)
        await watch(self._client, prefix, prefix_end(prefix), self._at + 1, sink)

    def _take(self, take: Callable[[Written], None], events: Sequence[Event]) -> bool:
        if self._is_over or self._contents is None:
            return True
        written = self._contents.take(events)
        if written != Written():
            take(written)
        self._come_to(events[-1].kv.mod_revision)
        return False

    def _come_to(self, revision: int) -> None:
        self._at = revision
        self._moved.set()
        self._moved = anyio.Event()

    def _begin_anew(self) -> None:
        """Load all of it again: the store was put back to an earlier state."""
        self._contents, self._at = None, 0
        self._watching.cancel()

    def _watch_anew(self) -> None:
        """Watch at another member from where we are."""
        self._client.rotate(self._client.position)
        self._watching.cancel()

    async def _look_on(self) -> None:
        """See that the watch misses nothing for long."""
        stood_at = -1
        while True:
            await anyio.sleep(LOOK_S)
            asked_ms, asked_at = int(boot_s() * 1000), self._at
            try:
                newest = await self._newest()
            except StoreUnavailableError:
                continue
            if self._contents is None:
                continue
            if newest.store < asked_at:
                # Whoever waits for what comes after would wait for long, and miss all until then.
                log.warning("store.went_back", at=asked_at, newest=newest.store)
                self._begin_anew()
                continue
            if self._at >= newest.lane_revision:
                self._seen, stood_at = Seen(newest.entry, asked_ms), -1
                continue
            self._seen = Seen(newest.entry, self._seen.complete_ms)
            if self._at == stood_at:
                log.warning("store.watch_stood", at=self._at, newest=newest.lane_revision)
                self._watch_anew()
            stood_at = self._at

    async def _newest(self) -> Newest:
        """Ask the majority what was written last."""
        layout, known = self._layout, messages()
        ranged = known["RangeRequest"]
        last = ranged(
            key=layout.journal,
            range_end=prefix_end(layout.journal),
            limit=1,
            sort_order=ranged.DESCEND,
            keys_only=True,
        )
        request = transaction((), (get(layout.lane), known["RequestOp"](request_range=last)))
        answer = await self._client.call("KV", "Txn", request, within_s=ASK_S)
        lane, entries = (one.response_range.kvs for one in answer.responses)
        entry = int(split(entries[0].key)[0][len(layout.journal) :]) if entries else 0
        if not lane:
            return Newest(answer.header.revision, 0, b"", entry)
        lane_revision, value = lane[0].mod_revision, bytes(lane[0].value)
        return Newest(answer.header.revision, lane_revision, value, entry)
