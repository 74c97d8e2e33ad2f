"""What is wrong with a configuration only in the light of another of its settings."""

import os
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from primusd.config.schema import SettingPath
from primusd.config.settings import Config, Etcd, Listen
from primusd.config.values import is_loopback, split_address

# `sun_path` of unix(7) holds 108 bytes, the last of which is 0.
SOCKET_PATH_BYTES_MAX = 107
SHARED_SCHEMES = (
    *("hdfs", "viewfs", "webhdfs", "swebhdfs", "s3", "s3a", "s3n"),
    *("gs", "gcs", "abfs", "abfss", "az"),
)
"""Storages of the data feed that can be written."""


class Contradiction(Struct, frozen=True):
    """One fault."""

    path: SettingPath
    found: object
    allowed: str
    hint: str = ""


def contradictions(config: Config, *, is_insecure: bool) -> Iterator[Contradiction]:
    """Yield every fault that no single value has by itself.

    Args:
        config: Filled, with all values in bounds.
        is_insecure: A listener beyond loopback may go without TLS.
    """
    yield from _of_listener(config, is_insecure=is_insecure)
    yield from _of_tls(config.listen)
    launchers = config.launchers
    if launchers.default not in launchers.enabled:
        allowed = f"one of launchers.enabled: {', '.join(launchers.enabled)}"
        yield Contradiction(("launchers", "default"), launchers.default, allowed)
    etcd = config.store.etcd
    if etcd.quota_warn_percent >= etcd.quota_stop_percent:
        path = ("store", "etcd", "quota_warn_percent")
        allowed = f"less than quota_stop_percent, which is {etcd.quota_stop_percent}"
        yield Contradiction(path, etcd.quota_warn_percent, allowed)
    if config.store.kind == "etcd":
        yield from _of_etcd(etcd)
    yield from _of_shared("blobs", config.blobs.url)
    yield from _of_shared("history", config.history.url)
    yield from _of_files(config)


def _of_listener(config: Config, *, is_insecure: bool) -> Iterator[Contradiction]:
    listen = config.listen
    socket_bytes = len(os.fsencode(listen.socket))
    if socket_bytes > SOCKET_PATH_BYTES_MAX:
        yield Contradiction(
            ("listen", "socket"),
            listen.socket,
            f"a path of at most {SOCKET_PATH_BYTES_MAX} bytes, this has {socket_bytes}",
            "name a shorter one with --socket or --run-dir",
        )
    if not listen.tcp or is_loopback(split_address(listen.tcp)[0]):
        return
    if not listen.tls_cert and not is_insecure:
        allowed = "a loopback address, or tls_cert and tls_key with it"
        hint = "--insecure serves it in the clear"
        yield Contradiction(("listen", "tcp"), listen.tcp, allowed, hint)
    if config.auth.page_reads_without_token:
        path = ("auth", "page_reads_without_token")
        yield Contradiction(path, found=True, allowed=f"false while tcp is {listen.tcp}")


def _of_tls(listen: Listen) -> Iterator[Contradiction]:
    if bool(listen.tls_cert) != bool(listen.tls_key):
        lacking = "tls_key" if listen.tls_cert else "tls_cert"
        yield Contradiction(("listen", lacking), "", "both tls_cert and tls_key, or neither")
    if listen.client_ca and not listen.tls_cert:
        yield Contradiction(("listen", "client_ca"), listen.client_ca, "only with tls_cert")


def _of_etcd(etcd: Etcd) -> Iterator[Contradiction]:
    path = ("store", "etcd")
    for endpoint in etcd.endpoints:
        address = endpoint.removeprefix("http://").removeprefix("https://")
        try:
            host = split_address(address)[0]
        except ValueError:
            host = ""
        if not host or set("/@?# ") & set(host):
            yield Contradiction((*path, "endpoints"), endpoint, "host:port, as 10.0.0.1:2379")
    if len({one.startswith("https://") for one in etcd.endpoints}) > 1:
        allowed = "all of them with https://, or none"
        yield Contradiction((*path, "endpoints"), ", ".join(etcd.endpoints), allowed)
    if (etcd.ca or etcd.cert) and any(one.startswith("http://") for one in etcd.endpoints):
        allowed = "https:// with ca or cert"
        yield Contradiction((*path, "endpoints"), ", ".join(etcd.endpoints), allowed)
    pairs = (
        (("cert", etcd.cert), ("key", etcd.key)),
        (("user", etcd.user), ("password_file", etcd.password_file)),
    )
    for (one, value), (other, another) in pairs:
        if bool(value) != bool(another):
            lacking = other if value else one
            yield Contradiction((*path, lacking), "", f"both {one} and {other}, or neither")


def _of_shared(section: str, url: str) -> Iterator[Contradiction]:
    """Yield what is wrong with the URL of a place that all heads reach."""
    path = url.removeprefix("file://")
    if not url or path.startswith("/"):
        return
    scheme, separator, rest = url.partition("://")
    if scheme not in SHARED_SCHEMES or not separator or not rest.strip("/"):
        allowed = f"a folder, file:///folder, or a URL of {', '.join(SHARED_SCHEMES)}"
        yield Contradiction((section, "url"), url, allowed)


def _of_files(config: Config) -> Iterator[Contradiction]:
    """Yield the files that will be read at start and cannot be."""
    named: tuple[tuple[SettingPath, str], ...] = (
        (("auth", "tokens"), config.auth.tokens),
        (("listen", "tls_cert"), config.listen.tls_cert),
        (("listen", "tls_key"), config.listen.tls_key),
        (("listen", "client_ca"), config.listen.client_ca),
    )
    if config.store.kind == "etcd":
        etcd = config.store.etcd
        named += (
            (("store", "etcd", "ca"), etcd.ca),
            (("store", "etcd", "cert"), etcd.cert),
            (("store", "etcd", "key"), etcd.key),
            (("store", "etcd", "password_file"), etcd.password_file),
        )
    for path, file in named:
        if not file:
            continue
        try:
            with Path(file).open("rb"):
                pass
        except OSError as error:
            yield Contradiction(path, file, "a file that can be read", str(error.strerror))
