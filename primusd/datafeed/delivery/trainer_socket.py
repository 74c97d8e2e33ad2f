"""One trainer's connection: its words on the event loop, its rows from a thread.

The loop reads control frames, which are small and few. Everything that is written goes through the
writing thread, so that a message never lands inside a frame of rows; it blocks when the trainer
does not read, and only there.
"""

import asyncio
import contextlib
import signal
import socket
import struct
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import anyio
import structlog

from primus import wire
from primusd.datafeed.delivery.desk import Desk, spoken
from primusd.datafeed.delivery.pledge_words import PledgeWords
from primusd.datafeed.delivery.socket_stream import SocketStream
from primusd.datafeed.formats.base import RowBlock
from primusd.datafeed.protocol import FeedAsk
from primusd.datafeed.reader.holding import Holding
from primusd.datafeed.reader.reader import StreamReader
from primusd.errors import PrimusdError
from primusd.executor.protocol import Checkpoint, Progress

if TYPE_CHECKING:  # Loaded after the fork only: it starts threads.
    from primusd.datafeed.delivery.columns import Buffer

log = structlog.get_logger()

READ_BYTES = 64 << 10
OUTBOX_MAX = 256
METRICS_MAX = 256
IOV_MAX = 512
LAYOUTS = ("numpy", "arrow", "dense", "lines", "raw")
_PEER = struct.Struct("3i")


