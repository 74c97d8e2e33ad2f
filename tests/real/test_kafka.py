"""Topics of a real Kafka, read by a whole primusd."""

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from primusd.datafeed.formats.settings import Settings
from primusd.datafeed.formats.values import open_partition
from primusd.datafeed.ledger.events import TopicsFollowed
from primusd.datafeed.sources.files import ListingError
from primusd.datafeed.sources.kafka import KafkaCluster
from primusd.datafeed.sources.topics import Place, UnusableError, look
from primusd.job.spec import KafkaSecurity, KafkaSource, Offsets, Source, StreamSpec
from tests.datafeed.ledger_driver import Driver
from tests.real.conftest import FINAL, making
from tests.services.kafka import USER, Kafka, make_certificate, running_kafka

TRAINER = """
import os, primus, time
with open(os.environ["OUT"] + "/" + os.environ["PRIMUS_REPLICA"], "a", buffering=1) as out:
    for batch in primus.dataset(batch_rows=64):
        rows = zip(batch["partition"], batch["offset"], batch["value"])
        out.write("".join(f"{one} {at} {value[:9].decode()}\\n" for one, at, value in rows))
        time.sleep(float(os.environ["PAUSE"]))
"""


pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """One broker for all tests of this worker."""
    with running_kafka(tmp_path_factory.mktemp("kafka")) as found:
        yield found


@pytest.fixture(scope="module")
def shared() -> Iterator[Any]:
    """One head for all jobs."""
    with making() as head:
        head.start()
        yield head


def submit(head: Any, name: str, source: str, rest: str = "", *, pause: float = 0) -> Path:
    """Submit a job whose two trainers write down each record; return the folder they write to."""
    out = Path(head.folder / name)
    out.mkdir()
    (head.folder / "trainer.py").write_text(TRAINER)
    head.submit(f"""
apiVersion: primus/v1
name: {name}
roles:
  worker:
    replicas: 2
    command: [{sys.executable}, {head.folder}/trainer.py]
    env: {{OUT: "{out}", PAUSE: "{pause}"}}
    data: rows
    restart: {{delay: 50ms, delayMax: 100ms}}
    stop: {{grace: 1s}}
data:
  rows:
    sources: [{{kafka: {source}}}]
    {rest}
""")
    return out


def written(out: Path) -> Counter[tuple[int, int]]:
    """Return how often each record was written down, by partition and offset."""
    texts = [path.read_text() for path in out.iterdir()]
    lines = [line.split() for text in texts for line in text.splitlines(keepends=True)]
    return Counter((int(one[0]), int(one[1])) for one in lines if len(one) == 3)


def stream(head: Any, name: str) -> dict[str, Any]:
    """Return the document of the job's stream."""
    found: dict[str, Any] = head.document("data", name, "status")
    return found["items"][0] if "items" in found else found


def ended(head: Any, name: str) -> dict[str, Any]:
    """Return the status of a job that has much to read, once it is over."""
    head.until("it ends", lambda: head.phase(name) in FINAL, within_s=300)
    found: dict[str, Any] = head.ended(name)
    return found


