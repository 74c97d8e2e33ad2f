"""Files of this host, or of what is mounted on it."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from primusd.datafeed.protocol import Unit
from primusd.datafeed.storage.base import HEAD_BYTES, TRANSIENT_ERRNOS, ReadError

if TYPE_CHECKING:  # Loaded after the fork only: it starts threads.
    import pyarrow as pa


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


def read_error(unit: Unit, error: OSError, *, head: bytes = b"") -> ReadError:
    """Return what an OSError of a read means for the range."""
    kind = "transient" if error.errno in TRANSIENT_ERRNOS else "data"
    return ReadError(
        f"{unit.location} cannot be read: {error.strerror or error}", kind=kind, head=head
    )