class TrainerConnection:
    """A process of the trainer that speaks to its executor."""

    def __init__(self, desk: Desk, link: socket.socket, peers_file: str) -> None:
        self._desk = desk
        self._link = link
        self._peers_file = peers_file
        self._streams: dict[str, SocketStream] = {}
        self._pledges: dict[str, PledgeWords] = {}
        self._outbox: deque[bytes] = deque()
        self._inbox = bytearray()
        self._unknown: set[str] = set()
        self._watched: set[str] = set()
        self._has_phase = False
        self._is_closed = False

    # The loop's side.

    async def listen(self) -> None:
        """Read what the trainer says until it hangs up or says something that is no frame."""
        loop, ended = asyncio.get_running_loop(), anyio.Event()

        def look() -> None:
            has_more = False
            try:
                has_more = self.drain()
            finally:
                if not has_more:
                    loop.remove_reader(self._link)
                    ended.set()

        # Once for all words: a wait for each would cost more than what it says.
        loop.add_reader(self._link, look)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(self._link)
            with self._desk.changed:
                self._hang_up()

    def drain(self) -> bool:
        """Take in all that the trainer has said by now; return whether it may say more."""
        try:
            while data := self._link.recv(READ_BYTES, socket.MSG_DONTWAIT):
                self._inbox += data
                self._read_frames()
        except BlockingIOError:
            return True
        except wire.WireError as error:
            log.warning("trainer.misspoke", error=str(error))
        except OSError:
            # It went with frames unread; what it had said was taken in before this came.
            return False
        return False

    def _read_frames(self) -> None:
        while len(self._inbox) >= wire.PREFIX.size:
            length, kind = wire.PREFIX.unpack_from(self._inbox)
            if kind != wire.CONTROL or not 0 < length <= wire.CONTROL_BYTES_MAX:
                raise wire.WireError(f"a frame of kind {kind} and {length} bytes")
            end = wire.PREFIX.size - 1 + length
            if len(self._inbox) < end:
                return
            body = bytes(self._inbox[wire.PREFIX.size : end])
            del self._inbox[:end]
            with self._desk.changed:
                self._hear(wire.unpack_control(body))
                self._desk.changed.notify_all()

    def _hear(self, message: Mapping[str, object]) -> None:
        match message:
            case {"op": "hello"}:
                self._greet(message)
            case {"op": "open", "stream": str(name)}:
                self._open(name, message)
            case {"op": "close", "stream": str(name)}:
                if (stream := self._streams.pop(name, None)) is not None:
                    stream.close()
            case {"op": "take", "stream": str(name), "credits": int(credits_)}:
                if (stream := self._streams.get(name)) is not None:
                    stream.credits += credits_
            case {"op": "commit", "stream": str(name), "receipt": int(receipt)}:
                if (stream := self._streams.get(name)) is not None:
                    stream.commit(receipt)
            case {"op": "ready"}:
                self._desk.is_ready = True
                self._desk.is_urgent = True
            case _:
                self._hear_more(message)

    def _hear_more(self, message: Mapping[str, object]) -> None:
        match message:
            case {"op": "progress"}:
                self._desk.progress = _progress(message)
            case {"op": "phase", "name": str(name)}:
                self._desk.phase = name if message.get("active", True) else ""
                self._has_phase = bool(self._desk.phase)
            case {"op": "checkpoint", "path": str(path)}:
                savepoint = message.get("savepoint")
                self._desk.checkpoint = Checkpoint(
                    path,
                    _whole(message.get("step")),
                    savepoint if isinstance(savepoint, str) else "",
                )
                self._desk.is_urgent = True
            case {"op": "handed", "stream": str(name), "receipt": int(receipt)}:
                if (stream := self._streams.get(name)) is not None:
                    stream.hand(receipt)
            case {"op": "watch", "stream": str(name)}:
                self._watch(name)
            case {"op": ("mark" | "savepoint" | "restore"), "stream": str(name)}:
                self._pledge(name, message)
            case {"op": str(op)} if op not in self._unknown and len(self._unknown) < 64:
                self._unknown.add(op)
                log.warning("trainer.op_ignored", op=op)
            case _:
                pass

    def _pledge(self, name: str, message: Mapping[str, object]) -> None:
        """Take in a mark or an ask; the daemon's word on it comes later."""
        reader = self._found(name)
        if reader is None:
            return
        state = reader.state
        words = self._pledges.setdefault(name, PledgeWords(name, state.pledges))
        match message:
            case {"op": "mark", "step": int(step)}:
                state.take(_whole(message.get("receipt")), now=self._desk.clock())
                state.mark(step)
                words.expect_step(step)
            case {"op": str(kind), "id": int(number), "name": str(savepoint)}:
                if not state.ask(FeedAsk(number, kind, savepoint)):
                    self._refuse("TooManyRequests", "so many asks wait for the daemon already")
                    return
                words.expect_answer(number)
            case _:
                pass
        self.say_pledges()

    def _watch(self, name: str) -> None:
        """Tell the trainer of a stream's end, though it reads nothing of it."""
        if self._found(name) is not None:
            self._watched.add(name)

    def _found(self, name: str) -> StreamReader | None:
        reader = self._desk.find(name)
        if reader is None:
            self._refuse("UnknownStream", f"this role has no stream {name!r}")
        return reader

    def say_pledges(self) -> None:
        """Tell the trainer what the daemon said of its marks and asks; with the lock held."""
        for words in self._pledges.values():
            for word in words.fresh():
                self._say(**word)

    def recall(self) -> None:
        """Note that the trainer is gone; with the lock held."""
        for stream in self._streams.values():
            stream.recall()

    def _greet(self, message: Mapping[str, object]) -> None:
        number = _whole(message.get("stacks"))
        if signal.SIGRTMIN <= number <= signal.SIGRTMAX:
            self._desk.stack_signals[self._pid()] = number
        self._welcome()

    def _pid(self) -> int:
        """Return who is at the other end, by the kernel's word."""
        peer = self._link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        return int(_PEER.unpack(peer)[0])

    def _welcome(self) -> None:
        attempt = self._desk.attempt
        self._say(
            op="welcome",
            job=attempt.job,
            role=attempt.role,
            index=attempt.index,
            attempt=attempt.attempt,
            generation=self._desk.generation,
            peersFile=self._peers_file,
        )
        if self._desk.near:
            self.say_near()
        if self._desk.stopping is not None:
            self.say_stopping()

    def _open(self, name: str, message: Mapping[str, object]) -> None:
        reader = self._desk.find(name)
        layout = message.get("layout")
        if reader is None:
            names = ", ".join(spoken(stream) for stream in self._desk.readers) or "none"
            what = f"no stream {name!r}" if name else "no single stream; name one"
            self._refuse("UnknownStream", f"this role has {what}; its streams: {names}")
        elif reader.is_piped:
            self._refuse(
                "StreamIsPiped", f"the stream comes through a pipe (feed: {reader.plan.delivery})"
            )
        elif layout not in LAYOUTS:
            self._refuse("UnknownLayout", f"layout {layout!r} is not one of {', '.join(LAYOUTS)}")
        elif reader.state.is_open:
            self._refuse(
                "StreamTaken",
                f"stream {spoken(reader.plan.stream)} is read by another process or iterator of "
                "this trainer already",
            )
        else:
            columns = message.get("columns")
            self._streams[name] = SocketStream(
                self._desk,
                reader,
                name,
                layout=str(layout),
                batch_rows=max(1, _whole(message.get("batchRows"))),
                columns=tuple(map(str, columns)) if isinstance(columns, list) else (),
                stacks=_stacks(message.get("stacks")),
            )

    def say_stopping(self) -> None:
        """Tell the trainer that it is being stopped; with the lock held."""
        stopping = self._desk.stopping
        assert stopping is not None
        self._say(op="stopping", reason=stopping.reason, graceMs=stopping.grace_ms)

    def say_near(self) -> None:
        """Tell the trainer all limits that are near, maybe none; with the lock held."""
        now = self._desk.clock()
        self._say(
            op="limits",
            near=[
                {"reason": one.limit, "leftMs": max(0, round((one.ends_at - now) * 1000))}
                for one in self._desk.near
            ],
        )

    def say_peers(self) -> None:
        """Tell the trainer that its peers file was written anew; with the lock held."""
        self._say(op="peers", peersFile=self._peers_file)

    def _refuse(self, code: str, text: str) -> None:
        self._say(op="error", code=code, text=text)

    def _say(self, **message: object) -> None:
        if len(self._outbox) < OUTBOX_MAX:
            self._outbox.append(wire.pack_control(message))
        self._desk.changed.notify_all()

    def _hang_up(self) -> None:
        self._is_closed = True
        if self._has_phase:
            # Who declared it is gone, and nobody else will end it.
            self._desk.phase = ""
        for stream in self._streams.values():
            stream.close()
        self._streams.clear()
        with contextlib.suppress(OSError):
            self._link.shutdown(socket.SHUT_RDWR)
        self._desk.changed.notify_all()

    def close(self) -> None:
        """End the connection and its thread; with the lock held."""
        self._hang_up()

    # The thread's side.

    def write(self) -> None:
        """Send messages and rows until the connection ends."""
        try:
            while (buffers := self._next_buffers()) is not None:
                send_all(self._link, buffers)
        except OSError:
            # The trainer hung up. What it said before is still to be read: its last receipt.
            return

    def _next_buffers(self) -> "Sequence[Buffer] | None":
        while True:
            with self._desk.changed:
                work = self._wait_for_work()
            if not isinstance(work, _Rows):
                return work
            try:
                return work.stream.encode(work.part, work.holding, work.receipt)
            except PrimusdError as error:
                with self._desk.changed:
                    self._refuse(error.code, error.message)
                    self._streams.pop(work.stream.name, work.stream).close()

    def _wait_for_work(self) -> "_Rows | list[bytes] | None":
        while not self._is_closed:
            if self._outbox:
                messages = list(self._outbox)
                self._outbox.clear()
                return messages
            for stream in self._streams.values():
                if (found := stream.next_part()) is not None:
                    return _Rows(stream, *found)
                if (word := stream.next_word()) is not None:
                    return [wire.pack_control(word)]
            for name in self._watched:
                reader = self._desk.find(name)
                if reader is not None and reader.state.state == "end":
                    self._watched.discard(name)
                    return [wire.pack_control({"op": "end", "stream": name})]
            waits = [s.look_again_s for s in self._streams.values() if s.look_again_s is not None]
            self._desk.changed.wait(min(waits, default=None))
        return None


