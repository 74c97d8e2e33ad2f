"""Partitions of topics as readers fetch them: in threads, beside one event loop for all of them."""

import asyncio
import atexit
import contextlib
import threading
import weakref
from collections import OrderedDict
from collections.abc import Coroutine
from functools import cache
from typing import Any, TypeVar

from primusd.datafeed.formats.base import ReadError
from primusd.datafeed.formats.partition import Fetched
from primusd.datafeed.protocol import Unit
from primusd.datafeed.sources.files import ListingError
from primusd.datafeed.sources.kafka import (
    FAILURES,
    REFUSALS,
    Consumer,
    Way,
    errors,
    partition_of,
    stopped,
)
from primusd.datafeed.sources.topics import place_of
from primusd.job.spec import KafkaSecurity

FETCH_MS = 300
"""A fetch waits so long for records; there are some, or a hole."""
FETCH_BYTES = 2 << 20
"""Most of one fetch, but for a record that is larger; readers with little memory fetch less."""
CALL_S = 20.0
"""One call: connecting, with all that the client tries again."""
IDLE_MAX = 16
"""Partitions of a process whose connections are kept while others are read."""

T = TypeVar("T")


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of all readers of this process, running."""
    loop = asyncio.new_event_loop()
    atexit.register(_close_all)
    # Not one of the pool: those are waited for when the process ends, and this one never does.
    threading.Thread(target=loop.run_forever, name="kafka", daemon=True).start()
    return loop


def _close_all() -> None:
    """Close what is open: a client that is only forgotten complains."""
    clients = list(_CLIENTS)
    with contextlib.suppress(TimeoutError, asyncio.CancelledError):
        _call(stopped(*(found for one in clients if (found := one.let_go()) is not None)))


def _call(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in the readers' loop, from another thread."""
    future = asyncio.run_coroutine_threadsafe(work, _loop())
    try:
        return future.result(CALL_S)
    except TimeoutError:
        future.cancel()
        raise


def _way(unit: Unit) -> Way:
    said = unit.options
    security = KafkaSecurity(
        protocol=said.get("protocol", "PLAINTEXT"),
        mechanism=said.get("mechanism", ""),
        username=said.get("username", ""),
        password_file=said.get("passwordFile", ""),
        ca_file=said.get("ca", ""),
        cert_file=said.get("cert", ""),
        key_file=said.get("key", ""),
    )
    isolation = said.get("isolation", "committed")
    return Way(tuple(said["bootstrap"].split(",")), security, isolation)


_CLIENTS: "weakref.WeakSet[PartitionClient]" = weakref.WeakSet()
_IDLE: "OrderedDict[tuple[str, frozenset[tuple[str, str]]], PartitionClient]" = OrderedDict()
_IDLE_LOCK = threading.Lock()


def lent(unit: Unit, fetch_bytes: int = FETCH_BYTES) -> "PartitionClient":
    """Return a client of a partition: the one that was given back, else a new one.

    A reader goes from partition to partition; connecting takes longer than what many have new.
    """
    with _IDLE_LOCK:
        return _IDLE.pop(_key(unit), None) or PartitionClient(unit, min(fetch_bytes, FETCH_BYTES))


def give_back(client: "PartitionClient") -> None:
    """Keep a client for the next who reads its partition; it fetches nothing meanwhile."""
    client.rest()
    with _IDLE_LOCK:
        _IDLE[client.key] = client
        _IDLE.move_to_end(client.key)
        oldest = _IDLE.popitem(last=False)[1] if len(_IDLE) > IDLE_MAX else None
    if oldest is not None:
        oldest.close()


def _key(unit: Unit) -> tuple[str, frozenset[tuple[str, str]]]:
    return unit.location, frozenset(unit.options.items())


