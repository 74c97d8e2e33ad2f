"""Shipped files: fetched by digest once per host, laid out below the working directory.

Each attempt lays them out anew, replacing what is there; nothing else in the folder is touched.
"""

import fcntl
import hashlib
import os
import shutil
import tarfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path, PurePosixPath

import anyio
import anyio.to_thread

from primusd.executor.protocol import ShippedFile

DIGEST_PREFIX = "sha256:"
LOCK_RETRY_S = 0.05

Fetch = Callable[[str], AsyncIterator[bytes]]
"""Yields the body of a path of the head."""


class FilesError(Exception):
    """A shipped file cannot be laid out; the text says which and why."""


async def lay_out(
    files: tuple[ShippedFile, ...], work: Path, cache: Path, fetch: Fetch, *, owner: tuple[int, int]
) -> None:
    """Put every shipped file where the trainer expects it.

    Args:
        files: As the launch order names them.
        work: The working directory.
        cache: Folder of files by digest, shared by the executors of this host.
        fetch: How a head is asked for a file that the cache lacks.
        owner: Uid and gid of the trainer; (-1, -1) as this process.

    Raises:
        FilesError: A path leads out of the working directory, content does not have its digest, or
            there is no room.
        UnreachableError: No head gave the file; try again with another.
    """
    for file in files:
        source = await cached(file, cache, fetch)
        target = _target(work, file)
        try:
            await anyio.to_thread.run_sync(_place, source, target, file, owner)
        except (OSError, tarfile.TarError) as error:
            raise FilesError(f"{file.path}: {error}") from error


async def cached(file: ShippedFile, cache: Path, fetch: Fetch) -> Path:
    """Return the file in the cache, fetched if it was not there; one fetch serves all who wait.

    Raises:
        FilesError: It does not have its digest, or it cannot be written.
        UnreachableError: No head gave it.
    """
    name = file.digest.removeprefix(DIGEST_PREFIX)
    if not file.digest.startswith(DIGEST_PREFIX) or not name.isalnum():
        raise FilesError(f"{file.path}: {file.digest!r} is no digest")
    path = cache / name
    if path.exists():
        os.utime(path)
        return path
    await anyio.Path(cache).mkdir(parents=True, exist_ok=True)
    lock = os.open(cache / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while not _try_lock(lock):  # noqa: ASYNC110 another process holds it
            await anyio.sleep(LOCK_RETRY_S)
        if not path.exists():
            await _fetch(file, path, fetch)
    except OSError as error:
        raise FilesError(f"{file.path}: {error}") from error
    finally:
        os.close(lock)
    return path


def prune(cache: Path, *, older_than_ms: int, now_ms: int) -> int:
    """Remove files that no executor has laid out for so long; return how many went."""
    count = 0
    for path in cache.iterdir() if cache.is_dir() else ():
        if now_ms - path.stat().st_mtime_ns // 1_000_000 > older_than_ms:
            path.unlink(missing_ok=True)
            count += 1
    return count


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


async def _fetch(file: ShippedFile, path: Path, fetch: Fetch) -> None:
    partial = path.with_suffix(".part")
    digest = hashlib.sha256()
    with partial.open("wb") as out:
        async for chunk in fetch(f"/executor/v1/blobs/{file.digest}"):
            digest.update(chunk)
            out.write(chunk)
    if digest.hexdigest() != path.name:
        partial.unlink()
        raise FilesError(f"{file.path}: what came does not have the digest {file.digest}")
    partial.rename(path)


def _target(work: Path, file: ShippedFile) -> Path:
    parts = PurePosixPath(file.path).parts
    if not parts or parts[0] == "/" or ".." in parts:
        raise FilesError(f"{file.path!r} is no path below the working directory")
    return work.joinpath(*parts)


def _place(source: Path, target: Path, file: ShippedFile, owner: tuple[int, int]) -> None:
    missing = [folder for folder in target.parents if not folder.exists()]
    target.parent.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        os.chown(folder, *owner)
    if target.is_symlink() or target.is_file():
        target.unlink()
    elif target.is_dir():
        shutil.rmtree(target)
    if file.unpack:
        target.mkdir()
        with tarfile.open(source) as archive:
            archive.extractall(target, filter="data")
        for inner, _, names in os.walk(target):
            os.chown(inner, *owner)
            for name in names:
                os.chown(Path(inner) / name, *owner, follow_symlinks=False)
    else:
        shutil.copyfile(source, target)
        target.chmod(file.mode & 0o777)
        os.chown(target, *owner)
