"""Rows over HTTP, to programs that no job started."""

import io
import json
import os
import signal
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.real.conftest import making

ROWS = 2_000


@pytest.fixture(scope="module")
def shared() -> Iterator[Any]:
    """One head for all of them."""
    with making() as head:
        head.start()
        yield head


def submit(head: Any, name: str, replicas: int = 1, lease_s: float = 30, idle_s: float = 1) -> None:
    table = pa.table({"n": pa.array(range(ROWS), pa.int64()), "half": [n / 2 for n in range(ROWS)]})
    pq.write_table(table, head.folder / "rows.parquet", row_group_size=250)
    gateway = (
        'exec "$PRIMUS_PYTHON" -m primusd.gateway --batch-rows 100 '
        f"--lease-seconds {lease_s} --idle-seconds {idle_s}"
    )
    head.submit(
        json.dumps(
            {
                "apiVersion": "primus/v1",
                "name": name,
                "data": {"rows": {"sources": [{"files": str(head.folder / "rows.parquet")}]}},
                "roles": {
                    "gateway": {
                        "feed": "http",
                        "data": "rows",
                        "replicas": replicas,
                        "command": gateway,
                    }
                },
            }
        )
    )


def redirected(head: Any, name: str, path: str = "rows/rows") -> tuple[int, str, str]:
    """Ask the daemon for rows; return status, where it sends to, and what it says."""
    link = HTTPConnection("localhost", timeout=10)
    link.sock = socket.socket(socket.AF_UNIX)
    link.sock.connect(str(head.folder / "run" / "primusd.sock"))
    link.request("GET", f"/api/v1/namespaces/default/jobs/{name}/data/{path}")
    answer = link.getresponse()
    found = answer.status, answer.headers.get("Location", ""), answer.read().decode()
    link.close()
    return found


def gateway_of(head: Any, name: str) -> str:
    """Return the URL of rows, with its key, once a gateway answers."""
    head.until("a gateway runs", lambda: redirected(head, name)[0] == 307)
    url = redirected(head, name)[1]

    def answers() -> bool:
        with suppress(urllib.error.URLError):
            urllib.request.urlopen(url.replace("rows/rows", ""), timeout=5)
            return True
        return False

    head.until("it answers", answers)
    return url


def take(url: str) -> tuple[list[int], Any]:
    """Return one batch's numbers and the headers they came with."""
    with urllib.request.urlopen(url, timeout=40) as answer:
        rows = [json.loads(line)["n"] for line in answer.read().splitlines()]
        return rows, answer.headers


