"""A class of the user's as a format: it runs in a process of its own, a position is a record."""

import json
import signal
from collections.abc import Iterator

import pyarrow as pa

from primusd.datafeed.formats import class_worker
from primusd.datafeed.formats.base import ReadError, RowBlock
from primusd.datafeed.formats.class_wire import (
    Answer,
    Batch,
    Done,
    Failed,
    Request,
    decode_answer,
    encode,
)
from primusd.datafeed.formats.settings import Place, Settings
from primusd.datafeed.formats.user_process import SILENT_S, UserProcess, UserProcesses
from primusd.datafeed.ledger.model import OPEN_END
from primusd.datafeed.protocol import Unit


def class_processes(place: Place) -> UserProcesses:
    """Return the processes in which a class of the user's reads the files of one stream."""
    return UserProcesses(lambda: UserProcess(class_worker.__name__, place))


def _answers(process: UserProcess, request: Request) -> Iterator[tuple[Answer, bytearray]]:
    """Yield what a process answers, up to the answer that is the last.

    Raises:
        EOFError: The process ended.
        TimeoutError: It gave nothing for long.
    """
    process.send(encode(request))
    while True:
        head, body = process.receive()
        answer = decode_answer(head)
        yield answer, body
        if not isinstance(answer, Batch):
            return


class ClassUnit:
    """A file that a class of the user's reads."""

    def __init__(
        self, unit: Unit, compression: str, workers: UserProcesses, settings: Settings
    ) -> None:
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
            for answer, body in _answers(worker, self._request(lo)):
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

    def _batch(self, answer: Batch, body: bytearray, at: int) -> pa.RecordBatch:
        try:
            batch = pa.ipc.open_stream(pa.py_buffer(body)).read_next_batch()
            # It is the user's: what does not hold together would bring this process down.
            batch.validate(full=True)
        except (pa.ArrowException, OSError) as error:
            last = at + answer.record_count
            raise self._error(f"gave no batch: {error}", lo=at, hi=last) from error
        return batch

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

    def _lost(self, worker: UserProcess, at: int, *, is_silent: bool) -> ReadError:
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
