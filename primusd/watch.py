"""Watches: what changed, object by object, for those who follow over the API.

The journal publishes entries; a watch tells objects. A ring of the last changes lets a follower go
on from where it stopped; who is too slow, or asks for what the ring no longer holds, lists again.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import takewhile
from typing import Protocol

import anyio
from msgspec import Struct

from primusd.admission.model import Admission
from primusd.admission.queues import names_of
from primusd.clock import Clock
from primusd.core import World
from primusd.engine import Anew, Engine
from primusd.errors import ResourceVersionTooOldError
from primusd.job.ids import replica_name
from primusd.job.model import Job, RoleState
from primusd.records import ADMISSION, job_of
from primusd.subscription import CutOffError, Published

BOOKMARK_S = 10.0
COALESCE_S = 0.1
CHANGES_KEPT_MAX = 100_000
"""The ring's bound in memory; under a heavier load it reaches less far back than configured."""
CHANGES_WAITING_MAX = 50_000
"""A follower that has not taken so many objects is cut off."""

ADDED, MODIFIED, DELETED, BOOKMARK = "ADDED", "MODIFIED", "DELETED", "BOOKMARK"
JOB, REPLICA, EVENT, STREAM, NODE = "Job", "Replica", "Event", "Stream", "Node"
QUEUE = "Queue"

Document = Struct


class Render(Protocol):
    """Makes the document of an object.

    The key of a `Job` is its uid, of a `Replica` `<uid>/worker-3`, of an `Event`
    `<uid>/<revision>.<position>`, of a `Stream` `<uid>/<stream>`, of a `Node` or `Queue` its name.
    """

    def __call__(self, kind: str, key: str, world: World) -> Document | None:
        """Return the document, None when there is no such object."""
        ...


class WatchEvent(Struct, frozen=True):
    """One line of a watch."""

    type: str
    revision: int
    """Of the change; of a bookmark, all up to it was told."""
    object: Document | None = None
    """None for a bookmark."""


class Change(Struct, frozen=True):
    """An object that changed."""

    revision: int
    at_ms: int
    type: str
    kind: str
    key: str
    document: Document | None = None
    """Of a DELETED object, as it was last."""


class Watch:
    """The ring of the last changes, and those who follow it."""

    def __init__(self, engine: Engine, clock: Clock, render: Render, *, keep_ms: int) -> None:
        """Make a watch that begins with what the engine publishes next.

        Args:
            engine: Whose publications are followed.
            clock: Tells when a change is old enough to be forgotten.
            render: Makes documents.
            keep_ms: How long a change is kept for those who come back.
        """
        self._engine = engine
        self._clock = clock
        self._render = render
        self._keep_ms = keep_ms
        self._ring: deque[Change] = deque()
        self._oldest = engine.revision
        self._watchers: set[Watcher] = set()
        self._rendered: dict[tuple[str, str], Document | None] = {}
        self._rendered_revision = -1
        engine.on_published.append(self._follow)
        engine.on_anew.append(self._begin_anew)

    def open(
        self,
        kinds: Iterable[str],
        *,
        since: int = 0,
        wants: Callable[[Document], bool] = lambda _document: True,
        coalesces: bool = True,
    ) -> "Watcher":
        """Return a watcher; close it when its reader is gone.

        Args:
            kinds: What is followed.
            since: All changes after this revision are told; 0: first everything there is.
            wants: Whether a document is of interest.
            coalesces: Several changes of one object within 100 ms are told as one.

        Raises:
            ResourceVersionTooOldError: The ring does not reach back to `since`, or this store never
                had it.
        """
        if since and not self._oldest <= since <= self._engine.revision:
            raise ResourceVersionTooOldError(
                f"revision {since} is not kept; the oldest is {self._oldest}", oldest=self._oldest
            )
        watcher = Watcher(self, frozenset(kinds), wants=wants, coalesces=coalesces)
        if since:
            for change in self._ring:
                if change.revision > since:
                    watcher.push(change, None)
        else:
            watcher.begin(self._engine.world, self._engine.revision)
        self._watchers.add(watcher)
        return watcher

    def document(self, kind: str, key: str) -> Document | None:
        """Return an object's document as of now; made once per revision however many follow."""
        if self._rendered_revision != self._engine.revision:
            self._rendered.clear()
            self._rendered_revision = self._engine.revision
        if (kind, key) not in self._rendered:
            self._rendered[kind, key] = self._render(kind, key, self._engine.world)
        return self._rendered[kind, key]

    def refill(self, changes: Iterable[Change], *, oldest: int) -> None:
        """Put what was told before this daemon's life in front of the ring.

        Args:
            changes: In order, all before the ring's first.
            oldest: The revision from which they are complete.
        """
        self._ring.extendleft(reversed(list(changes)))
        if oldest >= 0:
            self._oldest = min(oldest, self._oldest)
        self._forget_old(self._engine.at_ms())

    @property
    def revision(self) -> int:
        """The newest revision that was told."""
        return self._engine.revision

    @property
    def oldest(self) -> int:
        """The oldest revision from which a watch can go on."""
        return self._oldest

    def forget(self, watcher: "Watcher") -> None:
        """Tell a watcher nothing more."""
        self._watchers.discard(watcher)

    def _follow(self, published: Published) -> None:
        for change in changes_of(published, self._render):
            self._ring.append(change)
            document = self._exact_document(change, published.after)
            for watcher in tuple(self._watchers):
                if not watcher.push(change, document):
                    self._watchers.discard(watcher)
        self._forget_old(published.entry.at_ms)

    def _exact_document(self, change: Change, world: World) -> Document | None:
        """Return the object as of this very change, if anybody asked for each one."""
        wanted = any(one.wants_each(change.kind) for one in self._watchers)
        return self._render(change.kind, change.key, world) if wanted else None

    def _forget_old(self, now_ms: int) -> None:
        ring = self._ring
        while ring and (len(ring) > CHANGES_KEPT_MAX or ring[0].at_ms < now_ms - self._keep_ms):
            self._oldest = ring.popleft().revision

    def _begin_anew(self, why: Anew) -> None:
        if why is Anew.STALL:
            return
        self._ring.clear()
        self._oldest = self._engine.revision
        for watcher in self._watchers:
            watcher.cut(why.value)
        self._watchers.clear()


