"""Frames from the executor, over its socket."""

import json
import os
import sys
import threading
import time
from typing import Any

from primus import byte_rows, wire
from primus.batches import Frame, NumpyDecoder, Span
from primus.errors import FeedError, PrimusError, StoppingError
from primus.feed import Wanted
from primus.link import Link
from primus.payloads import Payloads
from primus.positions import Positions

# One that is used, one that is there, one on its way.
CREDITS = 3
# Receipts are sent before each wait, and at least this often while there is no need to wait.
COMMIT_EVERY_S = 0.01
# After a death nobody knows how many of so many batches were used.
HANDED_AHEAD = 4


class RemoteSource:
    """A stream that the executor reads and hands over."""

    def __init__(
        self,
        path: str,
        stream: str,
        wanted: Wanted,
    ) -> None:
        self._path = path
        self._stream = stream
        self._wanted = wanted
        self._is_open = False
        self._handed = self._handing_to = 0
        self._positions = Positions(path, stream)
        self._nulls = wanted.nulls
        self._payloads = Payloads()
        self._decoder: NumpyDecoder | None = None
        self._schema: Any = None  # pyarrow's, which has no place in this module
        self._receipt = 0
        self._said_receipt = 0
        self._said_at = 0.0
        self._frames = self._said_frames = 0
        self._tail = 0
        self._saying = threading.Lock()
        self._is_waiting = False
        self._failure: PrimusError | None = None
        self._link: Link | None = self._connect()
        self.stream = self._spoken(stream)
        self.is_exactly_once = self.stream in _listed("PRIMUS_EXACTLY_ONCE")
        if not self.is_exactly_once:
            # While the trainer starts the first rows are read.
            self._open(self._link)

    def _connect(self) -> Link:
        try:
            return Link(self._path)
        except OSError as error:
            raise FeedError(f"the executor does not answer on {self._path}: {error}") from error

    def _spoken(self, stream: str) -> str:
        """Return the name of the stream; a role's only one need not be named."""
        names = _listed("PRIMUS_STREAMS")
        return names[0] if not stream and len(names) == 1 else stream

    def _open(self, link: Link) -> None:
        wanted = self._wanted
        self._is_open = True
        link.say(
            {
                "op": "open",
                "stream": self._stream,
                "layout": wanted.layout,
                "batchRows": wanted.batch_rows,
                "columns": list(wanted.columns) or None,
                "stacks": {name: list(them) for name, them in wanted.stacks.items()} or None,
            },
            {"op": "take", "stream": self._stream, "credits": CREDITS},
        )

    def next_frame(self) -> Frame | None:
        """Return the next frame; None: no more for now.

        Raises:
            EOFError: The stream is finished.
            StoppingError: The trainer is being stopped.
            FeedError: The executor refused, or is gone.
        """
        if self._failure is not None:
            raise self._failure
        if self._link is None:
            raise EOFError
        if not self._is_open:
            self._begin(self._link)
        try:
            return self._next_frame(self._link)
        except EOFError:
            raise
        except BaseException as error:
            # It may have stopped in the middle of a frame; that is never the end of the stream.
            self._failure = _failure(error)
            if isinstance(error, OSError):
                raise self._failure from error
            raise

    def _begin(self, link: Link) -> None:
        """Open a stream that nobody said where to begin: where the checkpoint was that was loaded.

        Without one at the beginning: the model knows nothing then.
        """
        self._positions.go_to(loaded_savepoint(self.stream))
        self._open(link)

    def go_to(self, name: str) -> None:
        """Begin at a savepoint; before the first row is used.

        Raises:
            FeedError: There is none of that name, or another trainer has begun elsewhere.
        """
        if self._link is None:
            raise FeedError("the stream is closed; load before reading")
        if self._is_open:
            # What was read ahead is of another place.
            self._link.say({"op": "close", "stream": self._stream})
            self._link.finish()
            self._link = self._connect()
        self._positions.go_to(name)
        self._frames = self._said_frames = self._said_receipt = self._receipt = 0
        self._handed = self._handing_to = 0
        self._decoder = self._schema = None
        self._open(self._link)

    def mark(self, step: int) -> None:
        """Say that this trainer is at a step; what it was handed so far is used."""
        if not self.is_exactly_once:
            return
        if not self._is_open and self._link is not None:
            self._begin(self._link)
        with self._saying:
            receipt = self._receipt
            if self._link is not None:
                # In order with what is used later; the same over the other connection hears of it.
                self._say_news(self._link)
                told = {"op": "mark", "stream": self._stream, "step": step, "receipt": receipt}
                self._link.say(told)
        self._positions.mark(step, receipt)

    def kept(self, step: int) -> str:
        """Return the name of the savepoint of a step that was marked, once it is sealed.

        Raises:
            FeedError: There will be none.
            StoppingError: This trainer is being stopped, and its time is over.
        """
        if self.is_exactly_once:
            return self._positions.sealed(step)
        if self._link is not None:
            self._say_used(self._link)
        name = f"{os.environ.get('PRIMUS_REPLICA', 'trainer')}-a{_attempt()}-step-{step}"
        self._positions.keep(name)
        return name

    def hand(self, receipt: int) -> None:
        """Say, before rows are handed out, up to where that may be by the time anybody asks."""
        self._handed = receipt
        if receipt > self._handing_to and self._link is not None:
            with self._saying:
                self._link.say(self._handing())

    def _handing(self) -> dict[str, object]:
        self._handing_to = self._handed + HANDED_AHEAD * self._wanted.batch_rows
        return {"op": "handed", "stream": self._stream, "receipt": self._handing_to}

    def _next_frame(self, link: Link) -> Frame | None:
        while True:
            self._is_waiting = True
            self._say_used(link)
            found = link.receive(self._payloads.allocate)
            self._is_waiting = False
            if isinstance(found, dict):
                if self._hear(found):
                    return None
                continue
            frame = self._decode(*found)
            if frame is not None:
                self._frames += 1
                return frame

    def _hear(self, message: dict[str, object]) -> bool:
        """Take in a control message; return whether no more rows come for now."""
        match message:
            case {"op": "idle"}:
                return True
            case {"op": "drop"}:
                self._tail = -1
                return True
            case {"op": "pad", "count": int(count)}:
                self._tail = count
                return True
            case {"op": "end"}:
                raise EOFError
            case {"op": "error"}:
                raise FeedError(str(message.get("text")))
            case {"op": "stopping"}:
                grace_ms = message.get("graceMs")
                left = grace_ms / 1000 if isinstance(grace_ms, int) else 0.0
                raise StoppingError(str(message.get("reason")), left)
            case _:
                return False

    def _decode(self, header: wire.Header, payload: memoryview) -> Frame | None:
        content: Any
        match header.kind:
            case wire.NUMPY_SCHEMA:
                self._decoder = NumpyDecoder(json.loads(bytes(payload)), self._nulls)
                return None
            case wire.NUMPY_ROWS if self._decoder is not None:
                content = self._decoder.decode(payload, header.row_count)
            case wire.ARROW_SCHEMA:
                import pyarrow as pa  # noqa: PLC0415 only with layout="arrow"

                self._schema = pa.ipc.read_schema(pa.py_buffer(payload))
                return None
            case wire.ARROW_ROWS:
                import pyarrow as pa  # noqa: PLC0415 only with layout="arrow"

                content = pa.ipc.read_record_batch(pa.py_buffer(payload), self._schema)
            case wire.BYTE_ROWS:
                content = byte_rows.decoded(payload, header.row_count)
            case _:
                raise wire.WireError(f"rows of kind {header.kind}")
        span = Span(header.unit, header.lo, header.hi)
        return Frame(header.row_count, header.epoch, header.receipt, span, content)

    def tail(self) -> int:
        """Return what follows behind the last rows of an epoch, once."""
        found, self._tail = self._tail, 0
        return found

    def commit(self, receipt: int) -> None:
        """Note that all rows up to a receipt were used; it is sent soon.

        At once while another thread waits for frames: it says nothing before it has one.
        """
        self._receipt = max(self._receipt, receipt)
        is_due = self._is_waiting or time.monotonic() - self._said_at > COMMIT_EVERY_S
        if self._link is not None and is_due:
            self._say_used(self._link)

    def _say_used(self, link: Link) -> None:
        """Send the receipt and the room for further frames, if there is anything new.

        Receipts may come from another thread than the one that waits for frames.
        """
        with self._saying:
            self._say_news(link)

    def _say_news(self, link: Link) -> None:
        messages: list[dict[str, object]] = []
        # While they are sent the other thread goes on: what it adds is said the next time.
        receipt, frames = self._receipt, self._frames
        if receipt > self._said_receipt:
            messages.append({"op": "commit", "stream": self._stream, "receipt": receipt})
        if frames > self._said_frames:
            room = frames - self._said_frames
            messages.append({"op": "take", "stream": self._stream, "credits": room})
        if messages:
            if self._handed:
                # Along with them it costs no message of its own.
                messages.append(self._handing())
            link.say(*messages)
            self._said_receipt, self._said_frames = receipt, frames
            self._said_at = time.monotonic()

    def close(self) -> None:
        """Say what was used, and hang up."""
        if self._link is None:
            return
        link, self._link = self._link, None
        try:
            self._say_used(link)
            link.say({"op": "close", "stream": self._stream})
            # Whoever opens the stream next finds it free.
            link.finish()
        finally:
            link.close()


