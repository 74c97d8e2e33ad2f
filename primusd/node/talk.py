"""The node's conversation with whichever head leads: what is so up, what should be so down."""

import random

import anyio
import msgspec
import structlog
from msgspec import Struct

from primusd.executor.connection import Connection, Head, UnreachableError
from primusd.executor.protocol import MESSAGE_BYTES_MAX, Refused, Usage
from primusd.node.attempts import Attempts
from primusd.node.bootstrap import NodeBootstrap
from primusd.node.metering import Load
from primusd.node.protocol import (
    NodeAttempt,
    NodeHello,
    NodeOrders,
    NodeReport,
    NodeWelcome,
    decode_daemon_message,
    encode,
)

log = structlog.get_logger()

PATH = "/node/v1/connect"
BEAT_MS = 1_000
BEATS_UNANSWERED_MAX = 3
REPORT_EVERY_MIN_S = 0.02
DIAL_FIRST_S = 0.1
DIAL_MAX_S = 5.0
REFUSED_RETRY_S = 5.0
DIALS_AT_ONCE_MAX = 4
LOST_MAX = 4
REPORT_ROOM_BYTES = 64 << 10


class Sample(Struct, frozen=True):
    """What the host was last seen to use."""

    usage: Usage | None = None
    memory_free_bytes: int = -1
    disk_free_bytes: int = -1
    jobs: tuple[str, ...] = ()
    """That have a folder here."""
    load: Load = Load()