class Watcher:
    """One follower: what changed since it last looked, one entry per object."""

    def __init__(
        self,
        watch: Watch,
        kinds: frozenset[str],
        *,
        wants: Callable[[Document], bool],
        coalesces: bool,
    ) -> None:
        self._watch = watch
        self._kinds = kinds
        self._wants = wants
        self._coalesces = coalesces
        self._initial: tuple[WatchEvent, ...] | None = None
        self._pending: dict[tuple[str, str, int], Change] = {}
        self._documents: dict[tuple[str, str, int], Document | None] = {}
        self._arrived = anyio.Event()
        self._told_s = float("-inf")
        """When changes were told last; those of the next 100 ms are told together."""
        self._cut = ""

    def begin(self, world: World, revision: int) -> None:
        """Let the first answer be everything there is, then a bookmark."""
        found = [
            WatchEvent(ADDED, revision, document)
            for kind, key in objects_of(world)
            if kind in self._kinds
            and (document := self._watch.document(kind, key)) is not None
            and self._wants(document)
        ]
        self._initial = (*found, WatchEvent(BOOKMARK, revision))

    def wants_each(self, kind: str) -> bool:
        """Whether every single change of such an object has to be told."""
        return not self._coalesces and kind in self._kinds

    def push(self, change: Change, document: Document | None) -> bool:
        """Note a change; False when the follower is cut off.

        Args:
            change: The newest.
            document: The object as of this change; None to take the newest when it is told.
        """
        if change.kind not in self._kinds:
            return True
        if len(self._pending) >= CHANGES_WAITING_MAX:
            self.cut("the reader is too slow")
            return False
        place = (change.kind, change.key, 0 if self._coalesces else change.revision)
        before = self._pending.pop(place, None)
        merged = change if before is None else _merged(before, change)
        if merged is not None:
            self._pending[place] = merged
            self._documents[place] = document
        self._arrived.set()
        return True

    def cut(self, reason: str) -> None:
        """End the watch: its reader has to list again."""
        self._cut = reason
        self._arrived.set()

    def close(self) -> None:
        """Stop following."""
        self._watch.forget(self)

    async def next(self) -> tuple[WatchEvent, ...]:
        """Return what changed, in the order of the journal; a bookmark after 10 s of silence.

        Raises:
            CutOffError: No more will come.
        """
        if self._initial is not None:
            initial, self._initial = self._initial, None
            return initial
        while True:
            with anyio.move_on_after(BOOKMARK_S):
                await self._arrived.wait()
            if not self._pending and not self._cut:
                return (WatchEvent(BOOKMARK, self._watch.revision),)
            if self._coalesces and not self._cut:
                await anyio.sleep_until(self._told_s + COALESCE_S)
            if self._cut:
                raise CutOffError(f"the watch ended: {self._cut}")
            found = tuple(self._taken())
            if found:
                self._told_s = anyio.current_time()
                return found

    def _taken(self) -> Iterator[WatchEvent]:
        pending, self._pending = self._pending, {}
        documents, self._documents = self._documents, {}
        self._arrived = anyio.Event()
        for place, change in pending.items():
            document = change.document or documents[place]
            if document is None:
                document = self._watch.document(change.kind, change.key)
            # One that went meanwhile has its DELETED still to come.
            if document is not None and self._wants(document):
                yield WatchEvent(change.type, change.revision, document)


