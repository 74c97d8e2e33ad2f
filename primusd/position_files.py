"""Positions in files: exported savepoints, staging folders, and folders of the original's."""

import contextlib
import os
import secrets
from pathlib import Path

from primusd.compat.task_store import is_task_store, read_task_store
from primusd.datafeed.ledger.portable import (
    BYTES_MAX,
    Portable,
    PortableError,
    as_portable,
    decode,
    encode,
)

FILE_NAME = "positions.json"
"""Of a stream's folder below a staging folder."""
STATE_FOLDER = "state"


def read_positions(path: Path, stream: str) -> tuple[Portable, Path] | None:
    """Return the positions of a stream in a file or a folder, and where they were; None: none.

    In a folder the stream's own one counts, as the original has it: `<stream>/` or
    `state/<stream>/`; else the folder itself. What was written last there counts.

    Raises:
        PortableError: What is there cannot be used.
        OSError: It cannot be read.
    """
    if path.is_file():
        return decode(_content(path)), path
    for folder in (path / stream, path / STATE_FOLDER / stream, path):
        found = _in_folder(folder, stream)
        if found is not None:
            return found
    return None


def _in_folder(folder: Path, stream: str) -> tuple[Portable, Path] | None:
    if not folder.is_dir():
        return None
    names = frozenset(entry.name for entry in os.scandir(folder) if entry.is_file())
    store = [name for name in names if name.startswith(("tasks.", "running_", "failure_"))]
    own = folder / FILE_NAME
    is_store = is_task_store(names)
    if FILE_NAME in names and not (is_store and _newest(folder, store) > own.stat().st_mtime_ns):
        return decode(_content(own)), own
    if not is_store:
        return None
    content = {name: _content(folder / name) for name in store}
    units = as_portable(read_task_store(content))
    return Portable(stream=stream, name=folder.name, units=units), folder


def _newest(folder: Path, names: list[str]) -> int:
    return max(((folder / name).stat().st_mtime_ns for name in names), default=0)


def _content(path: Path) -> bytes:
    size = path.stat().st_size
    if size > BYTES_MAX:
        raise PortableError(f"{path} has {size} bytes, more than a savepoint may have")
    return path.read_bytes()


def write_positions(staging: Path, portable: Portable) -> Path:
    """Keep the positions of a stream below a staging folder, whole or not at all.

    Raises:
        OSError: They cannot be written.
    """
    folder = staging / portable.stream
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f".{FILE_NAME}.{secrets.token_hex(4)}"
    try:
        with part.open("wb") as file:
            file.write(encode(portable))
            file.flush()
            os.fsync(file.fileno())
        part.rename(folder / FILE_NAME)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
    return folder / FILE_NAME
