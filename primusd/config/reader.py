"""Flags, environment, file and defaults come together here, in that order of precedence.

Every fault is found before any is told, each with where it stands, so that nobody mends one line at
a time.
"""

import difflib
import os
import socket
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from primusd.config.contradictions import contradictions
from primusd.config.places import CONFIG_FILE, directories_of
from primusd.config.schema import Setting, SettingPath, section_of
from primusd.config.settings import Config, Directories, Loaded, Queue
from primusd.config.show import UNKNOWN
from primusd.config.values import Name, SettingError, read_value
from primusd.errors import ConfigError, Problem
from primusd.toml_places import places_of

FILE_BYTES_MAX = 1 << 20
# What an acknowledgement may wait for others: nothing where a commit is local.
ACK_LINGER_MS: Mapping[str, int] = MappingProxyType({"embedded": 0, "etcd": 100})

ETCD_PORT = 2379

_SHOWN_MAX = 60
_FLAGS: Mapping[str, SettingPath] = MappingProxyType(
    {
        "listen": ("listen", "tcp"),
        "socket": ("listen", "socket"),
        "cluster": ("cluster",),
        "log_level": ("logs", "level"),
        "log_format": ("logs", "format"),
    }
)
_ENVIRONMENT: Mapping[str, SettingPath] = MappingProxyType(
    {"PRIMUSD_LISTEN": ("listen", "tcp"), "PRIMUSD_LOG_LEVEL": ("logs", "level")}
)

SectionT = TypeVar("SectionT", bound=Struct)


class NotYetConfigError(ConfigError):
    """The configuration is right, and asks for what this build does not have yet."""

    code = "NotYet"


def load(
    argv_overrides: Mapping[str, object],
    environ: Mapping[str, str],
    path: Path | None,
    *,
    uid: int | None = None,
) -> Loaded:
    """Return the configuration in force, with the origin of each value and the directories.

    Args:
        argv_overrides: The flags of `primusd` by their name without dashes (`log_level`); None is
            not given. `listen socket store cluster log_level log_format state_dir run_dir
            ephemeral insecure` count, others are left to the caller.
        environ: The daemon's environment.
        path: The file named by `--config`; None looks in `PRIMUSD_CONFIG` and the usual place,
            where it may be absent.
        uid: Who the daemon runs as; None is the caller.

    Raises:
        ConfigError: Every fault at once, in `errors`.
        NotYetConfigError: No fault but a choice that this build does not have.
    """
    directories = directories_of(argv_overrides, environ, os.geteuid() if uid is None else uid)
    file = _file(path, environ, directories)
    text = "" if file is None else _text(file)
    reading = _Reading(file, text, _given(argv_overrides, environ))
    config = _filled(reading.config(_parsed(file, text)), directories)
    for found in contradictions(config, is_insecure=bool(argv_overrides.get("insecure"))):
        reading.note(found.path, found.found, found.allowed, hint=found.hint)
    _raise(reading)
    return Loaded(
        config=config,
        origins=MappingProxyType(reading.origins),
        directories=directories,
        file=file,
    )


