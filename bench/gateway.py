"""Rows over HTTP: what a client gets from `primusd.gateway`, in each form, beside bare aiohttp."""

import json
import socket
import subprocess
import sys
from pathlib import Path

from bench import click_rows, feeding
from bench.figures import Figure
from primusd.executor.protocol import FeedPlan

BATCH_ROWS = 8192
FORMS = {"arrow": 8, "ndjson": 1}
"""How many files each form is measured with: one JSON object a row takes long."""
GOAL_RATIO = 0.25
GOAL_ROWS_PER_S = {"arrow": 1e6, "ndjson": 1e5, "lines": 1e6}

CLIENT = """
import http.client, json, sys, time
port, path = int(sys.argv[1]), sys.argv[2]
end = time.monotonic() + 60
while True:
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        link.request("GET", path)
        answer = link.getresponse()
        break
    except ConnectionError:
        if time.monotonic() > end:
            raise
        time.sleep(0.05)
assert answer.status == 200, answer.status
count, buffer = len(answer.read(1)), bytearray(1 << 20)
began = time.perf_counter()
while got := answer.readinto(buffer):
    count += got
print(json.dumps([count, time.perf_counter() - began]))
"""

BARE = """
import sys
from aiohttp import web

async def rows(request):
    answer = web.StreamResponse()
    await answer.prepare(request)
    part = b"x" * (1 << 20)
    for _ in range(int(sys.argv[2])):
        await answer.write(part)
    await answer.write_eof()
    return answer

app = web.Application()
app.router.add_get("/rows", rows)
web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None)
"""
BARE_MIB = 512


def run(*, rows: int = click_rows.ROWS, lines: int = click_rows.LINES) -> list[Figure]:
    """Measure click rows as Arrow and as JSON, and text as it stands."""
    clicks = click_rows.write_parquet(feeding.DATA / f"clicks-{rows}", rows=rows)
    texts = click_rows.write_lines(feeding.DATA / f"lines-{lines}", lines=lines)
    bare = _bare()
    figures = [_figure(form, clicks[:count], rows * count, bare) for form, count in FORMS.items()]
    count = sum(path.read_bytes().count(b"\n") for path in texts)
    return [*figures, _figure("lines", texts, count, bare)]


def _figure(form: str, paths: list[Path], rows: int, bare: float) -> Figure:
    byte_count, seconds = _through_gateway(form, paths)
    rate, goal = rows / seconds, GOAL_ROWS_PER_S[form]
    bytes_per_s = byte_count / seconds
    return Figure(
        f"over HTTP, {form}",
        rate / 1e6,
        "M rows/s",
        f"≥ {goal / 1e6:g} M rows/s",
        rate >= goal,
        f"{bytes_per_s / 1e9:.2f} GB/s; aiohttp, no rows: {bare / 1e9:.2f} GB/s, "
        f"so {bytes_per_s / bare:.0%}",
    )


def _through_gateway(form: str, paths: list[Path]) -> list[float]:
    """Return the bytes that a client got, and its seconds from the first one on."""
    port = _free_port()
    plan = FeedPlan("clicks", "socket", "arrow", {}, 0)
    gateway = ["env", "PRIMUS_STREAMS=clicks", f"PRIMUS_PORT={port}", sys.executable]
    gateway += ["-m", "primusd.gateway", f"--batch-rows={BATCH_ROWS}"]
    path = f"/clicks/rows?follow=1&form={form}"
    with subprocess.Popen(
        feeding.python(CLIENT, str(port), path), stdout=subprocess.PIPE, text=True
    ) as client:
        units = feeding.units_of(paths, "text" if form == "lines" else "")
        feeding.feed(units, plan, gateway)
        out, _ = client.communicate(timeout=60)
    found: list[float] = json.loads(out)
    return found


def _bare() -> float:
    """Return the bytes a second that the same client gets of a server that makes nothing."""
    port = _free_port()
    with subprocess.Popen(feeding.python(BARE, str(port), str(BARE_MIB))) as server:
        try:
            byte_count, seconds = feeding.said(feeding.python(CLIENT, str(port), "/rows"))
        finally:
            server.terminate()
    return byte_count / seconds


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
