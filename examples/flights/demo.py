"""The demo: train on real rows while a worker and the daemon are killed, and prove every row.

`make demo` runs it. It starts a daemon of its own in a temporary folder, submits flights.yaml,
kills worker-2 and then the daemon with SIGKILL, starts the daemon again, and checks at the end
what it says: exit code 0 only when the job succeeded, the model beats a naive guess, every row is
accounted for, nobody but the killed worker started twice, and no process is left.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
KILL_WORKER_AT, KILL_DAEMON_AT = 0.25, 0.55
WAIT_S = 240
LEAVE_S = 5
SAY_EVERY_STEPS = 200


class DemoError(Exception):
    """Something that the demo promises is not true."""


def check(what: str, *, holds: bool) -> None:
    """Stop the demo when something it promises is not true."""
    if not holds:
        raise DemoError(what)


class Demo:
    """A daemon in a folder of its own, and what happened so far."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            **os.environ,
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "PRIMUS_ADDRESS": f"unix:{folder}/run/primusd.sock",
        }
        self.daemon: subprocess.Popen[bytes] | None = None

    def start_daemon(self) -> None:
        """Start primusd and wait until it answers."""
        command = [BIN / "primusd", "--ephemeral", "--state-dir", self.folder]
        command += ["--run-dir", self.folder / "run", "--listen", ""]
        with (self.folder.parent / "primusd.log").open("ab") as log:
            self.daemon = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)
        for _ in wait("the daemon answers"):
            check("the daemon lives", holds=self.daemon.poll() is None)
            if self.ctl("version", allowed=(0, 5)).returncode == 0:
                return

    def ctl(self, *words: str, allowed: tuple[int, ...] = (0,)) -> subprocess.CompletedProcess[str]:
        """Run primusctl and return what it said."""
        done = subprocess.run(
            [BIN / "primusctl", *words],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=WAIT_S,
        )
        said = f"primusctl {' '.join(words)}: {done.stdout}{done.stderr}"
        check(said, holds=done.returncode in allowed)
        return done

    def document(self, *words: str) -> dict[str, Any]:
        """Return the JSON document that primusctl prints."""
        found: dict[str, Any] = json.loads(self.ctl(*words, "-o", "json").stdout)
        return found

    def kill_daemon(self) -> None:
        """Kill the daemon without a word."""
        assert self.daemon is not None
        self.daemon.send_signal(signal.SIGKILL)
        self.daemon.wait()

    def stop_daemon(self) -> None:
        """Stop the daemon in order; an ephemeral one ends its jobs and its node."""
        if self.daemon is not None and self.daemon.poll() is None:
            self.daemon.send_signal(signal.SIGTERM)
            self.daemon.wait(timeout=60)

    def chief_says(self) -> list[str]:
        """Return the lines of the chief."""
        lines = self.ctl("logs", "flights", "--role", "chief").stdout.splitlines()
        return [line.partition(" ")[2].strip() for line in lines]


def wait(what: str) -> Iterator[None]:
    """Go round until the caller leaves, or too long."""
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        yield
        time.sleep(0.1)
    raise DemoError(f"waited {WAIT_S} s in vain: {what}")


def processes_of(folder: Path, replica: str = "") -> list[int]:
    """Return the processes that belong to the daemon's folder; those of a trainer, by its name."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            environment = (entry / "environ").read_bytes().split(b"\0")
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if replica:
            is_it = f"PRIMUS_REPLICA={replica}".encode() in environment
            is_it = is_it and any(str(folder).encode() in one for one in environment)
        else:
            is_it = str(folder).encode() in command
        if is_it:
            found.append(int(entry.name))
    return found


class Bar:
    """Progress: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()
        self._said = -1

    def show(self, done: int, total: int, note: str) -> None:
        """Show how far it is."""
        share = done / total if total > 0 else 0.0
        if self._is_terminal:
            full = int(share * 40)
            print(
                f"\r  [{'#' * full}{'.' * (40 - full)}] {share:5.0%}  {note:<40}",
                end="",
                flush=True,
            )
        elif int(share * 10) > self._said:
            self._said = int(share * 10)
            rows = f"{done:,} of {total:,} rows  " if total else ""
            print(f"  {share:4.0%}  {rows}{note}", flush=True)

    def say(self, text: str) -> None:
        """Print a line beside the bar."""
        print(f"\r{text:<80}" if self._is_terminal else text, flush=True)


class Faults:
    """What was killed, when, and when it was made good."""

    def __init__(self) -> None:
        self.worker_killed_at = 0.0
        self.daemon_killed_at = 0.0
        self.daemon_back_after = 0.0


def positions(demo: Demo) -> tuple[int, int]:
    """Return rows done and rows in all, over all epochs."""
    stream = demo.document("data", "flights", "status")
    stream = stream["items"][0] if "items" in stream else stream
    found = stream["positions"]
    a_pass = int(found.get("expected", 0))
    return stream["epoch"] * a_pass + found["done"], stream["epochs"] * a_pass


