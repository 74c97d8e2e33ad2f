"""`primus.dataset`: the rows of a stream, batch after batch, for any loop."""

import atexit
import contextlib
import copy
import os
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, cast

from primus.errors import FeedError

if TYPE_CHECKING:  # numpy is loaded when the first stream is opened.
    from primus.batches import AnyBatch, ArrowBatch, Batch, Frame

Layout = Literal["numpy", "arrow", "dense", "lines", "raw"]
LAYOUTS = ("numpy", "arrow", "dense", "lines", "raw")


class Wanted(NamedTuple):
    """How a trainer wants its rows; as the arguments of `dataset`."""

    layout: Layout
    batch_rows: int
    columns: tuple[str, ...]
    nulls: str | Mapping[str, str]
    stacks: Mapping[str, Sequence[str]]


class FrameSource(Protocol):
    """Where frames come from: the executor, or files that this process reads.

    Attributes:
        stream: Its name in the job file; "" it is none of a job.
        is_exactly_once: Every trainer of the group marks the same steps.
    """

    stream: str
    is_exactly_once: bool

    def next_frame(self) -> "Frame | None":
        """Return the next frame; None: no more for now, what is there must do for a batch.

        Raises:
            EOFError: The stream is finished.
        """
        ...

    def tail(self) -> int:
        """Return what follows behind the last rows of an epoch, once.

        0 nothing; -1 what fills no batch is dropped; n: so many batches, the last one again where
        no rows are left.
        """
        ...

    def commit(self, receipt: int) -> None:
        """Note that all rows up to a receipt were used."""
        ...

    def hand(self, receipt: int) -> None:
        """Note that rows up to a receipt are about to be handed out."""
        ...

    def mark(self, step: int) -> None:
        """Note that the trainer is at a step."""
        ...

    def kept(self, step: int) -> str:
        """Return the name under which the positions of a marked step are kept."""
        ...

    def go_to(self, name: str) -> None:
        """Begin where positions were kept under a name."""
        ...

    def close(self) -> None:
        """Let go of the stream."""
        ...