class Talk:
    """Dials, reports, and lets `attempts` carry out the orders."""

    def __init__(self, bootstrap: NodeBootstrap, hello: NodeHello, attempts: Attempts) -> None:
        self._bootstrap = bootstrap
        self._hello = hello
        self._attempts = attempts
        self._heads = bootstrap.heads
        self._position = 0
        self._sent_on = 0
        self._lost: tuple[str, ...] = ()
        self._was_held = False
        self._seen = (0, 0)
        self._done = (0, 0)
        self._beat_ms = BEAT_MS
        self._seq = 0
        self._answered = 0
        self._sent_s = 0.0
        self._sampled: Sample | None = None
        self._orders = anyio.Event()
        self._waiting: NodeOrders | None = None

    def sampled(self, sample: Sample) -> None:
        """Put a sample of the host into the next report."""
        self._sampled = sample

    async def run(self) -> None:
        """Hold a connection until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._carry_out)
            delay_s = DIAL_FIRST_S
            lost = ""
            while True:
                address = self._heads[self._position % len(self._heads)]
                self._position += 1
                sent_on, was_welcome, self._was_held = self._sent_on, False, False
                try:
                    was_welcome = await self._converse(address)
                except UnreachableError as error:
                    if str(error) != lost:
                        log.info("head.lost", text=str(error))
                    lost = str(error)
                    self._lose(address)
                if was_welcome:
                    self._lose(address)
                if self._sent_on > sent_on:
                    continue
                # After a wait it may be sent on again, once.
                self._sent_on = min(self._sent_on, DIALS_AT_ONCE_MAX - 1)
                lost = "" if was_welcome else lost
                is_near = was_welcome or self._was_held
                delay_s = DIAL_FIRST_S if is_near else min(DIAL_MAX_S, delay_s * 2)
                await anyio.sleep(delay_s * (0.5 + random.random() / 2))  # noqa: S311 spreads

    async def _converse(self, address: str) -> bool:
        """Talk to one head until the connection ends; return whether it took us."""
        head = Head(address, key=self._bootstrap.key, ca=self._bootstrap.ca)
        was_welcome = False
        self._seq = self._answered = 0
        async with (
            head.connect(PATH, lost=self._lost) as connection,
            anyio.create_task_group() as tasks,
        ):
            await connection.send(encode(self._hello))
            async for data in connection.messages():
                try:
                    message = decode_daemon_message(data)
                except msgspec.DecodeError as error:
                    log.warning("message.undecodable", text=str(error))
                    break
                match message:
                    case NodeWelcome():
                        was_welcome = True
                        self._sent_on, self._lost = 0, ()
                        tasks.start_soon(self._report, connection)
                    case Refused(code, text, heads, retry_ms):
                        log.warning("hello.refused", code=code, text=text)
                        if code == "notLeader":
                            self._was_held = bool(retry_ms)
                            self._redirect(address, heads)
                        else:
                            self._heads = heads or self._heads
                            await anyio.sleep(REFUSED_RETRY_S)
                        break
                    case NodeOrders() as orders:
                        self._take(orders)
            tasks.cancel_scope.cancel()
        return was_welcome

    def _lose(self, address: str) -> None:
        """Keep in mind that a head does not answer."""
        others = (one for one in self._lost if one != address)
        self._lost = (address, *others)[:LOST_MAX]

    def _redirect(self, address: str, heads: tuple[str, ...]) -> None:
        """Dial whom a follower named; two that name each other are not dialled for ever."""
        if self._was_held:
            self._sent_on = 0
        others = tuple(head for head in heads if head != address)
        if others and self._sent_on < DIALS_AT_ONCE_MAX:
            self._heads = (*others, address)
            self._position = 0
            self._sent_on += 1

    def _take(self, orders: NodeOrders) -> None:
        if (orders.term, orders.revision) < self._seen:
            return
        self._seen = (orders.term, orders.revision)
        self._answered = max(self._answered, orders.report)
        self._beat_ms = orders.beat_ms
        self._heads = orders.heads or self._heads
        # Newer orders hold all that older ones held.
        self._waiting = orders
        self._orders.set()

    async def _carry_out(self) -> None:
        while True:
            await self._orders.wait()
            self._orders = anyio.Event()
            orders, self._waiting = self._waiting, None
            if orders is None:
                continue
            for order in orders.run:
                self._attempts.start(order)
            for attempt in orders.kill:
                await self._attempts.kill(attempt)
            for attempt in orders.release:
                await self._attempts.release(attempt)
            for job in orders.drop:
                self._attempts.drop(job)
            is_news = bool(orders.kill or orders.release) and self._done != self._seen
            self._done = (orders.term, orders.revision)
            if is_news:
                self._attempts.changed.set()

    async def _report(self, connection: Connection) -> None:
        """Report at once what changed, else each beat; give up a head that does not answer."""
        try:
            while True:
                self._attempts.changed = anyio.Event()
                await connection.send(self._next_report())
                if not await self._wait_answer():
                    log.warning("head.silent")
                    break
                await anyio.sleep(REPORT_EVERY_MIN_S)
                with anyio.move_on_after(self._beat_ms / 1000 - REPORT_EVERY_MIN_S):
                    await self._attempts.changed.wait()
        except UnreachableError as error:
            log.info("head.lost", text=str(error))
        await connection.close()

    async def _wait_answer(self) -> bool:
        with anyio.move_on_after(BEATS_UNANSWERED_MAX * self._beat_ms / 1000):
            while self._answered < self._seq:
                await self._orders.wait()
                await anyio.lowlevel.checkpoint()
            return True
        return False

    def _next_report(self) -> bytes:
        self._seq += 1
        sample, self._sampled = self._sampled or Sample(), None
        report = NodeReport(
            seq=self._seq,
            orders_term=self._done[0],
            orders_revision=self._done[1],
            attempts=self._attempts.listed(),
            usage=sample.usage,
            memory_free_bytes=sample.memory_free_bytes,
            disk_free_bytes=sample.disk_free_bytes,
            jobs=sample.jobs,
            load_cpu_milli=sample.load.cpu_milli,
            load_memory_bytes=sample.load.memory_bytes,
        )
        data = encode(report)
        if len(data) > MESSAGE_BYTES_MAX - REPORT_ROOM_BYTES:
            # Last lines are for people, and the executor has most likely told them itself.
            shorter = tuple(without_lines(one) for one in report.attempts)
            data = encode(msgspec.structs.replace(report, attempts=shorter))
        return data


def without_lines(one: NodeAttempt) -> NodeAttempt:
    """Return the attempt without the last lines of its exit record."""
    if one.exit is None:
        return one
    return msgspec.structs.replace(one, exit=msgspec.structs.replace(one.exit, last_lines=""))