class EndWatch:
    """Hears of the end of a stream of which this process reads nothing; it has no rows."""

    def __init__(self, path: str, stream: str) -> None:
        self._link = Link(path)
        self._link.say({"op": "watch", "stream": stream})

    def fileno(self) -> int:
        """Return what to wait on for a word."""
        return self._link.fileno()

    def has_ended(self) -> bool:
        """Return whether the next word, which is waited for, is that of the end.

        Raises:
            StoppingError: The trainer is being stopped.
            FeedError: There is no such stream, or the executor is gone.
        """
        try:
            found = self._link.receive(lambda count: memoryview(bytearray(count)))
        except OSError as error:
            raise _failure(error) from error
        match found:
            case {"op": "error", "text": str(text)}:
                raise FeedError(text)
            case {"op": "stopping", "reason": str(reason), "graceMs": int(grace_ms)}:
                raise StoppingError(reason, grace_ms / 1000)
            case {"op": "end"}:
                return True
            case _:
                return False

    def close(self) -> None:
        """Hang up."""
        self._link.close()


def loaded_savepoint(stream: str) -> str:
    """Return the savepoint of the checkpoint that `latest_checkpoint` found; "" there is none."""
    checkpoints = sys.modules.get("primus.checkpoints")
    return "" if checkpoints is None else str(checkpoints.loaded_savepoint(stream))


def _listed(variable: str) -> list[str]:
    return [name for name in os.environ.get(variable, "").split(",") if name]


def _attempt() -> str:
    return os.environ.get("PRIMUS_ATTEMPT", "0")


def _failure(error: BaseException) -> PrimusError:
    match error:
        case PrimusError():
            return error
        case OSError():
            return FeedError(f"the executor is gone: {error}")
        case _:
            return FeedError(f"reading was broken off by {error!r}; open the stream again")
