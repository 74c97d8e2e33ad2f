"""Columns of numbers side by side: the matrices of layout `dense`."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import primus
from primusd.datafeed.delivery.columns import ColumnError, encode_rows, numpy_plan
from primusd.datafeed.delivery.dense import Stacker
from primusd.datafeed.formats.base import RowBlock

BATCH = pa.record_batch(
    {
        "label": pa.array([0, 1, 0], pa.int8()),
        "a": pa.array([1.0, None, 3.0], pa.float32()),
        "b": pa.array([4.0, 5.0, 6.0], pa.float32()),
        "id": pa.array([7, 8, None], pa.int64()),
        "name": ["x", "y", "z"],
    }
)


def stacked(batch: pa.RecordBatch, **stacks: list[str]) -> dict[str, list[Any]]:
    return Stacker(batch.schema, stacks).stack(batch).to_pydict()


def test_columns_of_a_type_become_a_matrix_that_is_named_like_it() -> None:
    found = stacked(BATCH.slice(0, 2))

    assert list(found) == ["int8", "float32", "int64", "name"]
    assert found["int8"] == [[0], [1]]
    assert found["float32"][0] == [1.0, 4.0]
    assert np.isnan(found["float32"][1][0]), "a null of a float is NaN"
    assert found["name"] == ["x", "y"]


def test_stacks_are_named_and_take_patterns_in_the_order_they_stand() -> None:
    found = stacked(BATCH.slice(2), x=["b", "[ab]"], y=["label"])

    assert found == {"x": [[6.0, 3.0]], "y": [[0]], "id": [None], "name": ["z"]}


def test_no_rows_keep_their_form() -> None:
    schema = Stacker(BATCH.schema, {"x": ["a", "b"]}).stack(BATCH.slice(0, 0)).schema

    assert schema.field("x").type == pa.list_(pa.float32(), 2)


@pytest.mark.parametrize(
    ("stacks", "sentence"),
    [
        ({"x": ["c*"]}, "stack 'x' names column 'c*', which is not there; there are label, a, b"),
        ({"x": ["a"], "y": ["?"]}, "column a is in stack 'x' and in 'y'"),
        ({"x": ["a", "name"]}, "column name of stack 'x' is string; a matrix is of numbers only"),
        ({"x": ["a", "id"]}, "stack 'x' has columns of several types (a float, id int64)"),
        ({"name": ["a"]}, "stack 'name' has the name of a column that is not in it"),
        ({"x": ["id"]}, "column id has nulls, for which a matrix of int64 has no place"),
    ],
)
def test_what_makes_no_matrix_is_refused_by_name(
    stacks: dict[str, list[str]], sentence: str
) -> None:
    with pytest.raises(ColumnError) as refused:
        stacked(BATCH, **stacks)

    assert sentence in refused.value.message


def test_stacks_of_another_layout_are_refused() -> None:
    with pytest.raises(primus.FeedError, match="stacks is for layout='dense'"):
        primus.dataset("./rows.parquet", stacks={"x": ["a"]})


def test_a_part_of_lists_is_encoded_as_its_own_numbers() -> None:
    kind = pa.list_(pa.int32(), 3)
    rows = pa.RecordBatch.from_pydict({"x": pa.array([[n, n, n] for n in range(9)], kind)})

    buffers, _ = encode_rows(rows.slice(4, 2), numpy_plan(rows.schema))

    assert np.frombuffer(memoryview(buffers[-2]), np.int32).tolist() == [4, 4, 4, 5, 5, 5]


def test_parts_of_a_block_take_what_their_rows_take() -> None:
    even = pa.RecordBatch.from_pydict({"x": pa.array(range(1_000), pa.int64())})
    uneven = pa.RecordBatch.from_pydict({"x": ["a"] * 999 + ["long" * 1_000]})

    for batch in (even, uneven):
        block = RowBlock(batch, 0, 1_000)
        first, last = block.part(0, 990), block.part(990, 10)
        assert first.byte_count == batch.slice(0, 990).nbytes
        assert last.part(1, 9).byte_count == batch.slice(991, 9).nbytes
