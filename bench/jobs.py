"""Time from a submit to a running trainer, and from a submit to the verdict of hello."""

import json
import statistics
import subprocess
import time
from pathlib import Path

from bench.figures import Figure
from bench.head import Head, running

RUNS = 15
HELLO_RUNS = 5
STARTED_MS, HELLO_S = 200, 1.0
HELLO = Path(__file__).parents[1] / "examples" / "hello" / "hello.yaml"


def run() -> list[Figure]:
    """Return both figures, measured on a daemon that has run jobs before."""
    with running() as head:
        for _ in range(2):
            head.ctl("submit", str(HELLO), "--wait")
        started = [_submit_to_running(head, number) for number in range(RUNS)]
        hello = [_hello(head) for _ in range(HELLO_RUNS)]
        bare_ms = statistics.median(_bare(head, number) for number in range(RUNS)) * 1000
        ctl_s = statistics.median(_ctl(head) for _ in range(HELLO_RUNS))
    started_ms = statistics.median(started) * 1000
    hello_s = statistics.median(hello)
    goal_ms, goal_s = f"≤ {STARTED_MS} ms", f"< {HELLO_S:g} s"
    return [
        Figure(
            "submit to trainer running, p50",
            started_ms,
            "ms",
            goal_ms,
            started_ms <= STARTED_MS,
            f"the same shell, started bare: {bare_ms:.0f} ms, so {started_ms / bare_ms:.0f} times",
        ),
        Figure(
            "hello end to end, with primusctl",
            hello_s,
            "s",
            goal_s,
            hello_s < HELLO_S,
            f"primusctl list: {ctl_s:.2f} s, so {hello_s / ctl_s:.1f} times",
        ),
    ]


def _submit_to_running(head: Head, number: int) -> float:
    """Return the seconds from sending a job to the first instruction of its trainer."""
    mark = head.folder.parent / f"started-{number}"
    document = {"name": f"start-{number}", "roles": {"worker": {"command": _tells(mark)}}}
    client = head.client()
    begin = time.time()
    client.call("POST", "/api/v1/namespaces/default/jobs", body=document)
    end = time.monotonic() + 30
    while not mark.exists() and time.monotonic() < end:
        time.sleep(0.005)
    head.ctl("wait", f"start-{number}", "--for", "ended")
    return float(mark.read_text()) - begin


def _tells(mark: Path) -> str:
    """Return a shell line that leaves the time at which it runs."""
    return f"date +%s.%N > {mark}.new && mv {mark}.new {mark}"


def _bare(head: Head, number: int) -> float:
    """Return the seconds from starting a shell to its first instruction."""
    mark = head.folder.parent / f"bare-{number}"
    begin = time.time()
    subprocess.run(["/bin/sh", "-c", _tells(mark)], check=True)
    return float(mark.read_text()) - begin


def _ctl(head: Head) -> float:
    """Return the seconds of a primusctl that asks one question."""
    begin = time.monotonic()
    head.ctl("list")
    return time.monotonic() - begin


def _hello(head: Head) -> float:
    """Return the seconds of `primusctl submit hello.yaml --wait`."""
    begin = time.monotonic()
    head.ctl("submit", str(HELLO), "--wait")
    return time.monotonic() - begin


if __name__ == "__main__":
    print(json.dumps([[one.name, one.value] for one in run()], indent=1))
