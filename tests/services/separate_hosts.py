"""Hosts that can be cut off from each other: a network namespace each, and a router between them.

A cut goes one way: the router drops, without a word, what one host sends to another one. It needs
root and iproute2, no firewall.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

_WAIT_S = 60
_NAMED = "pt-"
_FOLDER = Path("/run/netns")


class Hosts:
    """Hosts of a test, by name.

    Attributes:
        names: Of all of them.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self._mark = f"{_NAMED}{os.getpid()}"
        self._router = f"{self._mark}-router"

    def address(self, name: str) -> str:
        """Return where the others reach a host."""
        return f"10.77.{self.names.index(name)}.2"

    def prefix(self, name: str, hidden: tuple[Path, ...] = ()) -> tuple[str, ...]:
        """Return what starts a command on a host, as the process that it then is.

        Args:
            name: Of the host.
            hidden: Folders that are empty there: no socket in them is a way around the network.
        """
        within = ("nsenter", f"--net={_FOLDER / self._namespace(name)}")
        hide = "".join(f"mount -t tmpfs none {one} && " for one in hidden)
        script = f'{hide}exec "$@"'
        return (*within, "unshare", "--mount", "/bin/sh", "-c", script, "sh")

    def cut(self, name: str, *others: str) -> None:
        """Let nothing that a host sends arrive at the others."""
        for one in others:
            _ip("-n", self._router, "rule", "add", *self._way(name, one))

    def cut_off(self, name: str, *others: str) -> None:
        """Cut a host off from others, both ways."""
        self.cut(name, *others)
        for one in others:
            self.cut(one, name)

    def heal(self) -> None:
        """End all cuts."""
        listed = _ip("-n", self._router, "rule", "list").splitlines()
        for line in listed:
            if "blackhole" in line:
                _ip("-n", self._router, "rule", "del", "pref", line.partition(":")[0])

    def make(self) -> None:
        """Make namespaces and wires."""
        _ip("netns", "add", self._router)
        _ip("-n", self._router, "link", "set", "lo", "up")
        for number, name in enumerate(self.names):
            own = self._namespace(name)
            _ip("netns", "add", own)
            _ip("-n", own, "link", "set", "lo", "up")
            wire = ("type", "veth", "peer", "name", f"to{number}", "netns", self._router)
            _ip("-n", own, "link", "add", "wire", *wire)
            _ip("-n", own, "addr", "add", f"10.77.{number}.2/24", "dev", "wire")
            _ip("-n", self._router, "addr", "add", f"10.77.{number}.1/24", "dev", f"to{number}")
            _ip("-n", own, "link", "set", "wire", "up")
            _ip("-n", self._router, "link", "set", f"to{number}", "up")
            _ip("-n", own, "route", "add", "default", "via", f"10.77.{number}.1")
        forward = ("sysctl", "-q", "-w", "net.ipv4.ip_forward=1")
        _run("nsenter", f"--net={_FOLDER / self._router}", *forward)

    def remove(self) -> None:
        """Remove the namespaces, and with them the wires."""
        for own in (self._router, *map(self._namespace, self.names)):
            with suppress(subprocess.CalledProcessError):
                _ip("netns", "del", own)

    def _namespace(self, name: str) -> str:
        return f"{self._mark}-{name}"

    def _way(self, name: str, other: str) -> tuple[str, ...]:
        return ("from", self.address(name), "to", self.address(other), "blackhole")


@contextmanager
def separate_hosts(*names: str) -> Iterator[Hosts]:
    """Make hosts, and remove them; where none can be made the test is skipped, and fails in CI."""
    _forget_dead()
    made = Hosts(names)
    try:
        try:
            made.make()
        except (OSError, subprocess.CalledProcessError) as error:
            missing = f"no network namespaces can be made here: {error}"
            if os.environ.get("CI"):
                pytest.fail(missing)
            pytest.skip(missing)
        yield made
    finally:
        made.remove()


def _forget_dead() -> None:
    """Remove what a test left that was killed."""
    for path in _FOLDER.glob(f"{_NAMED}*"):
        pid = path.name.removeprefix(_NAMED).partition("-")[0]
        if not Path(f"/proc/{pid}").exists():
            with suppress(subprocess.CalledProcessError):
                _ip("netns", "del", path.name)


def _ip(*words: str) -> str:
    return _run(shutil.which("ip") or "/usr/sbin/ip", *words)


def _run(*command: str) -> str:
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=_WAIT_S)
    return done.stdout
