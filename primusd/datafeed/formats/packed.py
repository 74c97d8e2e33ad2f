"""Compressed files of records: a position counts records, and a range is read from the start."""

import lzma
from collections.abc import Iterator

import pyarrow as pa

from primusd.datafeed.formats.base import OpenFile, PipeBlock, ReadError, RowBlock, head_of
from primusd.datafeed.formats.budget import Budget
from primusd.datafeed.formats.decoders import HEAD_BYTES, BadRecordError, HeadError
from primusd.datafeed.formats.forms import RecordForm
from primusd.datafeed.formats.framings import Cut, Places
from primusd.datafeed.formats.inflating import Inflating, WindowError, inflating, kept_bytes
from primusd.datafeed.formats.records import RECORD_COPIES
from primusd.datafeed.formats.settings import Settings
from primusd.datafeed.ledger.model import OPEN_END
from primusd.datafeed.protocol import Unit

READ_BYTES = 1 << 20
SHOWN_BYTES = 64


class PackedFile:
    """A compressed file: how many records it has is known once it was read to its end."""

    def __init__(
        self,
        unit: Unit,
        file: OpenFile,
        form: RecordForm,
        settings: Settings,
        compression: str,
        *,
        budget: Budget | None = None,
    ) -> None:
        self._unit = unit
        self._file = file
        self._form = form
        self._compression = compression
        self._record_max = settings.record_bytes_max
        self._memory_bytes = settings.memory_bytes
        self._budget = budget or Budget(settings.memory_bytes)
        self.end = OPEN_END
        self.row_count = -1
        self.cuts: tuple[int, ...] = ()
        self.framings = form.direct

    def rows(self, lo: int, hi: int, *, block_bytes: int) -> Iterator[RowBlock]:
        """Yield the rows of records lo to hi, or to the end of the file where it has fewer."""
        for at, data, cut in self._runs(lo, hi, block_bytes):
            try:
                batch = self._form.decoder.decode(data, cut)
            except BadRecordError as error:
                bad, begins = error.index, cut.record_begins
                if bad:
                    part = self._form.decoder.decode(data, cut.up_to(bad))
                    yield RowBlock(part, at, at + bad)
                shown = data[int(begins[bad]) : int(cut.ends[bad])][:SHOWN_BYTES]
                raise self._error(error.message, lo=at + bad, head=shown) from error
            yield RowBlock(batch, at, at + len(cut.ends))

    def pieces(self, lo: int, hi: int, *, framing: str) -> Iterator[PipeBlock]:
        """Yield the same records as they stand in the decompressed file."""
        for at, data, cut in self._runs(lo, hi, 4 * READ_BYTES):
            begins = cut.record_begins
            part = data[int(begins[0]) : int(cut.ends[-1])] if len(cut.ends) else b""
            if framing == "lines" and part and not part.endswith(b"\n"):
                part += b"\n"
            ends = cut.ends - (int(begins[0]) if len(begins) else 0)
            yield PipeBlock(at, at + len(ends), len(ends), _Locator(ends, at, len(part)), data=part)

    def measure(self) -> None:
        """Count the records, once."""
        if self.end >= OPEN_END:
            for _ in self._runs(OPEN_END - 1, OPEN_END, 4 * READ_BYTES):
                pass

    def _runs(self, lo: int, hi: int, block_bytes: int) -> Iterator[tuple[int, bytes, Cut]]:
        """Yield the number of the first record, bytes, and the records in them."""
        hi = min(hi, self.end)
        at = 0
        if lo >= hi:
            return
        for data, cut in self._all(max(1, min(block_bytes // 4, READ_BYTES))):
            count = len(cut.ends)
            first, last = max(0, lo - at), min(count, hi - at)
            if first < last:
                yield at + first, *_between(data, cut, first, last)
            at += count
            if at >= hi:
                return
            if cut.fault:
                shown = data[cut.consumed :][:SHOWN_BYTES]
                raise self._error(f"record {at}: {cut.fault}", lo=at, to_end=True, head=shown)
        self.end = self.row_count = at
        self.cuts = (at,)

    def _all(self, read_bytes: int) -> Iterator[tuple[bytes, Cut]]:
        """Yield all records of the file."""
        try:
            stream = inflating(self._file, self._compression, memory_bytes=self._memory_bytes)
        except WindowError as error:
            raise self._error(error.message, to_end=True) from error
        kept = kept_bytes(self._file, self._compression, memory_bytes=self._memory_bytes)
        with self._budget.holding(kept):
            yield from self._records(stream, read_bytes)

    def _records(self, stream: Inflating, read_bytes: int) -> Iterator[tuple[bytes, Cut]]:
        data, is_last = self._begun(stream)
        at = 0
        if self._form.decoder.needs_head:
            at = self._prepared(data, is_last=is_last)
        size = read_bytes
        count = 0
        while True:
            rest = data[at:]
            cut = self._form.framing.cut(rest, is_last=is_last)
            if len(cut.ends) or cut.fault:
                yield rest, cut
            count += len(cut.ends)
            at += cut.consumed
            if cut.fault or is_last:
                return
            held = len(data) - at
            if held > self._record_max:
                text = (
                    f"no record ends within {self._record_max} bytes, a quarter of memory; is it "
                    "of this format? Else give more memory"
                )
                raise self._error(text, lo=count, to_end=True, head=data[at : at + SHOWN_BYTES])
            # A record longer than what is read is looked for again in twice the bytes.
            most = max(size, min(held, self._record_max - held + 1))
            if held > read_bytes:
                self._budget.make_room(RECORD_COPIES * (held + most))
            more = self._read(stream, most, count)
            is_last = not more
            data, at = data[at:] + more, 0
            del rest, cut, more

    def _begun(self, stream: Inflating) -> tuple[bytes, bool]:
        """Return the first bytes: enough for a header and the types of columns."""
        if not self._form.decoder.needs_head:
            return b"", False
        parts: list[bytes] = []
        wanted = min(HEAD_BYTES, self._record_max)
        while wanted > 0:
            part = self._read(stream, wanted, 0)
            if not part:
                return b"".join(parts), True
            parts.append(part)
            wanted -= len(part)
        return b"".join(parts), False

    def _prepared(self, head: bytes, *, is_last: bool) -> int:
        try:
            return self._form.decoder.prepare(head, is_whole=is_last)
        except HeadError as error:
            raise self._error(error.message, to_end=True, head=head[:SHOWN_BYTES]) from error
        except pa.ArrowInvalid as error:
            text = f"its beginning cannot be read: {str(error)[:300]}"
            raise self._error(text, to_end=True, head=head[:SHOWN_BYTES]) from error

    def _read(self, stream: Inflating, byte_count: int, count: int) -> bytes:
        try:
            return stream.read(byte_count)
        except WindowError as error:
            raise self._error(error.message, lo=count, to_end=True) from error
        except (OSError, EOFError, lzma.LZMAError, pa.ArrowException) as error:
            self._file.check()
            if isinstance(error, OSError) and error.errno is not None:
                raise ReadError(str(error), kind="transient") from error
            text = f"cannot be decompressed as {self._compression} after {count} records: {error}"
            raise self._error(text, lo=count, to_end=True) from error

    def _error(
        self, text: str, *, lo: int = -1, to_end: bool = False, head: bytes = b""
    ) -> ReadError:
        hi = -1 if to_end or lo < 0 else lo + 1
        shown = head or head_of(self._file)
        return ReadError(f"{self._unit.location}: {text}", kind="data", lo=lo, hi=hi, head=shown)


class _Locator:
    """The position once so many bytes of a piece left the pipe."""

    def __init__(self, ends: Places, first: int, byte_count: int) -> None:
        self._ends = ends
        self._first = first
        self._byte_count = byte_count

    def __call__(self, byte_count: int) -> int:
        if byte_count >= self._byte_count:
            return self._first + len(self._ends)
        return self._first + int(self._ends.searchsorted(byte_count, side="right"))


def _between(data: bytes, cut: Cut, first: int, last: int) -> tuple[bytes, Cut]:
    """Return some of the records, and the bytes from the first of them on."""
    if first == 0:
        return data, cut.up_to(last)
    fields = len(cut.begins) // len(cut.ends)
    at = int(cut.ends[first - 1])
    values = slice(first * fields, last * fields)
    ends = cut.ends[first:last] - at
    return data[at:], Cut(
        cut.begins[values] - at, cut.stops[values] - at, ends, int(ends[-1]) if len(ends) else 0
    )
