"""Batches as data frames, and what is said where there is no pandas."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.real.test_frameworks import BUILD_WITHIN_S, python

pytestmark = pytest.mark.timeout(BUILD_WITHIN_S + 60)
ROOT = Path(__file__).parents[2]
MADE = """
import sys
import numpy as np, pyarrow as pa
from primus.batches import ArrowBatch, Batch

assert "pandas" not in sys.modules
"""
NUMPY = """
import pandas as pd

batch = Batch()
batch["price"] = np.array([1.5, np.nan])
batch["at"] = np.array(["1970-01-02", "NaT"], "M8[ms]")
batch["day"] = np.array(["1970-01-02", "NaT"], "M8[D]")
batch["pair"] = np.array([[1, 2], [3, 4]], np.int32)
batch["name"] = np.array(["a", None], object)
batch["raw"] = np.array([b"\\x00", None], object)
batch["user"] = np.ma.MaskedArray(np.array([2**60 + 1, 0]), [False, True])
batch["is_new"] = np.ma.MaskedArray(np.array([True, False]), False)
for values in batch.values():
    values.flags.writeable = False

frame = batch.to_pandas()

assert list(frame.columns) == list(batch)
assert frame["price"][0] == 1.5 and frame["price"].isna().tolist() == [False, True]
assert frame["at"][0] == frame["day"][0] == pd.Timestamp("1970-01-02")
assert [one.tolist() for one in frame["pair"]] == [[1, 2], [3, 4]]
assert frame["name"][0] == "a" and frame["name"].isna()[1]
assert frame["raw"].tolist() == [b"\\x00", None]
# As a float it would be another number.
assert str(frame["user"].dtype) == "Int64" and frame["user"][0] == 2**60 + 1
assert str(frame["is_new"].dtype) == "boolean"
frame.loc[0, "price"] = 7.0
assert batch["price"][0] == 1.5, "a copy"
"""
ARROW = """
rows = pa.RecordBatch.from_pydict({"n": [1, 2], "name": ["a", None]})

frame = ArrowBatch(rows).to_pandas()

assert frame["n"].tolist() == [1, 2]
assert frame["name"].isna().tolist() == [False, True]
"""
MISSING = """
from primus import FeedError

batches = (Batch(n=np.array([1])), ArrowBatch(pa.RecordBatch.from_pydict({"n": [1]})))
sys.modules["pandas"] = None
for batch in batches:
    try:
        batch.to_pandas()
    except FeedError as error:
        print(error)
"""


def run(interpreter: str, script: str) -> str:
    done = subprocess.run(
        [interpreter, "-c", MADE + script],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("script", [NUMPY, ARROW], ids=["numpy", "arrow"])
def test_a_batch_is_a_data_frame_with_the_same_values(script: str) -> None:
    run(python("pandas"), script)


def test_a_missing_pandas_is_told() -> None:
    said = run(sys.executable, MISSING).splitlines()

    assert len(said) == 2
    for line in said:
        assert line.startswith("to_pandas() needs pandas, which this Python cannot load")
        assert "pip install pandas" in line
