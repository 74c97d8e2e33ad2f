"""Files of every format, written without the code that reads them, and what is in them."""

import bz2
import gzip
import json
import lzma
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import pyarrow as pa
import zstandard

from primusd.datafeed.formats.base import RowBlock, UnitFile
from primusd.datafeed.formats.encoding import plain_rows
from primusd.datafeed.formats.opening import Opener
from primusd.datafeed.formats.settings import Settings
from primusd.datafeed.protocol import Unit


def unit_of(path: Path, **options: str) -> Unit:
    """Return a file as it is listed."""
    found = path.stat()
    return Unit("file", str(path), found.st_size, str(found.st_mtime_ns), options)


def opened(path: Path, form: str, settings: Settings | None = None, **options: str) -> UnitFile:
    """Return a file opened as the reader of a stream does it."""
    made = settings or Settings(format=form, options=options)
    unit = unit_of(path, format=form, **{k: v for k, v in options.items() if k == "compression"})
    return Opener(made).open(unit)


def values_of(blocks: Sequence[RowBlock]) -> list[Any]:
    """Return the rows of blocks: values of one column, or dicts."""
    rows: list[dict[str, Any]] = []
    for block in blocks:
        rows += plain_rows(block.batch)
    return [next(iter(row.values())) if len(row) == 1 else row for row in rows]


def masked_crc(data: bytes) -> int:
    """Return the CRC that TensorFlow writes."""
    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def tfrecord(records: Sequence[bytes]) -> bytes:
    """Return a TFRecord file."""
    out = b""
    for record in records:
        length = struct.pack("<Q", len(record))
        out += length + struct.pack("<I", masked_crc(length))
        out += record + struct.pack("<I", masked_crc(record))
    return out


def varint(value: int) -> bytes:
    """Return a number as protobuf writes it."""
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


PREFIX: dict[str, Callable[[int], bytes]] = {
    "u8": lambda size: struct.pack("B", size),
    "u16le": lambda size: struct.pack("<H", size),
    "u16be": lambda size: struct.pack(">H", size),
    "u32le": lambda size: struct.pack("<I", size),
    "u32be": lambda size: struct.pack(">I", size),
    "u64le": lambda size: struct.pack("<Q", size),
    "u64be": lambda size: struct.pack(">Q", size),
    "varint": varint,
}


def prefixed(records: Sequence[bytes], prefix: str) -> bytes:
    """Return records with their length in front."""
    return b"".join(PREFIX[prefix](len(record)) + record for record in records)


def jsonl(rows: Sequence[dict[str, Any]]) -> bytes:
    """Return a JSON object a line."""
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def lz4(data: bytes) -> bytes:
    """Return an LZ4 frame."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "lz4") as out:
        out.write(data)
    return sink.getvalue().to_pybytes()


PACK: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": lambda data: zstandard.ZstdCompressor().compress(data),
    "lz4": lz4,
}


def ipc(batches: Sequence[pa.RecordBatch], *, is_stream: bool) -> bytes:
    """Return an Arrow IPC file or stream."""
    sink = pa.BufferOutputStream()
    made = pa.ipc.new_stream if is_stream else pa.ipc.new_file
    with made(sink, batches[0].schema) as out:
        for batch in batches:
            out.write_batch(batch)
    return sink.getvalue().to_pybytes()