def post(url: str) -> int:
    try:
        with urllib.request.urlopen(url, data=b"", timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_two_clients_share_the_rows_and_what_a_third_forgot_comes_again(shared: Any) -> None:
    """M096, M097."""
    submit(shared, "lent", lease_s=1)
    url = gateway_of(shared, "lent")
    forgotten, word = take(url)
    rows: dict[str, list[int]] = {"a": [], "b": []}

    def client(name: str) -> None:
        while True:
            try:
                found, headers = take(url)
            except (urllib.error.URLError, ConnectionError):
                return  # It ended with the stream.
            if headers["Primus-End"] == "true":
                return
            if found and post(headers["Primus-Commit"]) == 204:
                rows[name] += found

    threads = [threading.Thread(target=client, args=(name,)) for name in rows]
    for thread in threads:
        thread.start()
    status = shared.ended("lent")
    for thread in threads:
        thread.join(30)

    assert len(forgotten) == int(word["Primus-Rows"]) == 100
    assert sorted(rows["a"] + rows["b"]) == list(range(ROWS))
    assert rows["a"]
    assert rows["b"]
    assert status["phase"] == "Succeeded"
    shared.ctl("data", "lent", "verify")


def test_one_curl_reads_a_stream_to_its_end(shared: Any) -> None:
    submit(shared, "curled")
    url = gateway_of(shared, "curled")

    read = subprocess.run(
        ["curl", "-sSN", f"{url}&follow=1"], capture_output=True, check=True, timeout=40
    ).stdout

    assert sorted(json.loads(line)["n"] for line in read.splitlines()) == list(range(ROWS))
    assert shared.ended("curled")["phase"] == "Succeeded"
    shared.ctl("data", "curled", "verify")


def test_one_client_of_one_of_three_gateways_reads_the_whole_stream(shared: Any) -> None:
    """Another one was asked before, has read ahead, and a batch that nobody ever says is used."""
    submit(shared, "idle", replicas=3, lease_s=1)
    url = gateway_of(shared, "idle")
    urls = {url}
    while len(urls) < 3:
        urls.add(gateway_of(shared, "idle"))
    first, headers = take(url)
    forgotten, _ = take(url)
    assert post(headers["Primus-Commit"]) == 204
    assert forgotten
    urls.remove(url)

    with urllib.request.urlopen(f"{urls.pop()}&follow=1", timeout=60) as answer:
        rows = [json.loads(line)["n"] for line in answer.read().splitlines()]

    assert sorted(rows + first) == list(range(ROWS))
    assert shared.ended("idle")["phase"] == "Succeeded"
    shared.ctl("data", "idle", "verify")


def test_c53_a_killed_gateway_loses_no_row_that_a_client_had_not_used(shared: Any) -> None:
    submit(shared, "killed")
    url = gateway_of(shared, "killed")
    used, headers = take(url)
    assert post(headers["Primus-Commit"]) == 204
    take(url)
    shared.until("it is counted", lambda: done(shared, "killed") >= 100)

    for pid in shared.trainers("gateway-0", "killed"):
        if b"primusd.gateway" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
    shared.until("another one runs", lambda: shared.attempts("killed") == {"gateway-0": 2})
    url = gateway_of(shared, "killed")
    with urllib.request.urlopen(f"{url}&follow=1&form=arrow", timeout=40) as answer:
        rest = read_streams(answer.read())

    assert sorted(used + rest) == list(range(ROWS))
    assert shared.ended("killed")["phase"] == "Succeeded"


def read_streams(data: bytes) -> list[int]:
    """Return the numbers of Arrow streams, one behind the other."""
    source = io.BytesIO(data)
    rows: list[int] = []
    while source.tell() < len(data):
        table: Any = pa.ipc.open_stream(source).read_all()
        rows += table["n"].to_pylist()
    return rows


def done(head: Any, name: str) -> int:
    found: int = head.document("get", name)["status"]["data"].get("rows", {}).get("done", 0)
    return found


def test_nobody_is_sent_to_a_gateway_that_does_not_serve_yet(shared: Any) -> None:
    (shared.folder / "plain.txt").write_text("a\nb\n")
    source = {"files": str(shared.folder / "plain.txt")}
    roles = {"gateway": {"feed": "http", "data": "rows"}}
    job = {"apiVersion": "primus/v1", "name": "early", "roles": roles}
    shared.submit(json.dumps({**job, "data": {"rows": {"sources": [source]}}}))
    seen: set[int] = set()

    def is_sent_on() -> bool:
        seen.add(redirected(shared, "early")[0])
        return 307 in seen

    shared.until("it is sent on", is_sent_on)

    with urllib.request.urlopen(redirected(shared, "early")[1], timeout=40) as answer:
        assert answer.read() == b'{"line":"a"}\n{"line":"b"}\n'
    assert seen <= {307, 503}
    shared.ctl("cancel", "early", "--wait", allowed=(0, 10, 11))


def test_wrong_questions_are_answered_with_what_to_do(shared: Any) -> None:
    submit(shared, "asked")
    url = gateway_of(shared, "asked")

    def said(wrong: str) -> tuple[int, str]:
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(wrong, timeout=10)
        return refused.value.code, refused.value.read().decode()

    base = url.partition("/rows")[0]
    key = url.partition("?")[2]
    assert said(f"{base}/rows/rows")[0] == 401
    assert said(f"{base}/clicks/rows?{key}") == (
        404,
        '{"status": 404, "detail": "no stream \'clicks\'", "hint": "there are rows"}',
    )
    assert "one of ndjson, arrow, lines" in said(f"{url}&form=csv")[1]
    assert "seconds from 0 to 300" in said(f"{url}&wait=x")[1]
    assert post(f"{base}/rows/batches/7.1:commit?{key}") == 409
    assert redirected(shared, "asked", "other/rows")[0] == 404
    shared.ctl("cancel", "asked", "--wait", allowed=(0, 11))
    status, _, text = redirected(shared, "asked")
    assert status == 503
    assert "no replica of gateway serves now" in text
