"""The daemon's side of executors: hello, reports to events, orders back, questions."""

import asyncio
import itertools
from collections.abc import Callable, Sequence

import anyio
import msgspec
import structlog
from aiohttp import WSMsgType, web

from primusd.api.hello import judge, newest_of
from primusd.api.launch_orders import OrderSettings, launch_order
from primusd.api.leading import refusal
from primusd.api.live_values import LiveValues
from primusd.api.log_copies import LogCopies
from primusd.api.reports import proposals
from primusd.api.sessions import Session, Sessions, compose, streams_read
from primusd.core import Rejected
from primusd.engine import Anew, Engine
from primusd.errors import NotFoundError, NotLeaderError, PrimusdError, StoreUnavailableError
from primusd.executor.protocol import (
    MESSAGE_BYTES_MAX,
    Answer,
    Ask,
    DaemonMessage,
    ExecutorMessage,
    Hello,
    Orders,
    Refused,
    Report,
    Welcome,
    decode_executor_message,
    encode,
    spoken,
)
from primusd.job.events import ExecutorRegistered
from primusd.job.ids import AttemptId
from primusd.job.model import Job
from primusd.job.phases import AttemptPhase
from primusd.keys import is_key, job_key
from primusd.liveness import Liveness, lost_ms
from primusd.records import Proposal
from primusd.subscription import Published
from primusd.sweep import Strays

log = structlog.get_logger()

OPENINGS_MAX = 200
BUSY_RETRY_MS = 1_000
HELLO_WITHIN_S = 10.0
SEND_WITHIN_S = 10.0
ASK_WITHIN_S = 10.0
CLOSE_WITHIN_S = 1.0
UNWAITED_BYTES_MAX = 32 << 10
"""Half of what asyncio buffers of a connection before it lets a writer wait."""