def _merged(before: Change, change: Change) -> Change | None:
    """Return two changes of one object as one; None: it came and went unseen."""
    match before.type, change.type:
        case "ADDED", "DELETED":
            return None
        case "ADDED", _:
            return Change(change.revision, change.at_ms, ADDED, change.kind, change.key)
        case "DELETED", _:
            return Change(change.revision, change.at_ms, MODIFIED, change.kind, change.key)
        case _:
            return change


def objects_of(world: World) -> Iterator[tuple[str, str]]:
    """Yield kind and key of every object there is."""
    yield from ((NODE, name) for name in world.admission.nodes)
    yield from ((QUEUE, name) for name in names_of(world.admission))
    for uid, job in world.jobs.items():
        yield JOB, uid
        for role in job.roles.values():
            for chunk in role.chunks:
                for replica in chunk.replicas:
                    yield REPLICA, f"{uid}/{replica_name(role.name, replica.index)}"
        yield from ((EVENT, f"{uid}/{one.revision}.{one.position}") for one in job.timeline)
    yield from ((STREAM, key) for key in world.streams)


def changes_of(published: Published, render: Render) -> Iterator[Change]:
    """Yield the objects that an entry changed."""
    revision, at_ms = published.entry.revision, published.entry.at_ms
    for kind, key, was, is_there in _changed(published):
        if is_there:
            yield Change(revision, at_ms, MODIFIED if was else ADDED, kind, key)
        elif was:
            last = render(kind, key, published.before)
            yield Change(revision, at_ms, DELETED, kind, key, last)


def _changed(published: Published) -> Iterator[tuple[str, str, bool, bool]]:
    """Yield kind, key, whether it was there before and whether it is now."""
    before, after = published.before, published.after
    told: set[str] = set()
    for machine in published.touched:
        if machine == ADMISSION:
            old, new = before.admission.nodes, after.admission.nodes
            for name in old.keys() | new.keys():
                if old.get(name) is not new.get(name):
                    yield NODE, name, name in old, name in new
            yield from _changed_queues(before.admission, after.admission)
            continue
        uid = job_of(machine)
        if machine != uid:
            yield STREAM, machine, machine in before.streams, machine in after.streams
        else:
            yield from _changed_parts(uid, before.jobs.get(uid), after.jobs.get(uid), published)
        if uid not in told:
            told.add(uid)
            yield JOB, uid, uid in before.jobs, uid in after.jobs


def _changed_queues(before: Admission, after: Admission) -> Iterator[tuple[str, str, bool, bool]]:
    """Yield the queues that were set up otherwise; `default` is there without being set up."""
    old, new = before.queues, after.queues
    if old is new:
        return
    for name in old.keys() | new.keys():
        if old.get(name) is not new.get(name):
            yield QUEUE, name, name in names_of(before), name in names_of(after)


def _changed_parts(
    uid: str, before: Job | None, after: Job | None, published: Published
) -> Iterator[tuple[str, str, bool, bool]]:
    """Yield the replicas and timeline entries of a job that changed."""
    roles_before = before.roles if before is not None else {}
    roles_after = after.roles if after is not None else {}
    for name in roles_before.keys() | roles_after.keys():
        for index, was, is_there in _changed_replicas(
            roles_before.get(name), roles_after.get(name)
        ):
            yield REPLICA, f"{uid}/{replica_name(name, index)}", was, is_there
    if after is not None:
        revision = published.entry.revision
        newest = takewhile(lambda one: one.revision == revision, reversed(after.timeline))
        for moment in reversed(tuple(newest)):
            yield EVENT, f"{uid}/{revision}.{moment.position}", False, True


def _changed_replicas(
    before: RoleState | None, after: RoleState | None
) -> Iterator[tuple[int, bool, bool]]:
    """Yield index, was there, is there; chunks that are the same object are skipped whole."""
    old = before.chunks if before is not None else ()
    new = after.chunks if after is not None else ()
    for number in range(max(len(old), len(new))):
        was = old[number] if number < len(old) else None
        now = new[number] if number < len(new) else None
        if was is now:
            continue
        earlier = {one.index: one for one in was.replicas} if was is not None else {}
        later = {one.index: one for one in now.replicas} if now is not None else {}
        for index in sorted(earlier.keys() | later.keys()):
            if earlier.get(index) is not later.get(index):
                yield index, index in earlier, index in later
