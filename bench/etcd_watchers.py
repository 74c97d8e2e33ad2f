"""1,000 watchers of one daemon on etcd, beside 1,000 watches of etcd itself.

From when a change is asked for until a watcher has it: through the daemon that is a request, a
step, a transaction in etcd, a document and 1,000 lines of HTTP; in etcd a put and 1,000 events.
Clients of both are one process of Python each, so that what a client spends is in both.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.figures import Figure, unmeasured
from bench.head import BIN
from tests.services.etcd import PLAIN, Etcd, running_etcd
from tests.services.etcd_programs import folder
from tests.services.processes import free_ports

WATCHERS = 1_000
CHANGES = 20
EVERY_S = 0.4
RATIO_MAX = 3.0
WAIT_S = 120.0
JOB = """
apiVersion: primus/v1
name: waits
roles: {worker: {replicas: 1, command: x, resources: {cpu: 9000}}}
"""

DAEMON_CLIENT = """
import asyncio, json, sys, time
import aiohttp

async def main(url, token, watchers, changes, every_s):
    headers = {"Authorization": "Bearer " + token}
    delays, asked, ready = [], {}, asyncio.Semaphore(0)
    timeout = aiohttp.ClientTimeout(total=None)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(headers=headers, connector=connector, timeout=timeout) as http:
        async def watch(number):
            # A caller may ask 200 times a second.
            await asyncio.sleep(number / 150)
            async with http.get(url + "/jobs?watch=1&coalesce=0") as answer:
                assert answer.status == 200, await answer.text()
                async for line in answer.content:
                    at = time.perf_counter()
                    told = json.loads(line)
                    if told["type"] == "ADDED":
                        ready.release()
                    elif told["type"] == "MODIFIED":
                        sent = asked.get(told["object"]["spec"]["priority"])
                        if sent:
                            delays.append(at - sent)
        tasks = [asyncio.create_task(watch(number)) for number in range(watchers)]
        for _ in tasks:
            await ready.acquire()
        await asyncio.sleep(1)
        for number in range(1, changes + 1):
            asked[number] = time.perf_counter()
            body = {"spec": {"priority": number}}
            async with http.patch(url + "/namespaces/default/jobs/waits", json=body) as answer:
                assert answer.status == 200, await answer.text()
            await asyncio.sleep(every_s)
        await asyncio.sleep(1)
        print(json.dumps(sorted(delays)))
        for task in tasks:
            task.cancel()

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])))
"""

ETCD_CLIENT = """
import asyncio, json, sys, time

from primusd.state.etcd.client import EtcdClient, EtcdSettings
from primusd.state.etcd.messages import messages
from primusd.state.etcd.requests import put, transaction
from primusd.state.etcd.watching import watch

async def main(endpoint, watchers, changes, every_s):
    client = EtcdClient(EtcdSettings((endpoint,), try_ms=5000))
    asked, delays = {}, []
    at = await client.call("KV", "Range", messages()["RangeRequest"](key=b"k"), within_s=10)

    def heard(events):
        now = time.perf_counter()
        delays.extend(now - asked[int(one.kv.value)] for one in events)
        return False

    first = at.header.revision + 1
    tasks = [asyncio.create_task(watch(client, b"k", b"", first, heard)) for _ in range(watchers)]
    await asyncio.sleep(3)
    for number in range(1, changes + 1):
        asked[number] = time.perf_counter()
        await client.call("KV", "Txn", transaction((), (put(b"k", b"%d" % number),)), within_s=10)
        await asyncio.sleep(every_s)
    await asyncio.sleep(1)
    print(json.dumps(sorted(delays)))
    for task in tasks:
        task.cancel()

asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
"""


def run(*, watchers: int = WATCHERS, changes: int = CHANGES) -> list[Figure]:
    """Return the 99th percentile of both."""
    if not (folder(PLAIN) / ".ok").exists():
        reason = "no etcd: python -m tests.services.etcd_programs --all gets one"
        return [unmeasured(f"{watchers:,} watchers of a daemon on etcd", reason)]
    with tempfile.TemporaryDirectory(prefix="pb-") as name, running_etcd(Path(name)) as etcd:
        theirs = _said(ETCD_CLIENT, etcd.endpoints[0], watchers, changes, EVERY_S)
        ours = _through_daemon(etcd, Path(name), watchers, changes)
    assert len(ours) == len(theirs) == watchers * changes, (len(ours), len(theirs))
    half, most = _percentiles(ours)
    raw_half, raw_most = _percentiles(theirs)
    told = (
        f"watches of etcd itself: {raw_most:.0f} ms, p50 {raw_half:.0f} ms; ours p50 {half:.0f} ms"
    )
    name = f"{watchers:,} watchers of a daemon on etcd, p99"
    goal = f"≤ {RATIO_MAX:g} times of etcd"
    return [Figure(name, most, "ms", goal, most <= RATIO_MAX * raw_most, told)]


def _percentiles(delays_s: list[float]) -> tuple[float, float]:
    """Return the 50th and the 99th, in milliseconds."""
    return tuple(1e3 * delays_s[int(len(delays_s) * part)] for part in (0.5, 0.99))  # type: ignore[return-value] # two


def _said(program: str, *words: object) -> list[float]:
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return list(map(float, json.loads(done.stdout.splitlines()[-1])))


def _through_daemon(etcd: Etcd, place: Path, watchers: int, changes: int) -> list[float]:
    (port,) = free_ports(1)
    environment = {key: one for key, one in os.environ.items() if not key.startswith("PRIMUS")}
    environment["PRIMUS_ADDRESS"] = f"unix:{place / 'run' / 'primusd.sock'}"
    words = (BIN / "primusd", "--state-dir", place / "state", "--run-dir", place / "run")
    words += ("--listen", f"127.0.0.1:{port}", "--store", etcd.url, "--no-node")
    with subprocess.Popen(
        words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as daemon:
        try:
            _submit(environment)
            token = (place / "run" / "token").read_text(encoding="utf-8").strip()
            url = f"http://127.0.0.1:{port}/api/v1"
            return _said(DAEMON_CLIENT, url, token, watchers, changes, EVERY_S)
        finally:
            daemon.terminate()
            daemon.wait()


def _submit(environment: dict[str, str]) -> None:
    """Submit a job that waits for ever, as soon as the daemon leads."""
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        done = subprocess.run(
            [BIN / "primusctl", "submit", "-"], env=environment, input=JOB, text=True,
            capture_output=True, check=False,
        )  # fmt: skip
        if done.returncode == 0:
            return
        time.sleep(0.2)
    raise AssertionError(done.stderr)
