"""Runs every benchmark, prints each figure with its goal, and keeps them in docs/benchmarks.md.

    python -m bench [NAME...]

A goal that is missed fails nothing; a benchmark that cannot run does, and the others run all the
same.
"""

import importlib
import os
import platform
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import psutil

from bench.figures import Figure, cells

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
HEADER = ("figure", "value", "goal", "", "in the same run")
# What is measured, and the module whose `run()` measures it.
MODULES = {
    "jobs": "bench.jobs",
    "replicas": "bench.replicas",
    "stdin": "bench.feed_stdin",
    "dataset": "bench.feed_dataset",
    "torch": "bench.feed_torch",
    "tensorflow": "bench.feed_tensorflow",
    "resume": "bench.resume",
    "http": "bench.gateway",
    "year": "bench.year",
    "memory": "bench.memory",
    "files": "bench.small_files",
    "balance": "bench.balance",
    "leases": "bench.leases",
    "open": "bench.feed_scale",
    "wire": "bench.lease_wire",
    "core": "bench.core",
    "scale": "bench.core_scale",
    "simulator": "bench.simulator",
    "queueing": "bench.queueing",
    "etcd": "bench.etcd_load",
    "watchers": "bench.etcd_watchers",
    "remote": "bench.remote_files",
    "idle": "bench.idle",
    "failover": "bench.failover",
    "ctl": "bench.ctl",
}


def main(names: Sequence[str]) -> int:
    """Run the benchmarks that are named, all when none are; return the exit code."""
    unknown = [name for name in names if name not in MODULES]
    if unknown:
        print(f"no benchmark {unknown[0]!r}; there are {' '.join(MODULES)}", file=sys.stderr)
        return 2
    found: dict[str, list[Figure]] = {}
    broken: dict[str, str] = {}
    for name in names or MODULES:
        began = time.monotonic()
        try:
            figures = importlib.import_module(MODULES[name]).run()
        except Exception:  # noqa: BLE001 - one that cannot run is told, the others run
            broken[name] = traceback.format_exc()
            print(f"{name}: cannot run\n{broken[name]}", flush=True)
            continue
        found[name] = figures
        _print(figures, time.monotonic() - began)
    if not names:
        PAGE.write_text(page(found, broken), encoding="utf-8")
        print(
            f"kept in {PAGE.relative_to(Path.cwd()) if PAGE.is_relative_to(Path.cwd()) else PAGE}"
        )
    return 1 if broken else 0


def _print(figures: Sequence[Figure], took_s: float) -> None:
    for figure in figures:
        name, value, goal, verdict, rival = cells(figure)
        print(f"{name:<44} {value:>16}  {goal:<12} {verdict:<7} {rival}", flush=True)
    print(f"{'':<44} ({took_s:.0f} s)", flush=True)


def page(found: Mapping[str, Sequence[Figure]], broken: Mapping[str, str]) -> str:
    """Return the figures as a page of the documentation."""
    lines = [
        "# Benchmarks",
        "",
        "Made by `make bench`. Ratios count more than figures: each rival or limit was measured in",
        "the same run, on the same machine. A goal that is missed fails nothing.",
        "",
        *machine(),
        "",
        f"| {' | '.join(HEADER)} |",
        f"|{' --- |' * len(HEADER)}",
    ]
    for figures in found.values():
        lines += [_row(figure) for figure in figures]
    lines += [f"| {name} | could not run | | | |" for name in broken]
    return "\n".join(lines) + "\n"


def _row(figure: Figure) -> str:
    escaped = (cell.replace("|", "\\|") for cell in cells(figure))
    return f"| {' | '.join(escaped)} |"


def machine() -> list[str]:
    """Return what the figures come from."""
    memory_gib = psutil.virtual_memory().total / (1 << 30)
    load = os.getloadavg()[0]
    return [
        f"- machine: {_cpu()}, {os.cpu_count()} cores, {memory_gib:.0f} GiB, "
        f"load {load:.1f} at the end",
        f"- system: {platform.system()} {platform.release()}, Python {platform.python_version()}",
        f"- commit: {_commit()}, {datetime.now(UTC):%Y-%m-%d}",
    ]


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=PAGE.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
