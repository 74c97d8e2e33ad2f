"""What systemd passes to a service and wants to hear from it, without its library.

Sources: sd_notify(3), sd_listen_fds(3), sd_watchdog_enabled(3).
"""

import fcntl
import os
import socket
from collections.abc import Mapping, MutableMapping

from msgspec import Struct

FIRST_FD = 3
# sd_watchdog_enabled(3) advises half of the limit; a third leaves room for one pause of the loop.
_WATCHDOG_PARTS = 3


class PassedSocket(Struct, frozen=True):
    """A listening socket that was open before we started."""

    name: str
    """Of `FileDescriptorName=`; "unknown" when systemd gave none."""
    socket: socket.socket

    @property
    def is_unix(self) -> bool:
        """Whether it has a path in the file system, rather than a port."""
        return self.socket.family == socket.AF_UNIX


def notify(*assignments: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Send `READY=1` and the like; return whether there was somebody to tell.

    A manager that went away is no reason to stop, so a failure to send is only False.
    """
    path = environ.get("NOTIFY_SOCKET", "")
    if not path.startswith(("/", "@")):
        return False
    # "@" stands for the 0 byte of the abstract namespace (unix(7)).
    address = "\0" + path[1:] if path.startswith("@") else path
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.settimeout(0)
            sender.connect(address)
            sender.sendall("\n".join(assignments).encode())
    except OSError:
        return False
    return True


def notify_ready(status: str, *, environ: Mapping[str, str] = os.environ) -> bool:
    """Say that requests are answered from now on."""
    return notify("READY=1", f"STATUS={_line(status)}", environ=environ)


def notify_status(status: str, *, environ: Mapping[str, str] = os.environ) -> bool:
    """Say in one line what is going on, for `systemctl status`."""
    return notify(f"STATUS={_line(status)}", environ=environ)


def notify_watchdog(*, environ: Mapping[str, str] = os.environ) -> bool:
    """Say that the loop still turns."""
    return notify("WATCHDOG=1", environ=environ)


def notify_stopping(*, environ: Mapping[str, str] = os.environ) -> bool:
    """Say that an orderly stop began."""
    return notify("STOPPING=1", environ=environ)


def watchdog_every_ms(environ: Mapping[str, str] = os.environ) -> int | None:
    """Return how often `notify_watchdog` is due, or None when nobody watches this process."""
    limit_us, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    if not limit_us.isdecimal() or int(limit_us) == 0:
        return None
    if pid and pid != str(os.getpid()):
        return None
    return max(1, int(limit_us) // (1_000 * _WATCHDOG_PARTS))


def passed_sockets(environ: MutableMapping[str, str] = os.environ) -> tuple[PassedSocket, ...]:
    """Return the sockets of the socket unit, ready for the event loop; call it once.

    The variables are taken out of the environment, so that no child believes they are meant for it.
    """
    pid = environ.pop("LISTEN_PID", "")
    count = environ.pop("LISTEN_FDS", "")
    names = environ.pop("LISTEN_FDNAMES", "").split(":")
    if pid != str(os.getpid()) or not count.isdecimal():
        return ()
    passed = []
    for position in range(int(count)):
        listener = socket.socket(fileno=FIRST_FD + position)
        fcntl.fcntl(listener, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
        listener.settimeout(0)
        name = names[position] if position < len(names) else ""
        passed.append(PassedSocket(name or "unknown", listener))
    return tuple(passed)


def _line(text: str) -> str:
    return text.replace("\n", " ")
