"""The header of a data frame is documented as it is written."""

import re
import struct
from pathlib import Path

from primus import wire

PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"
ROW = re.compile(r"^\| ([0-9]+) \| ([0-9]+) \| ([a-z]+) \|", re.MULTILINE)


def test_the_header_of_a_data_frame_has_the_documented_fields() -> None:
    rows = [(int(row[1]), int(row[2])) for row in ROW.finditer(PAGE.read_text(encoding="utf-8"))]
    codes = re.findall(r"[0-9]*[a-zA-Z]", wire._HEADER.format)

    sizes = [struct.calcsize(f"<{code}") for code in codes]
    offsets = [sum(sizes[:position]) for position in range(len(sizes))]

    assert rows == list(zip(offsets, sizes, strict=True))
    assert wire.HEADER_BYTES == 64


def test_a_header_reads_back_what_was_written() -> None:
    header = wire.Header(
        kind=wire.ARROW_ROWS, stream=1, row_count=2, unit=3, token=4, lo=5, hi=6, receipt=7,
        epoch=8, byte_count=9,
    )  # fmt: skip

    frame = wire.pack_header(header)

    length, kind = wire.PREFIX.unpack_from(frame)
    body = frame[wire.PREFIX.size :]
    assert (length, kind) == (1 + 64 + 9, wire.DATA)
    assert body[:4] == b"PRMF"
    assert wire.unpack_header(body) == header
