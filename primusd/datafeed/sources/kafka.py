"""Kafka over its own protocol: the only module that knows its client.

No groups: partitions are assigned and sought, and the ledger alone knows who reads what. What the
daemon asks is here, what readers fetch in `partitions.py`.
"""

import asyncio
import contextlib
import logging
import os
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer as Consumer
from aiokafka import TopicPartition, errors
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.conn import create_conn

from primusd.datafeed.sources.files import ListingError
from primusd.datafeed.sources.topic_ids import TopicIds, topic_ids
from primusd.datafeed.sources.topics import Place, UnusableError
from primusd.job.spec import KafkaSecurity, KafkaSource

__all__ = [
    "FAILURES",
    "REFUSALS",
    "Consumer",
    "KafkaCluster",
    "Way",
    "errors",
    "partition_of",
    "stopped",
]

# It logs each try as an error; what does not work is raised, and told by whoever asked.
logging.getLogger("aiokafka").setLevel(logging.CRITICAL)

REQUEST_MS = 5_000
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


@dataclass(frozen=True, slots=True)
class Way:
    """How a cluster is reached, and which of its records are read."""

    bootstrap: tuple[str, ...]
    security: KafkaSecurity
    isolation: str

    def settings(self) -> dict[str, Any]:
        """Return what every client of the cluster is made with.

        Raises:
            UnusableError: A file that the job names cannot be read.
        """
        security = self.security
        found: dict[str, Any] = {  # of many types: keyword arguments
            "bootstrap_servers": list(self.bootstrap),
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
                secret = Path(security.password_file).read_text(encoding="utf-8")
                found["sasl_plain_password"] = secret.rstrip("\r\n")
        except (OSError, ValueError) as error:
            where = getattr(error, "filename", "") or security.password_file or security.ca_file
            raise UnusableError(
                f"{where} cannot be used (host {os.uname().nodename}): {error}"
            ) from error
        return found

    async def consumer(self, **more: object) -> Consumer:
        """Return a consumer that is connected and has nothing assigned."""
        consumer = Consumer(
            **self.settings(),
            enable_auto_commit=False,
            auto_offset_reset="none",
            isolation_level=f"read_{self.isolation}",
            **more,
        )
        try:
            await consumer.start()
        except BaseException:
            await stopped(consumer)
            raise
        return consumer

    async def why(self, error: BaseException) -> BaseException:
        """Return why no broker could be reached: the client only says that none was."""
        if not isinstance(error, errors.KafkaConnectionError):
            return error
        settings = self.settings()
        host, _, port = settings.pop("bootstrap_servers")[0].rpartition(":")
        found: BaseException = error
        try:
            connection = await create_conn(host.strip("[]"), int(port), **settings)
            connection.close()
        except FAILURES as cause:
            found = cause
        return found

    def text(self, error: BaseException) -> str:
        """Return a fault in words, the cluster named."""
        words = str(error) or type(error).__name__
        if isinstance(error, (ConnectionResetError, errors.KafkaConnectionError)):
            words += " (closed by it: is security.protocol the one of this port?)"
        return f"kafka {','.join(self.bootstrap)}: {words}"


def _ssl_context(security: KafkaSecurity) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=security.ca_file or None)
    if security.cert_file:
        context.load_cert_chain(security.cert_file, security.key_file or None)
    return context


async def stopped(*clients: Consumer) -> None:
    """Stop clients. Beside this coroutine: one without a broker may end as if it were cancelled."""
    tasks = [asyncio.ensure_future(one.stop()) for one in clients]
    if tasks:
        done, _ = await asyncio.wait(tasks, timeout=STOP_S)
        for task in done:
            if not task.cancelled():
                task.exception()


def partition_of(place: Place) -> TopicPartition:
    """Return a partition as the client names it."""
    return TopicPartition(place.topic, place.partition)


class KafkaCluster:
    """A cluster as the daemon asks it (`sources/topics.Cluster`). Of one event loop."""

    def __init__(self, source: KafkaSource) -> None:
        self._source = source
        self._way = Way(source.bootstrap, source.security, source.isolation)
        self._admin: AIOKafkaAdminClient | None = None
        self._consumer: Consumer | None = None
        self._member: Consumer | None = None

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

    async def ids(self, topics: Sequence[str]) -> Mapping[str, str]:
        """Return the id of each topic; none of a cluster that is older than Kafka 2.8."""
        async with self._asking():
            client = (await self._admins())._client  # noqa: SLF001 it has no word for this question
            try:
                found = await client.send(client.get_random_node(), TopicIds(topics))
            except (errors.IncompatibleBrokerVersion, NotImplementedError):
                return {}
        return {one.name: one.id for one in topic_ids(found)}

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
                self._member = await self._way.consumer(group_id=self._source.group)
            partitions = _partitions(tuple(offsets))
            if self._member.assignment() != set(partitions):
                self._member.assign(partitions)
                # Committing needs an assignment; nothing is to be fetched for it.
                self._member.pause(*partitions)
            await self._member.commit(
                {partition_of(place): offset for place, offset in offsets.items()}
            )

    async def close(self) -> None:
        """Let go of all connections."""
        admin, self._admin = self._admin, None
        consumer, self._consumer = self._consumer, None
        member, self._member = self._member, None
        await stopped(*(one for one in (consumer, member) if one is not None))
        if admin is not None:
            with contextlib.suppress(*FAILURES):
                await admin.close()

    async def _admins(self) -> AIOKafkaAdminClient:
        if self._admin is None:
            admin = AIOKafkaAdminClient(**self._way.settings())
            try:
                await admin.start()
            except BaseException:
                await admin.close()
                raise
            self._admin = admin
        return self._admin

    async def _consumers(self) -> Consumer:
        if self._consumer is None:
            self._consumer = await self._way.consumer()
        return self._consumer

    @contextlib.asynccontextmanager
    async def _asking(self) -> AsyncIterator[None]:
        """Turn what the client raises into the errors of sources; it connects anew after one."""
        try:
            yield
        except FAILURES as error:
            await self.close()
            if isinstance(error, ListingError):
                raise
            cause = await self._way.why(error)
            text = self._way.text(cause)
            if isinstance(cause, REFUSALS):
                raise UnusableError(text) from error
            raise ListingError(text, permanent=False) from error


def _partitions(places: Sequence[Place]) -> list[TopicPartition]:
    return [partition_of(place) for place in places]


def _place(partition: TopicPartition) -> Place:
    return Place(partition.topic, partition.partition)
