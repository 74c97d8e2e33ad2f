"""How records lie in a run of bytes: lines, fixed sizes, lengths in front, TFRecord; in numpy.

A framing is given bytes that begin at a record and returns the whole records in them. What is
wrong is told with the records before it, which are good.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from primusd.datafeed.formats.crc32c import crc_of_eight, crc_of_ranges, masked

Places = NDArray[np.int64]
NEWLINE, RETURN = 10, 13
HEADER, FOOTER = 12, 4
"""Of a TFRecord: length and its CRC; the CRC of the data."""
ALIKE = 8
NONE = np.empty(0, np.int64)
BAD_LENGTH = "the CRC of a record's length is wrong"


@dataclass(frozen=True, slots=True)
class Cut:
    """Whole records in some bytes."""

    begins: Places
    """Where the bytes of each record's value begin, of each field where it has several."""
    stops: Places
    """Where they end."""
    ends: Places
    """Where each record ends: the next one begins there."""
    consumed: int
    """Bytes that belong to these records, or to none."""
    fault: str = ""
    """What is wrong behind them."""
    fault_bytes: int = -1
    """How long the bad record is, so that reading may go on; -1 nobody knows."""
    first: int = 0
    """Where the first record begins, its header included: blank lines may come before it."""

    @property
    def record_begins(self) -> Places:
        """Where each record begins, its header included."""
        if not len(self.ends):
            return self.ends
        return np.concatenate(([self.first], self.ends[:-1]))

    def up_to(self, count: int, fault: str = "", fault_bytes: int = -1) -> "Cut":
        """Return the first records, and what is wrong behind them."""
        fields = len(self.begins) // max(1, len(self.ends))
        ends = self.ends[:count]
        consumed = int(ends[-1]) if count else 0
        values = count * fields
        begins, stops = self.begins[:values], self.stops[:values]
        return Cut(begins, stops, ends, consumed, fault, fault_bytes, self.first)


class Framing(Protocol):
    """How records lie in a run of bytes."""

    def cut(self, data: bytes, *, is_last: bool) -> Cut:
        """Return the whole records in bytes that begin at a record.

        Args:
            data: The bytes.
            is_last: Nothing follows them.
        """
        ...


class Lines:
    """Records are lines; the last one may lack its end."""

    def __init__(self, *, keeps_blank: bool, quote: str = "") -> None:
        """Make a framing.

        Args:
            keeps_blank: An empty line is a record.
            quote: Between two of these a line end is part of a value; "" never.
        """
        self._keeps_blank = keeps_blank
        self._quote = ord(quote) if quote else -1

    def cut(self, data: bytes, *, is_last: bool) -> Cut:
        """Return lines, their ends not in their values."""
        codes = np.frombuffer(data, np.uint8)
        stops = np.flatnonzero(codes == NEWLINE)
        if self._quote >= 0 and len(stops):
            quotes = np.cumsum(codes == self._quote, dtype=np.int32)
            stops = stops[quotes[stops] & 1 == 0]
        ends = stops + 1
        whole = int(ends[-1]) if len(ends) else 0
        fault = ""
        if is_last and whole < len(codes):
            if self._quote >= 0 and np.count_nonzero(codes[whole:] == self._quote) & 1:
                fault = "a quote that opens is not closed up to the end of the file"
            else:
                ends, stops = np.append(ends, len(codes)), np.append(stops, len(codes))
        return self._found(codes, stops, ends, fault)

    def _found(self, codes: NDArray[np.uint8], stops: Places, ends: Places, fault: str) -> Cut:
        if not len(ends):
            return Cut(ends, ends, ends, 0, fault)
        begins = np.concatenate(([0], ends[:-1]))
        consumed = int(ends[-1])
        has_return = (stops > begins) & (stops < ends) & (codes[stops - 1] == RETURN)
        stops = stops - has_return
        if self._keeps_blank:
            return Cut(begins, stops, ends, consumed, fault)
        kept = np.flatnonzero(stops > begins)
        if not len(kept):
            return Cut(NONE, NONE, NONE, consumed, fault)
        # Blank lines go with the record before them: the next one begins behind them.
        ends = np.append(begins[kept[1:]], consumed)
        begins = begins[kept]
        return Cut(begins, stops[kept], ends, consumed, fault, first=int(begins[0]))


