"""Kafka over its own protocol: the only module that knows its client.

No groups: partitions are assigned and sought, and the ledger alone knows who reads what. The
daemon asks from its own loop (`KafkaCluster`); a reader is a thread, so that its client
(`PartitionClient`) runs in one event loop for all readers of the process, in a thread of its own.
"""

import asyncio
import atexit
import contextlib
import logging
import os
import ssl
import threading
import weakref
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import aiokafka
from aiokafka import TopicPartition, errors
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.conn import create_conn

from primusd.datafeed.formats.base import ReadError
from primusd.datafeed.formats.partition import Fetched
from primusd.datafeed.protocol import Unit
from primusd.datafeed.sources.files import ListingError
from primusd.datafeed.sources.topics import Place, UnusableError, place_of
from primusd.job.spec import KafkaSecurity, KafkaSource

# It logs each try as an error; what does not work is raised, and told by whoever asked.
logging.getLogger("aiokafka").setLevel(logging.CRITICAL)

REQUEST_MS = 5_000
FETCH_MS = 300
"""A fetch waits so long for records; there are some, or a hole."""
FETCH_BYTES = 4 << 20
CALL_S = 20.0
"""One call of a reader: connecting, with all that the client tries again."""
UNKNOWN_FOR_S = 5.0
"""A topic that was just made is not known to every broker at once."""
RETRY_S = 0.2
STOP_S = 2.0
REFUSALS = (
    errors.AuthenticationFailedError,
    errors.AuthenticationMethodNotSupported,
    errors.SaslAuthenticationFailed,
    errors.UnsupportedSaslMechanismError,
    errors.TopicAuthorizationFailedError,
    errors.GroupAuthorizationFailedError,
    errors.ClusterAuthorizationFailedError,
    errors.InvalidTopicError,
    errors.InvalidGroupIdError,
    ssl.SSLCertVerificationError,
)
FAILURES: tuple[type[Exception], ...] = (errors.KafkaError, OSError, TimeoutError)

T = TypeVar("T")


def _settings(bootstrap: Sequence[str], security: KafkaSecurity) -> dict[str, Any]:
    """Return what every client of a cluster is made with.

    Raises:
        UnusableError: A file that the job names cannot be read.
    """
    found: dict[str, Any] = {  # of many types: keyword arguments
        "bootstrap_servers": list(bootstrap),
        "client_id": "primusd",
        "request_timeout_ms": REQUEST_MS,
        "security_protocol": security.protocol,
    }
    try:
        if security.protocol.endswith("SSL"):
            found["ssl_context"] = _ssl_context(security)
        if security.protocol.startswith("SASL"):
            found["sasl_mechanism"] = security.mechanism
            found["sasl_plain_username"] = security.username
            found["sasl_plain_password"] = Path(security.password_file).read_text().rstrip("\n")
    except (OSError, ValueError) as error:
        where = getattr(error, "filename", "") or security.password_file or security.ca_file
        raise UnusableError(
            f"{where} cannot be used (host {os.uname().nodename}): {error}"
        ) from error
    return found


def _ssl_context(security: KafkaSecurity) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=security.ca_file or None)
    if security.cert_file:
        context.load_cert_chain(security.cert_file, security.key_file or None)
    return context


async def _why(settings: Mapping[str, Any], error: BaseException) -> BaseException:
    """Return why no broker could be reached: the client only says that none was."""
    if not isinstance(error, errors.KafkaConnectionError):
        return error
    host, _, port = settings["bootstrap_servers"][0].rpartition(":")
    same = settings.keys() - {"bootstrap_servers"}
    try:
        connection = await create_conn(
            host.strip("[]"), int(port), **{key: settings[key] for key in same}
        )
    except FAILURES as cause:
        return cause
    connection.close()
    return error


def _text(bootstrap: Sequence[str], error: BaseException) -> str:
    words = str(error) or type(error).__name__
    if isinstance(error, (ConnectionResetError, errors.KafkaConnectionError)):
        words += " (closed by it: is security.protocol the one of this port?)"
    return f"kafka {','.join(bootstrap)}: {words}"