class PartitionClient:
    """One partition as a reader fetches it. Blocks; of one thread."""

    def __init__(self, unit: Unit, fetch_bytes: int = FETCH_BYTES) -> None:
        self.key = _key(unit)
        self._unit = unit
        self._fetch_bytes = fetch_bytes
        self._way = _way(unit)
        self._partition = partition_of(place_of(unit))
        self._consumer: Consumer | None = None
        self._at = -1
        self._is_resting = False
        _CLIENTS.add(self)

    def fetch(self, position: int) -> Fetched:
        """Return the next records from a position on, none when none came soon.

        Raises:
            ReadError: Nothing answers, or the position is not in the partition any more.
        """
        return self._asked(self._fetch(position), position)

    def reach(self) -> tuple[int, int]:
        """Return the first offset there is, and the one after the last that may be read.

        Raises:
            ReadError: Nothing answers.
        """
        return self._asked(self._reach(), -1)

    def rest(self) -> None:
        """Fetch nothing ahead until the next fetch is asked for."""
        if self._consumer is not None and not self._is_resting:
            self._is_resting = True
            _loop().call_soon_threadsafe(self._consumer.pause, self._partition)

    def close(self) -> None:
        """Let go of the connections, without waiting for it."""
        consumer = self.let_go()
        if consumer is not None:
            asyncio.run_coroutine_threadsafe(stopped(consumer), _loop())

    def let_go(self) -> Consumer | None:
        """Return the connections, which are now the caller's to close; None when there are none."""
        consumer, self._consumer = self._consumer, None
        return consumer

    def __del__(self) -> None:
        self.close()

    def _asked(self, work: Coroutine[Any, Any, T], position: int) -> T:
        try:
            return _call(work)
        except errors.OffsetOutOfRangeError as error:
            begin, end = self.reach()
            raise self._out_of_range(position, begin, end) from error
        except errors.CorruptRecordException as error:
            raise ReadError(
                f"{self._unit.location}: the records from offset {position} on do not have the "
                "sum that they were written with",
                kind="data",
                lo=position,
            ) from error
        except errors.RecordTooLargeError as error:
            raise ReadError(
                f"{self._unit.location}: the record at offset {position} is larger than a fetch",
                kind="data",
                lo=position,
                hi=position + 1,
            ) from error
        except ListingError as error:
            raise ReadError(error.message, kind="data") from error
        except FAILURES as error:
            self.close()
            raise self._unreachable(error) from error
        except RuntimeError as error:
            # Of the compression libraries, which are optional to the client.
            raise ReadError(f"{self._unit.location}: {error}", kind="data") from error

    def _out_of_range(self, position: int, begin: int, end: int) -> ReadError:
        where = self._unit.location
        if position < begin:
            text = (
                f"offsets {position} to {begin - 1} of {where} were removed by retention "
                "before they were read"
            )
            return ReadError(text, kind="lost", lo=position, hi=begin)
        text = f"{where} ends at offset {end}, before {position}: its topic was made anew"
        return ReadError(text, kind="changed")

    def _unreachable(self, error: BaseException) -> ReadError:
        try:
            cause = _call(self._way.why(error))
        except FAILURES as found:
            cause = found
        kind = "denied" if isinstance(cause, REFUSALS) else "transient"
        return ReadError(self._way.text(cause), kind=kind)

    async def _opened(self) -> Consumer:
        if self._consumer is None:
            self._consumer = await self._way.consumer(
                fetch_max_wait_ms=FETCH_MS // 2, max_partition_fetch_bytes=self._fetch_bytes
            )
            self._consumer.assign([self._partition])
            self._at, self._is_resting = -1, False
        return self._consumer

    async def _fetch(self, position: int) -> Fetched:
        consumer = await self._opened()
        if self._is_resting:
            self._is_resting = False
            consumer.resume(self._partition)
        if self._at != position:
            # Only then: a seek throws away what was fetched ahead.
            consumer.seek(self._partition, position)
            self._at = position
        polled = consumer.last_poll_timestamp(self._partition)
        found = await consumer.getmany(self._partition, timeout_ms=FETCH_MS)
        self._at = await consumer.position(self._partition)
        is_answered = consumer.last_poll_timestamp(self._partition) != polled
        return Fetched(found.get(self._partition, []), self._at, is_answered=is_answered)

    async def _reach(self) -> tuple[int, int]:
        consumer = await self._opened()
        begins = await consumer.beginning_offsets([self._partition])
        ends = await consumer.end_offsets([self._partition])
        return begins[self._partition], ends[self._partition]
