"""Who may come in: the socket knows its caller, TCP always wants a token, Host and Origin count."""

import hashlib
import json
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path

import pytest

from primusd.api.auth import host_name, read_tokens, token_of
from primusd.ctl.failures import ApiError
from primusd.errors import ConfigError
from tests.edges.api_server import NAMESPACE, Server, job_file, serve


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serve(tmp_path) as running:
        running.node()
        yield running


def answered(server: Server, method: str, path: str, **headers: str) -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.putrequest(method, path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    response = connection.getresponse()
    data = response.read()
    connection.close()
    code = json.loads(data).get("code", "") if data.startswith(b"{") else ""
    return response.status, code


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/version"])
def test_health_and_version_need_no_token(server: Server, path: str) -> None:
    assert answered(server, "GET", path)[0] == 200


@pytest.mark.parametrize("path", ["/", "/metrics", "/api/v1/cluster", NAMESPACE, "/nope"])
def test_over_tcp_everything_else_needs_one_on_loopback_too(server: Server, path: str) -> None:
    assert answered(server, "GET", path) == (401, "Unauthorized")


@pytest.mark.parametrize(
    "value", ["Bearer nope", "Basic tok-admin", "Bearer", "Bearer \xe9", "tok-admin", ""]
)
def test_a_wrong_token_is_no_token(server: Server, value: str) -> None:
    assert answered(server, "GET", "/api/v1/cluster", Authorization=value)[0] == 401


def test_a_token_opens_and_its_name_is_recorded(server: Server) -> None:
    job = server.tcp("tok-write").call("POST", NAMESPACE, body=job_file())

    assert job["submittedBy"] == "token:write"


def test_a_reading_token_reads_and_no_more(server: Server) -> None:
    client = server.tcp("tok-read")

    assert client.get("/api/v1/cluster")["kind"] == "Cluster"
    with pytest.raises(ApiError) as caught:
        client.call("POST", NAMESPACE, body=job_file())
    assert (caught.value.status, caught.value.code) == (403, "Forbidden")


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "169.254.169.254", ""])
def test_a_name_that_was_rebound_to_this_host_is_turned_away(server: Server, host: str) -> None:
    headers = {"Host": host, "Authorization": "Bearer tok-admin"}

    assert answered(server, "GET", "/api/v1/cluster", **headers) == (403, "Forbidden")


def test_a_page_of_another_origin_is_turned_away(server: Server) -> None:
    own = f"127.0.0.1:{server.port}"
    token = {"Authorization": "Bearer tok-admin", "Host": own}

    evil = answered(server, "GET", "/api/v1/cluster", Origin="http://evil.example", **token)
    same = answered(server, "GET", "/api/v1/cluster", Origin=f"http://{own}", **token)

    assert evil == (403, "Forbidden")
    assert same[0] == 200


def test_hosts_are_told_without_their_port() -> None:
    assert host_name("localhost:8080") == "localhost"
    assert host_name("[::1]:8080") == "::1"
    assert host_name("Head1.Example") == "head1.example"


def test_a_token_file_names_every_wrong_line_at_once(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"tok").hexdigest()
    path = tmp_path / "tokens"
    path.write_text(f"# ours\nci write {digest}\nbad line\n\nci boss {digest}\n")

    with pytest.raises(ConfigError) as caught:
        read_tokens(path)

    assert [one.at for one in caught.value.errors] == [f"{path}:3", f"{path}:5"]
    path.write_text(f"ci write {digest}\n")
    assert read_tokens(path) == (token_of("ci", "write", "tok"),)


def certificate(folder: Path, name: str, *, signer: str = "") -> tuple[Path, Path]:
    """Make a key and a certificate, signed by itself or by one made before."""
    key, cert = folder / f"{name}.key", folder / f"{name}.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-keyout", str(key), "-out", str(cert), "-subj", f"/CN={name}"]
    command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    if signer:
        command += ["-CA", str(folder / f"{signer}.pem"), "-CAkey", str(folder / f"{signer}.key")]
    subprocess.run(command, check=True, capture_output=True)
    return key, cert


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make certificates with")
def test_a_client_certificate_stands_in_for_a_token(tmp_path: Path) -> None:
    key, cert = certificate(tmp_path, "localhost")
    ann_key, ann_cert = certificate(tmp_path, "ann", signer="localhost")
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(cert, key)
    serving.load_verify_locations(cert)
    serving.verify_mode = ssl.CERT_OPTIONAL
    with serve(tmp_path, tls=serving) as server:
        server.node()
        asking = ssl.create_default_context(cafile=str(cert))
        stranger = HTTPSConnection("127.0.0.1", server.port, context=asking, timeout=20)
        stranger.request("GET", "/api/v1/cluster")
        refused = stranger.getresponse().status
        stranger.close()
        asking.load_cert_chain(ann_cert, ann_key)
        ann = HTTPSConnection("127.0.0.1", server.port, context=asking, timeout=20)
        ann.request("POST", NAMESPACE, body=json.dumps(job_file()))
        job = json.loads(ann.getresponse().read())
        ann.close()

    assert refused == 401
    assert job["submittedBy"] == "certificate:ann"


def test_who_goes_before_the_answer_begins_is_no_fault(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    uid = server.submit()["uid"]
    still = threading.Thread(target=server.stand_still, args=(0.3,))
    still.start()
    for _ in range(5):
        with socket.socket(socket.AF_UNIX) as gone:
            gone.connect(str(server.socket))
            gone.sendall(f"GET {NAMESPACE}/{uid}/logs HTTP/1.1\r\nHost: x\r\n\r\n".encode())

    still.join()
    server.client.get("/version")

    assert [one.getMessage() for one in caplog.records if one.levelname == "ERROR"] == []