def values(first: int, count: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def test_M103_broker_and_daemon_die_partitions_come_and_every_record_is_read_once(
    kafka: Kafka, shared: Any
) -> None:
    topic = kafka.make_topic("clicks", 2)
    for partition in range(2):
        kafka.produce(topic, values(0, 3000), partition=partition)
    out = submit(shared, "follow", f"{{bootstrap: [{kafka.bootstrap}], topic: clicks, group: ctr}}")
    shared.until("the first records", lambda: len(written(out)) == 6000)

    kafka.broker.kill()
    shared.until(
        "the broker is named",
        lambda: kafka.bootstrap in str(stream(shared, "follow")["units"]["waitingFor"]),
    )
    assert shared.phase("follow") == "Running"
    kafka.broker.start()
    shared.kill()
    shared.start()
    kafka.until_ready()
    kafka.add_partitions(topic, 4)
    for partition in range(4):
        kafka.produce(topic, values(3000, 500), partition=partition)
    shared.until("all records", lambda: len(written(out)) == 8000)
    shared.until("no lag", lambda: stream(shared, "follow")["lag"] == 0)
    shared.until(
        "mirrored offsets",
        lambda: (
            kafka.committed("ctr")
            == {"clicks/0": 3500, "clicks/1": 3500, "clicks/2": 500, "clicks/3": 500}
        ),
    )

    assert max(written(out).values()) == 1
    found = stream(shared, "follow")
    assert not found["finite"]
    assert not found["units"]["waitingFor"]
    assert {one["location"]: one["position"] for one in found["partitions"]} == {
        "clicks/0": 3500,
        "clicks/1": 3500,
        "clicks/2": 500,
        "clicks/3": 500,
    }
    assert shared.document("data", "follow", "verify")["ok"]
    said = shared.ctl("data", "follow", "status").stdout
    assert "rows: 4 partitions, followed without an end" in said
    shared.ctl("finish", "follow", "--as", "succeeded", "--reason", "read enough")
    assert shared.ended("follow")["phase"] == "Succeeded"


SLOW = "memory: 8Mi, until: end, outOfRange: earliest"


def wide(kafka: Kafka, topic: str, count: int) -> str:
    """Make a topic with more than its readers hold: records of 4 KB."""
    kafka.make_topic(topic)
    kafka.produce(topic, [b"%09d" % number + b"x" * 4_000 for number in range(count)])
    return f"{{bootstrap: [{kafka.bootstrap}], topic: {topic}}}"


def test_m103_a_broker_that_dies_under_open_ranges_is_waited_for(kafka: Kafka, shared: Any) -> None:
    """It is gone in the middle of what readers fetch, and comes back."""
    source = wide(kafka, "halfway", 12_000)
    out = submit(shared, "halfway", source, SLOW.replace(", ", "\n    "), pause=0.05)
    shared.until("the first records", lambda: len(written(out)) >= 300)

    kafka.broker.kill()
    shared.until("readers name it", lambda: kafka.bootstrap in json.dumps(trouble(shared)))
    seen = len(written(out))
    kafka.broker.start()
    kafka.until_ready()

    assert ended(shared, "halfway")["phase"] == "Succeeded"
    assert 300 <= seen < 12_000
    assert written(out) == Counter({(0, offset): 1 for offset in range(12_000)})
    assert shared.document("data", "halfway", "verify")["ok"]


def trouble(head: Any) -> list[object]:
    """Return what its readers wait for."""
    return [one.get("trouble") for one in stream(head, "halfway").get("readers", ())]


def test_m103_retention_that_passes_open_ranges_leaves_out_what_was_not_read(
    kafka: Kafka, shared: Any
) -> None:
    source = wide(kafka, "passed", 12_000)
    out = submit(shared, "passed", source, SLOW.replace(", ", "\n    "), pause=0.05)
    shared.until("the first records", lambda: len(written(out)) >= 300)

    kafka.delete_records("passed", 11_000)

    status = ended(shared, "passed")
    found = written(out)
    dead = shared.document("data", "passed", "tasks", "--phase", "dead")["items"]
    lost = sum(one["hi"] - one["lo"] for one in dead)
    assert (status["phase"], status["verdict"]["reason"]) == ("Succeeded", "PartialSuccess")
    assert {one["fault"] for one in dead} == {"lost"}
    assert f"{lost} offsets of stream rows were left out" in status["verdict"]["message"]
    assert max(found.values()) == 1
    assert len(found) + lost == 12_000
    assert {(0, offset) for offset in range(11_000, 12_000)} <= set(found)
    assert not any(one["lo"] <= at < one["hi"] for one in dead for _, at in found)


def test_a_topic_that_is_made_anew_is_known_by_its_id(kafka: Kafka) -> None:
    """Also when it is longer than it was at once."""
    kafka.make_topic("again")
    kafka.produce("again", values(0, 5))
    source = source_of(kafka.bootstrap, "again")

    async def ids() -> Mapping[str, str]:
        cluster = KafkaCluster(source)
        try:
            return await cluster.ids(["again", "nowhere"])
        finally:
            await cluster.close()

    before = anyio.run(ids)
    assert anyio.run(ids) == before
    kafka.delete_topic("again")
    kafka.broker.until("the topic is gone", lambda: anyio.run(ids) == {})
    kafka.make_topic("again")
    after = anyio.run(ids)

    assert [*before] == [*after] == ["again"]
    assert before != after


def original(bootstrap: str) -> dict[str, object]:
    """Return the original's own example of Kafka, but for its address."""
    topic = {
        "topic": "lines",
        "consumerGroup": "primus-example",
        "kafkaStartUpMode": "EARLIEST",
        "config": {"bootstrap.servers": bootstrap, "enable.auto.commit": "true"},
    }
    worker = {"roleName": "worker", "num": 1, "command": "head -n32", "successPercent": 100}
    return {
        "name": "head",
        "role": [{**worker, "inputPolicy": "STREAMING"}],
        "inputManager": {"kafkaConfig": {"topics": [topic], "kafkaMessageType": "JSON"}},
    }


def test_A11_a_program_reads_values_as_lines_and_ends_the_job_by_its_own_end(
    kafka: Kafka, shared: Any
) -> None:
    topic = kafka.make_topic("lines")
    kafka.produce(topic, [b"line %d" % number for number in range(40)])

    job = shared.folder / "head.yaml"
    job.write_text(f"""
apiVersion: primus/v1
name: head
roles:
  worker: {{command: [head, -n32], data: rows, feed: stdin}}
data:
  rows: {{sources: [{{kafka: {{bootstrap: ["{kafka.bootstrap}"], topic: lines}}}}]}}
""")
    shown = shared.ctl("preview", str(job), "--rows", "3").stdout
    assert "rows: records, 1 or more partitions, from lines/0" in shown
    assert "line 2" in shown
    shared.submit(json.dumps(original(kafka.bootstrap)))

    assert shared.ended("head")["phase"] == "Succeeded"
    said = shared.ctl("logs", "head").stdout.splitlines()
    assert [line.split("line ")[1] for line in said if "line " in line] == [
        str(number) for number in range(32)
    ]


JSON_TRAINER = """
import os, primus
with open(os.environ["OUT"] + "/" + os.environ["PRIMUS_REPLICA"], "a", buffering=1) as out:
    for batch in primus.dataset(batch_rows=64):
        out.write("".join(f"{user}\\n" for user in batch["user"]))
"""


def test_what_retention_removed_is_counted_and_values_come_as_columns(
    kafka: Kafka, shared: Any
) -> None:
    topic = kafka.make_topic("orders")
    kafka.produce(topic, [b'{"user": %d, "item":\n"x"}' % number for number in range(100)])
    kafka.delete_records(topic, 40)
    (shared.folder / "orders").mkdir()
    (shared.folder / "orders.py").write_text(JSON_TRAINER)

    shared.submit(f"""
apiVersion: primus/v1
name: orders
roles:
  worker:
    command: [{sys.executable}, {shared.folder}/orders.py]
    env: {{OUT: "{shared.folder}/orders"}}
    data: rows
data:
  rows:
    sources: [{{kafka: {{bootstrap: ["{kafka.bootstrap}"], topic: orders, start: {{offset: 10}}}}}}]
    format: jsonl
    columns: [user]
    until: end
    outOfRange: earliest
""")

    status = shared.ended("orders")
    assert status["phase"] == "Succeeded", status
    assert "30 offsets of stream rows were left out" in status["verdict"]["message"]
    users = (shared.folder / "orders" / "worker-0").read_text().split()
    assert users == [str(number) for number in range(40, 100)]
    (dead,) = shared.document("data", "orders", "tasks", "--phase", "dead")["items"]
    assert (dead["fault"], dead["lo"], dead["hi"]) == ("lost", 10, 40)


def drain(source: KafkaSource, **fields: object) -> tuple[list[tuple[int, int, bytes]], Driver]:
    """Look at a topic once, read all there is up to its end; return the records, and the ledger."""
    driver = Driver(StreamSpec("clicks", (Source(kafka=source),), **fields))  # type: ignore[arg-type]  # fields of a Struct

    async def looked() -> TopicsFollowed | None:
        cluster = KafkaCluster(source)
        try:
            return await look(driver.now, {0: cluster}, now_ms=driver.at_ms)
        finally:
            await cluster.close()

    event = anyio.run(looked)
    assert event is not None
    driver.propose(event)
    reader = driver.open(0)
    found: list[tuple[int, int, bytes]] = []
    while True:
        reader.beat(1)
        if not reader.held:
            return found, driver
        ((token, held),) = reader.held.items()
        unit = open_partition(driver.now.units[held.unit].unit, Settings())
        for block in unit.rows(held.lo, held.hi, block_bytes=1 << 20):
            rows = block.batch.to_pydict()
            found += zip(rows["partition"], rows["offset"], rows["value"], strict=True)
        reader.take(held.hi - held.lo, token)


def source_of(bootstrap: str, topic: str, **fields: Any) -> KafkaSource:
    return KafkaSource((bootstrap,), (topic,), until=Offsets("end"), **fields)


def test_holes_of_transactions_and_of_compaction_are_passed(kafka: Kafka) -> None:
    topic = kafka.make_topic("transactions")
    kafka.transact(topic, [b"a", b"b"])
    kafka.transact(topic, [b"given up"] * 3, aborts=True)
    kafka.transact(topic, [b"c"])
    kafka.transact(topic, [b"given up"], aborts=True)
    compact = kafka.make_topic(
        "compact",
        cleanup_policy="compact",
        segment_ms=100,
        min_cleanable_dirty_ratio=0.01,
        min_compaction_lag_ms=0,
    )
    count = 0

    def is_compacted() -> bool:
        # A segment is closed, and may be compacted, when a later record opens the next.
        nonlocal count
        kafka.produce(compact, values(count, 10), keys=[b"%d" % (at % 5) for at in range(10)])
        count += 10
        return len(drain(source_of(kafka.bootstrap, compact))[0]) < count

    def end_is_stable() -> bool:
        found, driver = drain(source_of(kafka.bootstrap, topic))
        return driver.now.phase == "Done" and [one[1] for one in found] == [0, 1, 7]

    kafka.broker.until("the marks of all transactions", end_is_stable)
    kafka.broker.until("compaction", is_compacted)
    committed, driver = drain(source_of(kafka.bootstrap, topic))
    all_of_it, _ = drain(source_of(kafka.bootstrap, topic, isolation="uncommitted"))
    kept, compacted = drain(source_of(kafka.bootstrap, compact))

    assert [value for _, _, value in committed] == [b"a", b"b", b"c"]
    assert len(all_of_it) == 7
    assert driver.now.consumed == driver.now.known == 11
    assert compacted.now.phase == "Done"
    assert compacted.now.consumed == count
    assert {int(value) % 5 for _, _, value in kept} == set(range(5))


def test_a_user_is_let_in_by_scram_and_by_password_and_tls_is_checked(kafka: Kafka) -> None:
    topic = kafka.make_topic("secured")
    now_ms = int(time.time() * 1000)
    kafka.produce(topic, [b"old", b"new"], at_ms=[now_ms - 60_000, now_ms], headers=[("a", b"1")])
    user: dict[str, str] = {"username": USER, "password_file": str(kafka.password_file)}
    scram = KafkaSecurity("SASL_PLAINTEXT", "SCRAM-SHA-512", **user)
    tls = KafkaSecurity("SASL_SSL", "PLAIN", ca_file=str(kafka.ca_file), **user)
    unknown = KafkaSecurity("SASL_SSL", "PLAIN", **user)
    wrong = KafkaSecurity("SASL_SSL", "PLAIN", "bob", user["password_file"], str(kafka.ca_file))
    start = Offsets("time", now_ms - 1_000)

    by_scram, _ = drain(source_of(kafka.sasl_bootstrap, topic, security=scram, start=start))
    by_tls, _ = drain(source_of(kafka.tls_bootstrap, topic, security=tls))
    with pytest.raises(UnusableError, match="certificate"):
        drain(source_of(kafka.tls_bootstrap, topic, security=unknown))
    with pytest.raises(UnusableError, match=r"Authentication failed"):
        drain(source_of(kafka.tls_bootstrap, topic, security=wrong))
    with pytest.raises(UnusableError, match="has no topic nowhere"):
        drain(source_of(kafka.bootstrap, "nowhere"))
    with pytest.raises(ListingError, match=r"is security.protocol the one of this port"):
        drain(source_of(kafka.tls_bootstrap, topic))

    assert [value for _, _, value in by_scram] == [b"new"]
    assert [value for _, _, value in by_tls] == [b"old", b"new"]


def test_a_client_is_known_by_its_own_certificate(kafka: Kafka, tmp_path: Path) -> None:
    """The key lies in the file of the certificate, or in one of its own."""
    topic = kafka.make_topic("certified")
    kafka.produce(topic, [b"kept"])
    both = tmp_path / "both.pem"
    both.write_text(kafka.client_file.read_text() + kafka.client_key_file.read_text())
    other, other_key = make_certificate(tmp_path, "other")
    found = []
    for cert, key in ((kafka.client_file, str(kafka.client_key_file)), (both, "")):
        shows = KafkaSecurity("SSL", "", "", "", str(kafka.ca_file), str(cert), key)
        found.append(drain(source_of(kafka.mtls_bootstrap, topic, security=shows))[0])

    refused = []
    for shown in (("", ""), (str(other), str(other_key))):
        shows = KafkaSecurity("SSL", "", "", "", str(kafka.ca_file), *shown)
        with pytest.raises(ListingError) as caught:
            drain(source_of(kafka.mtls_bootstrap, topic, security=shows))
        refused.append(caught.value.message)

    assert found == [[(0, 0, b"kept")], [(0, 0, b"kept")]]
    assert all(kafka.mtls_bootstrap in text for text in refused), refused


CERTIFIED = """
name: certified
roles:
  worker: {{command: [cat], data: rows, feed: stdin}}
data:
  rows:
    sources:
      - kafka:
          bootstrap: ["{bootstrap}"]
          topic: certified-lines
          security: {{protocol: SSL, ca: "{ca}", cert: "{cert}", key: "{key}"}}
    until: end
"""


def test_a_job_reads_with_the_certificate_that_its_file_names(kafka: Kafka, shared: Any) -> None:
    topic = kafka.make_topic("certified-lines")
    kafka.produce(topic, [b"line %d" % number for number in range(40)])

    shared.submit(
        CERTIFIED.format(
            bootstrap=kafka.mtls_bootstrap,
            ca=kafka.ca_file,
            cert=kafka.client_file,
            key=kafka.client_key_file,
        )
    )

    assert shared.ended("certified")["phase"] == "Succeeded"
    said = shared.ctl("logs", "certified").stdout.splitlines()
    assert [line.split("line ")[1] for line in said] == [str(number) for number in range(40)]


MIXED_TRAINER = """
import os, primus
history = primus.dataset("history", batch_rows=50)
clicks = primus.dataset("clicks", batch_rows=50)
both = primus.dataset("both", batch_rows=50)
with open(os.environ["OUT"] + "/" + os.environ["PRIMUS_REPLICA"], "a", buffering=1) as out:
    feeds = {"history": iter(history), "clicks": iter(clicks), "both": iter(both)}
    while feeds:
        for name, feed in list(feeds.items()):
            batch = next(feed, None)
            if batch is None:
                del feeds[name]
                continue
            out.write("".join(f"{name} {user}\\n" for user in batch["user"]))
"""
MIXED = """
name: mixed
roles:
  worker:
    replicas: 2
    command: [{python}, {folder}/mixed.py]
    env: {{OUT: "{folder}/mixed"}}
    data: [history, clicks, both]
data:
  history: {{sources: [{{files: "{folder}/history/*.jsonl"}}], columns: [user]}}
  clicks:
    sources: [{{kafka: {{bootstrap: ["{bootstrap}"], topic: mixed}}}}]
    format: jsonl
    columns: [user]
    until: end
  both:
    sources:
      - {{files: "{folder}/history/*.jsonl", weight: 3}}
      - {{kafka: {{bootstrap: ["{bootstrap}"], topic: mixed}}, weight: 1}}
    format: jsonl
    columns: [user]
    until: end
"""


def test_files_and_a_topic_feed_one_training_beside_each_other_and_mixed(
    kafka: Kafka, shared: Any
) -> None:
    """M079: three streams of a role; the third takes rows of both kinds by their weights."""
    topic = kafka.make_topic("mixed", 2)
    for partition in range(2):
        rows = [b'{"user": %d}' % (10_000 + 1_000 * partition + n) for n in range(500)]
        kafka.produce(topic, rows, partition=partition)
    (shared.folder / "history").mkdir()
    (shared.folder / "mixed").mkdir()
    (shared.folder / "mixed.py").write_text(MIXED_TRAINER)
    for file in range(3):
        text = "".join(f'{{"user": {file * 1_000 + n}}}\n' for n in range(1_000))
        (shared.folder / f"history/{file}.jsonl").write_text(text)
    files, records = range(3_000), [*range(10_000, 10_500), *range(11_000, 11_500)]

    shared.submit(
        MIXED.format(python=sys.executable, folder=shared.folder, bootstrap=kafka.bootstrap)
    )
    status = ended(shared, "mixed")

    assert (status["phase"], status["verdict"]["reason"]) == ("Succeeded", "Completed"), status
    taken: dict[str, list[int]] = {"history": [], "clicks": [], "both": []}
    firsts = []
    for path in (shared.folder / "mixed").iterdir():
        rows_of = [line.split() for line in path.read_text().splitlines()]
        for name, user in rows_of:
            taken[name].append(int(user))
        of_both = [int(user) for name, user in rows_of if name == "both"][:400]
        firsts.append(sum(user >= 10_000 for user in of_both) / max(1, len(of_both)))
    assert sorted(taken["history"]) == list(files)
    assert sorted(taken["clicks"]) == records
    assert sorted(taken["both"]) == [*files, *records]
    # One row in four is a record, for who reads both; one of them may have all partitions.
    assert max(firsts) > 0
    assert all(0.15 <= share <= 0.35 for share in firsts if share), firsts
    proofs = shared.document("data", "mixed", "verify")
    assert proofs["ok"], proofs


def test_a_start_at_what_a_group_committed_and_all_columns_of_a_record(kafka: Kafka) -> None:
    topic = kafka.make_topic("grouped")
    kafka.produce(topic, values(0, 4), keys=[None, b"k", None, None], headers=[("trace", b"\x00")])

    async def committed() -> None:
        cluster = KafkaCluster(source_of(kafka.bootstrap, topic, group="g"))
        await cluster.commit({Place(topic, 0): 3})
        await cluster.close()

    anyio.run(committed)
    found, driver = drain(source_of(kafka.bootstrap, topic, group="g", start=Offsets("committed")))
    settings = Settings(columns=("topic", "key", "headers", "timestamp"))
    unit = open_partition(driver.now.units[0].unit, settings)
    (block,) = unit.rows(1, 2, block_bytes=1)
    (row,) = block.batch.to_pylist()

    assert [at for _, at, _ in found] == [3]
    assert row["topic"] == "grouped"
    assert row["key"] == b"k"
    assert row["headers"] == [{"key": "trace", "value": b"\x00"}]
    assert abs(row["timestamp"].timestamp() - time.time()) < 3600
    assert b"".join(one.data for one in unit.pieces(0, 3, framing="len32")) == (
        b"\x01\0\0\x000\x01\0\0\x001\x01\0\0\x002"
    )


def test_records_that_producers_compressed_are_read(kafka: Kafka) -> None:
    topic = kafka.make_topic("packed")
    for kind in ("gzip", "snappy", "lz4", "zstd"):
        kafka.produce(topic, [kind.encode()] * 3, compression=kind)

    found, _ = drain(source_of(kafka.bootstrap, topic))

    assert [value for _, _, value in found] == [b"gzip"] * 3 + [b"snappy"] * 3 + [b"lz4"] * 3 + [
        b"zstd"
    ] * 3
