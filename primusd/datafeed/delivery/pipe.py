"""Delivery through a pipe: any program that reads its standard input, or a FIFO, is a trainer.

What such a trainer has taken is not told but seen: bytes written, less what the kernel still has in
the pipe, less what may lie in the program's own buffer, rounded down to a record. The buffer's
allowance falls away when the pipe is empty and the program waits in a read of it: then it has used
all. A program that polls is taken to have used all once no thread of it has run for half a minute,
one that is busy for ever with something else after ten minutes, so that the stream can end.

End of file means that the stream is finished, and nothing else; a stop never closes the pipe. Who
opens a FIFO that nobody writes to any more waits for ever, so its end of file comes once it was
opened, and read to its end.
"""

import contextlib
import fcntl
import os
import select
import termios
from pathlib import Path

from primusd.datafeed.delivery.desk import Desk
from primusd.datafeed.delivery.pipe_reader import activity, has_open, is_waiting_for_input
from primusd.datafeed.formats.base import PipeBlock
from primusd.datafeed.reader.reader import Gap, StreamReader

PIPE_BYTES = 1 << 20
CHILD_BUFFER_BYTES = 1 << 20
SPLICE_BYTES = 1 << 20
LOOK_FIRST_S = 0.002
LOOK_EVERY_S = 0.05
QUIET_S = 30.0
QUIET_LOOK_S = 0.5
ALLOWANCE_MAX_S = 600.0


