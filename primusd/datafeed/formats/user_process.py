"""A process beside the executor that runs code of the user's: asked through pipes, never trusted.

Whatever happens to it, its reader lives on: it is told that the process ended, or was silent.
"""

import contextlib
import fcntl
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from primusd.datafeed.formats.base import ReadError
from primusd.datafeed.formats.settings import Place

LENGTH_BYTES = 4
SILENT_S = 600.0
"""A process that gives, or takes, nothing for so long is ended: its reader would wait for ever."""
PIPE_BYTES = 1 << 20
ROOT = str(Path(__file__).parents[3])


class TooLargeError(Exception):
    """An answer that is larger than its reader may hold."""

    def __init__(self, byte_count: int) -> None:
        super().__init__(f"{byte_count} bytes")
        self.byte_count = byte_count


class UserProcess:
    """One process; it answers what it is asked, in order."""

    def __init__(self, module: str, place: Place, *, memory_bytes: int = 0) -> None:
        """Start it.

        Args:
            module: Of ours; it calls `user_serving.serve`.
            place: Where and as whom it runs.
            memory_bytes: What it may allocate; 0 no bound.
        """
        is_other = place.uid >= 0 and os.geteuid() == 0 and place.uid != os.geteuid()
        path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), ROOT)))
        # -P: nothing in the user's folder takes the place of a module of ours.
        self._process = subprocess.Popen(  # noqa: S603 our own interpreter and module
            [sys.executable, "-P", "-m", module, str(memory_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            cwd=place.folder if place.folder and Path(place.folder).is_dir() else None,
            env={**os.environ, "PYTHONPATH": path},
            user=place.uid if is_other else None,
            group=place.gid if is_other else None,
            extra_groups=[] if is_other else None,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        # One that does not read must not hold whoever asks it for ever.
        os.set_blocking(self._in, False)
        for pipe in (self._in, self._out):
            # More than an unprivileged user may have is refused; then it goes on as it is.
            with contextlib.suppress(OSError):
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def send(self, head: bytes, body: "bytes | memoryview" = b"") -> None:
        """Ask it.

        Raises:
            EOFError: The process ended.
            TimeoutError: It took nothing for long.
        """
        lengths = len(head).to_bytes(LENGTH_BYTES, "little")
        lengths += len(body).to_bytes(LENGTH_BYTES, "little")
        try:
            for part in (lengths + head, body):
                self._write(memoryview(part))
        except BrokenPipeError as error:
            raise EOFError from error

    def receive(self, *, bytes_max: int = 1 << 31) -> tuple[bytes, bytearray]:
        """Return the next answer: its head, and its body.

        Raises:
            EOFError: The process ended.
            TimeoutError: It gave nothing for long.
            TooLargeError: The answer has more bytes than that; it was passed over.
        """
        lengths = self._exactly(2 * LENGTH_BYTES)
        head_bytes = int.from_bytes(lengths[:LENGTH_BYTES], "little")
        body_bytes = int.from_bytes(lengths[LENGTH_BYTES:], "little")
        if head_bytes + body_bytes > bytes_max:
            self._pass_over(head_bytes + body_bytes)
            raise TooLargeError(head_bytes + body_bytes)
        return bytes(self._exactly(head_bytes)), self._exactly(body_bytes)

    def end(self) -> int:
        """End the process; return its code, negative for a signal."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        return self._process.wait()

    def kill(self) -> None:
        """End the process, from another thread; who reads from it sees the end."""
        self._process.kill()

    def code(self) -> int:
        """Return the code of a process that ended by itself."""
        return self._process.wait()

    def _write(self, left: memoryview) -> None:
        while left:
            if not select.select([], [self._in], [], SILENT_S)[1]:
                raise TimeoutError
            with contextlib.suppress(BlockingIOError):
                left = left[os.write(self._in, left) :]

    def _pass_over(self, byte_count: int) -> None:
        while byte_count:
            byte_count -= len(self._exactly(min(byte_count, PIPE_BYTES)))

    def _exactly(self, byte_count: int) -> bytearray:
        data = bytearray(byte_count)
        left = memoryview(data)
        while left:
            if not select.select([self._out], [], [], SILENT_S)[0]:
                raise TimeoutError
            count = os.readv(self._out, [left])
            if not count:
                raise EOFError
            left = left[count:]
        return data


class UserProcesses:
    """The processes of one stream: as many as work at once, kept for the next work."""

    def __init__(self, start: Callable[[], UserProcess]) -> None:
        self._start = start
        self._lock = threading.Lock()
        self._idle: list[UserProcess] = []
        self._busy: list[UserProcess] = []
        self._is_closed = False

    def take(self) -> UserProcess:
        """Return one that does nothing.

        Raises:
            ReadError: None can be started, or no more is wanted.
        """
        with self._lock:
            if self._is_closed:
                raise ReadError("the feed was closed", kind="transient")
            try:
                process = self._idle.pop() if self._idle else self._start()
            except OSError as error:
                text = f"no process for code of yours can be started: {error}"
                raise ReadError(text, kind="transient") from error
            self._busy.append(process)
            return process

    def give_back(self, process: UserProcess, *, is_good: bool) -> None:
        """Keep one for the next work, or end it."""
        with self._lock:
            self._busy.remove(process)
            if is_good and not self._is_closed:
                self._idle.append(process)
                return
        process.end()

    def pids(self) -> tuple[int, ...]:
        """Return the process ids of all that run."""
        with self._lock:
            return tuple(one.pid for one in (*self._idle, *self._busy))

    def close(self) -> None:
        """End all of them."""
        with self._lock:
            self._is_closed = True
            for process in self._busy:
                process.kill()
            idle, self._idle = self._idle, []
        for process in idle:
            process.end()
