"""Open connections of executors: what each was told, and who is to be told anew after a step."""

import signal
from collections.abc import Callable, Iterator, Mapping
from itertools import zip_longest
from typing import TypeVar

import anyio

from primusd.api.peers_news import PeersNews, Told, newest_due_ms
from primusd.core import World
from primusd.datafeed.ledger.model import ReaderState, Stream
from primusd.datafeed.ledger.orders import feed_orders
from primusd.datafeed.protocol import FeedOrders
from primusd.executor.protocol import Answer, Ask, Hold, Leave, Near, Orders, Report, Start
from primusd.job.ids import AttemptId
from primusd.job.limits import near
from primusd.job.model import CHUNK_REPLICAS, Job, find_attempt, find_replica
from primusd.job.phases import JobPhase
from primusd.job.run_order import run_order
from primusd.job.spec import stream_of
from primusd.subscription import Published

ChunkKey = tuple[str, str, int]
"""Job, role, number of the chunk."""
KeyT = TypeVar("KeyT")
NO_READERS: Mapping[AttemptId, ReaderState] = {}


class Session:
    """One executor's connection.

    Attributes:
        counted: The newest report that is durable and counted in.
        newest: The newest report, None before the first.
        is_counting: A report is being counted in: what changes goes out with its answer.
        is_dirty: What should be so has changed, or a report waits for its answer.
        is_asked_for_logs: Its end was reported, and the end of its logs asked for.
        holds_leave: It is not to leave yet: that end is still on its way.
        told: What it knows of its peers.
        news: Of its job's peers; None: it always hears the newest.
    """

    def __init__(self, attempt: AttemptId, incarnation: str, streams: tuple[str, ...]) -> None:
        self.attempt = attempt
        self.incarnation = incarnation
        self.streams = streams
        """Names of the stream machines that it reads."""
        self.counted = 0
        self.newest: Report | None = None
        self.is_counting = False
        self.is_dirty = False
        self.is_closed = False
        self.is_asked_for_logs = False
        self.holds_leave = False
        self.told = Told()
        self.news: PeersNews | None = None
        self._woken = anyio.Event()
        self._asks: dict[int, tuple[Ask, anyio.Event]] = {}
        self._answers: dict[int, Answer] = {}

    @property
    def chunk(self) -> ChunkKey:
        """Where the attempt's replica lies in its job."""
        return self.attempt.job, self.attempt.role, self.attempt.index // CHUNK_REPLICAS

    def wake(self) -> None:
        """Let its orders be sent."""
        self.is_dirty = True
        self._woken.set()

    def close(self) -> None:
        """Let it end."""
        self.is_closed = True
        self._woken.set()
        for _, answered in self._asks.values():
            answered.set()

    async def dirty(self) -> bool:
        """Return once its orders have to be sent; False when it ends instead."""
        await self._woken.wait()
        self._woken = anyio.Event()
        if self.is_closed:
            return False
        self.is_dirty = False
        return True

    def ask(self, ask: Ask) -> anyio.Event:
        """Put a question into the orders; the event is set when it is answered or never will be."""
        answered = anyio.Event()
        self._asks[ask.id] = (ask, answered)
        self.wake()
        return answered

    def forget(self, ask_id: int) -> Answer | None:
        """Take the question out of the orders and return its answer, None when there is none."""
        self._asks.pop(ask_id, None)
        return self._answers.pop(ask_id, None)

    def answered(self, answers: tuple[Answer, ...]) -> None:
        """Take what a report answers."""
        for answer in answers:
            if answer.id in self._asks:
                self._answers[answer.id] = answer
                self._asks[answer.id][1].set()

    @property
    def asks(self) -> tuple[Ask, ...]:
        """Questions without an answer yet."""
        return tuple(ask for ask, answered in self._asks.values() if not answered.is_set())


