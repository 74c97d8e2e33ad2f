"""Readers that lease and acknowledge as fast as they are answered, for `bench/lease_wire.py`.

    python -m bench.lease_clients PORT UID KEY FIRST COUNT WANT websocket|post PER_S SECONDS

Says `ready` once all are connected, begins at the first line on its standard input, and prints at
the end leases, exchanges, seconds, and the 50th and 99th percentile of an exchange in ms. PER_S
exchanges a second are begun in all; 0: each begins once it was answered.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable

import aiohttp

from bench.lease_head import CLUSTER, STREAM
from primusd.datafeed.protocol import FeedReport, Held
from primusd.executor.protocol import (
    DaemonMessage,
    ExecutorMessage,
    Hello,
    Orders,
    Report,
    Welcome,
    decode_daemon_message,
    encode,
)
from primusd.job.ids import AttemptId

CONNECT_AT_ONCE = 64
INCARNATION = "0123456789abcdef"
TYPE = {"Content-Type": "application/msgpack"}
Exchange = Callable[[Report], Awaitable[Orders]]


class Reader:
    """One reader: it reports that all it holds was taken, and wants as much again."""

    def __init__(self, attempt: AttemptId, want: int, exchange: Exchange) -> None:
        self._attempt = attempt
        self._want = want
        self._exchange = exchange
        self._seq = 0
        self._held: tuple[Held, ...] = ()
        self.leases = 0
        self.took_ms: list[float] = []

    async def turn(self) -> None:
        """Make one exchange."""
        self._seq += 1
        feed = FeedReport(STREAM, self._held, self._want, rows_per_s=50_000)
        began = time.perf_counter()
        orders = await self._exchange(Report(self._seq, "holding", 0, None, None, feeds=(feed,)))
        self.took_ms.append((time.perf_counter() - began) * 1000)
        leases = orders.feeds[0].leases if orders.feeds else ()
        self.leases += len(leases)
        self._held = tuple(
            Held(STREAM, one.epoch, one.unit, one.lo, one.token, one.hi, one.hi) for one in leases
        )

    async def run(self, end: float, every_s: float, first_s: float) -> None:
        """Make exchanges until a moment, each so long after the last one."""
        due = time.perf_counter() + first_s
        while time.perf_counter() < end:
            await asyncio.sleep(max(0.0, due - time.perf_counter()) if every_s else 0.0)
            await self.turn()
            due += every_s


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
    """Connect, wait for the word, exchange, print."""
    port, uid, key = words[:3]
    first, count, want = (int(word) for word in words[3:6])
    way, per_s, seconds = WAYS[words[6]], float(words[7]), float(words[8])
    connector = aiohttp.TCPConnector(limit=0)
    headers = {"Authorization": f"Bearer {key}"}
    base = f"http://127.0.0.1:{port}"
    async with aiohttp.ClientSession(base, connector=connector, headers=headers) as session:
        slots = asyncio.Semaphore(CONNECT_AT_ONCE)

        async def made(index: int) -> Reader:
            attempt = AttemptId(uid, "worker", index, 1)
            async with slots:
                reader = Reader(attempt, want, await way(session, attempt))
                await reader.turn()
            return reader

        readers = await asyncio.gather(*(made(first + index) for index in range(count)))
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        for reader in readers:
            reader.took_ms.clear()
            reader.leases = 0
        began = time.perf_counter()
        every_s = count / per_s if per_s else 0.0
        await asyncio.gather(
            *(
                reader.run(began + seconds, every_s, every_s * number / count)
                for number, reader in enumerate(readers)
            )
        )
        took_s = time.perf_counter() - began
        took = sorted(one for reader in readers for one in reader.took_ms)
        leases = sum(reader.leases for reader in readers)
        half, most = took[len(took) // 2], took[int(len(took) * 0.99)]
        print(json.dumps([leases, len(took), took_s, half, most]), flush=True)
    # Thousands of connections need no good-bye.


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
