"""All that happens before the loop turns: configuration, directories, lock, token, sockets."""

import argparse
import os
import re
import secrets
import shutil
import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path

import structlog
from msgspec import Struct

from primusd import config, systemd
from primusd.api.auth import LOOPBACK_NAMES, Access, Token, host_name, read_tokens, token_of
from primusd.config import Loaded, split_address
from primusd.datafeed.storage.schemes import scheme_of
from primusd.errors import ConfigError, PrimusdError
from primusd.listeners import (
    AddressInUseError,
    Listener,
    listen_tcp,
    listen_unix,
    passed_listeners,
    share_file,
)
from primusd.shared_places import FILE, SharedPlace, check_place
from primusd.state.archive import Archive, History
from primusd.state.directory import (
    StateDirectory,
    make_directory,
    take_state_directory,
    unusable,
    write_durably,
)
from primusd.state.election import Heads
from primusd.state.shared_archive import SharedArchive

log = structlog.get_logger()

SYSTEM_MODE, USER_MODE = 0o750, 0o700
TOKEN_BYTES = 32
ANY_HOST = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - compared with, not listened at
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


class Prepared(Struct, frozen=True):
    """What a daemon stands on."""

    flags: argparse.Namespace
    loaded: Loaded
    directory: StateDirectory
    token: str
    """Of the run directory."""
    listeners: tuple[Listener, ...]
    is_ephemeral: bool


def load_configuration(flags: argparse.Namespace, environ: Mapping[str, str]) -> Loaded:
    """Return the configuration in force.

    Raises:
        ConfigError: Every fault at once.
    """
    made = flags.ephemeral and not flags.state_dir
    if made:
        flags.state_dir = tempfile.mkdtemp(prefix="primusd-")
    try:
        return config.load(vars(flags), environ, flags.config)
    except ConfigError:
        if made:
            Path(flags.state_dir).rmdir()
        raise


def prepare(flags: argparse.Namespace, loaded: Loaded, environ: Mapping[str, str]) -> Prepared:
    """Take the directories and the addresses.

    Raises:
        StateDirectoryInUseError: Another daemon has the state directory.
        AddressInUseError: Somebody answers at an address that was asked for.
        PrimusdError: A directory cannot be used.
    """
    places = loaded.directories
    is_system = os.geteuid() == 0 or "STATE_DIRECTORY" in environ
    mode = SYSTEM_MODE if is_system else USER_MODE
    directory = take_state_directory(places.state, cluster=loaded.config.cluster, mode=mode)
    try:
        token = _prepare_run(places.run, loaded, mode)
        listeners = open_listeners(loaded)
    except BaseException:
        directory.close()
        raise
    return Prepared(flags, loaded, directory, token, listeners, bool(flags.ephemeral))


def blobs_folder(prepared: Prepared) -> Path:
    """Return where shipped files lie by their content; where they are shared by URL, copies."""
    url = prepared.loaded.config.blobs.url
    is_folder = url and scheme_of(url) == ""
    return Path(url.removeprefix(FILE)) if is_folder else prepared.directory.path / "blobs"


def shared_blobs_of(prepared: Prepared) -> SharedPlace | None:
    """Return the place of shipped files where it is no folder of this host; None: it is one."""
    blobs = prepared.loaded.config.blobs
    return SharedPlace(blobs.url, blobs.options) if scheme_of(blobs.url) else None


def history_of(prepared: Prepared) -> History:
    """Return where entries go that the journal no longer needs."""
    history = prepared.loaded.config.history
    if not history.url:
        return Archive(prepared.directory.path / "archive")
    place = SharedPlace(history.url, history.options)
    return SharedArchive(place, home=prepared.directory.home())


def take_shared(prepared: Prepared) -> None:
    """See that what heads share can be used, and is that of this cluster and no other. Blocks.

    Raises:
        ConfigError: It cannot be written, read or removed from, or belongs to another cluster.
    """
    config, cluster = prepared.loaded.config, prepared.directory.cluster_id
    for key, one in (("blobs.url", config.blobs), ("history.url", config.history)):
        if one.url:
            check_place(SharedPlace(one.url, one.options), key, cluster)


def _prepare_run(run: Path, loaded: Loaded, mode: int) -> str:
    """Make the run directory with the pid file and the token, and return the token."""
    group = loaded.config.listen.socket_group
    try:
        make_directory(run, mode=mode)
        write_durably(run / "primusd.pid", f"{os.getpid()}\n".encode(), mode=0o644)
        path = run / "token"
        if not path.exists():
            token = secrets.token_urlsafe(TOKEN_BYTES)
            write_durably(path, f"{token}\n".encode(), mode=0o600)
            share_file(path, group, mode=0o640)
        return path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise _unusable_run(run, error) from error


def _unusable_run(run: Path, error: OSError) -> PrimusdError:
    text = unusable(run, error).message.replace("state directory", "run directory")
    return ConfigError(text, hint="name another one with --run-dir")


def open_listeners(loaded: Loaded) -> tuple[Listener, ...]:
    """Return the sockets to serve: those that systemd passed, and ours for what it did not.

    Raises:
        AddressInUseError: Somebody answers at an address that was asked for by name.
        ConfigError: An address cannot be listened at.
    """
    found = list(passed_listeners(systemd.passed_sockets()))
    listen = loaded.config.listen
    if not any(one.is_unix for one in found):
        path = Path(listen.socket)
        found.append(listen_unix(path, group=listen.socket_group))
    if listen.tcp and all(one.is_unix for one in found):
        try:
            found.append(listen_tcp(listen.tcp))
        except AddressInUseError:
            if not loaded.is_default("listen.tcp"):
                raise
            log.warning("listener.port_taken", address=listen.tcp)
    return tuple(found)


