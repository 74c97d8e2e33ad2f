"""The formats of data: their names, what tells them, and what a position in them is. Pure."""

import json
from collections.abc import Mapping

import msgspec
from msgspec import Struct

from primusd.job.spec import StreamSpec, Transform

FORMATS = (
    "text",
    "raw",
    "records",
    "protobuf",
    "tfrecord",
    "parquet",
    "arrow",
    "jsonl",
    "csv",
    "class",
)
LINE_FORMATS = ("text", "jsonl", "csv")
"""Their records are lines, so they go through a pipe as they stand in the file."""
COLUMN_FORMATS = ("parquet", "arrow", "jsonl", "csv", "class")
"""They have columns; protobuf and records only where their messages are described."""
TYPED_FORMATS = ("jsonl", "csv")
"""Their types are found in the first rows of a file where the job file does not give them."""
PACKABLE = ("text", "raw", "records", "protobuf", "tfrecord", "jsonl", "csv", "class")
"""Formats whose files may be compressed as a whole; the others compress inside."""
COMPRESSIONS = ("gz", "bz2", "zst", "lz4", "xz")
PREFIXES = ("u8", "u16le", "u16be", "u32le", "u32be", "u64le", "u64be", "varint")

_BYTE_FORMATS = frozenset({"text", "raw", "records", "protobuf", "tfrecord", "jsonl", "csv"})
_ENDINGS = {
    ".txt": "text",
    ".text": "text",
    ".log": "text",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".ipc": "arrow",
    ".feather": "arrow",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "csv",
    ".tfrecord": "tfrecord",
    ".tfrecords": "tfrecord",
}
_PACKED = {f".{name}": name for name in COMPRESSIONS} | {".bz": "bz2", ".zstd": "zst"}
_MAGICS = {
    b"PAR1": "parquet",
    b"ARROW1": "arrow",
    # An IPC stream: the mark before a message, then the length of the schema's metadata.
    b"\xff\xff\xff\xff": "arrow",
}
_BZ2_BLOCKS = (b"1AY&SY", b"\x17rE8P\x90")
"""Behind `BZh` and a digit, which a text may begin with: a block, or the end of an empty file."""
_PACKED_MAGICS = {
    b"\x1f\x8b\x08": "gz",
    b"\x28\xb5\x2f\xfd": "zst",
    b"\x04\x22\x4d\x18": "lz4",
    b"\xfd7zXZ\x00": "xz",
}


class Told(Struct, frozen=True):
    """What a name or the first bytes of a file tell; "" nothing."""

    format: str = ""
    compression: str = ""


def told_by_name(name: str) -> Told:
    """Return what a file's name tells: `a.csv.gz` is csv, compressed by gz."""
    lower = name.lower().rpartition("/")[2]
    packed = next((kind for end, kind in _PACKED.items() if lower.endswith(end)), "")
    if packed:
        lower = lower.rpartition(".")[0]
    form = next((form for end, form in _ENDINGS.items() if lower.endswith(end)), "")
    return Told(form, packed)


def told_by_head(head: bytes) -> Told:
    """Return what the first bytes of a file tell."""
    form = next((form for magic, form in _MAGICS.items() if head.startswith(magic)), "")
    packed = next((kind for magic, kind in _PACKED_MAGICS.items() if head.startswith(magic)), "")
    if head.startswith(b"BZh") and head[4:].startswith(_BZ2_BLOCKS):
        packed = "bz2"
    return Told(form, packed)


def is_compressed(options: Mapping[str, str]) -> bool:
    """Return whether a unit's options say that its file is compressed as a whole."""
    return options.get("compression", "none") not in {"", "none"}


def has_bytes(options: Mapping[str, str]) -> bool:
    """Return whether positions in a unit are bytes; in all others they count records or rows."""
    return options.get("format") in _BYTE_FORMATS and not is_compressed(options)


def plan_of(stream: StreamSpec) -> Mapping[str, str]:
    """Return what an executor is told of a stream's form, as `FeedPlan.format` carries it."""
    decoding = stream.decoding
    return {
        "format": stream.format,
        "columns": ",".join(stream.columns),
        "options": json.dumps(dict(decoding.options)),
        "types": json.dumps(dict(decoding.types)),
        "filter": json.dumps(decoding.filter),
        "onSchema": decoding.on_schema,
        "onEmpty": decoding.on_empty,
        **({} if stream.transform is None else {"transform": _transform(stream.transform)}),
    }


def _transform(transform: Transform) -> str:
    return msgspec.json.encode(transform).decode()


def transform_of(plan: Mapping[str, str]) -> Transform | None:
    """Return the transform of a plan; None: none."""
    text = plan.get("transform", "")
    return msgspec.json.decode(text, type=Transform) if text else None
