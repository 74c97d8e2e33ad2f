"""What a storage must do: open a pinned file and read any bytes of it, from several threads."""

import errno
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from primusd.datafeed.protocol import Credential
from primusd.errors import PrimusdError

if TYPE_CHECKING:  # Loaded after the fork only: it starts threads.
    import pyarrow as pa

HEAD_BYTES = 64
TRANSIENT_ERRNOS = frozenset(
    {errno.EIO, errno.EAGAIN, errno.ETIMEDOUT, errno.ESTALE, errno.ENOTCONN, errno.EHOSTDOWN}
    | {errno.EHOSTUNREACH, errno.ECONNRESET, errno.ENFILE, errno.EMFILE, errno.ENOMEM}
)

EXPIRED_ERRNOS = frozenset({errno.EKEYEXPIRED, errno.EKEYREVOKED, errno.ENOKEY})
"""Of a file system that a ticket is shown to, as NFS with Kerberos."""


class ReadError(PrimusdError):
    """A range that cannot be read.

    Attributes:
        kind: `transient`, `expired`, `denied`, `data`, `changed` or `vanished`; as in `BadRange`,
            where both of who asks are `expired`.
        lo: Where the bad positions begin; -1 the whole range that was asked for.
        hi: Where they end; -1 as above.
        head: The first bytes of the unit.
    """

    code = "Unreadable"

    def __init__(
        self, message: str, *, kind: str, lo: int = -1, hi: int = -1, head: bytes = b""
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.lo = lo
        self.hi = hi
        self.head = head


class OpenFile(Protocol):
    """An opened file that lives as long as somebody holds this object.

    Pieces in a pipe look record boundaries up in their file long after its range was read, so no
    single place knows when the last one is done.
    """

    @property
    def fd(self) -> int:
        """Its descriptor, to splice from; -1 when it is not a local file."""
        ...

    @property
    def size(self) -> int:
        """Its bytes as listed."""
        ...

    def pread(self, offset: int, count: int) -> bytes:
        """Return so many bytes; fewer only at the end of the file.

        Raises:
            ReadError: They cannot be read, or the file is no longer the one that was listed.
        """
        ...

    def prefetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Say which bytes, as (offset, count), are read next: the far ones come at once."""
        ...

    def arrow(self) -> "pa.NativeFile":
        """Return a further view of it for pyarrow's decoders, with a place of its own."""
        ...

    def check(self) -> None:
        """Check that it is still as it was listed, where that is cheap to know.

        Raises:
            ReadError: Its size or its time of change is another.
        """
        ...


class StorageError(PrimusdError):
    """A storage did not do what was asked.

    Attributes:
        kind: `transient`; `expired`, a credential is no longer good; `denied`, who asks is not
            known to it; `vanished`; or `data` when trying again does not help.
    """

    code = "StorageFailed"

    def __init__(self, message: str, *, kind: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.kind = kind


class Entry(Struct, frozen=True):
    """What a storage has under a name."""

    location: str
    """As a unit names it: a path, or a URL."""
    is_folder: bool = False
    byte_count: int = 0
    pin: str = ""
    """Time of change or etag; "" the storage tells none."""
    is_link: bool = False
    """Of a folder: it lies elsewhere, and `**` does not walk down."""

    @property
    def name(self) -> str:
        """The last part of its location."""
        return self.location.rpartition("/")[2]


class Handle(Protocol):
    """An opened file of a storage that is reached over a network."""

    def read(self, offset: int, count: int) -> bytes:
        """Return bytes by one request; may be called by several threads.

        Raises:
            StorageError: They cannot be had.
        """
        ...


class Storage(Protocol):
    """Where files lie. Everything blocks, and may be called by several threads."""

    @property
    def reads_by_name(self) -> bool:
        """Whether a file that takes another's name is read in its place by an opened handle."""
        ...

    def entries(self, folder: str, is_wanted: Callable[[str], bool]) -> list[Entry]:
        """Return what lies directly in a folder and has a wanted name, in any order.

        Raises:
            StorageError: There is no such folder, or it cannot be listed.
        """
        ...

    def find(self, location: str) -> Entry | None:
        """Return what has a name; None when there is nothing.

        Raises:
            StorageError: Nobody can tell.
        """
        ...

    def open(self, location: str) -> Handle:
        """Return a file, opened.

        Raises:
            StorageError: It cannot be opened.
        """
        ...

    def write(self, location: str, data: bytes) -> None:
        """Write a small file, whole or not at all, over one that is there, with its folders.

        Raises:
            StorageError: It was not written.
        """
        ...

    def upload(self, location: str, file: Path) -> None:
        """Write a file of this host there, as `write`; it may be large.

        Raises:
            StorageError: It was not written.
        """
        ...

    def remove(self, location: str) -> None:
        """Remove a file; one that is not there is none the less.

        Raises:
            StorageError: It is still there.
        """
        ...

    def credential(self) -> Credential | None:
        """Return what is shown to it now; None where it is not known when that ends."""
        ...


def kind_of(
    error: Exception,
    text: str,
    *,
    gone: Sequence[str],
    denied: Sequence[str],
    expired: Sequence[str] = (),
    unknown: Sequence[str] = (),
) -> str:
    """Return which kind of `StorageError` a client's error is, by its type and its words.

    Args:
        error: As the client raised it.
        text: What it says.
        gone: Words that tell of something that is not there.
        denied: Of something that this user may not have.
        expired: Of a credential that was good.
        unknown: Of one that never was.
    """
    if any(word in text for word in gone):
        return "vanished"
    if any(word in text for word in expired):
        return "expired"
    if any(word in text for word in unknown):
        return "denied"
    if isinstance(error, (PermissionError, ValueError)) or any(word in text for word in denied):
        return "data"
    return "transient"


def part_of(location: str) -> str:
    """Return the hidden name beside a file under which it is written first."""
    folder, _, name = location.rpartition("/")
    return f"{folder}/.{name}.{secrets.token_hex(4)}"