class Feed:
    """An iterator of batches; one thread uses it.

    Asking for the next batch says that the one before was used. With `manual` nothing is said
    until `commit`. What was not said to be used comes again after a failure, to this trainer or
    another.

    Attributes:
        is_manual: Nothing counts as used until `commit`.
    """

    def __init__(
        self, source: FrameSource, *, batch_rows: int, layout: Layout, manual: bool
    ) -> None:
        from primus.batches import Batcher  # noqa: PLC0415 numpy is loaded when it is needed

        self._source = source
        self._batcher = Batcher(batch_rows, layout=layout)
        self.is_manual = manual
        self._receipt = 0
        self._batches = 0
        self._marked: tuple[int, int] = (-1, 0)
        self._is_finished = False
        self._last: AnyBatch | None = None
        self._pads = 0
        self._pid = os.getpid()
        self._in_use = threading.Lock()
        _open_feeds.add(self)

    def __iter__(self) -> Iterator["Batch | ArrowBatch"]:
        return self

    def __next__(self) -> "Batch | ArrowBatch":
        if self._pid != os.getpid():
            raise FeedError(
                "a stream is read by the process that opened it, not by its children; with a "
                "torch DataLoader use num_workers=0, the executor reads ahead for you"
            )
        if not self._in_use.acquire(blocking=False):
            raise FeedError(
                "a stream is read by one thread at a time, since asking for the next batch says "
                "that the one before was used; let one thread read and hand on"
            )
        try:
            if self._receipt and not self.is_manual:
                self._source.commit(self._receipt)
            batch = self._next_batch()
            self._source.hand(batch.receipt)
            self._receipt = batch.receipt
            self._last = batch
            self._batches += 1
        finally:
            self._in_use.release()
        # Who asked for rows as bytes knows; `batch["user"]` shall be right for all others.
        return cast("Batch | ArrowBatch", batch)

    def _next_batch(self) -> "AnyBatch":
        while True:
            batch = self._batcher.next_full()
            if batch is not None:
                return batch
            if self._pads:
                self._pads -= 1
                return self._again()
            if self._is_finished:
                break
            try:
                frame = self._source.next_frame()
            except EOFError:
                self._is_finished = True
                frame = None
            if frame is not None:
                self._batcher.add(frame)
            elif (batch := self._rest()) is not None:
                return batch
        self._last = None
        self.close()
        raise StopIteration

    def _rest(self) -> "AnyBatch | None":
        """Return a batch of the rows that are left, None when there are none or they are dropped.

        Where batches are repeated it is the first of those that were ordered.
        """
        tail = self._source.tail()
        if tail < 0:
            self._batcher.drop()
        batch = self._batcher.rest()
        self._pads = max(0, tail - (batch is not None))
        return batch

    def _again(self) -> "AnyBatch":
        if self._last is None:
            raise FeedError(
                "other trainers have batches and this one was given no row, so it has none to "
                "repeat (tail: pad): there are fewer rows, or files that cannot be shared, than "
                "trainers"
            )
        batch = copy.copy(self._last)
        batch.is_pad = True
        return batch

    def commit(self, receipt: int) -> None:
        """Say that all batches up to the one with this receipt were used.

        Args:
            receipt: A batch's `receipt`; lower ones than before change nothing.
        """
        self._source.commit(receipt)

    @property
    def stream(self) -> str:
        """Name of the stream in the job file; "" these are files."""
        return self._source.stream

    @property
    def is_exactly_once(self) -> bool:
        """Whether every trainer of the group has to mark the same steps."""
        return self._source.is_exactly_once

    @property
    def is_own(self) -> bool:
        """Whether this process opened it, and read something of it."""
        return self._pid == os.getpid()

    def mark(self, step: int | None = None) -> int:
        """Say that this trainer is at a step: the batches that it was given so far are used.

        With `delivery: exactlyOnce` every trainer that reads the stream marks the same steps; a
        savepoint is sealed once the last one has. It never waits. With `manual` only what was
        committed counts.

        Args:
            step: Of training, each time a higher one; None the number of batches so far.

        Raises:
            FeedError: The step was marked already, at another batch, or a later one was.
        """
        step = self._batches if step is None else step
        if self._receipt and not self.is_manual:
            self._source.commit(self._receipt)
        before, batches = self._marked
        if step < before or (step == before and batches != self._batches):
            raise FeedError(
                f"step {step} cannot be marked after {batches} batches at step {before}: steps grow"
            )
        if step > before:
            self._marked = (step, self._batches)
            self._source.mark(step)
        return step

    def savepoint(self, step: int) -> str:
        """Return the name of the savepoint of a step that was marked, once it is sealed.

        Raises:
            FeedError: There will be none: some trainer of the group did not mark it.
            StoppingError: This trainer is being stopped, and its time is over.
        """
        return self._source.kept(step)

    def state_dict(self, step: int | None = None) -> dict[str, object]:
        """Return what a checkpoint keeps of this stream: the name of a savepoint, some bytes.

        All trainers that read it ask at the same step; each gets the same, whatever their number.

        Args:
            step: As of `mark`.

        Raises:
            FeedError: There will be no savepoint.
        """
        step = self.mark(step)
        return {
            "stream": self.stream,
            "savepoint": self.savepoint(step),
            "step": step,
            "batches": self._batches,
            "job": os.environ.get("PRIMUS_JOB_UID", ""),
        }

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go back to where a stream was when `state_dict` was asked; before the first batch.

        Raises:
            FeedError: Rows were read already, or the state is of another stream or job.
        """
        if self._receipt or self._batcher.has_rows:
            raise FeedError("load_state_dict comes before the first batch, in every trainer")
        if state.get("stream") != self.stream:
            raise FeedError(f"this is the state of stream {state.get('stream')!r}")
        job = os.environ.get("PRIMUS_JOB_UID", "")
        if state.get("job") != job:
            raise FeedError(
                f"this is the state of job {state.get('job')}, and this is job {job}; a stream "
                "starts at another job's savepoint with restore: JOB/SAVEPOINT in the job file"
            )
        self._source.go_to(str(state.get("savepoint")))
        batches = state.get("batches")
        self._batches = batches if isinstance(batches, int) else 0

    def close(self) -> None:
        """Let go of the stream; what was not said to be used goes to others."""
        self._is_finished = True
        if self._pid == os.getpid():
            self._source.close()

    def __enter__(self) -> "Feed":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # At the interpreter's end parts of it may be gone.
        with contextlib.suppress(Exception):
            self.close()


def exactly_once_feeds() -> list[Feed]:
    """Return the feeds of this process whose trainers mark their steps."""
    own = [feed for feed in list(_open_feeds) if feed.is_own and feed.is_exactly_once]
    return sorted(own, key=lambda feed: feed.stream)


_open_feeds: "weakref.WeakSet[Feed]" = weakref.WeakSet()


@atexit.register
def _close_feeds() -> None:
    for feed in list(_open_feeds):
        with contextlib.suppress(OSError):
            feed.close()


def dataset(
    name: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    *,
    batch_rows: int = 1024,
    layout: Layout = "numpy",
    columns: Sequence[str] | None = None,
    nulls: str | Mapping[str, str] = "error",
    stacks: Mapping[str, Sequence[str]] | None = None,
    manual: bool = False,
    epochs: int = 1,
    format: str = "",  # noqa: A002 the job file's word
) -> Feed:
    r"""Return the rows of a stream as an iterator of batches.

    Inside a job it names one of the role's streams (nothing: its only one), whose rows are leased
    to this trainer and come to exactly one trainer of those that share it, through all epochs.
    Given a path, a folder or a glob it reads the files in this process, with or without a job.

    Args:
        name: A stream, or where files are.
        batch_rows: Rows a batch. One is shorter at the end of an epoch, and where no more rows
            come for now.
        layout: `numpy`: a dict of arrays (docs/feed-in-numpy.md says which type becomes which);
            `dense`: as `numpy`, with columns of numbers side by side in matrices of rows x
            columns, made outside of this process; `arrow`: `batch.data` is a pyarrow.RecordBatch;
            `lines`: a batch is a sequence of bytes, a text line or a JSON object a row, and
            `batch.data` all of them with line ends; `raw`: the same without line ends, of formats
            whose rows are bytes.
        columns: Those to read; None all.
        nulls: What an integer or boolean column with nulls becomes: `error`, `masked`, `float`, or
            one of these by column. Float columns have NaN, dates NaT, strings and lists None.
        stacks: With `dense`, the columns (or patterns, `i*`) of each matrix by its name; the other
            columns stay as they are. None: one matrix for each type of number (`float32`, …).
        manual: Nothing counts as used until `feed.commit(batch.receipt)`.
        epochs: How often files are read; a stream's epochs stand in the job file.
        format: `text` or `parquet`; "" as the files' names say.

    Raises:
        FeedError: There is no such stream, or no such file.

    Examples:
        >>> import pathlib, primus
        >>> _ = pathlib.Path("rows.txt").write_text("one\ntwo\nthree\n")
        >>> for batch in primus.dataset("./rows.txt", batch_rows=2):
        ...     print(batch.epoch, batch["line"])
        0 [b'one' b'two']
        0 [b'three']
    """
    if batch_rows < 1:
        raise FeedError(f"batch_rows is {batch_rows}, must be at least 1")
    if layout not in LAYOUTS:
        raise FeedError(f"layout is {layout!r}, must be one of {', '.join(LAYOUTS)}")
    if stacks and layout != "dense":
        raise FeedError(f"stacks is for layout='dense'; the layout is {layout!r}")
    wanted = Wanted(layout, batch_rows, tuple(columns or ()), nulls, stacks or {})
    source = _source(name, wanted, format_name=format, epochs=epochs)
    return Feed(source, batch_rows=batch_rows, layout=layout, manual=manual)


def _source(
    name: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None,
    wanted: Wanted,
    *,
    format_name: str,
    epochs: int,
) -> FrameSource:
    paths = _paths(name)
    _check_numpy()
    if paths is not None:
        from primus.local import LocalSource  # noqa: PLC0415 loads pyarrow

        return LocalSource(paths, wanted, format_name=format_name, epochs=epochs)
    from primus.remote import RemoteSource  # noqa: PLC0415 loads numpy

    return RemoteSource(os.environ["PRIMUS_SOCKET"], "" if name is None else str(name), wanted)


def _check_numpy() -> None:
    try:
        import numpy  # noqa: F401, PLC0415 loaded when it is needed
    except ModuleNotFoundError as missing:
        raise FeedError(
            f"rows come as numpy arrays, and {sys.executable} has no {missing.name}: install it "
            "there, or start the trainer with a Python that has it (PRIMUS_PYTHON names one)"
        ) from None


def _paths(
    name: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None,
) -> tuple[str, ...] | None:
    """Return where files are; None when the name is a stream's."""
    has_executor = bool(os.environ.get("PRIMUS_SOCKET"))
    match name:
        case None:
            if not has_executor:
                raise FeedError(
                    "no stream: this process was not started by a job (PRIMUS_SOCKET is not set); "
                    "to read files give their path: primus.dataset('data/*.parquet')"
                )
            return None
        case str():
            is_path = any(character in name for character in "/*?[") or name.startswith(".")
            if is_path or (not has_executor and Path(name).exists()):
                return (name,)
            if not has_executor:
                raise FeedError(
                    f"no stream {name!r}: this process was not started by a job, and there is no "
                    "file or folder of that name"
                )
            return None
        case os.PathLike():
            return (os.fspath(name),)
        case _:
            return tuple(os.fspath(one) for one in name)
