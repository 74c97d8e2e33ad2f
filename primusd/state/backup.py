"""A copy of a store in one file: what it is in two lines of text, then all it holds, then a digest.

    primusd-backup 1
    {"cluster": "default", "clusterId": "…", "schema": 1, "revision": 812, …}
    <zstd of msgpack values: the secret, each snapshot, each entry>
    <sha256 of all before, 32 bytes>

It can be put into either store. It has the cluster's secret, so that executors and nodes find
themselves in what is restored: whoever has the file can speak for all of them.
"""

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec
import zstandard
from msgspec import Struct

from primusd.errors import PrimusdError
from primusd.records import SCHEMA, Entry, decode_entry, encode_entry
from primusd.state.journal import Loaded, Snapshot
from primusd.state.schema import Head, check_schema

MAGIC = b"primusd-backup "
FORM = 1
LEVEL = 3
CHUNK_BYTES = 1 << 20
DIGEST_BYTES = 32
HEADER_BYTES_MAX = 64 << 10


class BackupError(PrimusdError):
    """A file is no backup, or not a whole one."""

    code = "InvalidBackup"


class About(Struct, frozen=True, rename="camel"):
    """What a backup says of itself."""

    cluster: str
    """Its name."""
    cluster_id: str
    store: str
    """`embedded` or `etcd`: where it was read."""
    version: str
    """Of the primusd that wrote it."""
    schema: int
    term: int
    revision: int
    snapshots: int
    entries: int
    created_at: str


class Backup(Struct, frozen=True):
    """A store as of one revision."""

    about: About
    secret: bytes
    """Of the cluster."""
    loaded: Loaded


class _Start(Struct, frozen=True, array_like=True, tag=0):
    secret: bytes


class _Part(Struct, frozen=True, array_like=True, tag=1):
    machine: str
    covers: int
    body: bytes


class _Entry(Struct, frozen=True, array_like=True, tag=2):
    body: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[_Start | _Part | _Entry, ...]).decode
_decode_about = msgspec.json.Decoder(About).decode


def backup_of(
    loaded: Loaded,
    *,
    cluster: str,
    cluster_id: str,
    secret: bytes,
    store: str,
    version: str,
    wall_ms: int,
) -> Backup:
    """Return what a store holds, with what it is.

    Args:
        loaded: Of one revision.
        cluster: Its name.
        cluster_id: Its id.
        secret: Its secret.
        store: Kind of the store.
        version: Of this program.
        wall_ms: Now.
    """
    created = datetime.fromtimestamp(wall_ms / 1000, UTC)
    about = About(
        cluster=cluster,
        cluster_id=cluster_id,
        store=store,
        version=version,
        schema=SCHEMA,
        term=loaded.term,
        revision=loaded.revision,
        snapshots=len(loaded.snapshots),
        entries=len(loaded.entries),
        created_at=created.isoformat(timespec="seconds").replace("+00:00", "Z"),
    )
    return Backup(about, secret, loaded)


def written(backup: Backup) -> Iterator[bytes]:
    """Yield the bytes of a backup, in pieces."""
    digest = hashlib.sha256()
    compressor = zstandard.ZstdCompressor(level=LEVEL).compressobj()
    header = MAGIC + b"%d\n" % FORM + msgspec.json.encode(backup.about) + b"\n"
    waiting = [header]
    byte_count = len(header)
    for value in _values(backup):
        waiting.append(compressor.compress(value))
        byte_count += len(waiting[-1])
        if byte_count >= CHUNK_BYTES:
            piece, waiting, byte_count = b"".join(waiting), [], 0
            digest.update(piece)
            yield piece
    piece = b"".join((*waiting, compressor.flush()))
    digest.update(piece)
    yield piece + digest.digest()


