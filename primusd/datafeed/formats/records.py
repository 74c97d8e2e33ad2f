"""Files of records, a position being a byte: a range owns the records that begin in it."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from primusd.datafeed.formats.base import OpenFile, PipeBlock, ReadError, RowBlock, head_of
from primusd.datafeed.formats.budget import Budget
from primusd.datafeed.formats.decoders import HEAD_BYTES, BadRecordError, HeadError
from primusd.datafeed.formats.forms import RecordForm
from primusd.datafeed.formats.framings import HEADER, Cut, FixedSize, tfrecord_start
from primusd.datafeed.formats.settings import Settings
from primusd.datafeed.formats.text import LineSpans
from primusd.datafeed.protocol import Unit

CHUNK_BYTES = 1 << 20
SEARCH_BYTES = 64 << 10
KNOWN_EVERY_BYTES = 1 << 20
SHOWN_BYTES = 64
RECORD_COPIES = 3
"""Of a long record: as it was read, and while its value is made of it."""
NO_CUT = Cut(*(np.empty(0, np.int64),) * 3, consumed=0)


@dataclass(frozen=True, slots=True)
class Run:
    """Some whole records, one after the other, and what is wrong behind them."""

    data: bytes
    cut: Cut
    at: int
    """Where the data begins."""
    lo: int
    hi: int
    fault: ReadError | None = None


class RecordFile:
    """A file of records that is not compressed."""

    row_count = -1
    cuts: tuple[int, ...] = ()

    def __init__(
        self,
        unit: Unit,
        file: OpenFile,
        form: RecordForm,
        settings: Settings,
        budget: Budget | None = None,
    ) -> None:
        """Open a file.

        Raises:
            ReadError: Its beginning tells no columns.
        """
        self._unit = unit
        self._file = file
        self._form = form
        self._record_max = settings.record_bytes_max
        self._budget = budget or Budget(settings.memory_bytes)
        self.end = unit.byte_count
        self._origin = 0
        self.framings = form.direct
        if form.decoder.needs_head:
            head = file.pread(0, min(HEAD_BYTES, self._record_max))
            try:
                self._origin = form.decoder.prepare(head, is_whole=len(head) >= self.end)
            except HeadError as error:
                raise self._error(error.message, head=head[:SHOWN_BYTES]) from error
            except pa.ArrowInvalid as error:
                text = f"its beginning cannot be read: {str(error)[:300]}"
                raise self._error(text, head=head[:SHOWN_BYTES]) from error
        self._known = [self._origin]
        self._lines = LineSpans(unit, file, origin=self._origin, line_bytes_max=self._record_max)

    def rows(self, lo: int, hi: int, *, block_bytes: int) -> Iterator[RowBlock]:
        """Yield the rows of the records that begin in a range."""
        for run in self._runs(lo, hi, block_bytes):
            yield from self._decoded(run)
            if run.fault is not None:
                raise run.fault
            del run  # Its bytes go before the next ones come.

    def pieces(self, lo: int, hi: int, *, framing: str) -> Iterator[PipeBlock]:
        """Yield the same records as they stand in the file."""
        if self._form.start == "line":
            yield from self._lines.pieces(lo, hi, framing=framing)
            return
        for run in self._runs(lo, hi, 4 * CHUNK_BYTES):
            yield _piece(run, ends_lines=framing == "lines")
            if run.fault is not None:
                raise run.fault

    def _decoded(self, run: Run) -> Iterator[RowBlock]:
        cut = run.cut
        begins = cut.record_begins
        first = run.at + int(begins[0]) if len(begins) else -1
        try:
            batch = self._form.decoder.decode(run.data, cut)
        except BadRecordError as error:
            bad = error.index
            at = run.at + int(begins[bad])
            end = run.at + int(cut.ends[bad])
            shown = run.data[int(begins[bad]) : int(cut.ends[bad])][:SHOWN_BYTES]
            if bad:
                part = cut.up_to(bad)
                batch = self._form.decoder.decode(run.data, part)
                yield RowBlock(batch, run.lo, at, ends=run.at + part.ends, first=first)
            raise self._error(error.message, lo=at, hi=end, head=shown) from error
        yield RowBlock(batch, run.lo, run.hi, ends=run.at + cut.ends, first=first)

    def _runs(self, lo: int, hi: int, block_bytes: int) -> Iterator[Run]:
        """Yield the records that begin in a range, without gaps from lo to hi."""
        at = self._first(lo)
        block_lo = lo
        while at < min(hi, self.end):
            # Bytes that are no records are cut where a range ends.
            stop = hi if self._form.start == "any" else self.end
            data, cut = self._whole(at, _read_bytes(block_bytes), min(stop, self.end))
            fault = self._fault(cut, at, data) if cut.fault else None
            count = int(np.searchsorted(cut.record_begins, hi - at))
            if count < len(cut.ends):
                cut, fault = cut.up_to(count), None
                end = hi
            else:
                end = at + cut.consumed
            is_final = fault is None and (end >= hi or end >= self.end)
            self._note_known(end)
            if len(cut.ends) or fault is None:
                yield Run(data, cut, at, block_lo, hi if is_final else end, fault)
            elif fault is not None:
                raise fault
            if is_final:
                return
            at = block_lo = end
            del data
        yield Run(b"", NO_CUT, block_lo, block_lo, hi)

    def _whole(self, at: int, byte_count: int, stop: int) -> tuple[bytes, Cut]:
        """Return bytes from a record on with at least one whole record, or what is wrong."""
        size = byte_count
        while True:
            data = self._file.pread(at, min(size, stop - at))
            is_last = at + len(data) >= stop
            cut = self._form.framing.cut(data, is_last=is_last)
            if cut.consumed or cut.fault or is_last:
                self._file.check()
                return data, cut
            if size >= self._record_max:
                text = (
                    f"no record ends within {self._record_max} bytes, a quarter of memory; is "
                    "it of this format? Else give more memory"
                )
                return data, Cut(*(np.empty(0, np.int64),) * 3, consumed=0, fault=text)
            size = min(size * 2, self._record_max)
            del data
            self._budget.make_room(RECORD_COPIES * size)

    def _fault(self, cut: Cut, at: int, data: bytes) -> ReadError:
        bad = at + cut.consumed
        if cut.fault_bytes >= 0:
            hi = min(bad + max(1, cut.fault_bytes), self.end)
        elif self._form.start in ("line", "tfrecord"):
            hi = self._first(bad + 1)
        else:
            hi = self.end
        shown = data[cut.consumed : cut.consumed + SHOWN_BYTES]
        return self._error(f"at byte {bad}: {cut.fault}", lo=bad, hi=max(hi, bad + 1), head=shown)

    # Where records begin.

    def _first(self, position: int) -> int:
        """Return where the first record begins that begins at or after a position."""
        if position <= self._origin:
            return self._origin
        match self._form.start:
            case "line":
                return self._lines.line_start(position)
            case "any":
                return position
            case "size":
                framing = self._form.framing
                size = framing.record_bytes if isinstance(framing, FixedSize) else 1
                return min(-(-position // size) * size, self.end)
            case "tfrecord":
                return self._search(position)
            case _:
                return self._walk(position)

    def _search(self, position: int) -> int:
        """Return the first place from a position on that is a header by its CRC."""
        at = position
        while at < self.end:
            data = self._file.pread(at, SEARCH_BYTES + HEADER - 1)
            found = tfrecord_start(data, room=self.end - at)
            if found >= 0:
                return at + found
            at += SEARCH_BYTES
        return self.end

    def _walk(self, position: int) -> int:
        """Return the same by hopping from record to record, from the nearest that is known."""
        at = self._known[bisect_right(self._known, position) - 1]
        while at < min(position, self.end):
            data, cut = self._whole(at, CHUNK_BYTES, self.end)
            begins = np.append(cut.record_begins, cut.consumed)
            place = int(np.searchsorted(begins, position - at))
            if place < len(begins) and (place < len(begins) - 1 or not cut.fault):
                return at + int(begins[place])
            if cut.fault and cut.fault_bytes > 0:
                # Bad, but its length is known: the next one begins behind it.
                at += cut.consumed + cut.fault_bytes
                continue
            if cut.fault:
                fault = self._fault(cut, at, data)
                text = f"{fault.message}; what comes behind it cannot be found"
                raise ReadError(text, kind="data", head=fault.head)
            at += cut.consumed
            self._note_known(at)
        return min(at, self.end)

    def _note_known(self, position: int) -> None:
        if position - self._known[-1] >= KNOWN_EVERY_BYTES:
            self._known.append(position)
            return
        place = bisect_left(self._known, position)
        near = self._known[place - 1] if place else self._origin
        if 0 < place < len(self._known) and position - near >= KNOWN_EVERY_BYTES:
            self._known.insert(place, position)

    def _error(self, text: str, *, lo: int = -1, hi: int = -1, head: bytes = b"") -> ReadError:
        shown = head or head_of(self._file)
        return ReadError(f"{self._unit.location}: {text}", kind="data", lo=lo, hi=hi, head=shown)


def _read_bytes(block_bytes: int) -> int:
    """Return how much is read at once: places of very short records take ten times as much."""
    return max(1, min(block_bytes // 4, CHUNK_BYTES))


def _piece(run: Run, *, ends_lines: bool) -> PipeBlock:
    """Return a run as the bytes that it has in its file."""
    cut = run.cut
    if not len(cut.ends):
        return PipeBlock(run.lo, run.hi, 0, lambda _: run.hi)
    data = run.data[: int(cut.ends[-1])]
    if ends_lines and not data.endswith(b"\n"):
        data += b"\n"
    ends, at, hi, size = cut.ends, run.at, run.hi, len(data)

    def locate(byte_count: int) -> int:
        if byte_count >= size:
            return hi
        place = bisect_right(ends, byte_count)
        return at + int(ends[place - 1]) if place else run.lo

    return PipeBlock(run.lo, hi, len(ends), locate, data=data)
