"""A real Kafka of one broker for tests, from the jars of `tests/services`.

Four doors: `bootstrap` asks for nothing; `sasl_bootstrap` for a user by SCRAM or PLAIN, without
TLS; `tls_bootstrap` for a user by either, over TLS with the certificate in `ca_file`;
`mtls_bootstrap` over TLS for the client's own certificate, which is that in `client_file`.
"""

import asyncio
import base64
import logging
import subprocess
import uuid
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.errors import CoordinatorNotAvailableError, KafkaError

from tests.services.build import need_jars
from tests.services.processes import Service, free_ports, java

T = TypeVar("T")
USER, PASSWORD = "alice", "open sesame"
JAAS = "org.apache.kafka.common.security"
CALL_S = 60
SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT,TLS:SASL_SSL,MTLS:SSL
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512
ssl.keystore.type=PEM
ssl.client.auth=none
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
log.cleaner.dedupe.buffer.size=4194304
log.cleaner.backoff.ms=500
log.initial.task.delay.ms=0
broker.session.timeout.ms=2000
broker.heartbeat.interval.ms=500
"""


class Kafka:
    """A broker in a folder of its own.

    Attributes:
        bootstrap: Host and port, open to all.
        sasl_bootstrap: The same broker, for a user.
        tls_bootstrap: The same broker, for a user, over TLS.
        mtls_bootstrap: The same broker, for who shows the certificate that it knows.
        ca_file: PEM that vouches for it.
        client_file: PEM of the certificate that it knows.
        client_key_file: PEM of its key.
        password_file: Of the user.
        broker: Its process.
    """

    def __init__(self, folder: Path, jars: Path) -> None:
        """Write the configuration; nothing runs yet."""
        plain, sasl, tls, mtls, controller = free_ports(5)
        self.bootstrap = f"127.0.0.1:{plain}"
        self.sasl_bootstrap = f"127.0.0.1:{sasl}"
        self.tls_bootstrap = f"127.0.0.1:{tls}"
        self.mtls_bootstrap = f"127.0.0.1:{mtls}"
        folder.mkdir(parents=True, exist_ok=True)
        self.ca_file, broker_key = make_certificate(folder, "ca")
        (folder / "broker.pem").write_text(broker_key.read_text() + self.ca_file.read_text())
        self.client_file, self.client_key_file = make_certificate(folder, "client")
        self.password_file = folder / "password"
        self.password_file.write_text(f"{PASSWORD}\n")
        doors = (
            f"PLAINTEXT://{self.bootstrap},SASL://{self.sasl_bootstrap},"
            f"TLS://{self.tls_bootstrap},MTLS://{self.mtls_bootstrap}"
        )
        lines = [
            SETTINGS,
            f"controller.quorum.voters=1@127.0.0.1:{controller}",
            f"listeners={doors},CONTROLLER://127.0.0.1:{controller}",
            f"advertised.listeners={doors}",
            f"log.dirs={folder}/data",
            f"ssl.keystore.location={folder}/broker.pem",
            "listener.name.mtls.ssl.client.auth=required",
            "listener.name.mtls.ssl.truststore.type=PEM",
            f"listener.name.mtls.ssl.truststore.location={self.client_file}",
        ]
        for door in ("sasl", "tls"):
            lines.append(
                f"listener.name.{door}.plain.sasl.jaas.config={JAAS}.plain.PlainLoginModule "
                f'required user_{USER}="{PASSWORD}";'
            )
            lines += [
                f"listener.name.{door}.scram-sha-{bits}.sasl.jaas.config="
                f"{JAAS}.scram.ScramLoginModule required;"
                for bits in (256, 512)
            ]
        settings = folder / "server.properties"
        settings.write_text("\n".join(lines) + "\n")
        quiet = {"org.slf4j.simpleLogger.defaultLogLevel": "warn"}
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        scram = [
            word
            for bits in (256, 512)
            for word in ("--add-scram", f"SCRAM-SHA-{bits}=[name={USER},password={PASSWORD}]")
        ]
        # With `=`: one in 64 ids begins with a dash, which reads like another option.
        words = ("format", f"--cluster-id={cluster}", "-c", str(settings), *scram)
        tool = java(jars, "kafka.tools.StorageTool", *words, heap_mib=64, properties=quiet)
        self._format = Service("format", tool, folder)
        command = java(jars, "kafka.Kafka", str(settings), heap_mib=96, properties=quiet)
        self.broker = Service("kafka", command, folder)

    def start(self) -> None:
        """Start it and wait until it serves."""
        self._format.start()
        assert self._format.wait() == 0, self._format.told()
        self.broker.start()
        self.until_ready()

    def until_ready(self) -> None:
        """Wait until the cluster says that it has a broker."""
        self.broker.until("a broker in the cluster", self._is_ready)

    def stop(self) -> None:
        """End it; nobody reads its data again."""
        self.broker.kill()

    def make_topic(self, name: str, partitions: int = 1, **settings: object) -> str:
        """Make a topic; settings as `cleanup_policy="compact"`. Return its name."""
        told = {key.replace("_", "."): str(value) for key, value in settings.items()}
        topic = NewTopic(name, partitions, 1, topic_configs=told)
        run(self._with_admin(lambda admin: admin.create_topics([topic])))
        return name

    def delete_topic(self, name: str) -> None:
        """Delete a topic, with its records."""
        run(self._with_admin(lambda admin: admin.delete_topics([name])))

    def add_partitions(self, topic: str, count: int) -> None:
        """Let a topic have so many partitions."""
        run(self._with_admin(lambda admin: admin.create_partitions({topic: NewPartitions(count)})))

    def delete_records(self, topic: str, before: int, partition: int = 0) -> None:
        """Remove the records below an offset, as retention does."""
        wanted = {TopicPartition(topic, partition): RecordsToDelete(before)}
        run(self._with_admin(lambda admin: admin.delete_records(wanted)))

    def committed(self, group: str) -> dict[str, int]:
        """Return the offsets that a group committed, by `topic/partition`; none yet: empty."""
        try:
            found = run(self._with_admin(lambda admin: admin.list_consumer_group_offsets(group)))
        except CoordinatorNotAvailableError:
            return {}
        return {f"{one.topic}/{one.partition}": at.offset for one, at in found.items()}

    def produce(
        self,
        topic: str,
        values: Sequence[bytes | None],
        *,
        partition: int = 0,
        keys: Sequence[bytes | None] | None = None,
        at_ms: Sequence[int] | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
        compression: str | None = None,
    ) -> None:
        """Append records to a partition."""
        told: list[dict[str, object]] = [
            {
                "value": value,
                "key": keys[place] if keys else None,
                "timestamp_ms": at_ms[place] if at_ms else None,
                "headers": list(headers),
            }
            for place, value in enumerate(values)
        ]
        run(self._produce(topic, partition, told, compression))

    async def _produce(
        self,
        topic: str,
        partition: int,
        records: Sequence[dict[str, object]],
        compression: str | None,
    ) -> None:
        async with AIOKafkaProducer(
            bootstrap_servers=self.bootstrap, linger_ms=5, compression_type=compression
        ) as producer:
            sent = [await producer.send(topic, partition=partition, **one) for one in records]
            await asyncio.gather(*sent)

    def transact(
        self, topic: str, values: Sequence[bytes], *, aborts: bool = False, partition: int = 0
    ) -> None:
        """Append records in a transaction that is committed, or given up."""
        run(self._transact(topic, values, aborts=aborts, partition=partition))

    async def _transact(
        self, topic: str, values: Sequence[bytes], *, aborts: bool, partition: int
    ) -> None:
        async with AIOKafkaProducer(
            bootstrap_servers=self.bootstrap, transactional_id=uuid.uuid4().hex
        ) as producer:
            await producer.begin_transaction()
            for value in values:
                await producer.send_and_wait(topic, value, partition=partition)
            await (producer.abort_transaction() if aborts else producer.commit_transaction())

    async def _with_admin(self, ask: Any) -> Any:  # the client's own types are untyped
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap, request_timeout_ms=20_000)
        await admin.start()
        try:
            return await ask(admin)
        finally:
            await admin.close()

    def _is_ready(self) -> bool:
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
        try:
            found = run(self._with_admin(lambda admin: admin.describe_cluster()))
        except (KafkaError, OSError, TimeoutError):
            return False
        return bool(found["brokers"])


def run(work: Coroutine[Any, Any, T]) -> T:
    """Return what a coroutine returns, within a minute."""

    async def bounded() -> T:
        return await asyncio.wait_for(work, CALL_S)

    return asyncio.run(bounded())


@contextmanager
def running_kafka(folder: Path) -> Iterator[Kafka]:
    """Start a broker, and end it; skips the test, or fails it in CI, where its jars are missing."""
    kafka = Kafka(folder, need_jars("kafka"))
    try:
        kafka.start()
        yield kafka
    finally:
        kafka.stop()


def make_certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """Make a certificate that vouches for itself; return it and its key, both PEM."""
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-keyout", str(key), "-out", str(certificate), "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return certificate, key
