"""Which storage reads which URL; one client per process for all files of a place."""

import re
import threading
from collections.abc import Mapping
from importlib.util import find_spec

from primusd.datafeed.protocol import Credential, Unit
from primusd.datafeed.storage.base import OpenFile, ReadError, Storage, StorageError
from primusd.datafeed.storage.local import LocalFile, LocalStorage
from primusd.datafeed.storage.pool import POOL
from primusd.datafeed.storage.remote import AHEAD_BYTES, RemoteFile

OPTION_PREFIX = "storage."
"""Of the options of a unit that are its storage's."""
HDFS = ("hdfs", "viewfs")
WEB = ("webhdfs", "swebhdfs")
BUILT_IN = (*WEB, "s3", "s3a", "s3n", "gs", "gcs", "abfs", "abfss", "az")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/", re.ASCII)
_clients: dict[tuple[str, str, tuple[tuple[str, str], ...]], Storage] = {}
_lock = threading.Lock()


def scheme_of(location: str) -> str:
    """Return the scheme of a URL, "" of a path of this host."""
    found = _URL.match(location)
    return "" if found is None or found[1] == "file" else found[1].lower()


def storage_of(location: str, options: Mapping[str, str] = {}) -> Storage:
    """Return the storage that a path or URL is of.

    Args:
        location: A path, or a URL.
        options: Of the storage, as in the job file.

    Raises:
        StorageError: A package is missing, or nothing reads such URLs.
    """
    scheme = scheme_of(location)
    if not scheme:
        return LocalStorage()
    authority = location.partition("://")[2].partition("/")[0]
    key = (scheme, authority, tuple(sorted(options.items())))
    with _lock:
        known = _clients.get(key)
    if known is None:
        known = POOL.call(_make, scheme, authority, dict(options))
        with _lock:
            known = _clients.setdefault(key, known)
    return known


def open_file(unit: Unit, *, ahead_bytes: int = 0) -> OpenFile:
    """Return a unit's file, opened, which is the one that was listed.

    Args:
        unit: As it was listed.
        ahead_bytes: How much of a remote file may be fetched before it is read; 0: 32 MiB.

    Raises:
        ReadError: It is gone, another one, or cannot be opened.
    """
    if not scheme_of(unit.location):
        return LocalFile(unit)
    try:
        storage = storage_of(unit.location, storage_options(unit))
    except StorageError as error:
        text = f"{unit.location} cannot be read: {error.message}"
        raise ReadError(f"{text}; {error.hint}" if error.hint else text, kind=error.kind) from error
    return RemoteFile(unit, storage, ahead_bytes=ahead_bytes or AHEAD_BYTES)


def credential_of(location: str, options: Mapping[str, str]) -> Credential | None:
    """Return what is shown for a URL; None: nothing that is known to end."""
    return storage_of(location, options).credential()


def storage_options(unit: Unit) -> dict[str, str]:
    """Return the options of a unit that are its storage's."""
    return {
        name.removeprefix(OPTION_PREFIX): value
        for name, value in unit.options.items()
        if name.startswith(OPTION_PREFIX)
    }


def what_is_lacking(location: str) -> str:
    """Return what has to be installed before a URL can be read here; "" nothing.

    Nothing is connected to: whether there is such a host or bucket its listing tells.
    """
    scheme = scheme_of(location)
    if not scheme or scheme in BUILT_IN:
        return ""
    if scheme in HDFS:
        is_there = find_spec("hdfs_native") is not None
        return "" if is_there else "pip install 'primusd[hdfs]' on every host, or use webhdfs:"
    if find_spec("fsspec") is None:
        return "pip install 'primusd[fsspec]' on every host"
    from primusd.datafeed.storage.bridge import has_driver  # noqa: PLC0415 an optional package

    return "" if has_driver(scheme) else f"no driver of fsspec reads {scheme}:"


def _make(scheme: str, authority: str, options: dict[str, str]) -> Storage:
    # Imported where they are used: they load what starts threads, and packages that may be absent.
    if scheme in HDFS:
        from primusd.datafeed.storage.hdfs import Hdfs  # noqa: PLC0415

        return Hdfs(authority, options, scheme=scheme)
    if scheme in WEB:
        from primusd.datafeed.storage.webhdfs import WebHdfs  # noqa: PLC0415

        return WebHdfs(scheme, authority, options)
    if scheme in BUILT_IN:
        from primusd.datafeed.storage.objects import Objects  # noqa: PLC0415

        return Objects(scheme, authority, options)
    from primusd.datafeed.storage.bridge import Bridge  # noqa: PLC0415

    return Bridge(scheme, authority, options)
