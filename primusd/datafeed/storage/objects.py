"""Object stores by pyarrow: S3 and what speaks like it, Google Cloud Storage, Azure.

Credentials come from where their own tools have them: environment, files, the instance.
"""

import os
import shutil
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from primusd.datafeed.protocol import Credential
from primusd.datafeed.storage.aws_session import aws_session
from primusd.datafeed.storage.base import Entry, Handle, StorageError, kind_of
from primusd.datafeed.storage.credentials import WAITED_FOR, expired_words

if TYPE_CHECKING:  # Loaded after the fork only: it starts threads.
    from pyarrow import NativeFile, fs

S3_SCHEMES = ("s3", "s3a", "s3n")
GCS_SCHEMES = ("gs", "gcs")
AZURE_SCHEMES = ("abfs", "abfss", "az")
CONNECT_S, REQUEST_S = 10.0, 30.0
COPY_BYTES = 4 << 20
TRIES = 3
"""By itself the client tries ten times; whoever asked does so again, and longer."""
_GONE = (
    "No such file",
    "NO_SUCH_KEY",
    "NO_SUCH_BUCKET",
    "RESOURCE_NOT_FOUND",
    "BlobNotFound",
    "HTTP status 404",
)
_DENIED = (
    *("ACCESS_DENIED", "HTTP status 403", "PERMISSION_DENIED"),
    *("AuthorizationFailure", "AuthorizationPermissionMismatch"),
)
_UNKNOWN = (
    *("INVALID_ACCESS_KEY", "SIGNATURE", "INVALID_CLIENT", "UNRECOGNIZED_CLIENT"),
    *("AuthenticationFailed", "InvalidAuthenticationInfo", "UNAUTHENTICATED", "401 Unauthorized"),
)
_EXPIRED = (
    *("ExpiredToken", "TokenRefreshRequired", "InvalidToken", "REQUEST_EXPIRED"),
    *("oken has expired", "oken is expired", "oken expired", "invalid_grant"),
)

P = ParamSpec("P")
R = TypeVar("R")


class Objects:
    """One store, as seen with one set of options."""

    reads_by_name = True

    def __init__(self, scheme: str, authority: str, options: Mapping[str, str]) -> None:
        """Make a client; nothing is asked yet.

        Args:
            scheme: Of the URL.
            authority: The bucket, or `container@account.host` of Azure.
            options: `endpoint`, `region`, `anonymous`, `account`.

        Raises:
            StorageError: The client cannot be made of these.
        """
        self._prefix = f"{scheme}://{authority}"
        # A bucket's name is the first part of a path, for pyarrow.
        self._bucket = authority.partition("@")[0]
        self._make: Callable[[], fs.FileSystem] = lambda: _told(
            self._prefix, _client, scheme, authority, options
        )
        self._is_s3 = scheme in S3_SCHEMES
        self._fs = self._make()
        self._is_refused = False
        # Of Google's the client tells folders only where an object stands for each.
        self._lacks_folders = scheme in GCS_SCHEMES

    def entries(self, folder: str, is_wanted: Callable[[str], bool]) -> list[Entry]:
        """Return what lies in a folder, as `Storage.entries`."""
        from pyarrow.fs import FileSelector, FileType  # noqa: PLC0415 starts threads

        base = self._path(folder).rstrip("/")
        selector = FileSelector(base, recursive=self._lacks_folders)
        found = self._told(folder, lambda: list(self._fs.get_file_info(selector)))
        entries: dict[str, Entry] = {}
        for one in found:
            name, _, below = one.path.removeprefix(f"{base}/").partition("/")
            if one.type == FileType.NotFound or not is_wanted(name):
                continue
            if below:
                entries[name] = Entry(f"{folder.rstrip('/')}/{name}", is_folder=True)
            else:
                entries.setdefault(name, self._entry(one))
        return list(entries.values())

    def find(self, location: str) -> Entry | None:
        """Return what has a name, as `Storage.find`."""
        from pyarrow.fs import FileType  # noqa: PLC0415 starts threads

        path = self._path(location).rstrip("/")
        found = self._told(location, lambda: self._fs.get_file_info([path])[0])
        return None if found.type == FileType.NotFound else self._entry(found)

    def open(self, location: str) -> Handle:
        """Return an object, opened, as `Storage.open`."""
        path = self._path(location)
        file = self._told(location, lambda: self._fs.open_input_file(path))
        return _Reader(file, partial(self._told, location))

    def write(self, location: str, data: bytes) -> None:
        """Write a small object, as `Storage.write`: it is there once all of it is."""

        def write() -> None:
            with self._writing(location) as stream:
                stream.write(data)

        self._told(location, write)

    def upload(self, location: str, file: Path) -> None:
        """Write a file there, as `Storage.upload`: it is there once all of it is."""

        def write() -> None:
            with file.open("rb") as content, self._writing(location) as stream:
                shutil.copyfileobj(content, stream, COPY_BYTES)

        self._told(location, write)

    def remove(self, location: str) -> None:
        """Remove an object, as `Storage.remove`."""
        try:
            self._told(location, lambda: self._fs.delete_file(self._path(location)))
        except StorageError as error:
            if error.kind != "vanished":
                raise

    def _writing(self, location: str) -> "NativeFile":
        # By itself it packs what has a name like `a.zst`.
        return self._fs.open_output_stream(self._path(location), compression=None)

    def credential(self) -> Credential | None:
        """Return the session, as `Storage.credential`; of S3 only does anybody write it down."""
        session = aws_session() if self._is_s3 else None
        return session if session is not None and session.expires_ms else None

    def _told(self, location: str, call: Callable[[], R]) -> R:
        """Return what pyarrow returns; after a credential is refused the next client is a new one.

        Clients read files with credentials when they are made.
        """
        try:
            if self._is_refused:
                self._fs, self._is_refused = self._make(), False
            return _told(location, call)
        except StorageError as error:
            session = aws_session() if self._is_s3 else None
            # An answer without a body, as of HEAD, does not say that the session is over.
            is_mute = session is not None and "HTTP status 400" in error.message
            if error.kind not in WAITED_FOR and not is_mute:
                raise
            self._is_refused = True
            if error.kind == "denied" and session is None:
                raise
            words = expired_words(session, error.message)
            raise StorageError(words, kind="expired") from error

    def _path(self, location: str) -> str:
        return self._bucket + location.removeprefix(self._prefix)

    def _entry(self, info: "fs.FileInfo") -> Entry:
        from pyarrow.fs import FileType  # noqa: PLC0415 starts threads

        pin = "" if info.mtime_ns is None else str(info.mtime_ns)
        location = self._prefix + info.path.removeprefix(self._bucket)
        return Entry(location, info.type == FileType.Directory, info.size or 0, pin)


