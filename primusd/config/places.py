"""Where a daemon keeps its things: one answer for root and systemd, one for anybody else."""

import pwd
from collections.abc import Mapping
from pathlib import Path

from primusd.config.settings import Directories

_SYSTEM = Directories(
    config=Path("/etc/primus"), state=Path("/var/lib/primusd"), run=Path("/run/primusd")
)
CONFIG_FILE = "primusd.toml"


def directories_of(
    flags: Mapping[str, object], environ: Mapping[str, str], uid: int
) -> Directories:
    """Return the directories of a daemon that runs as `uid`, without making them.

    Flags come first, then what systemd passed, then the usual places. A daemon started with
    `--ephemeral` keeps its socket below its own state, so that it never meets the lasting one.
    """
    usual = _SYSTEM if uid == 0 or "STATE_DIRECTORY" in environ else _of_user(environ, uid)
    state = _path(flags.get("state_dir"), environ.get("PRIMUSD_STATE_DIR"))
    state = state or _passed(environ, "STATE_DIRECTORY")
    run = _path(flags.get("run_dir")) or _passed(environ, "RUNTIME_DIRECTORY")
    if run is None and (flags.get("ephemeral") or usual.run == usual.state / "run"):
        run = (state or usual.state) / "run"
    return Directories(config=usual.config, state=state or usual.state, run=run or usual.run)


def _of_user(environ: Mapping[str, str], uid: int) -> Directories:
    home = Path(environ.get("HOME") or _home(uid))
    config = _absolute(environ, "XDG_CONFIG_HOME") or home / ".config"
    state = (_absolute(environ, "XDG_STATE_HOME") or home / ".local" / "state") / "primusd"
    runtime = _absolute(environ, "XDG_RUNTIME_DIR")
    run = runtime / "primusd" if runtime else state / "run"
    return Directories(config=config / "primus", state=state, run=run)


def _home(uid: int) -> str:
    """Return the home of a user; one without an entry in the user database lives in `/`."""
    try:
        return pwd.getpwuid(uid).pw_dir
    except KeyError:
        return "/"


def _absolute(environ: Mapping[str, str], name: str) -> Path | None:
    """Return an XDG directory; the XDG specification has relative ones ignored."""
    path = Path(environ.get(name) or "")
    return path if path.is_absolute() else None


def _passed(environ: Mapping[str, str], name: str) -> Path | None:
    """Return the first directory that systemd made for the service (systemd.exec(5))."""
    first = environ.get(name, "").partition(":")[0]
    return Path(first) if first else None


def _path(*texts: object) -> Path | None:
    """Return the first that was given, independent of a later change of directory."""
    return next((Path(str(text)).absolute() for text in texts if text), None)
