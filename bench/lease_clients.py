"""Readers that report as fast as they are answered, for `bench/lease_wire.py`.

    python -m bench.lease_clients PORT UID KEY FIRST COUNT websocket|post

Says `ready` once all are connected. Each line `WANT PER_S SECONDS` on its standard input is one
measurement, answered by leases, exchanges, seconds, and the 50th and 99th percentile of an exchange
in ms. With WANT each exchange ends all leases of a reader and asks for so many; 0: it tells how far
the reader got in the one that it has, as a trainer's beat does; below 0: it tells of its progress
alone, which no journal has, as a trainer does that reads nothing. PER_S exchanges a second are
begun in all; 0: each begins once it was answered.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence

import aiohttp
import msgspec

from bench.lease_head import CLUSTER, STREAM, allow_connections
from primusd.datafeed.protocol import FeedReport, Held
from primusd.executor.protocol import (
    DaemonMessage,
    ExecutorMessage,
    Hello,
    Orders,
    Progress,
    Report,
    Welcome,
    decode_daemon_message,
    encode,
)
from primusd.job.ids import AttemptId

CONNECT_AT_ONCE = 64
KEEP_S = 3600.0
"""Of thousands that connect one after the other the first would be gone again."""
STEP_BYTES = 4 << 10
"""How far a reader gets from one beat to the next."""
PROGRESS = Progress(7, 1, 1_700_000_000_000, {"loss": 0.5})
INCARNATION = "0123456789abcdef"
TYPE = {"Content-Type": "application/msgpack"}
Exchange = Callable[[Report], Awaitable[Orders]]


class Reader:
    """One reader, which has a lease from its first turn on."""

    def __init__(self, attempt: AttemptId, exchange: Exchange) -> None:
        self._attempt = attempt
        self._exchange = exchange
        self._seq = 0
        self._held: tuple[Held, ...] = ()
        self.leases = 0
        self.took_ms: list[float] = []

    async def turn(self, want: int) -> None:
        """Make one exchange."""
        self._seq += 1
        if want < 0:
            await self._timed(Report(self._seq, "holding", 0, None, None, progress=PROGRESS))
            return
        self._held = tuple(_moved(one, is_done=want > 0) for one in self._held)
        feed = FeedReport(STREAM, self._held, want, rows_per_s=50_000)
        orders = await self._timed(Report(self._seq, "holding", 0, None, None, feeds=(feed,)))
        leases = orders.feeds[0].leases if orders.feeds else ()
        self.leases += len(leases) if want else 0
        self._held = tuple(
            Held(STREAM, one.epoch, one.unit, one.lo, one.token, one.position, one.hi)
            for one in leases
        )

    async def _timed(self, report: Report) -> Orders:
        began = time.perf_counter()
        orders = await self._exchange(report)
        self.took_ms.append((time.perf_counter() - began) * 1000)
        return orders

    async def run(self, want: int, end: float, every_s: float, first_s: float) -> None:
        """Make exchanges until a moment, each so long after the last one."""
        due = time.perf_counter() + first_s
        while time.perf_counter() < end:
            await asyncio.sleep(max(0.0, due - time.perf_counter()) if every_s else 0.0)
            await self.turn(want)
            due += every_s


def _moved(held: Held, *, is_done: bool) -> Held:
    position = held.hi if is_done else min(held.hi, held.position + STEP_BYTES)
    return msgspec.structs.replace(held, position=position)


def hello(attempt: AttemptId) -> Hello:
    """Return the first message of a reader."""
    return Hello((1, 1), CLUSTER, attempt, INCARNATION, 0, 0, "h", {}, "boot-1", 1, "0.1.0")


async def by_websocket(session: aiohttp.ClientSession, attempt: AttemptId) -> Exchange:
    """Connect, and return how a report is exchanged."""
    socket = await session.ws_connect("/executor/v1/connect", max_msg_size=0)

    async def ask(message: ExecutorMessage, *, wanted: int = 0) -> DaemonMessage:
        await socket.send_bytes(encode(message))
        while True:
            answer = decode_daemon_message(await socket.receive_bytes())
            if not isinstance(answer, Orders) or answer.report >= wanted:
                return answer

    welcome = await ask(hello(attempt))
    assert isinstance(welcome, Welcome), welcome

    async def exchange(report: Report) -> Orders:
        answer = await ask(report, wanted=report.seq)
        assert isinstance(answer, Orders), answer
        return answer

    return exchange


async def by_post(session: aiohttp.ClientSession, attempt: AttemptId) -> Exchange:
    """Say hello, and return how a report is exchanged."""
    path = "/executor/v1/beat"
    asked = {"attempt": attempt.label, "incarnation": INCARNATION}
    asked["attempt"] = f"{attempt.job}/{attempt.role}-{attempt.index}/{attempt.attempt}"

    async def ask(message: ExecutorMessage) -> DaemonMessage:
        async with session.post(path, params=asked, data=encode(message), headers=TYPE) as answer:
            return decode_daemon_message(await answer.read())

    welcome = await ask(hello(attempt))
    assert isinstance(welcome, Welcome), welcome

    async def exchange(report: Report) -> Orders:
        answer = await ask(report)
        assert isinstance(answer, Orders), answer
        return answer

    return exchange


WAYS = {"websocket": by_websocket, "post": by_post}


async def main(words: list[str]) -> None:
    """Connect, and measure what each line asks for."""
    allow_connections()
    port, uid, key = words[:3]
    first, count = (int(word) for word in words[3:5])
    way = WAYS[words[5]]
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_S)
    headers = {"Authorization": f"Bearer {key}"}
    base = f"http://127.0.0.1:{port}"
    async with aiohttp.ClientSession(base, connector=connector, headers=headers) as session:
        slots = asyncio.Semaphore(CONNECT_AT_ONCE)

        async def made(index: int) -> Reader:
            attempt = AttemptId(uid, "worker", index, 1)
            async with slots:
                reader = Reader(attempt, await way(session, attempt))
                await reader.turn(1)
            return reader

        readers = await asyncio.gather(*(made(first + index) for index in range(count)))
        # All at once: so that each has a connection of its own by POST, too.
        await asyncio.gather(*(reader.turn(0) for reader in readers))
        print("ready", flush=True)
        while asked := (await asyncio.to_thread(sys.stdin.readline)).split():
            want, per_s, seconds = int(asked[0]), float(asked[1]), float(asked[2])
            print(json.dumps(await measured(readers, want, per_s, seconds)), flush=True)
    # Thousands of connections need no good-bye.


async def measured(
    readers: Sequence[Reader], want: int, per_s: float, seconds: float
) -> list[float]:
    """Return leases, exchanges, seconds, and the 50th and 99th percentile in ms."""
    for reader in readers:
        reader.took_ms.clear()
        reader.leases = 0
    began = time.perf_counter()
    every_s = len(readers) / per_s if per_s else 0.0
    await asyncio.gather(
        *(
            reader.run(want, began + seconds, every_s, every_s * number / len(readers))
            for number, reader in enumerate(readers)
        )
    )
    took_s = time.perf_counter() - began
    took = sorted(one for reader in readers for one in reader.took_ms)
    leases = sum(reader.leases for reader in readers)
    return [leases, len(took), took_s, took[len(took) // 2], took[int(len(took) * 0.99)]]


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
