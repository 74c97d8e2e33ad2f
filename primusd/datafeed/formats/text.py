r"""Text: a record is a line, a position is a byte, and a range may be cut at any byte.

A range [lo, hi) owns the lines that start in it. The reader skips to the first line start at or
above lo and reads past hi to the end of its last line. A line ends with `\n`; the last one of a
file may lack it.
"""

import os
from collections.abc import Iterator

from primusd.datafeed.formats.base import (
    PipeBlock,
    ReadError,
    RowBlock,
    check_pin,
    head_of,
    open_pinned,
    read_error,
)
from primusd.datafeed.protocol import Unit

PIPE_BLOCK_BYTES = 1 << 20
# Finding the line ends of a block takes eight times its memory for a moment.
BLOCK_BYTES = 1 << 20
SEARCH_BYTES = 64 << 10
# A line is held in memory whole; a file without line ends must not take all of it.
LINE_BYTES_MAX = 64 << 20
SAMPLE_BYTES = 16 << 10


class TextFile:
    """A file of lines."""

    cuts: tuple[int, ...] = ()
    row_count = -1

    def __init__(self, unit: Unit) -> None:
        self._unit = unit
        self._file = open_pinned(unit)
        self.end = unit.byte_count

    def line_start(self, position: int) -> int:
        """Return where the first line begins that begins at or after a position.

        Raises:
            ReadError: No line end is near, or the file cannot be read.
        """
        if position <= 0:
            return 0
        at = position - 1
        while at < self.end:
            found = self._read(at, SEARCH_BYTES).find(b"\n")
            if found >= 0:
                return at + found + 1
            at += SEARCH_BYTES
            if at - position > LINE_BYTES_MAX:
                raise self._too_long(position)
        return self.end

    def rows(self, lo: int, hi: int, *, block_bytes: int) -> Iterator[RowBlock]:
        """Yield blocks with one column, `line`: the bytes of each line without its end."""
        from primusd.datafeed.formats.lines import line_block  # noqa: PLC0415 starts threads

        at, stop = self.line_start(lo), self.line_start(hi)
        block_lo = lo
        while at < stop:
            data = self._lines(at, stop, min(block_bytes, BLOCK_BYTES))
            check_pin(self._file, self._unit)
            end = at + len(data)
            yield line_block(data, at, block_lo, hi if end >= stop else end)
            at = block_lo = end
        if block_lo == lo and at >= stop:
            yield line_block(b"", lo, lo, hi)

    def pieces(self, lo: int, hi: int, *, framing: str) -> Iterator[PipeBlock]:
        """Yield spans of whole lines; with `lines` the last line of a file gets its end."""
        at, stop = self.line_start(lo), self.line_start(hi)
        block_lo = lo
        while at < stop:
            end = self._last_line_end(at, min(at + PIPE_BLOCK_BYTES, stop), stop)
            check_pin(self._file, self._unit)
            yield self._piece(at, end, block_lo, hi if end >= stop else end, framing)
            at = block_lo = end
        if block_lo == lo and at >= stop:
            yield PipeBlock(lo, hi, 0, lambda _: hi)

    def _piece(self, at: int, end: int, lo: int, hi: int, framing: str) -> PipeBlock:
        sample = self._read(at, min(SAMPLE_BYTES, end - at))
        lines = max(1, sample.count(b"\n") * (end - at) // len(sample))
        lacks_end = framing == "lines" and end == self.end and self._read(end - 1, 1) != b"\n"

        def locate(byte_count: int) -> int:
            if byte_count >= end - at + lacks_end:
                return hi
            return max(lo, self._line_start_below(at, at + byte_count))

        return PipeBlock(
            lo,
            hi,
            lines,
            locate,
            file=self._file,
            offset=at,
            span_bytes=end - at,
            data=b"\n" if lacks_end else b"",
        )

    def _line_start_below(self, start: int, position: int) -> int:
        """Return the last line start at or below a position; `start` is one."""
        top = position
        while top > start:
            low = max(start, top - SEARCH_BYTES)
            found = self._read(low, top - low).rfind(b"\n")
            if found >= 0:
                return low + found + 1
            top = low
        return start

    def _last_line_end(self, at: int, top: int, stop: int) -> int:
        """Return the last line end at or below `top`, or the first one above it."""
        if top >= stop:
            return stop
        end = self._line_start_below(at, top)
        return end if end > at else min(self.line_start(top), stop)

    def _lines(self, at: int, stop: int, block_bytes: int) -> bytes:
        """Return whole lines from `at`, about block_bytes of them."""
        size = min(block_bytes, stop - at)
        while True:
            data = self._read(at, size)
            if at + size >= stop:
                return data
            end = data.rfind(b"\n") + 1
            if end:
                return data[:end]
            if size > LINE_BYTES_MAX:
                raise self._too_long(at)
            size = min(size * 2, stop - at)

    def _read(self, at: int, byte_count: int) -> bytes:
        wanted = min(byte_count, self.end - at)
        try:
            data = os.pread(self._file.fd, wanted, at)
        except OSError as error:
            raise read_error(self._unit, error, head=head_of(self._file)) from error
        if len(data) < wanted:
            check_pin(self._file, self._unit)
            more = self._read(at + len(data), wanted - len(data)) if data else b""
            if len(data) + len(more) < wanted:
                raise ReadError(
                    f"{self._unit.location} ends early, at byte {at + len(data)}",
                    kind="transient",
                    head=head_of(self._file),
                )
            return data + more
        return data

    def _too_long(self, position: int) -> ReadError:
        return ReadError(
            f"{self._unit.location} has no line end within {LINE_BYTES_MAX >> 20} MiB after "
            f"byte {position}; is it text?",
            kind="data",
            head=head_of(self._file),
        )
