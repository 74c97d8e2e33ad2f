"""The first command of the README keeps what it promises: it checks itself."""

import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "examples" / "flights" / "demo.py"


@pytest.mark.timeout(400)
def test_demo_trains_through_two_deaths_and_leaves_nothing() -> None:
    done = subprocess.run(
        [sys.executable, DEMO], capture_output=True, text=True, timeout=380, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    for promise in ("verdict   Succeeded", "time lost", "accounted for", "came twice", "Try next"):
        assert promise in done.stdout
