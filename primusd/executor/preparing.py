"""What an executor makes ready on its host before the gate: folders, ports, its name for peers."""

import ipaddress
import os
import shutil
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import structlog

from primusd.executor.connection import UnreachableError
from primusd.executor.directory import AttemptDirectory, Placing
from primusd.executor.files import Fetch, FilesError, lay_out
from primusd.executor.protocol import LaunchOrder, Probe
from primusd.executor.variables import Account

log = structlog.get_logger()

LOOPBACK = "127.0.0.1"
HTTPS_PORT = 443
PROBE_TIMEOUT_S = 1.0
FETCH_AGAIN_S = 1.0
LOOK_FIRST_MS = 25
"""Whether a trainer is ready; then after twice as long, up to what the launch order says."""


async def prepare_folders(
    order: LaunchOrder,
    directory: AttemptDirectory,
    placing: Placing,
    account: Account,
    fetch: Fetch,
) -> None:
    """Make the working directory, and lay out the shipped files, however long a head is away.

    Raises:
        FilesError: A file cannot be laid out, or is not in the store.
        OSError: A folder cannot be made.
    """
    home = directory.replica_work
    temporary = home / "tmp"
    for folder in (home, temporary):
        folder.mkdir(parents=True, exist_ok=True)
        os.chown(folder, account.uid, account.gid)
    empty(temporary)
    work = Path(order.workdir) if order.workdir else home
    cache = Path(placing.cache) if placing.cache else directory.path / "cache"
    while True:
        try:
            await lay_out(order.files, work, cache, fetch, owner=(account.uid, account.gid))
        except UnreachableError as error:
            if error.is_missing:
                raise FilesError(str(error)) from error
            log.warning("files.fetch_failed", text=str(error))
            await anyio.sleep(FETCH_AGAIN_S)
        else:
            return


def host_name(heads: Iterable[str] = (), *, name: str = "") -> str:
    """Return how peers should call this host.

    That is its name, where it stands for an address that others may reach. Where it stands for
    none but the loopback's, as on a fresh Debian, it is the address from which a head on another
    host is reached; without such a head all peers are on this host.

    Args:
        heads: Addresses of the heads, as in `Bootstrap`.
        name: In place of what the host calls itself.
    """
    name = name or socket.gethostname()
    try:
        found = {str(one[4][0]) for one in socket.getaddrinfo(name, None)}
    except OSError:
        found = set()
    if any(not ipaddress.ip_address(one).is_loopback for one in found):
        return name
    for head in heads:
        if address := address_towards(head):
            return address
    return name if found else LOOPBACK


def address_towards(head: str) -> str:
    """Return the address of this host from which a head elsewhere is reached; "" there is none."""
    try:
        url = urlsplit(head)
        place = (url.hostname or "", url.port or HTTPS_PORT)
        family, _, _, _, target = socket.getaddrinfo(*place, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            # Nothing is sent: the kernel picks the way, and with it the address.
            probe.connect(target)
            address = str(probe.getsockname()[0])
    except (OSError, ValueError):
        return ""
    return "" if not url.hostname or ipaddress.ip_address(address).is_loopback else address


def taken_port(ports: tuple[tuple[str, int], ...]) -> str:
    """Return the name of an allotted port that somebody else holds; "" none."""
    for name, number in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", number))
            except OSError:
                return name
    return ""


def bind_ports(ports: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    """Return the ports with a free number in place of each 0."""
    bound: list[tuple[str, int]] = []
    with_probes: list[socket.socket] = []
    for name, number in ports:
        probe = socket.socket()
        with_probes.append(probe)
        if number == 0:
            probe.bind(("", 0))
        bound.append((name, number or probe.getsockname()[1]))
    for probe in with_probes:
        probe.close()
    return tuple(bound)


async def answers(port: int) -> bool:
    """Return whether something listens on a port of this host."""
    with anyio.move_on_after(PROBE_TIMEOUT_S):
        try:
            stream = await anyio.connect_tcp(LOOPBACK, port)
        except OSError:
            return False
        await stream.aclose()
        return True
    return False


async def until_ready(probe: Probe, home: Path, ports: Mapping[str, int]) -> None:
    """Return once a trainer that does not say so itself is ready.

    Args:
        probe: How that is told: a file or a port.
        home: Its working directory.
        ports: Its ports by name.
    """
    delay_ms = LOOK_FIRST_MS
    while not await _is_ready(probe, home, ports):
        delay_ms = min(probe.every_ms, delay_ms)
        await anyio.sleep(delay_ms / 1000)
        delay_ms *= 2


async def _is_ready(probe: Probe, home: Path, ports: Mapping[str, int]) -> bool:
    if probe.kind == "file":
        return (home / probe.value).exists()
    return await answers(ports.get(probe.value, 0))


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that it appears complete or not at all."""
    part = path.with_name(path.name + ".part")
    part.write_bytes(data)
    part.chmod(0o644)
    part.rename(path)


def empty(folder: Path) -> None:
    """Remove what is in a folder."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