def read_about(start: bytes, *, name: str) -> tuple[About, int]:
    """Return what a backup says of itself, and where its body begins.

    Args:
        start: At least its first 64 KiB, or all of it.
        name: Of the file, for messages.

    Raises:
        BackupError: It is no backup, or one of a newer form.
        NewerSchemaError: A newer primusd wrote it.
    """
    if not start.startswith(MAGIC):
        raise BackupError(
            f"{name} is no backup of a store: it begins with {start[:16]!r}",
            hint="primusctl store backup FILE makes one",
        )
    first, _, rest = start[len(MAGIC) : HEADER_BYTES_MAX].partition(b"\n")
    if not first.isdigit() or int(first) != FORM:
        raise BackupError(
            f"{name} is a backup of form {first[:20].decode(errors='replace')}; "
            f"this version reads form {FORM}",
            hint="restore it with the version of primusd that wrote it, or a newer one",
        )
    text, end, _ = rest.partition(b"\n")
    if not end:
        raise BackupError(f"{name} ends within its second line: it was cut off")
    try:
        check_schema(msgspec.json.decode(text, type=_Schema).schema)
        about = _decode_about(text)
    except msgspec.MsgspecError as error:
        raise BackupError(f"{name} is damaged: its second line cannot be read: {error}") from error
    return about, len(MAGIC) + len(first) + len(text) + 2


def read_backup(data: bytes, *, name: str) -> Backup:
    """Return a backup, checked.

    Args:
        data: The whole file.
        name: Of the file, for messages.

    Raises:
        BackupError: It is none, or not whole.
        NewerSchemaError: A newer primusd wrote it.
    """
    about, start = read_about(data, name=name)
    check_digest(data, name=name)
    try:
        unpacked = (
            zstandard.ZstdDecompressor().decompressobj().decompress(data[start:-DIGEST_BYTES])
        )
        secret, loaded = _joined(_decode(_array(about, unpacked)))
    except (zstandard.ZstdError, msgspec.MsgspecError) as error:
        raise BackupError(f"{name} is damaged: {error}") from error
    found = (loaded.revision, loaded.term, len(loaded.snapshots), len(loaded.entries))
    if found != (about.revision, about.term, about.snapshots, about.entries) or not secret:
        raise BackupError(f"{name} is damaged: it does not hold what its second line says")
    return Backup(about, secret, loaded)


def check_digest(data: bytes, *, name: str) -> None:
    """See that a backup is whole.

    Raises:
        BackupError: Its digest is another one.
    """
    if hashlib.sha256(data[:-DIGEST_BYTES]).digest() != data[-DIGEST_BYTES:]:
        raise BackupError(
            f"{name} is damaged or was cut off: its last {DIGEST_BYTES} bytes are not the digest "
            f"of the {max(0, len(data) - DIGEST_BYTES)} before",
            hint="take another copy",
        )


class _Schema(Struct, frozen=True):
    """Of the second line, whatever else stands there."""

    schema: int


def _values(backup: Backup) -> Iterator[bytes]:
    yield _encode(_Start(backup.secret))
    for one in backup.loaded.snapshots.values():
        yield _encode(_Part(one.machine, one.covers, one.body))
    for entry in backup.loaded.entries:
        yield _encode(_Entry(encode_entry(entry)))


def _array(about: About, values: bytes) -> bytes:
    """Return values, one behind the other, as one array."""
    return b"\xdd" + (1 + about.snapshots + about.entries).to_bytes(4, "big") + values


def _joined(values: tuple[_Start | _Part | _Entry, ...]) -> tuple[bytes, Loaded]:
    secret = b""
    snapshots: dict[str, Snapshot] = {}
    entries: list[Entry] = []
    for value in values:
        match value:
            case _Start():
                secret = value.secret
            case _Part():
                snapshots[value.machine] = Snapshot(value.machine, value.covers, value.body)
            case _Entry():
                check_schema(msgspec.msgpack.decode(value.body, type=Head).schema)
                entries.append(decode_entry(value.body))
    newest = entries[-1] if entries else None
    return secret, Loaded(
        snapshots,
        tuple(entries),
        newest.term if newest else 0,
        newest.revision if newest else 0,
    )