class KafkaCluster:
    """A cluster as the daemon asks it (`sources/topics.Cluster`). Of one event loop."""

    def __init__(self, source: KafkaSource) -> None:
        self._source = source
        self._admin: AIOKafkaAdminClient | None = None
        self._consumer: aiokafka.AIOKafkaConsumer | None = None
        self._member: aiokafka.AIOKafkaConsumer | None = None

    async def partitions(self, topics: Sequence[str]) -> Mapping[str, int]:
        """Return how many partitions each topic has."""
        loop = asyncio.get_running_loop()
        end = loop.time() + UNKNOWN_FOR_S
        async with self._asking():
            while True:
                found = await (await self._admins()).describe_topics(list(topics))
                faults = [one for one in found if one["error_code"]]
                if not faults:
                    return {one["topic"]: len(one["partitions"]) for one in found}
                if loop.time() > end:
                    raise self._topic_fault(faults[0])
                await asyncio.sleep(RETRY_S)

    def _topic_fault(self, found: Mapping[str, Any]) -> ListingError:
        error = errors.for_code(found["error_code"])
        where = ",".join(self._source.bootstrap)
        if error is errors.UnknownTopicOrPartitionError:
            return UnusableError(f"kafka {where} has no topic {found['topic']}")
        text = f"kafka {where}, topic {found['topic']}: {error.__name__}"
        if issubclass(error, REFUSALS):
            return UnusableError(text)
        return ListingError(text, permanent=False)

    async def begins(self, places: Sequence[Place]) -> Mapping[Place, int]:
        """Return the first offset that each partition still has."""
        async with self._asking():
            found = await (await self._consumers()).beginning_offsets(_partitions(places))
        return {_place(one): offset for one, offset in found.items()}

    async def ends(self, places: Sequence[Place]) -> Mapping[Place, int]:
        """Return the last stable offset of each partition, or its end for `uncommitted`."""
        async with self._asking():
            found = await (await self._consumers()).end_offsets(_partitions(places))
        return {_place(one): offset for one, offset in found.items()}

    async def at_time(self, places: Sequence[Place], at_ms: int) -> Mapping[Place, int]:
        """Return the offset of the first record of a time or later, where there is one."""
        async with self._asking():
            times = dict.fromkeys(_partitions(places), at_ms)
            found = await (await self._consumers()).offsets_for_times(times)
        return {_place(one): at.offset for one, at in found.items() if at is not None}

    async def committed(self, places: Sequence[Place]) -> Mapping[Place, int]:
        """Return what the source's group has committed, where it has."""
        loop = asyncio.get_running_loop()
        end = loop.time() + UNKNOWN_FOR_S
        async with self._asking():
            found = None
            while found is None:
                try:
                    found = await (await self._admins()).list_consumer_group_offsets(
                        self._source.group, partitions=_partitions(places)
                    )
                except errors.KafkaError as error:
                    # The first question makes the topic of all groups; it is not there at once.
                    if not error.retriable or loop.time() > end:
                        raise
                    await asyncio.sleep(RETRY_S)
        return {_place(one): at.offset for one, at in found.items() if at.offset >= 0}

    async def commit(self, offsets: Mapping[Place, int]) -> None:
        """Commit offsets for the source's group, which has no members."""
        async with self._asking():
            if self._member is None:
                self._member = await self._started(group_id=self._source.group)
            partitions = _partitions(tuple(offsets))
            if self._member.assignment() != set(partitions):
                self._member.assign(partitions)
                # Committing needs an assignment; nothing is to be fetched for it.
                self._member.pause(*partitions)
            await self._member.commit(
                {_partition(place): offset for place, offset in offsets.items()}
            )

    async def close(self) -> None:
        """Let go of all connections."""
        admin, self._admin = self._admin, None
        consumer, self._consumer = self._consumer, None
        member, self._member = self._member, None
        await _stopped(*(one for one in (consumer, member) if one is not None))
        if admin is not None:
            with contextlib.suppress(*FAILURES):
                await admin.close()

    async def _admins(self) -> AIOKafkaAdminClient:
        if self._admin is None:
            admin = AIOKafkaAdminClient(**_settings(self._source.bootstrap, self._source.security))
            try:
                await admin.start()
            except BaseException:
                await admin.close()
                raise
            self._admin = admin
        return self._admin

    async def _consumers(self) -> aiokafka.AIOKafkaConsumer:
        if self._consumer is None:
            self._consumer = await self._started(group_id=None)
        return self._consumer

    async def _started(self, *, group_id: str | None) -> aiokafka.AIOKafkaConsumer:
        consumer = aiokafka.AIOKafkaConsumer(
            **_settings(self._source.bootstrap, self._source.security),
            group_id=group_id,
            enable_auto_commit=False,
            auto_offset_reset="none",
            isolation_level=f"read_{self._source.isolation}",
        )
        return await _start(consumer)

    @contextlib.asynccontextmanager
    async def _asking(self) -> AsyncIterator[None]:
        """Turn what the client raises into the errors of sources; it connects anew after one."""
        try:
            yield
        except FAILURES as error:
            await self.close()
            if isinstance(error, ListingError):
                raise
            settings = _settings(self._source.bootstrap, self._source.security)
            cause = await _why(settings, error)
            text = _text(self._source.bootstrap, cause)
            if isinstance(cause, REFUSALS):
                raise UnusableError(text) from error
            raise ListingError(text, permanent=False) from error


