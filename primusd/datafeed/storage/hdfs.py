"""HDFS by the native client, used from threads: its asynchronous side was seen to hang.

Name services, their addresses, encryption and Kerberos come from `core-site.xml` and
`hdfs-site.xml` in `$HADOOP_CONF_DIR`; the user is `$HADOOP_USER_NAME`, else the process's. For each
connection the client reads the tokens of `$HADOOP_TOKEN_FILE_LOCATION` again.
"""

import contextlib
import posixpath
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import ParamSpec, Protocol, TypeVar

from primusd.datafeed.protocol import Credential
from primusd.datafeed.storage.base import Entry, Handle, StorageError, kind_of, part_of
from primusd.datafeed.storage.credentials import WAITED_FOR, expired_words
from primusd.datafeed.storage.token_store import TokenStore

# By itself the client tries for three minutes; whoever asked does so again, and longer.
CONFIG = {
    "dfs.client.failover.max.attempts": "4",
    "dfs.client.failover.sleep.base.millis": "200",
    "dfs.client.failover.sleep.max.millis": "1000",
    "dfs.client.socket-timeout": "30000",
}
COPY_BYTES = 4 << 20
_GONE = ("FileNotFound", "does not exist", "NoSuchFile")
_DENIED = ("AccessControlException", "Permission denied")
_UNKNOWN = ("Kerberos", "gssapi", "GSSAPI", "SASL")
_EXPIRED = ("InvalidToken", "icket expired", "redentials have expired", "Ticket has expired")
MARGIN_MS = 60_000
"""The client shows no token that ends so soon."""

P = ParamSpec("P")
R = TypeVar("R")


class _Status(Protocol):
    path: str
    length: int
    isdir: bool
    modification_time: int


class Hdfs:
    """One NameNode, or one name service of several."""

    # An opened reader has the blocks of its file, whatever has its name by now.
    reads_by_name = False

    def __init__(self, authority: str, options: Mapping[str, str], *, scheme: str = "hdfs") -> None:
        """Make a client; nothing is asked yet.

        Raises:
            StorageError: The client's package is missing, or no configuration names a NameNode.
        """
        try:
            from hdfs_native import Client  # noqa: PLC0415 an optional package
        except ImportError:
            raise StorageError(
                "hdfs: needs the package hdfs-native, which is not installed",
                kind="data",
                hint="pip install 'primusd[hdfs]' on every host, or use webhdfs:",
            ) from None
        self._prefix = f"{scheme}://{authority}"
        self._tokens = TokenStore(authority, in_environment=False)
        url = self._prefix if authority else None
        self._client = _told("hdfs:", Client, url, CONFIG, options.get("confDir") or None)

    def entries(self, folder: str, is_wanted: Callable[[str], bool]) -> list[Entry]:
        """Return what lies in a folder, as `Storage.entries`."""
        path = _path(folder)
        found: list[_Status] = self._told(folder, lambda: list(self._client.list_status(path)))
        return [self._entry(one) for one in found if is_wanted(one.path.rpartition("/")[2])]

    def find(self, location: str) -> Entry | None:
        """Return what has a name, as `Storage.find`."""
        try:
            return self._entry(self._told(location, self._client.get_file_info, _path(location)))
        except StorageError as error:
            if error.kind == "vanished":
                return None
            raise

    def open(self, location: str) -> Handle:
        """Return a file, opened, as `Storage.open`."""
        reader: _FileReader = self._told(location, self._client.read, _path(location))
        return _Reader(reader, lambda at, count: self._told(location, reader.read_range, at, count))

    def write(self, location: str, data: bytes) -> None:
        """Write a small file, as `Storage.write`."""
        self._write(location, (data,))

    def upload(self, location: str, file: Path) -> None:
        """Write a file there, as `Storage.upload`."""
        with file.open("rb") as content:
            self._write(location, iter(partial(content.read, COPY_BYTES), b""))

    def remove(self, location: str) -> None:
        """Remove a file, as `Storage.remove`."""
        try:
            self._told(location, self._client.delete, _path(location))
        except StorageError as error:
            if error.kind != "vanished":
                raise

    def _write(self, location: str, pieces: Iterable[bytes]) -> None:
        path = _path(location)
        part = part_of(path)
        self._told(location, self._client.mkdirs, posixpath.dirname(path), create_parent=True)
        try:
            writer = self._told(location, self._client.create, part)
            for piece in pieces:
                self._told(location, writer.write, piece)
            self._told(location, writer.close)
            self._told(location, self._client.rename, part, path, overwrite=True)
        except StorageError:
            with contextlib.suppress(StorageError):
                self._told(location, self._client.delete, part)
            raise

    def credential(self) -> Credential | None:
        """Return the token, as `Storage.credential`; a ticket of Kerberos is not looked into."""
        return self._tokens.credential()

    def _entry(self, status: _Status) -> Entry:
        return Entry(
            self._prefix + status.path, status.isdir, status.length, str(status.modification_time)
        )

    def _told(self, location: str, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Return what the client returns, with its errors named, those of a token by its name."""
        try:
            return _told(location, call, *args, **kwargs)
        except StorageError as error:
            if error.kind not in WAITED_FOR:
                raise
            over = self._tokens.expired(margin_ms=MARGIN_MS)
            if over is None and error.kind == "denied":
                raise
            words = expired_words(over or self._tokens.credential(), error.message)
            raise StorageError(words, kind="expired") from error


class _FileReader(Protocol):
    def __len__(self) -> int: ...

    def read_range(self, offset: int, count: int, /) -> bytes: ...


class _Reader:
    def __init__(self, reader: _FileReader, read_range: Callable[[int, int], bytes]) -> None:
        self._reader = reader
        self._read_range = read_range

    def read(self, offset: int, count: int) -> bytes:
        # The client panics at a range beyond the end.
        count = max(0, min(count, len(self._reader) - offset))
        return bytes(self._read_range(offset, count))


def _path(location: str) -> str:
    # Not by urlsplit: names may have ? and # in them.
    return "/" + location.partition("://")[2].partition("/")[2]


def _told(location: str, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Return what the client returns, with its errors named."""
    try:
        return call(*args, **kwargs)
    except FileNotFoundError:
        raise StorageError(f"{location} does not exist", kind="vanished") from None
    except (OSError, RuntimeError, ValueError) as error:
        # What it knows of each DataNode is long, and tells a person nothing.
        text = " ".join(str(error).partition(": [DatanodeInfo")[0].split())[:400]
        kind = kind_of(error, text, gone=_GONE, denied=_DENIED, expired=_EXPIRED, unknown=_UNKNOWN)
        raise StorageError(text, kind=kind) from error
    except BaseException as error:
        # What the client's own language calls a panic is no Exception here.
        if type(error).__name__ != "PanicException":
            raise
        raise StorageError(f"the client gave up: {error}", kind="transient") from error
