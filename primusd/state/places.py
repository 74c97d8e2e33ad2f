"""A folder that all heads of a cluster reach, as history and shipped files are kept in it."""

import errno
from pathlib import Path
from typing import Protocol

from msgspec import Struct


class PlaceError(OSError):
    """The place did not do what was asked."""

    def __init__(self, text: str) -> None:
        super().__init__(errno.EIO, text)


class Item(Struct, frozen=True):
    """A file in it."""

    name: str
    """Its last part."""
    byte_count: int


class Place(Protocol):
    """The folder. Names are relative to it; everything blocks, and belongs in a worker thread.

    Its form is `shared_places.SharedPlace`, by the storages of the data feed, which this layer does
    not know. All of it raises PlaceError.
    """

    @property
    def url(self) -> str:
        """Where it is."""
        ...

    def items(self, folder: str) -> list[Item]:
        """Return the files directly in a folder, by name; one that is not there has none."""
        ...

    def folders(self, folder: str) -> list[str]:
        """Return the names of the folders directly in a folder, in order."""
        ...

    def size(self, name: str) -> int:
        """Return how many bytes a file has; -1: it is not there."""
        ...

    def read(self, name: str) -> bytes:
        """Return a file."""
        ...

    def write(self, name: str, data: bytes) -> None:
        """Write a file, whole or not at all, over one that is there."""
        ...

    def upload(self, name: str, file: Path) -> None:
        """Write a file of this host there, likewise."""
        ...

    def download(self, name: str, file: Path) -> None:
        """Copy a file of it to this host; one that broke off is left as it came."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file; one that is not there is none the less."""
        ...
