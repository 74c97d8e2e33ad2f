"""Files that a job ships: the same content always has the same digest, and is sent once."""

import hashlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from msgspec.structs import replace

from primusd.ctl.client import Client
from primusd.ctl.failures import USAGE, CtlError
from primusd.job.spec import JobSpec, ShippedSpec

PART_BYTES = 1 << 20
FETCH_BYTES = 8 << 20
LEFT_OUT = frozenset({"__pycache__", ".git", ".venv", ".ipynb_checkpoints"})


def ship(spec: JobSpec, folder: Path, client: Client, tell: Callable[[str], None]) -> JobSpec:
    """Send what the daemon lacks and return the spec with the digests of all files.

    Args:
        spec: As it was read from a file of the folder.
        folder: What relative paths are relative to.
        client: Of the daemon.
        tell: Hears a line per file that is sent.

    Raises:
        CtlError: A file is not there or cannot be read.
    """
    return replace(spec, files=tuple(_ship(one, folder, client, tell) for one in spec.files))


def _ship(
    file: ShippedSpec, folder: Path, client: Client, tell: Callable[[str], None]
) -> ShippedSpec:
    if file.digest:
        return file
    if file.url:
        return _ship_from(file, client, tell)
    source = folder / file.path
    try:
        if source.is_dir():
            with TemporaryFile() as packed:
                pack(source, packed)
                return _send(replace(file, unpack=True), packed, client, tell)
        mode = 0o755 if source.stat().st_mode & 0o111 else 0o644
        with source.open("rb") as content:
            return _send(replace(file, mode=mode, unpack=False), content, client, tell)
    except OSError as error:
        raise CtlError(
            f"files: {error.filename or source}: {(error.strerror or str(error)).lower()}",
            hint=f"paths are relative to {folder}",
            exit_code=USAGE,
        ) from error


def _ship_from(file: ShippedSpec, client: Client, tell: Callable[[str], None]) -> ShippedSpec:
    """Fetch a file from its URL, and send it like one of this host."""
    # Only now: storages load what is of no use to any other command.
    from primusd.datafeed.storage.base import StorageError  # noqa: PLC0415
    from primusd.datafeed.storage.schemes import storage_of  # noqa: PLC0415

    try:
        storage = storage_of(file.url)
        found = storage.find(file.url)
        handle = storage.open(file.url)
        byte_count = 0 if found is None else found.byte_count
        with TemporaryFile() as content:
            for at in range(0, byte_count, FETCH_BYTES):
                content.write(handle.read(at, min(FETCH_BYTES, byte_count - at)))
            if found is not None and not found.is_folder:
                return _send(replace(file, url=""), content, client, tell)
    except StorageError as error:
        hint = error.hint or "one file can be fetched; of a folder make a tar"
        message = f"files: {file.url}: {error.message}"
        raise CtlError(message, hint=hint, exit_code=USAGE) from error
    raise CtlError(f"files: {file.url} is no file", hint="of a folder make a tar", exit_code=USAGE)


def pack(folder: Path, out: IO[bytes]) -> None:
    """Write a folder as a tar that holds nothing but names, content, and who may execute.

    Owners, times, and the order on the disk would give the same content another digest.
    """
    import tarfile  # noqa: PLC0415 - few jobs ship a folder

    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in _walk(folder):
            entry = archive.gettarinfo(path, path.relative_to(folder).as_posix())
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            entry.mtime = 0
            entry.mode = 0o755 if entry.isdir() or entry.mode & 0o111 else 0o644
            if entry.isfile():
                with path.open("rb") as content:
                    archive.addfile(entry, content)
            else:
                archive.addfile(entry)


def _walk(folder: Path) -> Iterator[Path]:
    """Yield what a folder holds, by name; what no trainer needs is left out."""
    for path in sorted(folder.iterdir()):
        if path.name in LEFT_OUT or not (path.is_symlink() or path.is_dir() or path.is_file()):
            continue
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from _walk(path)


def _send(
    file: ShippedSpec, content: IO[bytes], client: Client, tell: Callable[[str], None]
) -> ShippedSpec:
    content.seek(0)
    digest = f"sha256:{hashlib.file_digest(content, 'sha256').hexdigest()}"  # type: ignore[arg-type]  # a file is what it wants
    byte_count = content.seek(0, io.SEEK_END)
    path = f"/api/v1/blobs/{digest}"
    if not client.exists(path):
        tell(f"sending {file.path} ({byte_count:,} bytes)")
        client.send(path, lambda: _parts(content), byte_count)
    return replace(file, digest=digest, byte_count=byte_count)


def _parts(content: IO[bytes]) -> Iterator[bytes]:
    content.seek(0)
    while part := content.read(PART_BYTES):
        yield part