def train(demo: Demo, bar: Bar, faults: Faults) -> None:
    """Follow the job to its end, and kill things on the way."""
    for _ in wait("the job ends"):
        job = demo.document("get", "flights")
        phase = job["status"]["phase"]
        if phase in ("Succeeded", "Failed", "Cancelled"):
            return
        if phase != "Running":
            bar.show(0, 0, phase)
            continue
        done, total = positions(demo)
        bar.show(done, total, phase)
        share = done / total if total > 0 else 0
        if share >= KILL_WORKER_AT and not faults.worker_killed_at:
            pids = processes_of(demo.folder, "worker-2")
            check("worker-2 runs", holds=bool(pids))
            faults.worker_killed_at = time.time()
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            bar.say(f"  kill -9 worker-2 (pid {pids[0]}): another will join the same run")
        elif share >= KILL_DAEMON_AT and not faults.daemon_killed_at:
            assert demo.daemon is not None
            bar.say(f"  kill -9 primusd (pid {demo.daemon.pid}): the trainers go on")
            faults.daemon_killed_at = time.time()
            demo.kill_daemon()
            demo.start_daemon()
            faults.daemon_back_after = time.time() - faults.daemon_killed_at
            bar.say(f"  primusd is back after {faults.daemon_back_after:.1f} s")


def report(demo: Demo, faults: Faults) -> None:
    """Say what came of it, and check each claim."""
    job = demo.document("get", "flights")
    verdict = job["status"]["verdict"]
    print(f"\nverdict   {verdict['phase']} ({verdict['reason']}): {verdict['message']}")
    check("the job succeeded", holds=verdict["phase"] == "Succeeded")

    lines = demo.chief_says()
    result = json.loads(next(line for line in lines if line.startswith("result"))[7:])
    error, naive = result["error"], result["naive"]
    print(
        f"model     {error:.2f} minutes off on flights it has not seen; a naive guess: {naive:.2f}"
    )
    check("the model beats a naive guess", holds=error < naive)

    report_faults(demo, lines, faults)
    proof = demo.document("data", "flights", "verify")
    twice = result["rows"] - proof["listed"]
    print(f"rows      {proof['done']:,} of {proof['listed']:,} accounted for; "
          f"{twice:,} came twice, at most {proof['repeatedMax']:,} could have")  # fmt: skip
    whole = proof["ok"] and proof["done"] == proof["listed"] and not proof["gaps"]
    check("every row is accounted for", holds=whole)
    check("no more rows came twice than the ledger says", holds=0 <= twice <= proof["repeatedMax"])


def report_faults(demo: Demo, lines: list[str], faults: Faults) -> None:
    """Say what each fault cost, from the chief's own lines."""
    stamped = [line.split(" ", 1) for line in lines if line[:1].isdigit()]
    joins = [float(at) for at, what in stamped if "worker-2 joins" in what]
    check("worker-2 joined again after its death", holds=len(joins) == 2)
    trained = [float(at) for at, what in stamped if "trained" in what]
    away = (faults.daemon_killed_at, faults.daemon_killed_at + faults.daemon_back_after)
    around = [at for at in trained if away[0] - 5 < at < away[1] + 5]
    pause = max((later - at for at, later in pairwise(around)), default=0.0)
    meanwhile = sum(away[0] < at < away[1] for at in trained) * SAY_EVERY_STEPS
    replaced = joins[1] - faults.worker_killed_at
    print(f"time lost worker-2: {replaced:.1f} s of one worker in four, until another had joined")
    print(
        f"          primusd: none; {meanwhile:,} steps were made in the {away[1] - away[0]:.1f} s "
        f"it was away (longest pause {pause:.1f} s)"
    )
    check("training went on without the daemon", holds=meanwhile > 0)
    # An attempt that found its port in use by a stranger never started: another daemon may be here.
    starts = {
        one["name"]: sum(
            attempt["outcome"]["cause"] != "ExecutorFailed" for attempt in one["attempts"]
        )
        for one in demo.document("get", "flights", "--replicas")["items"]
    }
    expected = {name: 2 if name == "worker-2" else 1 for name in starts}
    check(f"only worker-2 started twice: {starts}", holds=starts == expected)


@contextmanager
def folder() -> Iterator[Path]:
    """Give a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="primus-demo-") as name:
        yield Path(name) / "state"


def main() -> int:
    """Run the demo and return its exit code."""
    data = HERE / "data"
    if not (data / "held-out.parquet").exists():
        subprocess.run([sys.executable, HERE / "make_data.py", data], check=True)
    with folder() as state:
        state.mkdir()
        demo, bar, faults = Demo(state), Bar(), Faults()
        try:
            demo.start_daemon()
            print(demo.ctl("submit", str(HERE / "flights.yaml")).stdout.splitlines()[0])
            train(demo, bar, faults)
            report(demo, faults)
        except DemoError as error:
            print(f"\nnot as promised: {error}", file=sys.stderr)
            print((state.parent / "primusd.log").read_text()[-4000:], file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("\ninterrupted; the daemon cancels its job and ends", file=sys.stderr)
            return 130
        finally:
            demo.stop_daemon()
        left = processes_of(state)
        end = time.monotonic() + LEAVE_S
        while left and time.monotonic() < end:  # what forks executors ends just after its node
            time.sleep(0.05)
            left = processes_of(state)
        if left or state.exists():
            print(f"not as promised: left behind: {left or state}", file=sys.stderr)
            return 1
    print_next()
    return 0


def print_next() -> None:
    """Name three commands to try, as they can be typed here."""
    found = shutil.which("primusd")
    is_at_hand = found is not None and Path(found).resolve() == (BIN / "primusd").resolve()
    where = "" if is_at_hand else f"{os.path.relpath(BIN)}/"
    print("\nnothing is left behind. Try next, the first in a terminal of its own:")
    print(f"  {where}primusd")
    print(f"  {where}primusctl submit examples/hello/hello.yaml --wait")
    print(f"  {where}primusctl submit examples/flights/flights.yaml --wait  # this job, unharmed")


if __name__ == "__main__":
    sys.exit(main())