async def _start(consumer: aiokafka.AIOKafkaConsumer) -> aiokafka.AIOKafkaConsumer:
    try:
        await consumer.start()
    except BaseException:
        await _stopped(consumer)
        raise
    return consumer


def _partition(place: Place) -> TopicPartition:
    return TopicPartition(place.topic, place.partition)


def _partitions(places: Sequence[Place]) -> list[TopicPartition]:
    return [_partition(place) for place in places]


def _place(partition: TopicPartition) -> Place:
    return Place(partition.topic, partition.partition)


# The reader's side.


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
        _call(_stopped(*(found for one in clients if (found := one.let_go()) is not None)))


def _call(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in the readers' loop, from another thread."""
    future = asyncio.run_coroutine_threadsafe(work, _loop())
    try:
        return future.result(CALL_S)
    except TimeoutError:
        future.cancel()
        raise


@dataclass(frozen=True, slots=True)
class _Way:
    """How a unit's cluster is reached."""

    bootstrap: tuple[str, ...]
    security: KafkaSecurity
    isolation: str


def _way(unit: Unit) -> _Way:
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
    return _Way(tuple(said["bootstrap"].split(",")), security, isolation)


_CLIENTS: "weakref.WeakSet[PartitionClient]" = weakref.WeakSet()


class PartitionClient:
    """One partition as a reader fetches it. Blocks; of one thread."""

    def __init__(self, unit: Unit) -> None:
        self._unit = unit
        self._way = _way(unit)
        self._partition = _partition(place_of(unit))
        self._consumer: aiokafka.AIOKafkaConsumer | None = None
        self._at = -1
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

    def close(self) -> None:
        """Let go of the connections, without waiting for it."""
        consumer = self.let_go()
        if consumer is not None:
            asyncio.run_coroutine_threadsafe(_stopped(consumer), _loop())

    def let_go(self) -> aiokafka.AIOKafkaConsumer | None:
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
            settings = _settings(self._way.bootstrap, self._way.security)
            cause = _call(_why(settings, error))
        except FAILURES as found:
            cause = found
        kind = "data" if isinstance(cause, REFUSALS) else "transient"
        return ReadError(_text(self._way.bootstrap, cause), kind=kind)

    async def _opened(self) -> aiokafka.AIOKafkaConsumer:
        if self._consumer is None:
            consumer = aiokafka.AIOKafkaConsumer(
                **_settings(self._way.bootstrap, self._way.security),
                enable_auto_commit=False,
                auto_offset_reset="none",
                isolation_level=f"read_{self._way.isolation}",
                fetch_max_wait_ms=FETCH_MS // 2,
                max_partition_fetch_bytes=FETCH_BYTES,
            )
            self._consumer = await _start(consumer)
            self._consumer.assign([self._partition])
            self._at = -1
        return self._consumer

    async def _fetch(self, position: int) -> Fetched:
        consumer = await self._opened()
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


async def _stopped(*clients: aiokafka.AIOKafkaConsumer) -> None:
    """Stop clients. Beside this coroutine: one without a broker may end as if it were cancelled."""
    tasks = [asyncio.ensure_future(one.stop()) for one in clients]
    if tasks:
        done, _ = await asyncio.wait(tasks, timeout=STOP_S)
        for task in done:
            if not task.cancelled():
                task.exception()
