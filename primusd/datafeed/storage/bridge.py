"""Any other storage, by the package fsspec and its drivers: http, ftp, oss, hf and more."""

from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from primusd.datafeed.protocol import Credential
from primusd.datafeed.storage.base import Entry, Handle, StorageError

PINS = ("etag", "checksum", "mtime", "last_modified", "modify", "modified", "created")
"""What drivers call the thing that differs once a file was written again."""

P = ParamSpec("P")
R = TypeVar("R")


class Bridge:
    """One file system of fsspec."""

    reads_by_name = True

    def __init__(self, scheme: str, authority: str, options: Mapping[str, str]) -> None:
        """Make a client; nothing is asked yet.

        Args:
            scheme: Of the URL; fsspec's name of the driver.
            authority: What follows it up to the path.
            options: Given to the driver as they are.

        Raises:
            StorageError: fsspec, or the package of its driver, is missing; or no driver has it.
        """
        try:
            import fsspec  # noqa: PLC0415 an optional package
        except ImportError:
            raise StorageError(
                f"{scheme}: needs the package fsspec, which is not installed",
                kind="data",
                hint="pip install 'primusd[fsspec]' on every host",
            ) from None
        self._prefix = f"{scheme}://"
        self._scheme = scheme
        try:
            kind = fsspec.get_filesystem_class(scheme)
            told = kind._get_kwargs_from_urls(f"{self._prefix}{authority}/")  # noqa: SLF001 no public way
            # No listings from before: a file that changed is to be seen.
            self._fs = kind(**{"use_listings_cache": False, **told, **options})
        except ImportError as error:
            raise StorageError(
                f"{scheme}: is read by a driver of fsspec that lacks a package: {error}",
                kind="data",
            ) from None
        except (ValueError, TypeError) as error:
            if has_driver(scheme):
                raise StorageError(f"{scheme}: {error}", kind="data") from None
            raise StorageError(
                f"no storage is called {scheme}:, and fsspec has no driver for it",
                kind="data",
                hint="a path of this host begins with /; docs/storages.md lists the others",
            ) from None

    def entries(self, folder: str, is_wanted: Callable[[str], bool]) -> list[Entry]:
        """Return what lies in a folder, as `Storage.entries`."""
        listed = self._told(folder, self._fs.ls, self._path(folder), detail=True)
        found = [self._entry(one) for one in listed]
        # A file lists itself, and some drivers a folder too.
        return [one for one in found if one.location != folder.rstrip("/") and is_wanted(one.name)]

    def find(self, location: str) -> Entry | None:
        """Return what has a name, as `Storage.find`."""
        try:
            return self._entry(self._told(location, self._fs.info, self._path(location)), location)
        except StorageError as error:
            if error.kind == "vanished":
                return None
            raise

    def open(self, location: str) -> Handle:
        """Return a file, as `Storage.open`; it is read by its name, range by range."""
        return _Reader(self, location)

    def write(self, location: str, data: bytes) -> None:
        """Write a small file, as `Storage.write`, as far as its driver can."""
        path = self._path(location)
        self._told(location, self._fs.makedirs, path.rpartition("/")[0], exist_ok=True)
        self._told(location, self._fs.pipe_file, path, data)

    def upload(self, location: str, file: Path) -> None:
        """Write a file there, as `Storage.upload`, as far as its driver can."""
        path = self._path(location)
        self._told(location, self._fs.makedirs, path.rpartition("/")[0], exist_ok=True)
        self._told(location, self._fs.put_file, str(file), path)

    def remove(self, location: str) -> None:
        """Remove a file, as `Storage.remove`."""
        try:
            self._told(location, self._fs.rm_file, self._path(location))
        except StorageError as error:
            if error.kind != "vanished":
                raise

    def credential(self) -> Credential | None:
        """Return None: its driver knows what it shows."""
        return None

    def read(self, location: str, offset: int, count: int) -> bytes:
        """Return bytes of a file."""
        path = self._path(location)
        end = offset + count
        data = bytes(self._told(location, self._fs.cat_file, path, start=offset, end=end))
        # A server that knows no ranges sends all of it.
        return data if len(data) <= count else data[offset:end]

    def _path(self, location: str) -> str:
        return str(self._fs._strip_protocol(location))  # noqa: SLF001 what all drivers do first

    def _entry(self, info: Mapping[str, Any], location: str = "") -> Entry:  # what drivers tell
        low = {str(key).lower(): value for key, value in info.items()}
        pin = next((_pin(low[key]) for key in PINS if low.get(key)), "")
        if not location:
            location = str(self._fs.unstrip_protocol(low["name"])).rstrip("/")
            # Drivers have several names; a unit keeps the one that was written.
            location = self._prefix + location.partition("://")[2]
        is_folder = low.get("type") == "directory"
        if not is_folder and low.get("size") is None:
            raise StorageError(f"{location}: nobody tells how long it is", kind="data")
        return Entry(location, is_folder, int(low.get("size") or 0), pin)

    def _told(self, location: str, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Return what the driver returns, with its errors named."""
        try:
            return call(*args, **kwargs)
        except (FileNotFoundError, NotADirectoryError) as error:
            kind = _kind_of_absence(self._scheme, error)
            text = str(error.__cause__) if kind != "vanished" else f"{location} does not exist"
            raise StorageError(text, kind=kind) from error
        # Every driver has errors of its own.
        except Exception as error:
            text = " ".join(str(error).split())[:400] or type(error).__name__
            permanent = (PermissionError, ValueError, NotImplementedError, TypeError)
            kind = "data" if isinstance(error, permanent) else "transient"
            raise StorageError(text, kind=kind) from error


def has_driver(scheme: str) -> bool:
    """Return whether fsspec, which is installed, knows a driver for a scheme."""
    from fsspec import available_protocols  # noqa: PLC0415 an optional package

    return scheme in available_protocols()


def _kind_of_absence(scheme: str, error: OSError) -> str:
    """Return what is meant: the driver of http says of any answer that nothing is there."""
    cause = error.__cause__
    if scheme not in ("http", "https") or cause is None or isinstance(cause, FileNotFoundError):
        return "vanished"
    status = getattr(cause, "status", 503)  # of aiohttp's errors; none without an answer
    if status in (404, 410):
        return "vanished"
    return "data" if 400 <= status < 500 and status not in (408, 429) else "transient"


def _pin(value: object) -> str:
    """Return a time or a tag as text; drivers tell one time in several types."""
    return str(value.timestamp() if isinstance(value, datetime) else value)


class _Reader:
    def __init__(self, bridge: Bridge, location: str) -> None:
        self._bridge = bridge
        self._location = location

    def read(self, offset: int, count: int) -> bytes:
        return self._bridge.read(self._location, offset, count) if count > 0 else b""
