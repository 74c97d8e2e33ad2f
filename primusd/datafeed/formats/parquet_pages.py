"""The pages of a Parquet column chunk: how large each is, by the heads between them.

No page is read for that. The footer tells only how much all pages of a chunk have together.

Source: parquet.thrift of the Apache Parquet format, whose heads are structs in the compact protocol
of Apache Thrift.
"""

from collections.abc import Mapping

from msgspec import Struct

from primusd.datafeed.storage.base import OpenFile

HEAD_BYTES = 128
"""Of a head as a rule: its statistics may be longer."""
HEAD_BYTES_MAX = 64 << 10
DEPTH_MAX = 8
DICTIONARY_PAGE = 2
TRUE, FALSE, BYTE = 1, 2, 3
INTEGERS = frozenset({4, 5, 6})
"""Types of the compact protocol."""

Field = int | Mapping[int, "Field"]


class Page(Struct, frozen=True):
    """One page."""

    file_bytes: int
    """In the file, its head included."""
    byte_count: int
    """Decompressed."""
    value_count: int
    """Of a column that does not repeat: its rows."""
    is_dictionary: bool


def pages_of(file: OpenFile, offset: int, byte_count: int, *, most: int) -> tuple[Page, ...]:
    """Return the pages of a column chunk, the first ones where it has more than `most`.

    Heads that cannot be read end the list: whoever decodes them says what is wrong.

    Args:
        file: That has them.
        offset: Where the first page begins.
        byte_count: What all of them have in the file.
        most: Pages to look at.

    Raises:
        ReadError: The file cannot be read.
    """
    found: list[Page] = []
    alike: dict[Page, Page] = {}
    at, end = offset, offset + byte_count
    while at < end and len(found) < most:
        known = _head(file.pread(at, min(HEAD_BYTES, end - at)))
        if known is None:
            known = _head(file.pread(at, min(HEAD_BYTES_MAX, end - at)))
        if known is None:
            break
        # Most are as large as others: of thousands only a few are kept.
        found.append(alike.setdefault(known, known))
        at += known.file_bytes
    return tuple(found)


def _head(data: bytes) -> Page | None:
    """Return what a head tells; None: it is none, or is longer."""
    try:
        fields, end = _struct(data, 0, DEPTH_MAX)
    except (IndexError, ValueError):
        return None
    kind, byte_count, packed_bytes = (fields.get(number, -1) for number in (1, 2, 3))
    counts = fields.get(5) or fields.get(8) or fields.get(7)
    if not (isinstance(byte_count, int) and isinstance(packed_bytes, int)):
        return None
    value_count = counts.get(1, 0) if isinstance(counts, Mapping) else 0
    if byte_count < 0 or packed_bytes < 0 or not isinstance(value_count, int):
        return None
    return Page(end + packed_bytes, byte_count, value_count, kind == DICTIONARY_PAGE)


def _struct(data: bytes, at: int, depth: int) -> tuple[dict[int, Field], int]:
    """Return the fields of a struct by their numbers, and where it ends.

    Raises:
        IndexError: It goes on behind the bytes.
        ValueError: It is none.
    """
    fields: dict[int, Field] = {}
    number = 0
    while code := data[at]:
        at += 1
        if code >> 4:
            number += code >> 4
        else:
            number, at = _signed(data, at)
        kind = code & 15
        if kind in INTEGERS:
            # A shorter way for most of them: there are thousands of heads.
            found = data[at]
            if found < 128:
                fields[number], at = (found >> 1) ^ -(found & 1), at + 1
            else:
                fields[number], at = _signed(data, at)
        else:
            fields[number], at = _value(data, at, kind, depth)
    return fields, at + 1


def _value(data: bytes, at: int, kind: int, depth: int) -> tuple[Field, int]:
    """Return a number or a struct, 0 for anything else, and where it ends."""
    match kind:
        case 8:
            size, at = _varint(data, at)
            return 0, at + size
        case 1 | 2:
            return int(kind == TRUE), at
        case 12 if depth:
            return _struct(data, at, depth - 1)
        case 4 | 5 | 6:
            return _signed(data, at)
        case 3:
            return data[at], at + 1
        case 7:
            return 0, at + 8
        case 9 | 10 if depth:
            return 0, _behind_list(data, at, depth - 1)
        case _:
            # A page's head has no map, and nothing that deep.
            raise ValueError(f"type {kind}")


def _behind_list(data: bytes, at: int, depth: int) -> int:
    code = data[at]
    at += 1
    count = code >> 4
    if count == 15:
        count, at = _varint(data, at)
    for _ in range(count):
        # In a list even a boolean has a byte.
        inner = BYTE if code & 15 in (TRUE, FALSE) else code & 15
        _, at = _value(data, at, inner, depth)
        if at > len(data):
            raise IndexError(at)
    return at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    found = shift = 0
    while True:
        code = data[at]
        at += 1
        found |= (code & 127) << shift
        if code < 128:
            return found, at
        shift += 7


def _signed(data: bytes, at: int) -> tuple[int, int]:
    found, at = _varint(data, at)
    return (found >> 1) ^ -(found & 1), at