class ExecutorRegistry:
    """Every executor that is connected, and what they say."""

    def __init__(
        self,
        engine: Engine,
        liveness: Liveness,
        live: LiveValues,
        *,
        cluster_id: str,
        secret: bytes,
        heads: Callable[[], tuple[str, ...]],
        settings: Callable[[], OrderSettings],
        copies: LogCopies,
        strays: Strays,
    ) -> None:
        """Make a registry that follows the engine.

        Args:
            engine: Whose world is served.
            liveness: Told of every sign of life.
            live: Takes progress, usage and feeds.
            cluster_id: Of this cluster.
            secret: Of this cluster.
            heads: Addresses of all heads, as executors dial them.
            settings: What launch orders take from the configuration in force.
            copies: Where the end of logs goes that lie on other hosts.
            strays: Told of executors that are ahead of this store.
        """
        self.engine = engine
        self.cluster_id = cluster_id
        self._liveness = liveness
        self._live = live
        self._secret = secret
        self._heads = heads
        self._settings = settings
        self._copies = copies
        self._strays = strays
        self._sessions = Sessions(_loop_ms, self._wish)
        self._wished_ms = 0
        self._wished = anyio.Event()
        self._openings = 0
        self._ask_ids = itertools.count(1)
        engine.on_published.append(self._follow)
        engine.on_anew.append(self._begin_anew)

    @property
    def connected(self) -> frozenset[AttemptId]:
        """The attempts whose executors are connected now."""
        return frozenset(self._sessions.by_attempt)

    def has_key(self, request: web.Request, uid: str) -> bool:
        """Return whether a request shows the key of a job."""
        shown = request.headers.get("Authorization", "").removeprefix("Bearer ").strip()
        return is_key(shown, job_key(self._secret, uid))

    async def ask(
        self, attempt: AttemptId, kind: str, *, path: str = "", offset: int = 0, byte_count: int = 0
    ) -> Answer:
        """Return what an executor answers: `stacks`, or a piece of a log.

        Raises:
            NotFoundError: It is not connected, or did not answer in time.
        """
        session = self._sessions.by_attempt.get(attempt)
        if session is None:
            raise NotFoundError(f"the executor of {attempt.label} is not connected")
        ask = Ask(next(self._ask_ids), kind, path, offset, byte_count)
        answered = session.ask(ask)
        answer: Answer | None = None
        try:
            with anyio.move_on_after(ASK_WITHIN_S):
                await answered.wait()
        finally:
            # Whoever asked may be gone: nobody is asked for ever.
            answer = session.forget(ask.id)
        if answer is None:
            raise NotFoundError(f"the executor of {attempt.label} did not answer")
        return answer

    def _follow(self, published: Published) -> None:
        self._sessions.wake_changed(published)

    def _begin_anew(self, why: Anew) -> None:
        if why is not Anew.STALL:
            self._sessions.wake_all()

    def _wish(self, at_ms: int) -> None:
        self._wished_ms = at_ms
        self._wished.set()

    async def run(self) -> None:
        """Tell executors of new peers when that is due, until cancelled."""
        while True:
            await self._wished.wait()
            self._wished = anyio.Event()
            left_ms = self._wished_ms - _loop_ms()
            with anyio.move_on_after(max(0, left_ms) / 1000):
                # Who wishes something earlier is not kept waiting.
                await self._wished.wait()
                continue
            self._sessions.wake_due()

    def job_with_peers(self, uid: str, digest: str) -> Job | None:
        """Return a job as of an earlier peers document that executors are about to fetch."""
        return self._sessions.published(uid, digest)

    # One connection.

    async def connect(self, request: web.Request) -> web.WebSocketResponse:
        """Serve one executor's connection, until either side ends it."""
        socket = web.WebSocketResponse(
            max_msg_size=MESSAGE_BYTES_MAX, compress=False, timeout=CLOSE_WITHIN_S
        )
        await socket.prepare(request)
        message: ExecutorMessage | None = None
        with anyio.move_on_after(HELLO_WITHIN_S):
            message = await receive(socket)
        if isinstance(message, Hello):
            answer = await self.answer_hello(request, message)
            session = self._admitted(message) if isinstance(answer, Welcome) else None
            try:
                if await send(socket, answer) and session is not None:
                    await self._serve(request, socket, session)
            finally:
                if session is not None:
                    self._sessions.remove(session)
        await socket.close()
        return socket

    async def answer_hello(self, request: web.Request, hello: Hello) -> Welcome | Refused:
        """Judge a hello, and record the attempt's first one before it is answered."""
        if self._openings >= OPENINGS_MAX:
            return Refused("busy", f"{OPENINGS_MAX} openings at once", retry_ms=BUSY_RETRY_MS)
        self._openings += 1
        try:
            answer = await self._judged(request, hello)
        except (NotLeaderError, StoreUnavailableError) as error:
            answer = Refused("busy", error.message, retry_ms=BUSY_RETRY_MS)
        finally:
            self._openings -= 1
        if isinstance(answer, Refused):
            log.info(
                "executor.refused",
                code=answer.code,
                job=hello.attempt.job,
                attempt=hello.attempt.label,
            )
        return answer

    async def _judged(self, request: web.Request, hello: Hello) -> Welcome | Refused:
        refused = self._turned_away(request, hello) or self._judge(hello)
        if refused is not None:
            if refused.code == "stateBehind":
                self._strays.turn_away(hello.attempt)
            return refused
        known = newest_of(self.engine.world, hello.attempt)
        if known is not None and not known[1].incarnation:
            refused = await self._register(hello)
            if refused is not None:
                return refused
            known = newest_of(self.engine.world, hello.attempt)
        if known is None:
            return Refused("unknownJob", "its job is gone")
        self._strays.take_in(hello.attempt)
        job, found = known
        order = None
        if not hello.seen_term:
            order = launch_order(job, hello.attempt, found, hello.host, self._settings())
        return Welcome(spoken(hello.speaks), order)

    def _turned_away(self, request: web.Request, hello: Hello) -> Refused | None:
        """Return the refusal of who is not ours to judge."""
        # First of all: whoever dials another cluster by an address of its own host turns away.
        if hello.cluster != self.cluster_id:
            return Refused("wrongCluster", f"this is cluster {self.cluster_id}")
        if not self.has_key(request, hello.attempt.job):
            return Refused("badKey", "the key is not the job's")
        if (standby := refusal(request)) is not None:
            return standby
        if isinstance(self.engine.outage, NotLeaderError):
            return Refused("notLeader", self.engine.outage.message, self._heads())
        return None

    def _judge(self, hello: Hello) -> Refused | None:
        engine = self.engine
        refused = judge(
            engine.world,
            hello,
            cluster=self.cluster_id,
            term=engine.term,
            revision=engine.revision,
            is_adopted=self._strays.is_adopted(hello.attempt),
        )
        is_over = refused is not None and refused.code == "attemptOver"
        return None if is_over and self._has_logs_to_copy(hello) else refused

    def _has_logs_to_copy(self, hello: Hello) -> bool:
        """Return whether the end of an attempt was recorded and that of its logs had not come."""
        known = newest_of(self.engine.world, hello.attempt)
        return (
            known is not None
            and known[1].phase is AttemptPhase.ENDED
            and known[1].incarnation == hello.incarnation
            and self._copies.are_missing(hello.attempt)
        )

    async def _register(self, hello: Hello) -> Refused | None:
        """Record the first hello; None once it is durable."""
        event = ExecutorRegistered(
            hello.attempt,
            hello.incarnation,
            hello.host,
            hello.boot_id,
            hello.pid,
            hello.version,
        )
        try:
            await self.engine.propose(hello.attempt.job, event, by="executor")
        except StoreUnavailableError:
            raise
        except PrimusdError as error:
            log.warning("executor.not_registered", attempt=hello.attempt.label, text=error.message)
            return Refused("busy", error.message, retry_ms=BUSY_RETRY_MS)
        # While it was being written another may have been first, or the attempt may have ended.
        return self._judge(hello)

    def _admitted(self, hello: Hello) -> Session:
        job = self.engine.world.jobs[hello.attempt.job]
        session = Session(hello.attempt, hello.incarnation, streams_read(job, hello.attempt.role))
        self._sessions.add(session)
        self._liveness.heard(hello.attempt)
        return session

    async def _serve(
        self, request: web.Request, socket: web.WebSocketResponse, session: Session
    ) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._write, request, socket, session)
            while True:
                message = await receive(socket)
                if not isinstance(message, Report):
                    break
                if message.phase == "ended" and not session.is_asked_for_logs:
                    session.is_asked_for_logs = True
                    session.holds_leave = self._copies.are_wanted(session.attempt)
                    if session.holds_leave:
                        tasks.start_soon(self._copy_logs, session)
                if not await self.take(session, message):
                    break
                if not await self._answer(request, socket, session):
                    break
            session.close()

    async def _copy_logs(self, session: Session) -> None:
        """Fetch the end of an ended attempt's logs, and only then let its executor leave."""
        await self._copies.copy(session.attempt, self.ask)
        session.holds_leave = False
        session.wake()

    async def take(self, session: Session, report: Report) -> bool:
        """Count a report in; False when nothing can be recorded now, so that it is not answered."""
        self._liveness.heard(session.attempt)
        self._live.reported(session.attempt, report)
        session.answered(report.answers)
        session.newest = report
        known = newest_of(self.engine.world, session.attempt)
        if known is not None and known[1].incarnation == session.incarnation:
            events = proposals(known[0], session.attempt, known[1], report)
            session.is_counting = True
            try:
                if not await self._propose(session, events):
                    return False
            finally:
                session.is_counting = False
        session.counted = report.seq
        return True

    async def _propose(self, session: Session, events: Sequence[Proposal]) -> bool:
        try:
            answers = await self.engine.propose_all(tuple(events)) if events else ()
        except PrimusdError as error:
            log.warning("report.not_recorded", attempt=session.attempt.label, text=error.message)
            # A machine that is wedged takes nothing more, and its executor is not to notice.
            return not isinstance(error, StoreUnavailableError | NotLeaderError)
        for event, answer in zip(events, answers, strict=True):
            if isinstance(answer, Rejected):
                log.error(
                    "report.refused",
                    attempt=session.attempt.label,
                    event_name=type(event.event).__name__,
                    text=answer.error.message,
                )
        return True

    async def _answer(
        self, request: web.Request, socket: web.WebSocketResponse, session: Session
    ) -> bool:
        """Answer a report that was counted in; False when the connection is gone.

        At once where nothing is before it: to wake who writes would cost a tenth of an exchange.
        """
        transport = request.transport
        orders = self.orders(session)
        if orders is None or transport is None or transport.get_write_buffer_size():
            session.wake()
            return True
        return await send(socket, orders, transport)

    async def _write(
        self, request: web.Request, socket: web.WebSocketResponse, session: Session
    ) -> None:
        """Send orders whenever they have changed, or a report waits for its answer."""
        while await session.dirty():
            orders = self.orders(session)
            message = orders or Refused("attemptOver", "the record of its job was dropped")
            if not await send(socket, message, request.transport) or orders is None:
                break
        await socket.close()

    def orders(self, session: Session) -> Orders | None:
        """Return all that should be so beside an executor's trainer now."""
        engine = self.engine
        beat_ms = self._liveness.beat_ms
        return compose(
            engine.world,
            session,
            term=engine.term,
            revision=engine.revision,
            at_ms=engine.at_ms(),
            beat_ms=beat_ms,
            ttl_ms=lost_ms(beat_ms),
            heads=self._heads(),
        )


