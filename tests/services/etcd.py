"""A real etcd for tests: one server, or three; each a process, its data in a folder of the test."""

import socket
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from tests.services.etcd_programs import need_etcd
from tests.services.processes import Service, free_ports

PLAIN = "3.4"
"""Which `make test` uses; the others are for `make soak`."""
READY_S = 60
# A new leader of theirs within a fifth of a second, in place of one to two.
_QUICK = ("--heartbeat-interval", "20", "--election-timeout", "200")
_CALL_S = 5


class Etcd:
    """A server, or several that are one store.

    Attributes:
        endpoints: `host:port` of each.
        members: The processes, in the same order.
    """

    def __init__(self, endpoints: Sequence[str], members: Sequence[Service], scheme: str) -> None:
        self.endpoints = tuple(endpoints)
        self.members = tuple(members)
        self._scheme = scheme

    @property
    def url(self) -> str:
        """As `primusd --store` takes it."""
        return f"etcd://{','.join(self.endpoints)}"

    def start(self) -> None:
        """Start what does not run, and wait until each takes connections."""
        for member in self.members:
            if not member.is_running:
                member.start()
        for member, endpoint in zip(self.members, self.endpoints, strict=True):
            serves = partial(_is_healthy if self._scheme == "http" else _listens, endpoint)
            member.until("an answer", serves, wait_s=READY_S)

    def stop(self) -> None:
        """End all of them at once."""
        for member in self.members:
            member.kill()


def _is_healthy(endpoint: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{endpoint}/health", timeout=_CALL_S) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _listens(endpoint: str) -> bool:
    host, _, port = endpoint.partition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_CALL_S).close()
    except OSError:
        return False
    return True


@contextmanager
def running_etcd(
    folder: Path, *flags: str, version: str = PLAIN, count: int = 1, scheme: str = "http"
) -> Iterator[Etcd]:
    """Start a store of one server or several, and end it.

    Args:
        folder: For its data and its log.
        flags: Further ones, for all of them.
        version: `3.4`, …; where it is missing the test is skipped, and fails in CI.
        count: How many servers.
        scheme: Of the client addresses.
    """
    program = need_etcd(version)
    ports = free_ports(2 * count)
    endpoints = [f"127.0.0.1:{port}" for port in ports[:count]]
    peers = [f"http://127.0.0.1:{port}" for port in ports[count:]]
    cluster = ",".join(f"m{number}={peer}" for number, peer in enumerate(peers))
    members = []
    for number in range(count):
        client = f"{scheme}://{endpoints[number]}"
        words = (
            *("--name", f"m{number}", "--data-dir", str(folder / f"etcd-{ports[number]}")),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peers[number]),
            *("--initial-advertise-peer-urls", peers[number]),
            *("--initial-cluster", cluster, "--initial-cluster-token", f"t{ports[0]}"),
            *("--logger", "zap", "--log-level", "warn"),
            *_QUICK,
            *flags,
        )
        members.append(Service(f"etcd-{ports[number]}", (*program, *words), folder))
    made = Etcd(endpoints, members, scheme)
    with ExitStack() as ended:
        ended.callback(made.stop)
        made.start()
        yield made
