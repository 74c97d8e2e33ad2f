"""Starts a service as a process of its own: ready by its own answer, ended by its pid."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

WAIT_S = 180
"""A JVM on a host with ten times as much to do as it has cores for."""
STOP_S = 10
# It dies with the thread that started it, however that one ends.
_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL")


class Service:
    """A process that was started here, and what it printed.

    Attributes:
        name: For messages.
        log: The file with all it printed, over all its starts.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        folder: Path,
        *,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Name a service that is not started yet; it runs in `folder`."""
        self.name = name
        self.log = folder / f"{name}.log"
        self._command = [*_WITH_PARENT, *command]
        self._folder = folder
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Its process; it is running, or was until now."""
        assert self._process is not None, f"{self.name} was not started"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether its process lives."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it, or start it again; it dies with who starts it, however that ends."""
        assert not self.is_running, f"{self.name} is running"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def until(self, what: str, is_so: Callable[[], bool], *, wait_s: float = WAIT_S) -> None:
        """Wait for its own answer; a service that ended, or time that is up, fails the test."""
        end = time.monotonic() + wait_s
        while not is_so():
            assert self.is_running, f"{self.name} ended before {what}:\n{self.told()}"
            assert time.monotonic() < end, f"{self.name}: no sign of {what}:\n{self.told()}"
            time.sleep(0.1)

    def wait(self, *, wait_s: float = WAIT_S) -> int:
        """Wait until it ended by itself and return its exit code."""
        assert self._process is not None, f"{self.name} was not started"
        return self._process.wait(timeout=wait_s)

    def kill(self) -> None:
        """Kill it without a word."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it in order; what does not end within 10 s is killed."""
        self._end(signal.SIGTERM)

    def pause(self) -> None:
        """Let it answer nothing, with all its connections open."""
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """End a pause."""
        os.kill(self.pid, signal.SIGCONT)

    def told(self) -> str:
        """Return the end of what it printed."""
        return self.log.read_text(errors="replace")[-4000:] if self.log.exists() else ""

    def _end(self, number: signal.Signals) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(number)
        self._process.send_signal(signal.SIGCONT)
        try:
            self._process.wait(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def java(
    jars: Path,
    main: str,
    *words: str,
    heap_mib: int,
    conf: Path | None = None,
    properties: Mapping[str, str] | None = None,
) -> tuple[str, ...]:
    """Return the command of a small JVM.

    Args:
        jars: The folder of `need_jars`.
        main: The class to run.
        words: Its arguments.
        heap_mib: The most its heap may take.
        conf: A folder of configuration, first on the class path.
        properties: Java's `-D`.
    """
    path = f"{conf}:{jars}/*" if conf else f"{jars}/*"
    small = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xms16m", f"-Xmx{heap_mib}m")
    told = tuple(f"-D{name}={value}" for name, value in (properties or {}).items())
    return ("java", *small, *told, "-cp", path, main, *words)


def free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1 that nobody has now, all different."""
    with ExitStack() as held:
        ports = []
        for _ in range(count):
            one = held.enter_context(socket.socket())
            one.bind(("127.0.0.1", 0))
            ports.append(int(one.getsockname()[1]))
        return ports