class Sessions:
    """All sessions, found by attempt, by chunk of their job and by stream."""

    def __init__(self, now_ms: Callable[[], int], wish: Callable[[int], None]) -> None:
        """Make what has no sessions yet.

        Args:
            now_ms: Tells a time that only grows.
            wish: Called with a time at which `wake_due` is to be called.
        """
        self._now_ms = now_ms
        self._wish = wish
        self._news: dict[str, PeersNews] = {}
        self.by_attempt: dict[AttemptId, Session] = {}
        self._by_chunk: dict[str, dict[ChunkKey, dict[Session, None]]] = {}
        """By job first: a step of one does not look through the sessions of all others."""
        self._by_stream: dict[str, dict[Session, None]] = {}
        """Sets in the order of their making, so that a simulated run repeats."""

    def add(self, session: Session) -> None:
        """Take a session in; an older one of the attempt is closed."""
        older = self.by_attempt.get(session.attempt)
        if older is not None:
            self.remove(older)
            older.close()
        self.by_attempt[session.attempt] = session
        session.news = self._news.setdefault(session.attempt.job, PeersNews())
        of_job = self._by_chunk.setdefault(session.attempt.job, {})
        of_job.setdefault(session.chunk, {})[session] = None
        for stream in session.streams:
            self._by_stream.setdefault(f"{session.attempt.job}/{stream}", {})[session] = None

    def remove(self, session: Session) -> None:
        """Let go of a session."""
        if self.by_attempt.get(session.attempt) is not session:
            return
        del self.by_attempt[session.attempt]
        of_job = self._by_chunk[session.attempt.job]
        _discard(of_job, session.chunk, session)
        if not of_job:
            del self._by_chunk[session.attempt.job]
            del self._news[session.attempt.job]
        for stream in session.streams:
            _discard(self._by_stream, f"{session.attempt.job}/{stream}", session)

    def wake_all(self) -> None:
        """Send every orders anew, as of a world that may be another one."""
        for session in self.by_attempt.values():
            session.told.forget()
            session.wake()

    def wake_due(self) -> None:
        """Wake the sessions of the jobs whose newest peers all are to hear of by now."""
        for uid, news in self._news.items():
            if news.is_due(self._now_ms()):
                self._wake_job(uid)
        self._wish_due()

    def _wish_due(self) -> None:
        if due_ms := newest_due_ms(iter(self._news.values())):
            self._wish(due_ms)

    def _wake_job(self, uid: str) -> None:
        for sessions in list(self._by_chunk.get(uid, {}).values()):
            for session in list(sessions):
                _wake(session)

    def published(self, uid: str, digest: str) -> Job | None:
        """Return a job as it was while a peers document was its newest, if it is told still."""
        news = self._news.get(uid)
        return news.published(digest) if news is not None else None

    def wake_changed(self, published: Published) -> None:
        """Wake the sessions whose orders a step may have changed, and no other."""
        for machine in published.touched:
            for session in self._changed(machine, published):
                _wake(session)

    def _changed(self, machine: str, published: Published) -> Iterator[Session]:
        uid, _, stream = machine.partition("/")
        if not uid:
            return
        if stream:
            yield from self._readers_changed(machine, published)
            return
        before, after = published.before.jobs.get(uid), published.after.jobs.get(uid)
        if before is not after:
            yield from self._attempts_changed(uid, before, after)
        if before is not None and after is not None and before.peers != after.peers:
            self._peers_changed(uid, before, after)

    def _peers_changed(self, uid: str, before: Job, after: Job) -> None:
        news = self._news.get(uid)
        if news is None:
            return
        was_due_ms = news.due_ms
        if news.changed(before, after, self._now_ms()):
            self._wake_job(uid)
        elif not was_due_ms:
            self._wish_due()

    def _attempts_changed(
        self, uid: str, before: Job | None, after: Job | None
    ) -> Iterator[Session]:
        is_whole = before is None or after is None or _is_new_to_all(before, after)
        for key, sessions in list(self._by_chunk.get(uid, {}).items()):
            if is_whole:
                yield from list(sessions)
            elif _chunk(before, key) is not _chunk(after, key):
                yield from [one for one in sessions if _is_touched(before, after, one.attempt)]

    def _readers_changed(self, machine: str, published: Published) -> Iterator[Session]:
        sessions = self._by_stream.get(machine, ())
        before = published.before.streams.get(machine)
        after = published.after.streams.get(machine)
        if before is None or after is None or _head(before) != _head(after):
            yield from list(sessions)
            return
        found = map(self.by_attempt.get, _changed_readers(before, after))
        yield from [one for one in found if one is not None]


