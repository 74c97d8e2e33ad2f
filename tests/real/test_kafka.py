"""Topics of a real Kafka, read by a whole primusd."""

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.real.conftest import making
from tests.services.kafka import Kafka, running_kafka

TRAINER = """
import os, primus
with open(os.environ["OUT"] + "/" + os.environ["PRIMUS_REPLICA"], "a", buffering=1) as out:
    for batch in primus.dataset(batch_rows=64):
        rows = zip(batch["partition"], batch["offset"], batch["value"])
        out.write("".join(f"{one} {at} {value.decode()}\\n" for one, at, value in rows))
"""


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


def submit(head: Any, name: str, source: str, rest: str = "") -> Path:
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
    env: {{OUT: "{out}"}}
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


def values(first: int, count: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def test_M103_a_broker_dies_partitions_come_and_every_record_is_read_once(
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
    shared.ctl("finish", "follow", "--as", "succeeded", "--reason", "read enough")
    assert shared.ended("follow")["phase"] == "Succeeded"


def test_A11_a_program_reads_values_as_lines_and_ends_the_job_by_its_own_end(
    kafka: Kafka, shared: Any
) -> None:
    topic = kafka.make_topic("lines")
    kafka.produce(topic, [b"line %d" % number for number in range(40)])

    shared.submit(f"""
apiVersion: primus/v1
name: head
roles:
  worker: {{command: [head, -n32], data: rows, feed: stdin}}
data:
  rows: {{sources: [{{kafka: {{bootstrap: ["{kafka.bootstrap}"], topic: lines}}}}]}}
""")

    assert shared.ended("head")["phase"] == "Succeeded"
    said = shared.ctl("logs", "head").stdout.splitlines()
    assert [line.split("line ")[1] for line in said if "line " in line] == [
        str(number) for number in range(32)
    ]
