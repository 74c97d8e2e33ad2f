"""At most `connections_max` connections are served at once; people on the socket always get in."""

from http.client import HTTPConnection
from pathlib import Path

import anyio
import pytest

from primusd.config import Config
from primusd.config.settings import Listen
from primusd.executor.connection import Head, UnreachableError
from tests.edges.api_server import TOKENS, Server, serve

MOST = 10
HEADERS = {"Authorization": f"Bearer {TOKENS['read']}"}


def dial(server: Server) -> tuple[HTTPConnection, int]:
    """Open a connection that stays, and return it with the answer's status."""
    connection = HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request("GET", "/api/v1/cluster", headers=HEADERS)
    response = connection.getresponse()
    response.read()
    return connection, response.status


def is_taken(server: Server) -> bool:
    connection, status = dial(server)
    connection.close()
    return status == 200


def test_one_connection_too_many_is_turned_away_and_closed(tmp_path: Path) -> None:
    with serve(tmp_path, Config(listen=Listen(connections_max=MOST))) as server:
        opened = [dial(server) for _ in range(MOST)]
        turned, status = dial(server)
        sock = turned.sock

        assert [one for _, one in opened] == [200] * MOST
        assert status == 429
        assert sock is None or sock.recv(1) == b""

        person = server.client.get("/api/v1/cluster")
        opened[0][0].request("GET", "/api/v1/cluster", headers=HEADERS)
        again = opened[0][0].getresponse().status
        for one, _ in opened[1:]:
            one.close()
        turned.close()
        server.until(lambda: is_taken(server))

    assert person["kind"] == "Cluster"
    assert again == 200
    opened[0][0].close()


def test_an_executor_too_many_is_turned_away_on_the_socket_too(tmp_path: Path) -> None:
    with serve(tmp_path, Config(listen=Listen(connections_max=MOST))) as server:
        opened = [dial(server)[0] for _ in range(MOST)]
        assert all(one.sock is not None for one in opened)

        async def connect() -> None:
            async with Head(f"unix:{server.socket}", key="k", ca=None).connect("/executor/v1/x"):
                raise AssertionError

        with pytest.raises(UnreachableError, match="429"):
            anyio.run(connect)
        for one in opened:
            one.close()


def test_whether_the_daemon_is_well_is_told_to_everybody(tmp_path: Path) -> None:
    with serve(tmp_path, Config(listen=Listen(connections_max=MOST))) as server:
        opened = [dial(server)[0] for _ in range(MOST)]

        asking = HTTPConnection("127.0.0.1", server.port, timeout=20)
        asking.request("GET", "/healthz")
        status = asking.getresponse().status
        asking.close()
        for one in opened:
            one.close()

    assert status == 200
