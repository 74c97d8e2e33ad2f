"""Logs over HTTP: kept per attempt, merged in the order they came, followed to the end."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from primusd.ctl.client import Json
from primusd.executor.directory import attempt_path
from primusd.executor.logs import LogWriter
from primusd.executor.protocol import Answer
from primusd.job.ids import AttemptId
from tests.edges.api_server import NAMESPACE, Server, serve

LOGS = f"{NAMESPACE}/hello/logs"
BIG = 1 << 30


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serve(tmp_path) as running:
        running.node()
        yield running


class Writer:
    """Writes as an executor does."""

    def __init__(
        self, server: Server, uid: str, index: int, attempt: int = 1, *, bytes_max: int = BIG
    ) -> None:
        directory = attempt_path(server.state, AttemptId(uid, "worker", index, attempt))
        directory.mkdir(parents=True, exist_ok=True)
        self._writers = {
            stream: LogWriter(directory, stream, file_bytes_max=bytes_max, files_max=2)
            for stream in ("stdout", "stderr")
        }

    def write(self, data: bytes, at_ms: int, stream: str = "stdout") -> None:
        self._writers[stream].write(data, at_ms)

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close(0)


def records(server: Server, **query: str) -> list[Json]:
    return [json.loads(line) for line in server.client.lines(LOGS, query)]


def raw(server: Server, **query: str) -> bytes:
    return b"".join(server.client.parts(LOGS, query))


def submitted(server: Server) -> str:
    return str(server.submit()["uid"])


def test_lines_of_all_replicas_come_in_the_order_in_which_they_were_written(
    server: Server,
) -> None:
    uid = submitted(server)
    zero, one = Writer(server, uid, 0), Writer(server, uid, 1)
    zero.write(b"a\n", 1_000)
    one.write(b"b\n", 2_000)
    zero.write(b"c\n", 3_000, "stderr")
    one.write(b"d\n", 4_000)
    zero.write(b"e\n", 5_000)

    found = records(server)

    assert [one["text"] for one in found] == ["a\n", "b\n", "c\n", "d\n", "e\n"]
    assert found[2] == {
        "replica": "worker-0",
        "attempt": 1,
        "stream": "stderr",
        "at": "1970-01-01T00:00:03.000Z",
        "text": "c\n",
        "nextOffset": 2,
    }
    assert raw(server) == b"a\nb\nc\nd\ne\n"


def test_c72_the_logs_of_every_attempt_stay_readable(server: Server) -> None:
    uid = submitted(server)
    for attempt in range(1, 5):
        writer = Writer(server, uid, 0, attempt)
        writer.write(f"attempt {attempt}\n".encode(), attempt * 1_000)
        writer.close()
    server.client.call("POST", f"{NAMESPACE}/hello:cancel", body={})
    server.end_attempts(uid)

    everything = raw(server)
    each = [raw(server, attempt=str(number)) for number in range(1, 5)]
    previous = raw(server, attempt="previous")

    assert everything == b"attempt 1\nattempt 2\nattempt 3\nattempt 4\n"
    assert each == [f"attempt {number}\n".encode() for number in range(1, 5)]
    assert previous == b"attempt 3\n"


def test_c73_following_returns_with_every_line_when_the_job_ends(server: Server) -> None:
    uid = submitted(server)
    server.run_job(uid)
    writers = [Writer(server, uid, 0), Writer(server, uid, 1)]

    def play() -> None:
        for number in range(500):
            for writer in writers:
                writer.write(f"line {number}\n".encode(), 1_000 + number)
        writers[0].write(b"no end", 9_000)
        server.end_attempts(uid)

    trainer = threading.Thread(target=play)
    trainer.start()
    found = records(server, follow="1")
    trainer.join()

    for replica in ("worker-0", "worker-1"):
        lines = [str(one["text"]) for one in found if one["replica"] == replica]
        assert lines[:500] == [f"line {number}\n" for number in range(500)]
    assert found[-1]["text"] == "no end"
    assert len(found) == 1001


def test_c75_cut_characters_and_bad_bytes_do_not_end_the_stream(server: Server) -> None:
    uid = submitted(server)
    writer = Writer(server, uid, 0)
    emoji = "🦜".encode()
    long = "é".encode() * (40 << 10)
    writer.write(b"bad \xff\xfe byte\n" + emoji[:2], 1_000)
    writer.write(emoji[2:] + b" whole\n" + b"\xf0\x9f\n", 2_000)
    writer.write(long + b"\n", 3_000)

    found = [str(one["text"]) for one in records(server)]

    assert found[:3] == ["bad \ufffd\ufffd byte\n", "🦜 whole\n", "\ufffd\n"]
    assert "".join(found[3:]) == "é" * (40 << 10) + "\n"
    assert raw(server) == b"bad \xff\xfe byte\n" + emoji + b" whole\n\xf0\x9f\n" + long + b"\n"


def test_what_is_no_longer_kept_is_marked_as_a_gap(server: Server) -> None:
    uid = submitted(server)
    writer = Writer(server, uid, 0, bytes_max=1_000)
    for number in range(400):
        writer.write(f"line {number:04d}\n".encode(), 1_000 + number * 20)

    found = records(server)
    kept = [one for one in found if "text" in one]

    gap = found[0]["gap"]
    assert isinstance(gap, int)
    assert gap == (400 - len(kept)) * 10
    assert kept[-1]["text"] == "line 0399\n"
    assert raw(server).startswith(f"[primusd: {gap} bytes of worker-0".encode())


def test_the_tail_is_the_last_lines_of_all_replicas_together(server: Server) -> None:
    uid = submitted(server)
    for index in (0, 1):
        writer = Writer(server, uid, index)
        for number in range(50):
            writer.write(f"{index} {number}\n".encode(), 1_000 + number * 20 + index * 10)

    found = [one["text"] for one in records(server, tail="4")]

    assert found == ["0 48\n", "1 48\n", "0 49\n", "1 49\n"]
    assert records(server, tail="0") == []
    assert len(records(server, tail="99999")) == 100


def test_since_leaves_out_what_is_older(server: Server) -> None:
    uid = submitted(server)
    writer = Writer(server, uid, 0)
    writer.write(b"old\n", 1_000)
    writer.write(b"new\n", 5_000)

    assert raw(server, since="1970-01-01T00:00:02Z") == b"new\n"
    assert raw(server, since="10m") == b""


def test_one_replica_or_stream_can_be_picked(server: Server) -> None:
    uid = submitted(server)
    for index in (0, 1):
        writer = Writer(server, uid, index)
        writer.write(f"out {index}\n".encode(), 1_000)
        writer.write(f"err {index}\n".encode(), 2_000, "stderr")

    assert raw(server, role="worker", index="1", stream="stderr") == b"err 1\n"
    assert raw(server, role="worker", index="0") == b"out 0\nerr 0\n"


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({"role": "ps"}, 404),
        ({"role": "worker", "index": "9"}, 404),
        ({"attempt": "x"}, 400),
        ({"since": "yesterday"}, 400),
        ({"tail": "-5"}, 400),
        ({"stream": "stdin"}, 400),
    ],
)
def test_a_wrong_question_is_told(server: Server, query: dict[str, str], status: int) -> None:
    submitted(server)

    connection = server.connection()
    text = "&".join(f"{key}={value}" for key, value in query.items())
    connection.request("GET", f"{LOGS}?{text}")
    response = connection.getresponse()
    response.read()
    connection.close()

    assert response.status == status


def test_the_executor_of_a_replica_on_another_host_is_asked(tmp_path: Path) -> None:
    log = b"".join(f"line {number}\n".encode() for number in range(3_000))

    async def ask(
        attempt: AttemptId, kind: str, *, path: str = "", offset: int = 0, byte_count: int = 0
    ) -> Answer:
        data = log[offset : offset + 5_000] if path == "stdout" and attempt.index == 0 else b""
        return Answer(1, data, end=False, offset=offset)

    with serve(tmp_path, ask=ask) as server:
        server.node()
        uid = submitted(server)
        server.run_job(uid)

        found = raw(server)

    assert found == log


def test_stacks_are_asked_of_the_executor(tmp_path: Path) -> None:
    async def ask(
        attempt: AttemptId, kind: str, *, path: str = "", offset: int = 0, byte_count: int = 0
    ) -> Answer:
        return Answer(1, f"{kind} of {attempt.label}".encode(), end=True)

    with serve(tmp_path, ask=ask) as server:
        server.node()
        server.run_job(submitted(server))

        path = f"{NAMESPACE}/hello/replicas/worker-1/stacks"
        found = b"".join(server.client.parts(path))

    assert found == b"stacks of worker-1/1"