class _Reading:
    """One reading of one file: where each value came from, and what was found wrong so far."""

    def __init__(
        self, file: Path | None, text: str, given: Mapping[SettingPath, tuple[object, str]]
    ) -> None:
        self.problems: list[Problem] = []
        self.not_yet: list[Problem] = []
        self.origins: dict[str, str] = {}
        self._file = file
        self._places = places_of(text)
        self._given = given

    def config(self, table: Mapping[str, object]) -> Config:
        """Return all sections; a wrong value is noted and left at its default."""
        config = self._section(Config(), table, (), others=("queues",))
        return replace(config, queues=self._queues(table.get("queues", {})))

    def note(self, path: SettingPath, found: object, allowed: str, *, hint: str = "") -> None:
        """Keep one fault for the end; of one setting only the first, the others follow from it."""
        problem = self._problem(path, found, allowed, hint)
        if all(problem.path != known.path for known in self.problems):
            self.problems.append(problem)

    def _queues(self, table: object) -> Mapping[str, Queue]:
        if not isinstance(table, dict):
            self.note(("queues",), table, "tables, as [queues.default]")
            table = {}
        queues = {}
        for name in ("default", *(name for name in table if name != "default")):
            path, part = ("queues", name), table.get(name, {})
            try:
                read_value(Name(), name)
            except SettingError as error:
                self.note(path, name, error.allowed)
                continue
            queues[name] = self._section(Queue(), part, path)
        return MappingProxyType(queues)

    def _section(
        self, default: SectionT, table: object, prefix: SettingPath, *, others: tuple[str, ...] = ()
    ) -> SectionT:
        """Return the section with what its table and the overrides say."""
        section = section_of(type(default))
        if not isinstance(table, dict):
            self.note(prefix, table, f"a table, as [{'.'.join(prefix)}]")
            table = {}
        known = (*section.keys(), *others)
        for key in table:
            if key not in known:
                self._note_unknown((*prefix, key), known)
        changes: dict[str, object] = {}
        for setting in section.settings:
            changes[setting.field] = self._value(setting, table, (*prefix, setting.key))
        for name in section.tables:
            inner = getattr(default, name)
            changes[name] = self._section(inner, table.get(name, {}), (*prefix, name))
        return replace(default, **changes)

    def _value(self, setting: Setting, table: Mapping[str, object], path: SettingPath) -> object:
        """Return the value of highest precedence; those below it are checked all the same."""
        self.origins[".".join(path)] = "default"
        value = setting.default
        if setting.key in table:
            value = self._read(setting, table[setting.key], path, self._at(path), value)
        if path in self._given:
            given, origin = self._given[path]
            value = self._read(setting, given, path, origin, value)
        return value

    def _read(
        self, setting: Setting, raw: object, path: SettingPath, origin: str, before: object
    ) -> object:
        self.origins[".".join(path)] = origin
        try:
            value = read_value(setting.rule, raw)
        except SettingError as error:
            self.note(path, raw, error.allowed, hint=error.hint)
            return before
        if refused := _refused(setting, value):
            hint = f"{refused} is not in this build yet"
            self.not_yet.append(self._problem(path, raw, _shown(setting.default), hint))
        return value

    def _note_unknown(self, path: SettingPath, known: tuple[str, ...]) -> None:
        near = difflib.get_close_matches(path[-1], known, n=1)
        hint = f"did you mean {near[0]}?" if near else ""
        self.note(path, UNKNOWN, ", ".join(known), hint=hint)

    def _problem(self, path: SettingPath, found: object, allowed: str, hint: str) -> Problem:
        name = ".".join(path)
        origin = self.origins.get(name, "default")
        at = self._at(path) if origin == "default" else origin
        return Problem(path=name, at=at, found=_shown(found), allowed=allowed, hint=hint)

    def _at(self, path: SettingPath) -> str:
        """Return `file:line` of a setting, or of the nearest table around it."""
        for length in range(len(path), 0, -1):
            if place := self._places.get(path[:length]):
                return f"{self._file}:{place.line}"
        return str(self._file or "default")


def _given(
    flags: Mapping[str, object], environ: Mapping[str, str]
) -> Mapping[SettingPath, tuple[object, str]]:
    """Return what the environment and, above it, the flags say: value and origin by path."""
    given: dict[SettingPath, tuple[object, str]] = {}
    for name, path in _ENVIRONMENT.items():
        if name in environ:
            given[path] = (environ[name], f"environment {name}")
    given |= _given_store(environ.get("PRIMUSD_STORE"), "environment PRIMUSD_STORE")
    for name, path in _FLAGS.items():
        if flags.get(name) is not None:
            given[path] = (str(flags[name]), f"flag --{name.replace('_', '-')}")
    given |= _given_store(flags.get("store"), "flag --store")
    return given