class _Rows(NamedTuple):
    """Rows that are delivered now."""

    stream: SocketStream
    holding: Holding
    part: RowBlock
    receipt: int


def send_all(link: socket.socket, buffers: "Sequence[Buffer]") -> None:
    """Send buffers in as few calls as the kernel takes them."""
    views = deque(memoryview(buffer).cast("B") for buffer in buffers if len(buffer))
    while views:
        sent = link.sendmsg([views[index] for index in range(min(len(views), IOV_MAX))])
        while sent:
            first = views[0]
            if sent < len(first):
                views[0] = first[sent:]
                break
            sent -= len(first)
            views.popleft()


def _whole(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _stacks(value: object) -> dict[str, tuple[str, ...]]:
    """Return the columns of each matrix of layout `dense`, as asked for."""
    if not isinstance(value, dict):
        return {}
    return {
        str(name): tuple(map(str, columns))
        for name, columns in value.items()
        if isinstance(columns, list)
    }


def _progress(message: Mapping[str, object]) -> Progress:
    metrics = message.get("metrics")
    numbers = {
        str(name)[:128]: float(value)
        for name, value in (metrics.items() if isinstance(metrics, dict) else ())
        if isinstance(value, int | float)
    }
    return Progress(
        _whole(message.get("step")),
        _whole(message.get("epoch")),
        time.time_ns() // 1_000_000,
        dict(list(numbers.items())[:METRICS_MAX]),
    )
