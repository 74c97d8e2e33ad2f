"""Listening sockets: a live one is never stolen, a dead one never in the way (C67)."""

import errno
import grp
import os
import socket
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from primusd.config import split_address
from primusd.errors import ConfigError, PrimusdError
from primusd.systemd import PassedSocket

BACKLOG = 1_024
PROBE_S = 1.0
SYSTEM_MODE, USER_MODE = 0o660, 0o600


class AddressInUseError(PrimusdError):
    """Somebody answers at an address that this daemon was to listen at."""

    code = "AddressInUse"


class Listener(Struct, frozen=True):
    """A socket that is ready to be served."""

    socket: socket.socket
    address: str
    """A path, or `host:port` with the port that was bound."""

    @property
    def is_unix(self) -> bool:
        """Whether it has a path in the file system."""
        return self.socket.family == socket.AF_UNIX


def passed_listeners(passed: Sequence[PassedSocket]) -> tuple[Listener, ...]:
    """Return what systemd opened for us."""
    return tuple(
        Listener(one.socket, one.socket.getsockname() if one.is_unix else _shown(one.socket))
        for one in passed
    )


def listen_unix(path: Path, *, group: str) -> Listener:
    """Listen on a unix socket whose permissions are right before anybody can connect.

    Args:
        path: A socket that is left of a crash is removed, after it was tried.
        group: May connect as well, when it exists and we may give the socket to it.

    Raises:
        AddressInUseError: A process answers there.
        ConfigError: The socket cannot be made there.
    """
    if _answers(path):
        raise AddressInUseError(
            f"another process answers on {path}",
            hint="stop it, or name another socket with --socket or --run-dir",
        )
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        if path.is_socket():
            path.unlink()
        made.bind(str(path))
        path.chmod(USER_MODE)
        _share(path, group)
        made.listen(BACKLOG)
    except OSError as error:
        made.close()
        raise ConfigError(
            f"the socket {path} cannot be made: {error.strerror or error}",
            hint="name another one with --socket or --run-dir",
        ) from error
    made.settimeout(0)
    return Listener(made, str(path))


def listen_tcp(address: str) -> Listener:
    """Listen on `host:port`.

    Raises:
        AddressInUseError: The port is taken.
        ConfigError: The host is not one of this machine, or the port needs a privilege.
    """
    made: socket.socket | None = None
    try:
        family, place = _resolved(address)
        made = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(place)
        made.listen(BACKLOG)
    except OSError as error:
        if made is not None:
            made.close()
        if error.errno == errno.EADDRINUSE:
            raise AddressInUseError(
                f"{address} is in use", hint='name another one with --listen, or "" for none'
            ) from error
        raise ConfigError(
            f"{address} cannot be listened at: {error.strerror or error}",
            hint="name another one with --listen",
        ) from error
    made.settimeout(0)
    return Listener(made, _shown(made))


def _resolved(address: str) -> tuple[int, tuple[object, ...]]:
    """Return family and socket address of `host:port`."""
    host, port = split_address(address)
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return found[0][0], found[0][4]


def share_file(path: Path, group: str, *, mode: int) -> None:
    """Let a group read a file of ours, when the group exists and we may give it away."""
    try:
        os.chown(path, -1, grp.getgrnam(group).gr_gid)
    except (KeyError, PermissionError):
        return
    path.chmod(mode)


def _share(path: Path, group: str) -> None:
    share_file(path, group, mode=SYSTEM_MODE)


def _answers(path: Path) -> bool:
    """Return whether a process takes connections on the socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
        probe.settimeout(PROBE_S)
        try:
            probe.connect(str(path))
        except TimeoutError:
            # Somebody holds it, though too busy to answer.
            return True
        except OSError:
            return False
        return True


def _shown(made: socket.socket) -> str:
    host, port = made.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
