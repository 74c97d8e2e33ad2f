"""What the README says to try does what it says, on the real daemon (its job file: tests/docs)."""

import re
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).parents[2]


def test_hello_greets_from_three_roles(head: Any) -> None:
    head.start()

    head.ctl("submit", str(ROOT / "examples" / "hello" / "hello.yaml"), "--wait")

    said = head.ctl("logs", "hello").stdout
    for replica in ("chief-0", "ps-0", "worker-0"):
        assert re.search(rf"^{replica} +Hello from {replica}, I ", said, re.MULTILINE)


def test_the_loop_runs_on_four_workers_and_no_row_is_lost(head: Any) -> None:
    head.start()
    left = [float(n % 60) for n in range(5_000)] + [None]
    table = pa.table({"dep_delay": left, "arr_delay": left})
    for number in range(3):
        pq.write_table(table, head.folder / f"{number}.parquet")
    program = [sys.executable, str(ROOT / "examples" / "loop" / "train.py")]

    head.ctl("run", "--workers", "4", "--name", "loop", "--data", "*.parquet", "--", *program,
             cwd=head.folder)  # fmt: skip

    assert head.document("data", "loop", "verify")["done"] == 15_003
    said = re.findall(r"^worker-\d +([\d,]+) rows", head.ctl("logs", "loop").stdout, re.MULTILINE)
    assert len(said) == 4
    assert sum(int(rows.replace(",", "")) for rows in said) == 15_003