class FixedSize:
    """Records of one size."""

    def __init__(self, record_bytes: int) -> None:
        self.record_bytes = record_bytes

    def cut(self, data: bytes, *, is_last: bool) -> Cut:
        """Return whole records; a part of one at the end of a file is a fault."""
        count = len(data) // self.record_bytes
        ends = np.arange(1, count + 1, dtype=np.int64) * self.record_bytes
        rest = len(data) - count * self.record_bytes
        fault = f"it ends {rest} bytes into a record of {self.record_bytes}" if rest else ""
        return Cut(
            ends - self.record_bytes,
            ends,
            ends,
            count * self.record_bytes,
            fault if is_last else "",
            rest if is_last and rest else -1,
        )


class Chunks:
    """No records at all: bytes, a chunk at a time."""

    def __init__(self, chunk_bytes: int) -> None:
        self.chunk_bytes = chunk_bytes

    def cut(self, data: bytes, *, is_last: bool) -> Cut:
        """Return chunks, at the end of a file a shorter one."""
        count = len(data) // self.chunk_bytes
        ends = np.arange(1, count + 1, dtype=np.int64) * self.chunk_bytes
        begins = ends - self.chunk_bytes
        if is_last and count * self.chunk_bytes < len(data):
            begins = np.append(begins, count * self.chunk_bytes)
            ends = np.append(ends, len(data))
        return Cut(begins, ends, ends, int(ends[-1]) if len(ends) else 0)


class Prefixed:
    """Records, or fields of records, with their length in front."""

    def __init__(self, prefix: str, *, field_count: int = 1, record_bytes_max: int) -> None:
        self._prefix = prefix
        self._field_count = field_count
        self._record_bytes_max = record_bytes_max
        self._width = _WIDTHS.get(prefix, 0)
        self._is_big = prefix.endswith("be")

    def cut(self, data: bytes, *, is_last: bool) -> Cut:
        """Return whole records, found by hopping over their lengths."""
        begins: list[int] = []
        stops: list[int] = []
        ends: list[int] = []
        at, fault, fault_bytes, size = 0, "", -1, len(data)
        while at < size:
            inner, spans = at, []
            for _ in range(self._field_count):
                found = self._length(data, inner)
                if found is None:
                    break
                begin, length = found
                if length < 0:
                    fault = "a length of more than ten bytes"
                    break
                if length > self._record_bytes_max:
                    fault = _too_long(length, self._record_bytes_max)
                    if self._field_count == 1:
                        fault_bytes = begin + length - at
                    break
                spans.append((begin, begin + length))
                inner = begin + length
            if fault or len(spans) < self._field_count or inner > size:
                break
            begins += [begin for begin, _ in spans]
            stops += [stop for _, stop in spans]
            ends.append(inner)
            at = inner
        if not fault and is_last and at < size:
            fault, fault_bytes = f"it ends {size - at} bytes into a record", size - at
        return Cut(_places(begins), _places(stops), _places(ends), at, fault, fault_bytes)

    def _length(self, data: bytes, at: int) -> tuple[int, int] | None:
        """Return where the value begins and its length, -1 no length; None: more bytes needed."""
        if self._width:
            stop = at + self._width
            if stop > len(data):
                return None
            return stop, int.from_bytes(data[at:stop], "big" if self._is_big else "little")
        value = shift = 0
        for step in range(10):
            if at + step >= len(data):
                return None
            code = data[at + step]
            value |= (code & 0x7F) << shift
            if code < 0x80:
                return at + step + 1, value
            shift += 7
        return at, -1


