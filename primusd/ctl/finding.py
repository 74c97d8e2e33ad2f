"""Where the daemon is, and the token that opens it (docs/config.md §4)."""

import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

from primusd.ctl.failures import USAGE, CtlError, UnreachableError

SYSTEM_SOCKET = "/run/primusd/primusd.sock"
PROBE_TIMEOUT_S = 2.0
"""A daemon that is there takes a connection at once."""


def find_address(given: str, environ: Mapping[str, str]) -> str:
    """Return the address to call: given, from the environment, or of a socket that answers.

    Of several heads it is all addresses, between commas.

    Raises:
        UnreachableError: None of the usual sockets answers.
    """
    named = given or environ.get("PRIMUS_ADDRESS", "")
    if named:
        heads = [one.strip() for one in named.split(",") if one.strip()]
        # Of commas alone the whole is shown.
        return ",".join(map(checked_address, heads or [named]))
    tried = []
    for path in usual_sockets(environ):
        if answers(path):
            return f"unix:{path}"
        tried.append(path)
    raise UnreachableError(f"no daemon answers at {' or '.join(tried)}")


def checked_address(address: str) -> str:
    """Return an address in one of its three forms; `host:port` means http.

    Raises:
        CtlError: It has another form.
    """
    if address.startswith("/"):
        return f"unix:{address}"
    if address.startswith(("unix:/", "http://", "https://")):
        return address.rstrip("/")
    host, colon, port = address.rpartition(":")
    if colon and host and port.isdecimal():
        return f"http://{address}"
    raise CtlError(
        f"{address!r} is no address",
        hint="unix:/path, http://host:port or https://host:port",
        exit_code=USAGE,
    )


def usual_sockets(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the sockets at which a daemon listens that was started without configuration."""
    found = [str(folder / "primusd.sock") for folder in run_directories(environ)]
    return tuple(dict.fromkeys([*found, SYSTEM_SOCKET]))


def run_directories(environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield the run directories that this user's daemon may have, likeliest first."""
    if os.geteuid() == 0:
        yield Path(environ.get("RUNTIME_DIRECTORY") or "/run/primusd")
        return
    if environ.get("XDG_RUNTIME_DIR"):
        yield Path(environ["XDG_RUNTIME_DIR"]) / "primusd"
    state = environ.get("PRIMUSD_STATE_DIR")
    if state:
        yield Path(state) / "run"
    home = Path(environ.get("HOME") or "/")
    base = environ.get("XDG_STATE_HOME")
    yield (Path(base) if base else home / ".local/state") / "primusd" / "run"


def answers(path: str) -> bool:
    """Return whether somebody listens at a unix socket."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(PROBE_TIMEOUT_S)
            probe.connect(path)
    except OSError:
        return False
    return True


def find_token(given_file: str, environ: Mapping[str, str]) -> str:
    """Return the first token found; "" where none is.

    Raises:
        CtlError: A token file that was named cannot be read.
    """
    if given_file:
        return _read_named(given_file)
    if environ.get("PRIMUS_TOKEN"):
        return environ["PRIMUS_TOKEN"].strip()
    if environ.get("PRIMUS_TOKEN_FILE"):
        return _read_named(environ["PRIMUS_TOKEN_FILE"])
    home = Path(environ.get("HOME") or "/")
    config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    places = [config / "primus" / "token"]
    places += [folder / "token" for folder in run_directories(environ)]
    places.append(Path(SYSTEM_SOCKET).with_name("token"))
    for path in places:
        try:
            return path.read_text(encoding="utf-8").strip()
        except OSError:
            continue
    return ""


def _read_named(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise CtlError(
            f"the token file {path} cannot be read: {(error.strerror or str(error)).lower()}",
            exit_code=USAGE,
        ) from error
