"""Places that all heads reach, on a shared disk, in HDFS or an object store; checked at start."""

import secrets
from collections.abc import Mapping
from pathlib import Path

from primusd.datafeed.storage.base import Entry, Storage, StorageError
from primusd.datafeed.storage.schemes import storage_of
from primusd.errors import ConfigError
from primusd.state.places import Item, PlaceError

PIECE_BYTES = 8 << 20
MARK = "cluster"
"""The file that says whose the place is."""
FILE = "file://"


class SharedPlace:
    """A folder in a storage of the data feed; see state.places.Place."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        """Name it; nothing is asked yet.

        Args:
            url: Of the folder; a path, or any URL that can be written.
            options: Of the storage, as `storage:` in a job file.
        """
        self._url = url
        self._base = url.removeprefix(FILE).rstrip("/")
        self._options = dict(options)

    @property
    def url(self) -> str:
        """Where it is."""
        return self._url

    def items(self, folder: str) -> list[Item]:
        """Return the files in a folder; see Place.items."""
        found = [
            Item(one.name, one.byte_count) for one in self._entries(folder) if not one.is_folder
        ]
        return sorted(found, key=lambda one: one.name)

    def folders(self, folder: str) -> list[str]:
        """Return the folders in a folder; see Place.folders."""
        found = self._entries(folder)
        return sorted(one.location.rstrip("/").rpartition("/")[2] for one in found if one.is_folder)

    def size(self, name: str) -> int:
        """Return the size of a file; see Place.size."""
        found = self._find(name)
        return -1 if found is None or found.is_folder else found.byte_count

    def read(self, name: str) -> bytes:
        """Return a file; see Place.read."""
        found = self._wanted(name)
        if not found.byte_count:
            return b""
        try:
            return self._storage().open(found.location).read(0, found.byte_count)
        except StorageError as error:
            raise self._failed(name, error) from error

    def write(self, name: str, data: bytes) -> None:
        """Write a file; see Place.write."""
        try:
            self._storage().write(self._at(name), data)
        except StorageError as error:
            raise self._failed(name, error) from error

    def upload(self, name: str, file: Path) -> None:
        """Write a file of this host there; see Place.upload."""
        try:
            self._storage().upload(self._at(name), file)
        except StorageError as error:
            raise self._failed(name, error) from error

    def download(self, name: str, file: Path) -> None:
        """Copy a file to this host; see Place.download."""
        found = self._wanted(name)
        try:
            handle = self._storage().open(found.location)
            with file.open("wb") as copy:
                for first in range(0, found.byte_count, PIECE_BYTES):
                    copy.write(handle.read(first, min(PIECE_BYTES, found.byte_count - first)))
        except StorageError as error:
            raise self._failed(name, error) from error

    def remove(self, name: str) -> None:
        """Remove a file; see Place.remove."""
        try:
            self._storage().remove(self._at(name))
        except StorageError as error:
            raise self._failed(name, error) from error

    def _storage(self) -> Storage:
        return storage_of(self._base, self._options)

    def _at(self, name: str) -> str:
        return f"{self._base}/{name}" if name else self._base

    def _entries(self, folder: str) -> list[Entry]:
        try:
            return self._storage().entries(self._at(folder), _is_no_part)
        except StorageError as error:
            if error.kind == "vanished":
                return []
            raise self._failed(folder, error) from error

    def _find(self, name: str) -> Entry | None:
        try:
            return self._storage().find(self._at(name))
        except StorageError as error:
            raise self._failed(name, error) from error

    def _wanted(self, name: str) -> Entry:
        found = self._find(name)
        if found is None or found.is_folder:
            raise PlaceError(f"{self._at(name)} is not there")
        return found

    def _failed(self, name: str, error: StorageError) -> PlaceError:
        where = self._at(name)
        text = error.message if where in error.message else f"{where}: {error.message}"
        return PlaceError(f"{text}; {error.hint}" if error.hint else text)


def _is_no_part(name: str) -> bool:
    """Leave out what is being written just now, or was when its head died."""
    return bool(name) and not name.startswith(".")


def check_place(place: SharedPlace, key: str, cluster: str) -> None:
    """See that a place can be written, read and removed from, and is this cluster's. Blocks.

    Args:
        place: To be used from now on.
        key: Which names it in the configuration.
        cluster: Id of the cluster.

    Raises:
        ConfigError: It cannot, or belongs to another one.
    """
    try:
        _probe(place)
        if place.size(MARK) < 0:
            place.write(MARK, f"{cluster}\n".encode())
        owner = place.read(MARK).decode(errors="replace").strip()
    except PlaceError as error:
        raise ConfigError(
            f"{key} {place.url} cannot be used: {error.strerror}",
            hint="every head needs to write, read and remove files there",
        ) from error
    if owner != cluster:
        raise ConfigError(
            f"{key} {place.url} belongs to cluster {owner or 'that is being made'}, this is "
            f"{cluster}",
            hint="give each cluster a folder of its own",
        )


def _probe(place: SharedPlace) -> None:
    """Write a file, read it and remove it.

    Raises:
        PlaceError: One of these failed.
    """
    name, said = f"probe-{secrets.token_hex(8)}", secrets.token_bytes(64)
    place.write(name, said)
    try:
        found = place.read(name)
    finally:
        place.remove(name)
    if found != said:
        raise PlaceError("a file that was written there is read as another one")
    if place.size(name) >= 0:
        raise PlaceError("a file that was removed there is still there")
