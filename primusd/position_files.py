"""Positions in files: exported savepoints, staging folders, and folders of the original's.

They lie in any storage that streams may lie in: a path is on this host, a URL elsewhere.
"""

from primusd.compat.task_store import is_task_store, read_task_store
from primusd.datafeed.ledger.portable import (
    BYTES_MAX,
    Portable,
    PortableError,
    as_portable,
    decode,
    encode,
)
from primusd.datafeed.storage.base import Entry, Storage
from primusd.datafeed.storage.pool import POOL
from primusd.datafeed.storage.schemes import storage_of

FILE_NAME = "positions.json"
"""Of a stream's folder below a staging folder."""
STATE_FOLDER = "state"


def read_positions(path: str, stream: str) -> tuple[Portable, str] | None:
    """Return the positions of a stream in a file or a folder, and where they were; None: none.

    In a folder the stream's own one counts, as the original has it: `<stream>/` or
    `state/<stream>/`; else the folder itself. What was written last there counts. Blocks.

    Raises:
        PortableError: What is there cannot be used.
        StorageError: It cannot be read.
    """
    storage = storage_of(path)
    path = path.rstrip("/") or "/"
    entry = POOL.call(storage.find, path)
    if entry is not None and not entry.is_folder:
        return decode(_content(storage, entry)), path
    for folder in (f"{path}/{stream}", f"{path}/{STATE_FOLDER}/{stream}", path):
        found = _in_folder(storage, folder, stream)
        if found is not None:
            return found
    return None


def _in_folder(storage: Storage, folder: str, stream: str) -> tuple[Portable, str] | None:
    entry = POOL.call(storage.find, folder)
    if entry is None or not entry.is_folder:
        return None
    listed = POOL.call(storage.entries, folder, lambda _: True)
    files = {one.name: one for one in listed if not one.is_folder}
    store = [name for name in files if name.startswith(("tasks.", "running_", "failure_"))]
    own = files.get(FILE_NAME)
    is_store = is_task_store(frozenset(files))
    newest = max((_changed(files[name]) for name in store), default=0.0)
    if own is not None and not (is_store and newest > _changed(own)):
        return decode(_content(storage, own)), own.location
    if not is_store:
        return None
    content = {name: _content(storage, files[name]) for name in store}
    units = as_portable(read_task_store(content))
    return Portable(stream=stream, name=folder.rpartition("/")[2], units=units), folder


def _changed(entry: Entry) -> float:
    """Return when a file was written, in whatever its storage counts; 0 where that is not told."""
    try:
        return float(entry.pin)
    except ValueError:
        return 0.0


def _content(storage: Storage, entry: Entry) -> bytes:
    if entry.byte_count > BYTES_MAX:
        raise PortableError(
            f"{entry.location} has {entry.byte_count} bytes, more than a savepoint may have"
        )
    return POOL.call(lambda: storage.open(entry.location).read(0, entry.byte_count))


def write_positions(staging: str, portable: Portable) -> str:
    """Keep the positions of a stream below a staging folder, whole or not at all. Blocks.

    Raises:
        StorageError: They cannot be written.
    """
    location = f"{staging.rstrip('/')}/{portable.stream}/{FILE_NAME}"
    POOL.call(storage_of(staging).write, location, encode(portable))
    return location
