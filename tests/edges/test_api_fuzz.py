"""C34: whatever is sent, the daemon answers with a 4xx or does it; never a 500, never a crash."""

import copy
import json
import random
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from primusd.config import Config
from tests.edges.api_server import NAMESPACE, Server, job_file, serve

BODIES, SEEDS = 10_000, 4
ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, 10**30, 0.5, -1.5, 1e308, "", " ", "a", "-",
    "/", "..", "../../etc/passwd", "10m", "16Gi", "16", "-1s", "never", "all", "x" * 5000, "\x00",
    "\ud800", "🦜", "é" * 300, "${VAR}", "a/b", "a:b", [], {}, [[]], [None], {"": None}, {"a": {}},
    [1, "x", None], {"min": 4, "max": 1}, {"percent": 200}, {"port": "x"},
)  # fmt: skip
WORDS = (
    "name", "namespace", "roles", "replicas", "command", "env", "files", "data", "sources", "spec",
    "split", "rows", "bytes", "budgets", "labels", "kind", "origins", "role", "inputManager",
    "defaults", "schedule", "restart", "stop", "ports", "success", "resources", "memory", "failure",
)  # fmt: skip


def rich_file() -> dict[str, Any]:
    """Return a job file that uses most fields."""
    return job_file(
        labels={"a": "b"},
        priority=50,
        schedule={"policy": "gang", "placeTimeout": "10m"},
        budgets={"application": 3, "infrastructure": 20, "within": "24h"},
        deadline="24h",
        roles={
            "worker": {
                "replicas": 2,
                "command": ["true"],
                "env": {"A": "b"},
                "resources": {"cpu": 1, "memory": "1Gi"},
                "ports": ["main"],
                "data": "clicks",
                "success": {"percent": 90},
                "restart": {"unit": "role", "delay": "10s"},
                "stop": {"signal": "TERM", "grace": "5s"},
            },
        },
        data={"clicks": {"sources": [{"files": "/tmp/*.txt"}], "split": {"bytes": "1Mi"}}},
    )


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, inner in items:
        yield from places(inner, (*path, key))


def mutated(chance: random.Random) -> Any:
    """Return a job file with a few things changed, removed or added anywhere."""
    document: Any = copy.deepcopy(rich_file())
    for _ in range(chance.randint(1, 4)):
        path = chance.choice(list(places(document)))
        if not path:
            if chance.random() < 0.05:
                return copy.deepcopy(chance.choice(ODD))
            document[chance.choice(WORDS)] = copy.deepcopy(chance.choice(ODD))
            continue
        parent = document
        for key in path[:-1]:
            parent = parent[key]
        match chance.randint(0, 3):
            case 0:
                del parent[path[-1]]
            case 1 if isinstance(parent, dict):
                parent[chance.choice(WORDS)] = copy.deepcopy(chance.choice(ODD))
            case _:
                parent[path[-1]] = copy.deepcopy(chance.choice(ODD))
    return document


def encoded(document: Any, chance: random.Random) -> bytes:
    """Return the document as JSON, now and then with broken bytes."""
    data = bytearray(json.dumps(document).encode())
    if chance.random() < 0.15:
        for _ in range(chance.randint(1, 5)):
            data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    limits = replace(Config().limits, api_requests_per_s=1_000_000)
    with serve(tmp_path, replace(Config(), limits=limits)) as running:
        running.node()
        yield running


@pytest.mark.parametrize("seed", range(SEEDS))
def test_c34_ten_thousand_mutated_job_files_are_never_a_500(server: Server, seed: int) -> None:
    chance = random.Random(seed)
    connection = server.connection(60)
    statuses: dict[int, int] = {}
    for _ in range(BODIES // SEEDS):
        data = encoded(mutated(chance), chance)
        connection.request("POST", f"{NAMESPACE}?plan=true", body=data)
        response = connection.getresponse()
        answer = response.read()
        statuses[response.status] = statuses.get(response.status, 0) + 1
        assert response.status < 500, (data, answer)
        if response.status >= 400:
            assert json.loads(answer)["code"], data
    connection.close()

    assert server.client.get("/version")["version"]
    assert statuses.keys() >= {200, 422}


PATHS = (
    ("POST", f"{NAMESPACE}"),
    ("POST", f"{NAMESPACE}/hello:cancel"),
    ("POST", f"{NAMESPACE}/hello:restart"),
    ("POST", f"{NAMESPACE}/hello:finish"),
    ("PATCH", f"{NAMESPACE}/hello"),
    ("POST", f"{NAMESPACE}/hello/data:pause"),
    ("POST", f"{NAMESPACE}/hello/data/clicks:verify"),
    ("POST", "/api/v1/nodes/n1:cordon"),
    ("POST", "/api/v1/nodes/..%2f:add"),
    ("GET", f"{NAMESPACE}/hello/replicas/worker-99999999999999999999"),
    ("GET", f"{NAMESPACE}/%00/events"),
    ("GET", f"{NAMESPACE}/hello/data/clicks/tasks"),
    ("PUT", "/api/v1/blobs/sha256:x"),
    ("POST", "/executor/v1/beat"),
    ("GET", "/webapps/primus/status.json"),
)
QUERIES = (
    "", "?limit=-1", "?limit=99999999999999999999999", "?cursor=%00%ff", "?watch=2", "?phase=%ff",
    "?label==", "?since=9999999999999d", "?tail=1e9", "?attempt=٣", "?resourceVersion=-1", "?a=%",
    "?limit=²", "?since=99999-01-01T00:00:00", "?since=0001-01-01T00:00:00%2B14:00",
)  # fmt: skip


def test_c34_every_path_answers_odd_bodies_and_parameters(server: Server) -> None:
    server.submit(**{key: rich_file()[key] for key in ("roles", "data")})
    chance = random.Random(35)
    for method, path in PATHS:
        for query in QUERIES:
            body = encoded(chance.choice(ODD), chance)
            status, answer = sent(server, method, f"{path}{query}".encode(), body)
            assert status < 500, (method, path, query, body, answer)


HEADERS = (
    b"If-Match: " + b"9" * 5_000, b'If-Match: "\xff", W/"1"', b"Idempotency-Key: \xff\x01",
    b"Idempotency-Key: " + b"k" * 5_000, b"Accept: \xff", b"Content-Type: application/yaml;;=\xff",
    b"Content-Type: application/toml", b"Last-Event-ID: " + b"9" * 5_000, b"Range: bytes=x",
    b"Content-Encoding: gzip", b"Authorization: Bearer \xff", b"Host: \xff", b"Expect: nonsense",
    b"Transfer-Encoding: chunked",
)  # fmt: skip


def test_c34_every_path_answers_odd_headers(server: Server) -> None:
    server.submit()
    for method, path in PATHS:
        for header in HEADERS:
            status, answer = sent(server, method, path.encode(), b"{}", header)
            assert status < 500 or status == 505, (method, path, header, answer)


def sent(
    server: Server, method: str, path: bytes, body: bytes, header: bytes = b"X-Nothing: 1"
) -> tuple[int, bytes]:
    """Send a request as it is, which http.client would refuse to."""
    connection: HTTPConnection = server.connection()
    head = b"%s %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nConnection: close\r\n%s\r\n\r\n"
    connection.sock.sendall(head % (method.encode(), path, len(body), header) + body)
    answer = b""
    while part := connection.sock.recv(1 << 16):
        answer += part
    connection.close()
    return int(answer.split(b" ", 2)[1]), answer
