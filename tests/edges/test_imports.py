"""What the daemon, a node and an executor load at their start, and what that leaves behind."""

import subprocess
import sys
from pathlib import Path

import pytest

STARTED = """
import gc, os, sys
os.environ["SSL_CERT_FILE"] = "/etc/of-a-person.pem"
before = dict(os.environ)
from primusd.imports import quick_imports
with quick_imports():
    import {module}
print({{"numpy", "prometheus_client", "pyarrow", "rich"}} & set(sys.modules))
print(gc.isenabled(), os.environ == before)
import rich
"""
AUTHORITIES = """
import ssl
from primusd.imports import quick_imports
with quick_imports():
    from primusd.executor import connection
counts = ssl.create_default_context().cert_store_stats()
print(connection.trusting(None).cert_store_stats() == counts)
"""


def run(script: str) -> list[str]:
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path.cwd())
    return done.stdout.splitlines()


@pytest.mark.parametrize("module", ["daemon", "node.main", "executor.main"])
def test_a_start_loads_nothing_heavy_and_leaves_no_trace(module: str) -> None:
    loaded, left = run(STARTED.format(module=f"primusd.{module}"))

    assert loaded == "set()"
    assert left == "True True"


def test_a_head_is_judged_by_the_authorities_of_its_host_all_the_same() -> None:
    assert run(AUTHORITIES) == ["True"]
