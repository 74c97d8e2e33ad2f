"""A class of the user's as a format: it runs in a process of its own, a position is a record."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from primusd.datafeed.formats import class_worker
from primusd.datafeed.formats.base import ReadError, RowBlock
from primusd.datafeed.formats.class_wire import (
    LENGTH_BYTES,
    Answer,
    Batch,
    Done,
    Failed,
    Request,
    decode_answer,
    encode,
)
from primusd.datafeed.formats.settings import Place, Settings
from primusd.datafeed.model import OPEN_END
from primusd.datafeed.protocol import Unit

SILENT_S = 600.0
"""A class that gives nothing for so long is ended: its reader would wait for ever."""
ROOT = str(Path(__file__).parents[3])


class Worker:
    """A process that reads files by a class of the user's, one at a time."""

    def __init__(self, place: Place) -> None:
        is_other = place.uid >= 0 and os.geteuid() == 0 and place.uid != os.geteuid()
        path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), ROOT)))
        # -P: nothing in the user's folder takes the place of a module of ours.
        self._process = subprocess.Popen(  # noqa: S603 our own interpreter and module
            [sys.executable, "-P", "-m", class_worker.__name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=place.folder if place.folder and Path(place.folder).is_dir() else None,
            env={**os.environ, "PYTHONPATH": path},
            user=place.uid if is_other else None,
            group=place.gid if is_other else None,
            extra_groups=[] if is_other else None,
        )

    def ask(self, request: Request) -> Iterator[tuple[Answer, bytes]]:
        """Yield answers up to the one that is the last.

        Raises:
            EOFError: The process ended.
            TimeoutError: It gave nothing for long.
        """
        data = encode(request)
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(len(data).to_bytes(LENGTH_BYTES, "little") + data)
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise EOFError from error
        while True:
            lengths = self._exactly(2 * LENGTH_BYTES)
            head_bytes = int.from_bytes(lengths[:LENGTH_BYTES], "little")
            body_bytes = int.from_bytes(lengths[LENGTH_BYTES:], "little")
            answer = decode_answer(self._exactly(head_bytes))
            yield answer, self._exactly(body_bytes)
            if not isinstance(answer, Batch):
                return

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

    def _exactly(self, byte_count: int) -> bytes:
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        parts: list[bytes] = []
        while byte_count:
            if not select.select([fd], [], [], SILENT_S)[0]:
                raise TimeoutError
            part = os.read(fd, min(byte_count, 1 << 20))
            if not part:
                raise EOFError
            parts.append(part)
            byte_count -= len(part)
        return b"".join(parts)


class Workers:
    """The processes of one stream: as many as files are read at once, kept for the next ones."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._lock = threading.Lock()
        self._idle: list[Worker] = []
        self._busy: list[Worker] = []
        self._is_closed = False

    def take(self) -> Worker:
        """Return one that does nothing.

        Raises:
            ReadError: None can be started, or no more is wanted.
        """
        with self._lock:
            if self._is_closed:
                raise ReadError("the feed was closed", kind="transient")
            try:
                worker = self._idle.pop() if self._idle else Worker(self._place)
            except OSError as error:
                text = f"no process for a class can be started: {error}"
                raise ReadError(text, kind="transient") from error
            self._busy.append(worker)
            return worker

    def give_back(self, worker: Worker, *, is_good: bool) -> None:
        """Keep one for the next file, or end it."""
        with self._lock:
            self._busy.remove(worker)
            if is_good and not self._is_closed:
                self._idle.append(worker)
                return
        worker.end()

    def close(self) -> None:
        """End all of them."""
        with self._lock:
            self._is_closed = True
            for worker in self._busy:
                worker.kill()
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.end()


class ClassUnit:
    """A file that a class of the user's reads."""

    def __init__(self, unit: Unit, compression: str, workers: Workers, settings: Settings) -> None:
        self._unit = unit
        self._compression = compression
        self._workers = workers
        self._settings = settings
        self.end = OPEN_END
        self.row_count = -1
        self.cuts: tuple[int, ...] = ()

    def measure(self) -> None:
        """Count the records, once."""
        if self.end >= OPEN_END:
            for _ in self.rows(OPEN_END - 1, OPEN_END, block_bytes=1):
                pass

    def rows(self, lo: int, hi: int, *, block_bytes: int) -> Iterator[RowBlock]:
        """Yield records lo to hi, or to the last one."""
        hi = min(hi, self.end)
        at = lo
        if lo >= hi:
            return
        worker = self._workers.take()
        is_good = False
        try:
            for answer, body in worker.ask(self._request(lo)):
                if isinstance(answer, Batch):
                    batch = self._batch(answer, body, at)
                    block = RowBlock(batch, at, at + batch.num_rows).up_to(hi)
                    at = block.hi
                    yield from _parts(block, block_bytes)
                    if at >= hi:
                        return
                else:
                    is_good = True
                    self._ended(answer)
        except (EOFError, TimeoutError) as error:
            raise self._lost(worker, at, is_silent=isinstance(error, TimeoutError)) from error
        finally:
            self._workers.give_back(worker, is_good=is_good)

    def _request(self, first: int) -> Request:
        options = self._settings.options
        parameters = json.loads(options.get("parameters") or "{}")
        name, folder = options.get("class", ""), self._settings.place.folder
        return Request(self._unit, self._compression, name, parameters, folder, first)

    def _batch(self, answer: Batch, body: bytes, at: int) -> pa.RecordBatch:
        try:
            return pa.ipc.open_stream(pa.py_buffer(body)).read_next_batch()
        except (pa.ArrowException, OSError) as error:
            last = at + answer.record_count
            raise self._error(f"gave no batch: {error}", lo=at, hi=last) from error

    def _ended(self, answer: Answer) -> None:
        match answer:
            case Done():
                self.end = self.row_count = answer.record_count
                self.cuts = (answer.record_count,)
            case Failed():
                raise ReadError(
                    f"{self._unit.location}: {answer.text} (after {answer.record} records)",
                    kind=answer.kind,
                    lo=answer.record,
                    head=answer.head,
                )
            case Batch():
                raise AssertionError("a batch is no end")

    def _lost(self, worker: Worker, at: int, *, is_silent: bool) -> ReadError:
        if is_silent:
            return self._error(f"gave nothing for {SILENT_S:.0f} s", lo=at)
        code = worker.code()
        if code == -signal.SIGKILL:
            text = f"{self._unit.location}: the process of its class was killed"
            return ReadError(text, kind="transient")
        why = f"signal {-code}" if code < 0 else f"code {code}"
        return self._error(f"ended its process ({why}) after {at} records", lo=at)

    def _error(self, text: str, *, lo: int = -1, hi: int = -1) -> ReadError:
        name = self._settings.options.get("class", "")
        return ReadError(f"{self._unit.location}: {name} {text}", kind="data", lo=lo, hi=hi)


def _parts(block: RowBlock, block_bytes: int) -> Iterator[RowBlock]:
    """Yield a block as it is, or in parts where it is much larger than asked for."""
    rows = max(1, block_bytes * block.row_count // max(1, block.byte_count))
    if rows * 2 >= block.row_count:
        yield block
        return
    for first in range(0, block.row_count, rows):
        yield block.part(first, min(rows, block.row_count - first))