def _wake(session: Session) -> None:
    """Wake a session for a change, unless an answer is about to go out that has it."""
    if not session.is_counting:
        session.wake()


def _changed_readers(before: Stream, after: Stream) -> Iterator[AttemptId]:
    """Yield the readers that a step changed: most shards stand where they stood."""
    for old, new in zip_longest(before.reader_shards, after.reader_shards, fillvalue=NO_READERS):
        if old is not new:
            yield from (attempt for attempt in old if attempt not in new)
            yield from (attempt for attempt, one in new.items() if old.get(attempt) is not one)


def _discard(index: dict[KeyT, dict[Session, None]], key: KeyT, session: Session) -> None:
    sessions = index.get(key, {})
    sessions.pop(session, None)
    if not sessions:
        index.pop(key, None)


def _is_new_to_all(before: Job, after: Job) -> bool:
    """Return whether something changed that stands in the orders of every attempt."""
    return (
        before.warned != after.warned
        or before.spec is not after.spec
        or before.phase is not after.phase
    )


def _is_touched(before: Job | None, after: Job | None, attempt: AttemptId) -> bool:
    """Return whether an attempt's replica changed, or what is left of a drain may have."""
    if before is None or after is None or after.phase is JobPhase.DRAINING:
        return True
    where = attempt.role, attempt.index
    return find_replica(before, *where) is not find_replica(after, *where)


def _chunk(job: Job | None, key: ChunkKey) -> object:
    role = job.roles.get(key[1]) if job is not None else None
    if role is None or key[2] >= len(role.chunks):
        return None
    return role.chunks[key[2]]


def _head(stream: Stream) -> tuple[object, ...]:
    """Return what of a stream every reader's orders depend on."""
    return stream.phase, stream.is_paused


def streams_read(job: Job, role: str) -> tuple[str, ...]:
    """Return the names of the stream machines that a role reads."""
    if role not in job.spec.roles:
        return ()
    return tuple(stream_of(role, reading) for reading in job.spec.roles[role].data)


def compose(
    world: World,
    session: Session,
    *,
    term: int,
    revision: int,
    at_ms: int,
    beat_ms: int,
    ttl_ms: int,
    heads: tuple[str, ...],
) -> Orders | None:
    """Return all that should be so beside a trainer; None when its job is not known any more.

    Args:
        world: As of `revision`.
        session: Of the executor.
        term: Of this leadership.
        revision: Of the newest entry.
        at_ms: Journal time now.
        beat_ms: The pulse to ask for.
        ttl_ms: How long leases last without a report.
        heads: Addresses of this daemon.
    """
    job = world.jobs.get(session.attempt.job)
    if job is None:
        return None
    run = run_order(job, session.attempt, at_ms)
    if isinstance(run, Leave) and session.holds_leave:
        run = Hold()
    if isinstance(run, Start):
        run = session.told.told(run, job.peers, session.news)
    report = session.newest
    return Orders(
        report=session.counted,
        revision=revision,
        term=term,
        run=run,
        exit_recorded=report is not None and report.exit is not None and _is_recorded(job, session),
        beat_ms=beat_ms,
        ttl_ms=ttl_ms,
        heads=heads,
        feeds=tuple(_feeds(world, session)),
        asks=session.asks,
        near=_near(job, session.attempt, at_ms) if isinstance(run, Start) else (),
    )


def _near(job: Job, attempt: AttemptId, at_ms: int) -> tuple[Near, ...]:
    name = job.spec.warn_signal
    number = signal.Signals[f"SIG{name}"] if name else 0
    return tuple(Near(limit, ms, number) for limit, ms in near(job, attempt.role, at_ms))


def _is_recorded(job: Job, session: Session) -> bool:
    found = find_attempt(job, session.attempt)
    return found is None or found.outcome is not None


def _feeds(world: World, session: Session) -> Iterator[FeedOrders]:
    for name in session.streams:
        stream = world.streams.get(f"{session.attempt.job}/{name}")
        if stream is not None:
            yield feed_orders(stream, session.attempt, session.incarnation)
