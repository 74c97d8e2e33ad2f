"""Files of this host, or of what is mounted on it."""

import contextlib
import errno
import io
import os
import shutil
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from primusd.datafeed.protocol import Credential, Unit
from primusd.datafeed.storage.base import (
    EXPIRED_ERRNOS,
    HEAD_BYTES,
    TRANSIENT_ERRNOS,
    Entry,
    Handle,
    ReadError,
    StorageError,
    part_of,
)

if TYPE_CHECKING:  # Loaded after the fork only: it starts threads.
    import pyarrow as pa


COPY_BYTES = 1 << 20


class LocalFile:
    """A descriptor, and what its file was when it was listed."""

    __slots__ = ("_unit", "fd", "size")

    def __init__(self, unit: Unit) -> None:
        """Open the file that was listed.

        Raises:
            ReadError: It is gone, another one, or cannot be opened.
        """
        self.fd = -1
        self.size = unit.byte_count
        self._unit = unit
        try:
            self.fd = os.open(unit.location, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise ReadError(
                f"{unit.location} is gone since it was listed (host {os.uname().nodename})",
                kind="vanished",
            ) from None
        except OSError as error:
            raise read_error(unit, error) from error
        self.check()

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)

    def pread(self, offset: int, count: int) -> bytes:
        """Return bytes of it, as `OpenFile.pread`."""
        wanted = max(0, min(count, self.size - offset))
        data = self._pread(offset, wanted)
        if len(data) == wanted:
            return data
        parts = [data]
        at = offset + len(data)
        while data and at < offset + wanted:
            data = self._pread(at, offset + wanted - at)
            parts.append(data)
            at += len(data)
        if at < offset + wanted:
            self.check()
            raise ReadError(
                f"{self._unit.location} ends early, at byte {at}",
                kind="transient",
                head=self.head(),
            )
        return b"".join(parts)

    def prefetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Do nothing: the kernel reads ahead."""

    def arrow(self) -> "pa.NativeFile":
        """Return a view of it: of the file that was checked, whatever has its name by now."""
        import pyarrow as pa  # noqa: PLC0415 starts threads

        return pa.OSFile(f"/proc/self/fd/{self.fd}", "r")

    def check(self) -> None:
        """Check that it is still as it was listed, as `OpenFile.check`."""
        found = os.fstat(self.fd)
        if found.st_size != self.size:
            text = f"it has {found.st_size} bytes and had {self.size}"
        elif self._unit.pin and str(found.st_mtime_ns) != self._unit.pin:
            text = "it was written again"
        else:
            return
        raise ReadError(
            f"{self._unit.location} changed since it was listed: {text}",
            kind="changed",
            head=self.head(),
        )

    def head(self) -> bytes:
        """Return its first bytes, none when they cannot be read."""
        try:
            return os.pread(self.fd, HEAD_BYTES, 0)
        except OSError:
            return b""

    def _pread(self, offset: int, count: int) -> bytes:
        try:
            return os.pread(self.fd, count, offset)
        except OSError as error:
            raise read_error(self._unit, error, head=self.head()) from error


class LocalStorage:
    """Files of this host; links to files and folders are followed."""

    reads_by_name = False

    def entries(self, folder: str, is_wanted: Callable[[str], bool]) -> list[Entry]:
        """Return the files and folders in a folder, as `Storage.entries`."""
        try:
            with os.scandir(folder) as found:
                wanted = [one for one in found if is_wanted(one.name)]
            return [entry for one in wanted if (entry := _entry_of(one)) is not None]
        except OSError as error:
            raise _failed(folder, error) from error

    def find(self, location: str) -> Entry | None:
        """Return what has a name, as `Storage.find`."""
        try:
            found = _entry(location, Path(location).stat())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _failed(location, error) from error
        if found is None:
            raise StorageError(f"{location} is neither a file nor a folder", kind="data")
        return found

    def open(self, location: str) -> Handle:
        """Return a file, opened, as `Storage.open`."""
        try:
            return _Reader(location, os.open(location, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            raise _failed(location, error) from error

    def write(self, location: str, data: bytes) -> None:
        """Write a small file, as `Storage.write`."""
        self._write(location, io.BytesIO(data))

    def upload(self, location: str, file: Path) -> None:
        """Write a file there, as `Storage.upload`."""
        try:
            with file.open("rb") as content:
                self._write(location, content)
        except OSError as error:
            raise _failed(str(file), error) from error

    def remove(self, location: str) -> None:
        """Remove a file, as `Storage.remove`."""
        try:
            Path(location).unlink(missing_ok=True)
        except NotADirectoryError:
            return
        except OSError as error:
            raise _failed(location, error) from error

    def _write(self, location: str, content: BinaryIO) -> None:
        part = Path(part_of(location))
        try:
            part.parent.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as file:
                shutil.copyfileobj(content, file, COPY_BYTES)
                file.flush()
                os.fsync(file.fileno())
            part.rename(location)
        except OSError as error:
            with contextlib.suppress(OSError):
                part.unlink()
            raise _failed(location, error) from error

    def credential(self) -> Credential | None:
        """Return None: the kernel knows what it shows a server of files."""
        return None


class _Reader:
    """For those who look into a file that is no unit yet."""

    def __init__(self, location: str, fd: int) -> None:
        self._location = location
        self._fd = fd

    def __del__(self) -> None:
        os.close(self._fd)

    def read(self, offset: int, count: int) -> bytes:
        try:
            return os.pread(self._fd, count, offset)
        except OSError as error:
            raise _failed(self._location, error) from error


def _entry_of(found: "os.DirEntry[str]") -> Entry | None:
    try:
        entry = _entry(found.path, found.stat())
        if entry is None or not entry.is_folder:
            return entry
        return msgspec.structs.replace(entry, is_link=found.is_symlink())
    except FileNotFoundError:
        # A link to nowhere, or it went since the folder was read.
        return None


def _entry(location: str, found: os.stat_result) -> Entry | None:
    """Return a folder or a file; None for pipes, sockets and devices."""
    if stat.S_ISDIR(found.st_mode):
        return Entry(location, is_folder=True)
    if not stat.S_ISREG(found.st_mode):
        return None
    try:
        location.encode("utf-8")
    except UnicodeEncodeError:
        raise StorageError(
            f"the name of {os.fsencode(location)!r} is not valid UTF-8; rename the file",
            kind="data",
        ) from None
    if found.st_size and not os.access(location, os.R_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), location)
    return Entry(location, byte_count=found.st_size, pin=str(found.st_mtime_ns))


def _failed(location: str, error: OSError) -> StorageError:
    where = error.filename if isinstance(error.filename, str) else location
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        kind = "vanished"
    else:
        kind = _kind(error)
    return StorageError(f"{where}: {error.strerror or error}", kind=kind)


def read_error(unit: Unit, error: OSError, *, head: bytes = b"") -> ReadError:
    """Return what an OSError of a read means for the range."""
    return ReadError(
        f"{unit.location} cannot be read: {error.strerror or error}", kind=_kind(error), head=head
    )


def _kind(error: OSError) -> str:
    if error.errno in EXPIRED_ERRNOS:
        return "expired"
    return "transient" if error.errno in TRANSIENT_ERRNOS else "data"
