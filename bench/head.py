"""A daemon of the benchmark's own, in a temporary folder."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from primusd.ctl.client import Client

BIN = Path(sys.executable).parent
START_S = 30.0


class Head(Struct, frozen=True):
    """Where the daemon is found."""

    folder: Path
    daemon_pid: int
    environment: dict[str, str]

    def client(self) -> Client:
        """Return a client of the daemon's API."""
        return Client(self.environment["PRIMUS_ADDRESS"])

    def ctl(self, *words: str, text: str = "") -> str:
        """Run primusctl and return what it prints; raises when it fails."""
        return subprocess.run(
            [BIN / "primusctl", *words],
            env=self.environment,
            input=text,
            check=True,
            capture_output=True,
            text=True,
        ).stdout


@contextmanager
def running() -> Iterator[Head]:
    """Give an ephemeral daemon that answers, and end all of it afterwards."""
    with tempfile.TemporaryDirectory(prefix="pb-") as name:
        folder = Path(name) / "state"
        socket = Path(name) / "run" / "primusd.sock"
        environment = {key: one for key, one in os.environ.items() if not key.startswith("PRIMUS")}
        # Rivals are installed with their bytecode; ours is kept from its first use on.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        environment |= {"PRIMUS_ADDRESS": f"unix:{socket}", "PATH": f"{BIN}:{os.environ['PATH']}"}
        command = [BIN / "primusd", "--ephemeral", "--state-dir", folder]
        command += ["--run-dir", socket.parent, "--listen", ""]
        daemon = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        head = Head(folder, daemon.pid, environment)
        try:
            _wait(head)
            yield head
        finally:
            daemon.terminate()
            daemon.wait(timeout=START_S)


def _wait(head: Head) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        try:
            if "Ready" in head.ctl("nodes", "list"):
                return
        except subprocess.CalledProcessError:
            pass
        time.sleep(0.05)
    raise TimeoutError(f"the daemon did not answer within {START_S} s")
