"""Batches as torch tensors, for any loop and any loader (torch is imported here and only here)."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from primus._passes import Passes
from primus.batches import AnyBatch, Batch, Span
from primus.errors import FeedError
from primus.feed import Feed
from primus.feed import dataset as open_feed


class TensorBatch(dict[str, Any]):
    """Rows as tensors by column name, or as Python lists (see `tensors`).

    Attributes:
        rows: How many rows it has.
        epoch: The pass over the data that they belong to, from 0.
        receipt: What `feed.commit` takes.
        spans: Where the frames that it was cut from come from.
        is_pad: It repeats the one before, while other trainers still have some (`tail: pad`).
    """

    rows: int
    epoch: int
    receipt: int
    spans: tuple[Span, ...]
    is_pad: bool


class Dataset(IterableDataset[TensorBatch]):
    """A stream as a torch dataset of ready batches.

    Each iteration is one epoch of the stream; at its end there is nothing more. Use it as it is, or
    in `DataLoader(dataset, batch_size=None)`: the executor cuts the batches and reads ahead, so the
    loader has no workers.

    Attributes:
        feed: What it reads; `feed.commit` where it is `manual`.
    """

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self._passes = Passes(feed)

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of the stream, as `Feed.state_dict`."""
        return self.feed.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to where the stream was, as `Feed.load_state_dict`."""
        self.feed.load_state_dict(state)

    def __iter__(self) -> Iterator[TensorBatch]:
        if get_worker_info() is not None:
            raise FeedError(
                "a stream is read by the process that opened it, and the executor reads ahead in "
                "threads of its own: use DataLoader(dataset, batch_size=None, num_workers=0)"
            )
        return map(tensors, self._passes.one())


def dataset(source: Any = None, **options: Any) -> Dataset:
    """Return a stream, or files, as a torch dataset of ready batches.

    Args:
        source: As `primus.dataset` takes it, or a feed that it returned.
        options: As `primus.dataset` takes them, with a name or files only; layout `dense` makes
            matrices, the others but `numpy` have no tensors.

    Raises:
        FeedError: As `primus.dataset`, or the layout has no tensors.

    Examples:
        >>> import primus.torch
        >>> from torch.utils.data import DataLoader
        >>> rows = primus.torch.dataset("data/*.parquet", batch_rows=1024)
        >>> for batch in DataLoader(rows, batch_size=None):
        ...     step(batch["user"], batch["label"])
    """
    if isinstance(source, Feed):
        if options:
            raise FeedError(f"{', '.join(options)}: say it where the feed is opened")
        return Dataset(source)
    layout = options.get("layout", "numpy")
    if layout not in ("numpy", "dense"):
        raise FeedError(f"layout={layout!r} has no tensors; use 'numpy' or 'dense'")
    return Dataset(open_feed(source, **options))


def tensors(batch: AnyBatch) -> TensorBatch:
    """Return a batch's columns as tensors, on the memory of the batch where that is possible.

    Dates and times become int64 in their unit. Strings and bytes become a Python list, lists a
    Python list of tensors.

    Raises:
        FeedError: torch has no type for a column, or the batch has no numpy columns.
    """
    if not isinstance(batch, Batch):
        raise FeedError("only a feed with layout='numpy' or 'dense' has tensors")
    out = TensorBatch()
    for name, column in batch.items():
        out[name] = _tensor(name, column)
    out.rows, out.epoch = batch.rows, batch.epoch
    out.receipt, out.spans, out.is_pad = batch.receipt, batch.spans, batch.is_pad
    return out


def _tensor(name: str, column: Any) -> Any:
    if isinstance(column, np.ma.MaskedArray):
        raise FeedError(
            f"column {name} is masked, which torch has nothing for; use nulls='float' for it"
        )
    kind = column.dtype.kind
    if kind == "O":
        return [_tensor(name, one) if isinstance(one, np.ndarray) else one for one in column]
    try:
        return torch.from_numpy(column.view(np.int64) if kind in "mM" else column)
    except TypeError as error:
        raise FeedError(f"column {name} is {column.dtype}: {error}") from error