class TFRecords:
    """TensorFlow's records: length, its CRC, data, its CRC."""

    def __init__(self, *, verify: str, record_bytes_max: int) -> None:
        self._verify = verify
        self._record_bytes_max = record_bytes_max

    def cut(self, data: bytes, *, is_last: bool) -> Cut:
        """Return whole records whose CRCs are right."""
        found, at, fault, fault_bytes = self._hopped(data)
        if not fault and is_last and at < len(data):
            rest = len(data) - at
            fault, fault_bytes = f"it ends {rest} bytes into a record", rest
        begins = np.concatenate(([0], found[:-1])) if len(found) else NONE
        cut = Cut(begins + HEADER, found - FOOTER, found, at, fault, fault_bytes)
        return cut if self._verify == "none" else self._checked(data, cut)

    def _hopped(self, data: bytes) -> tuple[Places, int, str, int]:
        """Return where records end, and what is wrong behind them."""
        parts: list[Places] = []
        ends: list[int] = []
        at = alike = before = 0
        while at + HEADER <= len(data):
            length = int.from_bytes(data[at : at + 8], "little")
            if length > self._record_bytes_max:
                return _joined(parts, ends), at, *self._too_long(data, at, length)
            stop = at + HEADER + length + FOOTER
            if stop > len(data):
                break
            alike = alike + 1 if length == before else 0
            before = length
            if alike >= ALIKE:
                # Records of one size are the rule: the rest is looked at in one go.
                run = _run_of(data, at, stop - at)
                parts += [_places(ends), at + (stop - at) * np.arange(1, run + 1, dtype=np.int64)]
                ends, alike, at = [], 0, at + (stop - at) * run
                continue
            ends.append(stop)
            at = stop
        return _joined(parts, ends), at, "", -1

    def _too_long(self, data: bytes, at: int, length: int) -> tuple[str, int]:
        # A length that is damaged is told as such, and not as a record that is too long.
        if self._verify != "none" and not _good_headers(data, _places([at]))[0]:
            return BAD_LENGTH, -1
        return _too_long(length, self._record_bytes_max), HEADER + length + FOOTER

    def _checked(self, data: bytes, cut: Cut) -> Cut:
        """Return the records up to the first whose CRC is wrong."""
        good = _good_headers(data, cut.begins - HEADER)
        if not good.all():
            cut = cut.up_to(int(np.argmin(good)), BAD_LENGTH)
        elif cut.fault != BAD_LENGTH and not self._is_next_good(data, cut.consumed):
            cut = cut.up_to(len(cut.ends), BAD_LENGTH)
        return self._checked_data(data, cut) if self._verify == "full" else cut

    def _is_next_good(self, data: bytes, at: int) -> bool:
        """Return whether the record that is not whole yet has a length to be waited for."""
        return len(data) - at < HEADER or bool(_good_headers(data, _places([at]))[0])

    def _checked_data(self, data: bytes, cut: Cut) -> Cut:
        wanted = _words(data, cut.stops)
        right = masked(crc_of_ranges(data, cut.begins, cut.stops)) == wanted
        if right.all():
            return cut
        bad = int(np.argmin(right))
        size = int(cut.ends[bad] - cut.begins[bad]) + HEADER
        return cut.up_to(bad, "the CRC of a record's data is wrong", size)


def tfrecord_start(data: bytes, *, room: int) -> int:
    """Return where the first record header in some bytes begins, -1 when there is none.

    Args:
        data: Any bytes; a header is found where all of it is in them.
        room: Bytes from the first of them to the end of the file: no record is longer.
    """
    codes = np.frombuffer(data, np.uint8)
    count = len(codes) - HEADER + 1
    if count <= 0:
        return -1
    # Most places are ruled out by the upper half of a length: no file has so many bytes.
    high = np.ones(count, bool)
    for step in range(5, 8):
        high &= codes[step : step + count] == 0
    places = np.flatnonzero(high)
    if not len(places):
        return -1
    lengths = np.zeros(len(places), np.int64)
    for step in range(5):
        lengths |= codes[places + step].astype(np.int64) << (8 * step)
    places = places[lengths + places + HEADER + FOOTER <= room]
    places = places[_good_headers(data, places)]
    return int(places[0]) if len(places) else -1


def _good_headers(data: bytes, headers: Places) -> NDArray[np.bool_]:
    codes = np.frombuffer(data, np.uint8)
    good: NDArray[np.bool_] = masked(crc_of_eight(codes, headers)) == _words(data, headers + 8)
    return good


def _words(data: bytes, places: Places) -> NDArray[np.uint32]:
    codes = np.frombuffer(data, np.uint8)
    found = np.zeros(len(places), np.uint32)
    for step in range(4):
        found |= codes[places + step].astype(np.uint32) << np.uint32(8 * step)
    return found


def _run_of(data: bytes, at: int, size: int) -> int:
    """Return how many records of one size follow each other, by their lengths; at least one."""
    count = (len(data) - at) // size
    heads = np.frombuffer(data, np.uint8, count * size, at).reshape(count, size)[:, :8]
    same = (heads == heads[0]).all(axis=1)
    return count if same.all() else int(np.argmin(same))


def _joined(parts: list[Places], ends: list[int]) -> Places:
    return np.concatenate([*parts, _places(ends)]) if parts else _places(ends)


def _places(found: list[int]) -> Places:
    return np.array(found, np.int64)


def _too_long(length: int, most: int) -> str:
    return (
        f"a record of {length} bytes; the longest may have {most}, a quarter of memory: if it is "
        f"right, set memory to {-(-4 * length >> 20)}Mi"
    )


_WIDTHS: Mapping[str, int] = {
    "u8": 1,
    "u16le": 2,
    "u16be": 2,
    "u32le": 4,
    "u32be": 4,
    "u64le": 8,
    "u64be": 8,
}