class _Reader:
    def __init__(self, file: "NativeFile", told: Callable[[Callable[[], bytes]], bytes]) -> None:
        self._file = file
        self._told = told

    def read(self, offset: int, count: int) -> bytes:
        # The stubs lack the second argument.
        return self._told(lambda: self._file.read_at(count, offset))  # type: ignore[call-arg]


def _client(scheme: str, authority: str, options: Mapping[str, str]) -> "fs.FileSystem":
    from pyarrow import fs  # noqa: PLC0415 starts threads

    endpoint = options.get("endpoint", "")
    kind, _, host = endpoint.rpartition("://")
    anonymous = options.get("anonymous") == "true"
    if scheme in S3_SCHEMES:
        return fs.S3FileSystem(
            anonymous=anonymous,
            region=options.get("region") or None,
            endpoint_override=endpoint or None,
            connect_timeout=CONNECT_S,
            request_timeout=REQUEST_S,
            retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=TRIES),
        )
    if scheme in GCS_SCHEMES:
        return fs.GcsFileSystem(
            anonymous=anonymous,
            scheme=kind or "https",
            endpoint_override=host or None,
            retry_time_limit=timedelta(seconds=CONNECT_S),
        )
    account = options.get("account") or authority.partition("@")[2].partition(".")[0]
    if not account:
        raise ValueError("an Azure URL is abfs://container@account.dfs.core.windows.net/path")
    key = os.environ.get("AZURE_STORAGE_ACCOUNT_KEY") or None
    if not endpoint:
        return fs.AzureFileSystem(account, account_key=key)
    # By name: the stubs spell these words otherwise.
    places: dict[str, Any] = {}
    for service in ("blob", "dfs"):
        places |= {f"{service}_storage_authority": host, f"{service}_storage_scheme": kind}
    return fs.AzureFileSystem(account, account_key=key, **places)


def _told(location: str, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Return what pyarrow returns, with its errors named."""
    from pyarrow import ArrowException  # noqa: PLC0415 starts threads

    try:
        return call(*args, **kwargs)
    except FileNotFoundError:
        raise StorageError(f"{location} does not exist", kind="vanished") from None
    except (OSError, ValueError, ArrowException) as error:
        text = " ".join(str(error).split())[:400]
        kind = kind_of(error, text, gone=_GONE, denied=_DENIED, expired=_EXPIRED, unknown=_UNKNOWN)
        raise StorageError(text, kind=kind) from error
