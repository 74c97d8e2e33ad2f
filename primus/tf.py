"""Batches as tensors of TensorFlow (which is imported here and only here)."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from primus._passes import Passes
from primus.batches import AnyBatch, Batch
from primus.errors import FeedError
from primus.feed import Feed
from primus.feed import dataset as open_feed

NUMBERS = "biuf"


def dataset(source: Any = None, **options: Any) -> Any:
    """Return a stream, or files, as a `tf.data.Dataset` of ready batches.

    Each element is a dict of tensors with any number of rows. Each iteration is one epoch of the
    stream, so `model.fit(dataset.map(pair), epochs=n)` takes one in each. Waits for the first
    batch, which tells the types.

    A stage that takes batches ahead (`prefetch`) asks for the next one before this one is used,
    and so says too early that it was. Where that matters open the feed with `manual=True`: each
    element is then a pair of the dict and its receipt, a scalar int64, for `feed.commit` after the
    step.

    Args:
        source: As `primus.dataset` takes it, or a feed that it returned.
        options: As `primus.dataset` takes them, with a name or files only; the layout
            `numpy` or `dense`.

    Raises:
        FeedError: As `primus.dataset`; or a column has no type in TensorFlow; or there is no row.

    Examples:
        >>> import primus.tf
        >>> rows = primus.tf.dataset("data/*.parquet", batch_rows=8192)
        >>> model.fit(rows.map(lambda batch: (batch["x"], batch["label"])), epochs=2)
    """
    if isinstance(source, Feed):
        if options:
            raise FeedError(f"{', '.join(options)}: say it where the feed is opened")
        feed = source
    else:
        feed = open_feed(source, **options)
    passes = Passes(feed)
    first = passes.peek()
    if first is None:
        raise FeedError("the stream has no row, so nothing tells its columns")
    is_manual = feed.is_manual
    columns = {name: _spec(name, column) for name, column in _columns(first).items()}
    receipt = tf.TensorSpec((), tf.int64)

    def elements() -> Iterator[Any]:
        for batch in passes.one():
            values = {name: _value(name, column) for name, column in _columns(batch).items()}
            yield (values, np.int64(batch.receipt)) if is_manual else values

    signature = (columns, receipt) if is_manual else columns
    return tf.data.Dataset.from_generator(elements, output_signature=signature)


def _columns(batch: AnyBatch) -> Batch:
    if not isinstance(batch, Batch):
        raise FeedError("only a feed with layout='numpy' or 'dense' has tensors")
    return batch


def _spec(name: str, column: Any) -> Any:
    if isinstance(column, np.ma.MaskedArray):
        raise FeedError(
            f"column {name} is masked, which TensorFlow has nothing for; use nulls='float' for it"
        )
    kind = column.dtype.kind
    if kind in "mM":
        return tf.TensorSpec((None,), tf.int64)
    if kind in NUMBERS:
        return tf.TensorSpec((None, *column.shape[1:]), tf.as_dtype(column.dtype))
    if (lists := next((one for one in column if isinstance(one, np.ndarray)), None)) is not None:
        of = _spec(name, lists)
        return tf.RaggedTensorSpec((None, None), of.dtype, 1, tf.int64)
    return tf.TensorSpec((None,), tf.string)


def _value(name: str, column: Any) -> Any:
    kind = column.dtype.kind
    if kind in "mM":
        return column.view(np.int64)
    if kind in NUMBERS:
        return column
    missing = next((row for row, one in enumerate(column) if one is None), None)
    if missing is not None:
        raise FeedError(f"column {name} has a null (row {missing} of a batch), a tensor has none")
    if isinstance(column[0], np.ndarray):
        values = np.concatenate(list(column))
        values = values.view(np.int64) if values.dtype.kind in "mM" else values
        return tf.RaggedTensor.from_row_lengths(values, [len(one) for one in column])
    return [_bytes(one) for one in column]


def _bytes(value: str | bytes) -> bytes:
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
