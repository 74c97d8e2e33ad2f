"""A whole primusd for tests: the real daemon, node and executors in a folder of their own."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.real.port_ranges import own_ports
from tests.real.second_node import Second

BIN = Path(sys.executable).parent
WAIT_S = 60
"""Longer than anything takes on a host with ten times as much to do as it has cores for."""
CTL_S = WAIT_S + 10
LOGS_TOLD = 12
FINAL = ("Succeeded", "Failed", "Cancelled")


class Head:
    """A head node: its state directory, its daemon, and what runs below it."""

    def __init__(self, folder: Path, ports: tuple[int, int]) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.socket = folder / "run" / "primusd.sock"
        self.log = folder / "primusd.log"
        self.daemon: subprocess.Popen[bytes] | None = None
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith("PRIMUS")
        }
        self.environment["PATH"] = f"{BIN}:{os.environ['PATH']}"
        self.environment["PRIMUS_ADDRESS"] = f"unix:{self.socket}"
        settings = folder / "ports.toml"
        # Spares enough to be taken now and then, and few enough to cost next to nothing.
        settings.write_text(
            f'[launchers.local]\nports = "{ports[0]}-{ports[1]}"\nspare_executors = 2\n'
        )
        self.environment["PRIMUSD_CONFIG"] = str(settings)

    def start(self, *flags: str, program: tuple[str, ...] = (), is_awaited: bool = True) -> None:
        """Start the daemon; `program` in place of primusd is given the same flags."""
        command = [*(program or (str(BIN / "primusd"),)), "--state-dir", str(self.state)]
        command += ["--run-dir", str(self.socket.parent), "--listen", "", *flags]
        with self.log.open("ab") as log:
            self.daemon = subprocess.Popen(
                command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        if is_awaited:
            self.until("the daemon answers", self._answers)

    def _answers(self) -> bool:
        assert self.daemon is not None
        assert self.daemon.poll() is None, self.told()
        return self.socket.exists() and self.ctl("version", allowed=(0, 5)).returncode == 0

    def told(self) -> str:
        """Return the end of what the daemon logged."""
        return self.log.read_text(errors="replace")[-6000:] if self.log.exists() else ""

    def story(self) -> str:
        """Return the same, and the ends of a few attempts' logs: for a test that fails."""
        parts = [self.told()]
        for log in sorted(self.state.glob("jobs/*/*/a*/*.log"))[:LOGS_TOLD]:
            said = log.read_text(errors="replace")[-1500:]
            parts.append(f"-- {log.relative_to(self.state)}\n{said}")
        return "\n".join(parts)

    def kill(self) -> None:
        """Kill the daemon without a word."""
        assert self.daemon is not None
        self.daemon.kill()
        self.daemon.wait()

    def stop(self) -> int:
        """Stop the daemon in order and return its exit code; trainers run on."""
        assert self.daemon is not None
        self.daemon.terminate()
        return self.daemon.wait(timeout=WAIT_S)

    def ctl(
        self,
        *words: str,
        allowed: tuple[int, ...] = (0,),
        stdin: str | None = None,
        cwd: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run primusctl; an exit code that is not allowed fails the test with what was said."""
        done = subprocess.run(
            [BIN / "primusctl", *words],
            env=self.environment,
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=CTL_S,
            cwd=cwd,
        )
        assert done.returncode in allowed, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    def document(self, *words: str) -> dict[str, Any]:
        """Return the JSON document that primusctl prints."""
        found: dict[str, Any] = json.loads(self.ctl(*words, "-o", "json").stdout)
        return found

    def submit(self, text: str, *flags: str) -> str:
        """Submit a job file and return the job's name."""
        said = self.ctl("submit", "-", *flags, stdin=text, cwd=self.folder).stdout
        return said.split()[0]

    def phase(self, name: str) -> str:
        """Return the job's phase."""
        return str(self.document("get", name)["status"]["phase"])

    def ended(self, name: str) -> dict[str, Any]:
        """Wait for the end of a job and return its status."""
        words = ("wait", name, "--for", "ended", "--timeout", f"{WAIT_S}s")
        self.ctl(*words, allowed=(0, 6, 10, 11, 12))
        status: dict[str, Any] = self.document("get", name)["status"]
        assert status["phase"] in FINAL, f"{status}\n{self.story()}"
        return status

    def attempts(self, name: str) -> dict[str, int]:
        """Return how often each replica was begun."""
        found = self.document("get", name, "--replicas")["items"]
        return {one["name"]: len(one["attempts"]) for one in found}

    def until(self, what: str, holds: Callable[[], bool], *, within_s: float = WAIT_S) -> None:
        """Wait until something holds; fail with what it was, and the daemon's log."""
        end = time.monotonic() + within_s
        while time.monotonic() < end:
            if holds():
                return
            time.sleep(0.05)
        pytest.fail(f"{within_s} s went by: {what}\n{self.story()}")

    def processes(self, word: str = "") -> dict[int, str]:
        """Return pid and command line of what runs for this head, known by its folder."""
        found: dict[int, str] = {}
        mark = str(self.folder).encode()
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal() or int(entry.name) == os.getpid():
                continue
            try:
                command = (entry / "cmdline").read_bytes()
                if not command or mark not in command + (entry / "environ").read_bytes():
                    continue
            except OSError:
                continue
            line = command.replace(b"\0", b" ").decode(errors="replace")
            if word in line:
                found[int(entry.name)] = line
        return found

    def shells(self, word: str) -> set[int]:
        """Return the processes with a word that none of them has started: what forks, not forks."""
        found = set(self.processes(word))
        parents = {}
        for pid in found:
            try:
                stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[pid] = int(stat[1])
        return {pid for pid, parent in parents.items() if parent not in found}

    def trainers(self, replica: str, job: str = "") -> list[int]:
        """Return the processes of a replica's trainer, of one job or any, by their environment."""
        marks = {f"PRIMUS_REPLICA={replica}".encode()}
        if job:
            marks.add(f"PRIMUS_JOB={job}".encode())
        found = []
        for pid in self.processes():
            try:
                if marks <= set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")):
                    found.append(pid)
            except OSError:
                continue
        return sorted(found)

    def end_all(self) -> None:
        """Kill all that is left of this head."""
        for _ in range(50):
            left = self.processes()
            if not left:
                return
            for pid in left:
                with_kill(pid)
            time.sleep(0.02)


def with_kill(pid: int) -> None:
    """Kill a process that may be gone already."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


@contextmanager
def making() -> Iterator[Head]:
    """Give a head whose daemon is not started yet, in a folder with a short path."""
    with (
        own_ports() as ports,
        tempfile.TemporaryDirectory(prefix="pt-", ignore_cleanup_errors=True) as name,
    ):
        made = Head(Path(name), ports)
        try:
            yield made
        finally:
            made.end_all()
            if made.daemon is not None:
                made.daemon.wait(timeout=WAIT_S)


@pytest.fixture
def head() -> Iterator[Head]:
    """A head of the test's own; nothing of it is left afterwards."""
    with making() as made:
        yield made


@pytest.fixture
def make_head() -> Callable[[], AbstractContextManager[Head]]:
    """What makes one head after the other."""
    return making


@pytest.fixture
def second(head: Head) -> Iterator[Second]:
    """Node b, not started yet; the node of the head itself has two cores."""
    settings = Path(head.environment["PRIMUSD_CONFIG"])
    settings.write_text(settings.read_text() + "cpu = 2\n")
    with own_ports() as ports:
        made = Second(head, ports)
        yield made
        made.end()
