r"""Where the lines of a file are, and spans of them for a pipe.

A range [lo, hi) owns the lines that start in it. The reader skips to the first line start at or
above lo and reads past hi to the end of its last line. A line ends with `\n`; the last one of a
file may lack it.
"""

from collections.abc import Callable, Iterator

from primusd.datafeed.formats.base import (
    OpenFile,
    PipeBlock,
    ReadError,
    RowBlock,
    RowFile,
    head_of,
)
from primusd.datafeed.protocol import Unit

PIPE_BLOCK_BYTES = 1 << 20
SEARCH_BYTES = 64 << 10
SAMPLE_BYTES = 16 << 10


class PlainLines:
    """A file of lines as it stands: a pipe gets spans, and pyarrow is loaded for rows only."""

    cuts: tuple[int, ...] = ()
    row_count = -1

    def __init__(
        self, unit: Unit, file: OpenFile, *, line_bytes_max: int, shaped: Callable[[], RowFile]
    ) -> None:
        """Look at a file.

        Args:
            unit: As it was listed.
            file: The same, opened.
            line_bytes_max: The longest line that is held in memory.
            shaped: Opens it as rows.
        """
        self.end = unit.byte_count
        self._spans = LineSpans(unit, file, origin=0, line_bytes_max=line_bytes_max)
        self._shaped = shaped
        self._rows: RowFile | None = None

    def rows(self, lo: int, hi: int, *, block_bytes: int) -> Iterator[RowBlock]:
        """Yield blocks with one column, `line`: the bytes of each line without its end."""
        if self._rows is None:
            self._rows = self._shaped()
        return self._rows.rows(lo, hi, block_bytes=block_bytes)

    def pieces(self, lo: int, hi: int, *, framing: str) -> Iterator[PipeBlock]:
        """Yield spans of whole lines, or lines in another framing."""
        if framing in ("lines", "raw"):
            return self._spans.pieces(lo, hi, framing=framing)
        from primusd.datafeed.formats.encoding import pieces_of  # noqa: PLC0415 starts threads

        return pieces_of(self.rows(lo, hi, block_bytes=PIPE_BLOCK_BYTES), framing)


class LineSpans:
    """The lines of one opened file."""

    def __init__(self, unit: Unit, file: OpenFile, *, origin: int, line_bytes_max: int) -> None:
        """Look at a file.

        Args:
            unit: As it was listed.
            file: The same, opened.
            origin: Where its first line begins that is a record.
            line_bytes_max: The longest line that is held in memory.
        """
        self.end = unit.byte_count
        self._unit = unit
        self._file = file
        self._origin = origin
        self._line_bytes_max = line_bytes_max

    def line_start(self, position: int) -> int:
        """Return where the first line begins that begins at or after a position.

        Raises:
            ReadError: The file cannot be read.
        """
        if position <= self._origin:
            return self._origin
        at = position - 1
        while at < self.end:
            found = self._file.pread(at, SEARCH_BYTES).find(b"\n")
            if found >= 0:
                return at + found + 1
            at += SEARCH_BYTES
        return self.end

    def pieces(self, lo: int, hi: int, *, framing: str) -> Iterator[PipeBlock]:
        """Yield spans of whole lines; with `lines` the last line of a file gets its end."""
        at, stop = self.line_start(lo), self.line_start(hi)
        block_lo = lo
        while at < stop:
            end = self._last_line_end(at, min(at + PIPE_BLOCK_BYTES, stop), stop)
            self._file.check()
            yield self._piece(at, end, block_lo, hi if end >= stop else end, framing)
            at = block_lo = end
        if block_lo == lo and at >= stop:
            yield PipeBlock(lo, hi, 0, lambda _: hi)

    def _piece(self, at: int, end: int, lo: int, hi: int, framing: str) -> PipeBlock:
        if self._file.fd < 0:
            return self._far_piece(at, end, lo, hi, framing)
        sample = self._file.pread(at, min(SAMPLE_BYTES, end - at))
        lines = max(1, sample.count(b"\n") * (end - at) // len(sample))
        lacks_end = framing == "lines" and end == self.end and self._file.pread(end - 1, 1) != b"\n"

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

    def _far_piece(self, at: int, end: int, lo: int, hi: int, framing: str) -> PipeBlock:
        """Return a span of a file that is no local one: it goes through memory."""
        if end - at > self._line_bytes_max:
            raise ReadError(
                f"{self._unit.location}: the line at byte {at} has {end - at} bytes; the longest "
                f"may have {self._line_bytes_max}, a quarter of memory",
                kind="data",
                lo=at,
                hi=end,
                head=head_of(self._file),
            )
        data = self._file.pread(at, end - at)
        if framing == "lines" and not data.endswith(b"\n"):
            data += b"\n"
        locate = _locator(data, at, lo, hi)
        return PipeBlock(lo, hi, data.count(b"\n"), locate, data=data)

    def _line_start_below(self, start: int, position: int) -> int:
        """Return the last line start at or below a position; `start` is one."""
        top = position
        while top > start:
            low = max(start, top - SEARCH_BYTES)
            found = self._file.pread(low, top - low).rfind(b"\n")
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


def _locator(data: bytes, at: int, lo: int, hi: int) -> Callable[[int], int]:
    def locate(byte_count: int) -> int:
        if byte_count >= len(data):
            return hi
        return max(lo, at + data.rfind(b"\n", 0, byte_count) + 1)

    return locate
