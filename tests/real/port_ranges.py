"""Ports of their own for daemons that share a host: as different hosts would have them."""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FIRST_PORT, PORTS, RANGES = 11_000, 64, 320


@contextmanager
def own_ports() -> Iterator[tuple[int, int]]:
    """Hold a range of ports that no other test of this host has."""
    folder = Path(tempfile.gettempdir()) / f"primus-test-ports-{os.geteuid()}"
    folder.mkdir(exist_ok=True)
    for number in range(RANGES):
        descriptor = os.open(folder / str(number), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            continue
        try:
            first = FIRST_PORT + number * PORTS
            yield first, first + PORTS - 1
        finally:
            os.close(descriptor)
        return
    raise AssertionError(f"{RANGES} tests hold ports already")