def access_of(loaded: Loaded, token: str) -> Access:
    """Return who may come in over TCP.

    Raises:
        ConfigError: The token file cannot be read.
    """
    listen = loaded.config.listen
    tokens: tuple[Token, ...] = (token_of("local", "admin", token),)
    if loaded.config.auth.tokens:
        tokens += read_tokens(Path(loaded.config.auth.tokens))
    hosts = set(LOOPBACK_NAMES)
    if listen.tcp:
        hosts.add(split_address(listen.tcp)[0])
    if listen.advertise:
        hosts.add(host_name(listen.advertise.partition("://")[2] or listen.advertise))
    return Access(
        tokens=tokens,
        hosts=frozenset(hosts),
        page_reads_without_token=loaded.config.auth.page_reads_without_token,
    )


def heads_of(prepared: Prepared) -> tuple[str, ...]:
    """Return the addresses by which executors and nodes reach this daemon, the nearest first."""
    config = prepared.loaded.config
    scheme = "https" if config.listen.tls_cert else "http"
    heads = [f"unix:{one.address}" for one in prepared.listeners if one.is_unix]
    if config.listen.advertise:
        has_scheme = "://" in config.listen.advertise
        heads.append(
            config.listen.advertise if has_scheme else f"{scheme}://{config.listen.advertise}"
        )
        return tuple(heads)
    for one in prepared.listeners:
        if not one.is_unix:
            host, port = split_address(one.address)
            # Nobody can dial the address that stands for all of them.
            host = config.member if host in ANY_HOST else host
            heads.append(f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}")
    return tuple(heads)


def all_heads(prepared: Prepared, members: Heads) -> tuple[str, ...]:
    """Return the addresses of all heads: ours first, then those of the others."""
    own = prepared.loaded.config.member
    others = [one for head in members.members if head.member != own for one in head.addresses]
    return (*heads_of(prepared), *others)


def ca_of(loaded: Loaded) -> str | None:
    """Return what executors and nodes trust us by, as PEM: our own certificates; None without TLS.

    It is whatever stands in `tls_cert`, the certificate of an authority or only ours.
    """
    if not loaded.config.listen.tls_cert:
        return None
    try:
        text = Path(loaded.config.listen.tls_cert).read_text(encoding="ascii", errors="replace")
    except OSError:
        # It was readable at the start; those who trust what they have go on.
        return None
    return "\n".join(_CERTIFICATE.findall(text)) or None


def tls_of(loaded: Loaded) -> ssl.SSLContext | None:
    """Return what TCP connections are secured with, None for nothing.

    Raises:
        ConfigError: Certificate and key cannot be used.
    """
    listen = loaded.config.listen
    if not listen.tls_cert:
        return None
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    load_chain(tls, loaded)
    if listen.client_ca:
        tls.load_verify_locations(listen.client_ca)
        tls.verify_mode = ssl.CERT_OPTIONAL
    return tls


def load_chain(tls: ssl.SSLContext, loaded: Loaded) -> None:
    """Take the certificate and its key anew.

    Raises:
        ConfigError: They cannot be used.
    """
    listen = loaded.config.listen
    try:
        tls.load_cert_chain(listen.tls_cert, listen.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"listen.tls_cert {listen.tls_cert} and its key cannot be used: {error}"
        ) from error


def start_lines(prepared: Prepared, version: str, *, does: str = "leads") -> str:
    """Return what a person sees when the daemon leads, or stands by."""
    loaded = prepared.loaded
    store = loaded.config.store
    where = f"embedded store in {_short(loaded.directories.state)}"
    if store.kind == "etcd":
        where = f"etcd at {', '.join(one.rpartition('//')[2] for one in store.etcd.endpoints)}"
    lines = [f'primusd {version} {does} cluster "{loaded.config.cluster}" ({where})']
    places = [f"socket  {one.address}" for one in prepared.listeners if one.is_unix]
    scheme = "https" if loaded.config.listen.tls_cert else "http"
    for one in prepared.listeners:
        if not one.is_unix:
            address = one.address.replace("127.0.0.1", "localhost")
            places.append(f"page  {scheme}://{address}")
    lines.append("  " + "      ".join(places))
    return "\n".join(lines)


def clean_run(prepared: Prepared) -> None:
    """Remove what only a living daemon has."""
    run = prepared.loaded.directories.run
    (run / "primusd.pid").unlink(missing_ok=True)
    for one in prepared.listeners:
        if one.is_unix and one.address == prepared.loaded.config.listen.socket:
            Path(one.address).unlink(missing_ok=True)


def remove_state(prepared: Prepared) -> None:
    """Remove all that an ephemeral daemon had."""
    places = prepared.loaded.directories
    shutil.rmtree(places.state, ignore_errors=True)
    if places.state not in places.run.parents:
        shutil.rmtree(places.run, ignore_errors=True)


def _short(path: Path) -> str:
    try:
        home = Path.home()
    except RuntimeError:
        # A user without an entry in the user database, and without HOME.
        return str(path)
    return (
        f"~/{path.relative_to(home)}" if home in path.parents and home != Path("/") else str(path)
    )