def _loop_ms() -> int:
    return int(anyio.current_time() * 1000)


async def receive(socket: web.WebSocketResponse) -> ExecutorMessage | None:
    """Return the next message; None when the connection ends, or nobody understands what came."""
    message = await socket.receive()
    if message.type is not WSMsgType.BINARY:
        return None
    try:
        return decode_executor_message(message.data)
    except msgspec.DecodeError as error:
        log.warning("executor.undecodable", text=str(error))
        return None


async def send(
    socket: web.WebSocketResponse,
    message: DaemonMessage,
    transport: asyncio.Transport | None = None,
) -> bool:
    """Send one message; False when the connection is gone, or nobody takes it.

    Args:
        socket: Where to.
        message: What to say.
        transport: Below the socket, where it is known; who waits for nothing needs no deadline.
    """
    body = encode(message)
    try:
        if transport is not None and _leaves_at_once(transport, body):
            await socket.send_bytes(body)
        else:
            with anyio.fail_after(SEND_WITHIN_S):
                await socket.send_bytes(body)
    except (ConnectionError, TimeoutError):
        return False
    return True


def _leaves_at_once(transport: asyncio.Transport, body: bytes) -> bool:
    """Return whether a message waits for nobody: nothing is before it, and it is buffered whole."""
    return len(body) <= UNWAITED_BYTES_MAX and not transport.get_write_buffer_size()
