"""The executor's conversation: dials head after head, reports, takes orders, never gives up."""

import random

import anyio
import msgspec
import structlog

from primusd import __version__
from primusd.datafeed.delivery.server import boot_clock
from primusd.executor import machine
from primusd.executor.connection import Connection, UnreachableError
from primusd.executor.drilling import FAULTS, Drill
from primusd.executor.life import Life
from primusd.executor.processes import boot_id
from primusd.executor.protocol import (
    SPEAKS,
    Answer,
    Ask,
    Hello,
    Orders,
    Refused,
    decode_daemon_message,
    encode,
)
from primusd.executor.reporting import Watched, answer, compose, that_fit, watched

log = structlog.get_logger()

PATH = "/executor/v1/connect"
NEVER_SENT = -1.0
"""Orders that name no report of this connection renew no lease."""


async def talk(life: Life) -> None:
    """Hold a connection with whichever head leads, until cancelled."""
    await _Talk(life).run()


class _Talk:
    def __init__(self, life: Life) -> None:
        self._life = life
        self._answers: dict[int, Answer] = {}
        self._sent_at: dict[int, float] = {}
        self._said: Watched | None = None
        self._feed_changed = False
        self._lost = ""
        self._boot_id = boot_id()
        self._drill: Drill | None = None

    async def run(self) -> None:
        life = self._life
        async with anyio.create_task_group() as tasks:
            self._drill = Drill(life.pids, tasks)
            tasks.start_soon(self._follow_feed)
            while True:
                while (dial_ms := life.state.link.dial_ms) > life.now_ms():
                    await life.woken(dial_ms)
                try:
                    await self._converse()
                except UnreachableError as error:
                    self._log_loss(str(error))
                chance = random.random()  # noqa: S311 spreads dials, guards nothing
                life.become(machine.closed(life.state, life.now_ms(), chance))

    def _log_loss(self, text: str) -> None:
        """Log why no head is reached, once as long as it is the same."""
        if text != self._lost:
            log.info("head.lost", text=text)
        self._lost = text

    async def _follow_feed(self) -> None:
        while self._life.feed is None:
            await self._life.woken()
        while True:
            await self._life.feed.changed()
            self._feed_changed = True
            self._life.wake()
            await anyio.sleep(machine.REPORT_EVERY_MIN_MS / 1000)

    async def _converse(self) -> None:
        life = self._life
        async with life.head().connect(PATH, lost=life.state.lost) as connection:
            self._lost = ""
            life.become(machine.opened(life.state, life.now_ms()))
            self._sent_at.clear()
            await connection.send(encode(self._hello()))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._report, connection)
                async for data in connection.messages():
                    if not self._take(data):
                        break
                tasks.cancel_scope.cancel()

    def _hello(self) -> Hello:
        life = self._life
        term, revision = life.state.seen
        return Hello(
            speaks=SPEAKS,
            cluster=life.bootstrap.cluster,
            attempt=life.bootstrap.attempt,
            incarnation=life.incarnation,
            seen_term=term,
            seen_revision=revision,
            host=life.host,
            ports=dict(life.state.ports),
            boot_id=self._boot_id,
            pid=life.pid,
            version=__version__,
        )

    def _take(self, data: bytes) -> bool:
        """Take a message; return whether the connection goes on."""
        life = self._life
        try:
            message = decode_daemon_message(data)
        except msgspec.DecodeError as error:
            log.warning("message.undecodable", text=str(error))
            return False
        chance = random.random()  # noqa: S311 spreads dials, guards nothing
        before = life.state
        life.become(machine.received(before, message, life.now_ms(), chance))
        match message:
            case Orders() if life.state is not before:
                self._follow(message)
            case Refused():
                log.warning("hello.refused", code=message.code, text=message.text)
                return False
            case _:
                pass
        return True

    def _follow(self, orders: Orders) -> None:
        life = self._life
        life.ordered(orders, self._sent_at.get(orders.report, NEVER_SENT))
        for seq in [seq for seq in self._sent_at if seq < orders.report]:
            del self._sent_at[seq]
        wanted = {ask.id for ask in orders.asks}
        self._answers = {id_: one for id_, one in self._answers.items() if id_ in wanted}
        for ask in orders.asks:
            if ask.id not in self._answers:
                self._answers[ask.id] = self._answer(ask)

    def _answer(self, ask: Ask) -> Answer:
        life = self._life
        if ask.kind in FAULTS and self._drill is not None:
            return self._drill.inject(ask)
        return answer(ask, life.directory.path, life.state, life.pids)

    async def _report(self, connection: Connection) -> None:
        """Send a report whenever one is due, and give the connection up when none is answered."""
        life = self._life
        try:
            while True:
                now_ms = life.now_ms()
                if machine.is_unanswered(life.state, now_ms):
                    log.warning("head.silent")
                    break
                due_ms = machine.report_due_ms(
                    life.state, is_urgent=self._is_urgent(), has_moved=self._has_moved()
                )
                if 0 <= due_ms <= now_ms:
                    await self._send(connection)
                else:
                    await life.woken(due_ms if due_ms > 0 else now_ms + life.state.beat_ms)
        except UnreachableError as error:
            self._log_loss(str(error))
        await connection.close()

    def _is_urgent(self) -> bool:
        life = self._life
        now = watched(life.state, life.facts(), tuple(self._answers))
        return self._feed_changed or now != self._said

    def _has_moved(self) -> bool:
        return self._said is not None and self._said.phase != self._life.state.phase

    async def _send(self, connection: Connection) -> None:
        life = self._life
        life.become(machine.reported(life.state, life.now_ms()))
        feeds = life.feed.reports() if life.feed is not None and life.state.exit is None else ()
        facts = msgspec.structs.replace(
            life.facts(), feeds=feeds, answers=that_fit(self._answers.values())
        )
        self._feed_changed = False
        self._said = watched(life.state, facts, tuple(self._answers))
        self._sent_at[life.state.link.seq] = boot_clock()
        await connection.send(encode(compose(life.state, facts)))