class PipeDelivery:
    """One stream into one pipe, for one trainer.

    Args:
        desk: The feed's.
        reader: The stream's.
        fifo: Where a FIFO is made; None: the pipe has no name, and is handed over.
        owner: User and group of the FIFO; -1 of this process.

    Attributes:
        is_fifo: The trainer opens it by its name.
    """

    def __init__(
        self,
        desk: Desk,
        reader: StreamReader,
        fifo: Path | None = None,
        owner: tuple[int, int] = (-1, -1),
    ) -> None:
        self._desk = desk
        self._reader = reader
        self.is_fifo = fifo is not None
        if fifo is None:
            self._read_end, self._write_end = os.pipe2(os.O_CLOEXEC)
            self._name = f"pipe:[{os.fstat(self._write_end).st_ino}]"
        else:
            self._read_end, self._write_end = _make_fifo(fifo, owner)
            self._name = str(fifo)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        os.set_blocking(self._write_end, False)
        # Over the user's limit of pipe memory it stays smaller: slower, not wrong.
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._write_end, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._poll = select.poll()
        self._poll.register(self._write_end, select.POLLOUT)
        self._poll.register(self._wake, select.POLLIN)
        self._pid = 0
        self._activity = -1
        self._active_at = 0.0
        self._looked_at = 0.0
        self._written = 0
        self._wrote_at = 0.0
        self._consumed = 0
        self._has_begun = False
        self._is_finished = False
        self._is_broken = False
        self._is_closed = False

    def hand_over(self) -> int:
        """Return the read end, which is the caller's from now on."""
        read_end, self._read_end = self._read_end, -1
        assert read_end >= 0, "one pipe feeds one trainer"
        return read_end

    def started(self, pid: int) -> None:
        """Note the trainer; with the lock held."""
        self._pid = pid
        self._wrote_at = self._active_at = self._desk.clock()
        self._reader.state.is_open = True
        self._reader.state.is_urgent = True

    def look(self) -> None:
        """Note what the trainer has taken by now; with the lock held."""
        now = self._desk.clock()
        state = self._reader.state
        consumed = self._now_consumed()
        if consumed > self._consumed:
            self._consumed = consumed
            state.note_taking(now)
        if len(state.flights):
            state.take(consumed - self._allowance(consumed, now), now=now)

    def consumed(self) -> int:
        """Return how many bytes the trainer has read by now; with the lock held."""
        return self._now_consumed()

    def ended(self, *, has_completed: bool) -> None:
        """Note the trainer's end, and what it took until then; with the lock held."""
        self.look()
        if has_completed and self._is_finished:
            state = self._reader.state
            state.take(state.flights.delivered, now=self._desk.clock())
        self._reader.state.recall(self._consumed)
        self.close()

    def close(self) -> None:
        """End the writing thread; with the lock held."""
        self._is_closed = True
        if self._wake >= 0:
            os.eventfd_write(self._wake, 1)
        if self._read_end >= 0:
            os.close(self.hand_over())
        self._desk.changed.notify_all()

    def write(self) -> None:
        """Fill the pipe until the stream is finished, the trainer is gone, or closed."""
        try:
            while (piece := self._next_piece()) is not None:
                if not self._write_piece(piece):
                    self._give_up()
        finally:
            with self._desk.changed:
                self._close_write_end()
                os.close(self._wake)
                self._wake = -1

    # What is taken.

    def _now_consumed(self) -> int:
        if self._write_end < 0:
            return self._consumed
        unread = fcntl.ioctl(self._write_end, termios.FIONREAD, bytes(4))
        return max(self._consumed, self._written - int.from_bytes(unread, "little"))

    def _allowance(self, consumed: int, now: float) -> int:
        """Return how many of the bytes the trainer read it may not have used yet."""
        if consumed < self._written or not self._pid:
            return CHILD_BUFFER_BYTES
        if is_waiting_for_input(self._pid, self._name):
            return 0
        is_quiet = self._is_quiet(now) or now - self._wrote_at > ALLOWANCE_MAX_S
        return 0 if is_quiet else CHILD_BUFFER_BYTES

    def _is_quiet(self, now: float) -> bool:
        """Return whether nothing of the trainer has run for a while."""
        if now - self._looked_at >= QUIET_LOOK_S:
            self._looked_at = now
            found = activity(self._pid)
            if found != self._activity or now - self._wrote_at < QUIET_LOOK_S:
                self._activity = found
                self._active_at = now
        return now - self._active_at > QUIET_S

    # The thread.

    def _next_piece(self) -> PipeBlock | None:
        """Wait for the next piece and count it as delivered; None: there will be none."""
        state = self._reader.state
        with self._desk.changed:
            while not self._is_closed:
                found = None if self._is_broken else self._reader.next_block()
                now = self._desk.clock()
                state.note_waiting(is_waiting=found is None and not self._is_broken, now=now)
                if found is not None:
                    token, block = found
                    piece = _piece(block)
                    if piece.preface and not self._has_begun:
                        piece = piece.begun()
                        self._has_begun = True
                    state.deliver(
                        token,
                        lo=piece.lo,
                        hi=piece.hi,
                        size=piece.byte_count,
                        row_count=piece.row_count,
                        locate=piece.locate,
                        now=now,
                        left_out=piece.left_out,
                    )
                    state.note_want(self._reader.buffered_bytes)
                    self._desk.changed.notify_all()
                    if piece.byte_count:
                        return piece
                    continue
                if state.state == "end" and self._reader.has_nothing:
                    self._is_finished = True
                    if self._may_end():
                        self._close_write_end()
                self.look()
                self._desk.changed.notify_all()
                is_looking = len(state.flights) or (self._is_finished and self._write_end >= 0)
                self._desk.changed.wait(self._look_after_s() if is_looking else None)
            return None

    def _may_end(self) -> bool:
        """Return whether nobody can miss the end of file."""
        if not self.is_fifo:
            return True
        if self._now_consumed() < self._written:
            return False
        return self._written > 0 or has_open(self._pid, self._name)

    def _look_after_s(self) -> float:
        """Return when to look next: soon after the last write, then less and less often."""
        return min(LOOK_EVERY_S, LOOK_FIRST_S + (self._desk.clock() - self._wrote_at) / 4)

    def _close_write_end(self) -> None:
        if self._write_end >= 0:
            self._consumed = self._now_consumed()
            os.close(self._write_end)
            self._write_end = -1

    def _give_up(self) -> None:
        """The trainer reads no more: give everything back but what it took."""
        with self._desk.changed:
            if self._is_closed:
                return
            self._is_broken = True
            self.look()
            self._reader.state.recall(self._consumed)
            self._reader.state.give_back_all()
            self._reader.drop_buffer()

    def _write_piece(self, piece: PipeBlock) -> bool:
        """Write a piece; return whether all of it went."""
        if piece.file is not None:
            offset, end = piece.offset, piece.offset + piece.span_bytes
            while offset < end:
                count = self._splice(piece.file.fd, offset, min(end - offset, SPLICE_BYTES))
                if count <= 0:
                    return False
                offset += count
                self._written += count
        data = memoryview(piece.data)
        while data:
            count = self._write(data)
            if count <= 0:
                return False
            data = data[count:]
            self._written += count
        self._wrote_at = self._desk.clock()
        return True

    def _splice(self, source: int, offset: int, byte_count: int) -> int:
        while self._wait_writable():
            try:
                return os.splice(source, self._write_end, byte_count, offset_src=offset)
            except BlockingIOError:
                continue
            except BrokenPipeError:
                return -1
        return -1

    def _write(self, data: memoryview) -> int:
        while self._wait_writable():
            try:
                return os.write(self._write_end, data)
            except BlockingIOError:
                continue
            except BrokenPipeError:
                return -1
        return -1

    def _wait_writable(self) -> bool:
        """Wait until the pipe has room; return False when the thread is to end."""
        self._poll.poll()
        return not self._is_closed


def _make_fifo(path: Path, owner: tuple[int, int]) -> tuple[int, int]:
    """Make a FIFO and return both of its ends.

    The read end is ours for as long as the stream lasts: without it the write end could not be
    opened before the trainer comes, and what was written before would be lost if it came late.
    """
    path.unlink(missing_ok=True)
    os.mkfifo(path, 0o600)
    if owner[0] >= 0:
        os.chown(path, *owner)
    read_end = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    return read_end, os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK)


def _piece(block: object) -> PipeBlock:
    match block:
        case PipeBlock():
            return block
        case Gap():
            return PipeBlock(block.lo, block.hi, 0, block.locate)
        case _:
            raise AssertionError(f"{type(block).__name__} cannot go through a pipe")