def _given_store(value: object, origin: str) -> dict[SettingPath, tuple[object, str]]:
    """Take apart `etcd://h1,h2`; any other text is the kind."""
    if value is None:
        return {}
    kind, separator, hosts = str(value).partition("://")
    given: dict[SettingPath, tuple[object, str]] = {("store", "kind"): (kind, origin)}
    if separator:
        endpoints = [host for host in hosts.split(",") if host]
        given["store", "etcd", "endpoints"] = (endpoints, origin)
    return given


def _refused(setting: Setting, value: object) -> str:
    """Return the part of a value that this build does not carry out; "" when it does."""
    if setting.not_yet is None or value == setting.default:
        return ""
    values = value if isinstance(value, tuple) else (value,)
    for one in values:
        if setting.not_yet.but and str(one).startswith(setting.not_yet.but):
            continue
        if not setting.not_yet.words:
            return setting.key
        if one in setting.not_yet.words:
            return str(one)
    return ""


def _file(path: Path | None, environ: Mapping[str, str], directories: Directories) -> Path | None:
    """Return the file to read; one that was named must be there, the usual one may be absent."""
    named = path or (Path(environ["PRIMUSD_CONFIG"]) if environ.get("PRIMUSD_CONFIG") else None)
    if named is not None:
        return named
    usual = directories.config / CONFIG_FILE
    try:
        usual.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return usual
    return usual


def _text(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            content = stream.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise _unreadable(file, str(error.strerror)) from error
    if len(content) > FILE_BYTES_MAX:
        raise _unreadable(file, f"it is longer than {FILE_BYTES_MAX:,} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise _unreadable(file, f"byte {error.start} is no UTF-8; is it a text?") from error


def _parsed(file: Path | None, text: str) -> Mapping[str, object]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _unreadable(file, f"it is not TOML: {error}") from error
    except RecursionError as error:
        raise _unreadable(file, "it is nested too deep") from error


def _unreadable(file: Path | None, why: str) -> ConfigError:
    problem = Problem(path="", at=str(file), found=why)
    return ConfigError(f"cannot read the configuration {file}: {why}", errors=(problem,))


def _filled(config: Config, directories: Directories) -> Config:
    """Return the configuration with the defaults that depend on the host or on other settings."""
    listen, store = config.listen, config.store
    if not listen.socket:
        listen = replace(listen, socket=str(directories.run / "primusd.sock"))
    endpoints = tuple(map(_with_port, store.etcd.endpoints))
    store = replace(store, etcd=replace(store.etcd, endpoints=endpoints))
    if store.ack_linger_ms is None:
        store = replace(store, ack_linger_ms=ACK_LINGER_MS[store.kind])
    member = config.member or socket.gethostname()
    return replace(config, member=member, listen=listen, store=store)


def _with_port(endpoint: str) -> str:
    """Return an endpoint of etcd with the usual port, where it names none."""
    host = endpoint.rpartition("//")[2]
    has_port = ":" in host.rpartition("]")[2]
    return endpoint if has_port else f"{endpoint}:{ETCD_PORT}"


def _raise(reading: _Reading) -> None:
    """Raise what was noted, if anything was."""
    problems = (*reading.problems, *reading.not_yet)
    if reading.problems:
        count = "1 error" if len(problems) == 1 else f"{len(problems)} errors"
        raise ConfigError(f"the configuration has {count}; nothing was started", errors=problems)
    if reading.not_yet:
        message = "the configuration asks for what this build does not have yet"
        raise NotYetConfigError(f"{message}; nothing was started", errors=problems)


def _shown(value: object) -> str:
    shown = value if value is UNKNOWN else repr(value)
    return str(shown) if len(str(shown)) <= _SHOWN_MAX else f"{str(shown)[:_SHOWN_MAX]}…"
