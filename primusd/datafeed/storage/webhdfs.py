"""HDFS by its web service: needs no package, and goes through gateways.

`webhdfs://host:9870/path` and `swebhdfs://` (TLS). The user is `$HADOOP_USER_NAME`, unless there is
a delegation token for the host (`token_store`); Kerberos needs the native client.
"""

import contextlib
import http.client
import json
import os
import posixpath
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

from primusd.datafeed.protocol import Credential
from primusd.datafeed.storage.base import Entry, Handle, StorageError, part_of
from primusd.datafeed.storage.credentials import WAITED_FOR, expired_words
from primusd.datafeed.storage.token_store import IN_ENVIRONMENT, IN_FILE, Shown, TokenStore

ANSWER_S = 30.0
NEEDS = f"it needs a delegation token, in ${IN_ENVIRONMENT} or in a file named by ${IN_FILE}"
_TRANSIENT = ("SafeMode", "Retriable", "Standby", "RemoteException")


class WebHdfs:
    """One NameNode or gateway."""

    reads_by_name = True

    def __init__(self, scheme: str, authority: str, options: Mapping[str, str]) -> None:
        """Make a client; nothing is asked yet."""
        self._prefix = f"{scheme}://{authority}"
        kind = "https" if scheme == "swebhdfs" else "http"
        self._base = f"{kind}://{authority}/webhdfs/v1"
        self._user = options.get("user") or os.environ.get("HADOOP_USER_NAME", "")
        self._tokens = TokenStore(authority)
        # Our own opener: HTTP proxies of the environment are for other hosts.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def entries(self, folder: str, is_wanted: Callable[[str], bool]) -> list[Entry]:
        """Return what lies in a folder, as `Storage.entries`."""
        found = json.loads(self._ask(folder, op="LISTSTATUS"))["FileStatuses"]["FileStatus"]
        base = folder.rstrip("/")
        return [
            _entry(f"{base}/{one['pathSuffix']}" if one["pathSuffix"] else base, one)
            for one in found
            if is_wanted(one["pathSuffix"])
        ]

    def find(self, location: str) -> Entry | None:
        """Return what has a name, as `Storage.find`."""
        try:
            return _entry(
                location, json.loads(self._ask(location, op="GETFILESTATUS"))["FileStatus"]
            )
        except StorageError as error:
            if error.kind == "vanished":
                return None
            raise

    def open(self, location: str) -> Handle:
        """Return a file, as `Storage.open`; the service keeps none open."""
        return _Reader(self._ask, location)

    def write(self, location: str, data: bytes) -> None:
        """Write a small file, as `Storage.write`."""
        self._write(location, data, len(data))

    def upload(self, location: str, file: Path) -> None:
        """Write a file there, as `Storage.upload`."""
        with file.open("rb") as content:
            self._write(location, content, file.stat().st_size)

    def remove(self, location: str) -> None:
        """Remove a file, as `Storage.remove`."""
        self._ask(location, "DELETE", op="DELETE")

    def _write(self, location: str, body: bytes | BinaryIO, byte_count: int) -> None:
        part = part_of(location)
        self._ask(posixpath.dirname(location), "PUT", op="MKDIRS")
        try:
            asked = {"op": "CREATE", "overwrite": "true", "noredirect": "true"}
            place = json.loads(self._ask(part, "PUT", **asked))["Location"]
            sent = urllib.request.Request(place, data=body, method="PUT")  # noqa: S310 as it says
            sent.add_header("Content-Length", str(byte_count))
            self._send(location, sent)
            path = location.removeprefix(self._prefix)
            moved = {"op": "RENAME", "destination": path, "renameoptions": "OVERWRITE"}
            self._ask(part, "PUT", **moved)
        except StorageError:
            with contextlib.suppress(StorageError):
                self._ask(part, "DELETE", op="DELETE")
            raise

    def credential(self) -> Credential | None:
        """Return the token, as `Storage.credential`."""
        return self._tokens.credential()

    def _ask(self, location: str, method: str = "GET", **parameters: str) -> bytes:
        shown = self._tokens.shown()
        try:
            return self._ask_as(shown, location, method, parameters)
        except StorageError as error:
            if error.kind == "denied" and shown is None:
                raise StorageError(error.message, kind="denied", hint=NEEDS) from error
            if error.kind not in WAITED_FOR or shown is None:
                raise
            newer = self._tokens.shown()
            if newer is None or newer.text == shown.text:
                words = expired_words(shown.credential, error.message)
                raise StorageError(words, kind="expired") from error
            # It was replaced in the moment in which the old one was refused.
            return self._ask_as(newer, location, method, parameters)

    def _ask_as(
        self, shown: Shown | None, location: str, method: str, parameters: Mapping[str, str]
    ) -> bytes:
        who = {"user.name": self._user} if self._user else {}
        if shown is not None:
            who = {"delegation": shown.text}
        path = location.removeprefix(self._prefix)
        words = urllib.parse.urlencode({**parameters, **who})
        url = f"{self._base}{urllib.parse.quote(path)}?{words}"
        asked = urllib.request.Request(url, method=method)  # noqa: S310 `_base` is http or https
        return self._send(location, asked)

    def _send(self, location: str, request: urllib.request.Request) -> bytes:
        try:
            with self._opener.open(request, timeout=ANSWER_S) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            raise _refused(location, error) from error
        except (OSError, http.client.HTTPException) as error:
            # What urllib wraps says it itself, and in words.
            cause = getattr(error, "reason", error)
            text = getattr(cause, "strerror", None) or cause
            raise StorageError(f"{location}: {text}", kind="transient") from error


class _Reader:
    def __init__(self, ask: Callable[..., bytes], location: str) -> None:
        self._ask = ask
        self._location = location

    def read(self, offset: int, count: int) -> bytes:
        if count <= 0:
            return b""
        return self._ask(self._location, op="OPEN", offset=str(offset), length=str(count))


def _entry(location: str, status: Mapping[str, object]) -> Entry:
    return Entry(
        location,
        status["type"] == "DIRECTORY",
        int(str(status["length"])),
        str(status["modificationTime"]),
    )


def _refused(location: str, error: urllib.error.HTTPError) -> StorageError:
    try:
        said = json.loads(error.read())["RemoteException"]
        name, text = str(said["exception"]), str(said["message"]).partition("\n")[0]
    except (OSError, ValueError, KeyError, TypeError):
        name, text = "", f"HTTP {error.code} {error.reason}"
    if error.code == 404 or name == "FileNotFoundException":
        return StorageError(f"{location} does not exist", kind="vanished")
    if "InvalidToken" in name or "InvalidToken" in text:
        return StorageError(f"{name}: {text}", kind="expired")
    if error.code == 401:
        return StorageError(f"{name}: {text}" if name else text, kind="denied")
    is_brief = error.code >= 500 or any(word in name or word in text for word in _TRANSIENT)
    is_brief |= "safe mode" in text
    return StorageError(f"{name}: {text}", kind="transient" if is_brief else "data")
