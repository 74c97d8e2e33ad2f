"""What SIGHUP can change in a running daemon, and what has to wait for a restart."""

from collections.abc import Iterator

from msgspec import Struct

from primusd.config.schema import SettingPath, section_of
from primusd.config.settings import Config

# Everything below these takes effect at once; the rest is named to the person who asked.
_LIVE: tuple[SettingPath, ...] = (
    ("logs", "level"),
    ("auth",),
    ("limits",),
    ("launchers",),
    ("listen", "tls_cert"),
    ("listen", "tls_key"),
    ("listen", "client_ca"),
)


class Changes(Struct, frozen=True):
    """Paths of the settings that differ between two configurations."""

    live: tuple[str, ...]
    after_restart: tuple[str, ...]


def changes(old: Config, new: Config) -> Changes:
    """Return what differs, parted by whether it can be taken over now."""
    live: list[str] = []
    after_restart: list[str] = []
    for path in _differing(old, new, ()):
        is_live = any(path[: len(prefix)] == prefix for prefix in _LIVE)
        (live if is_live else after_restart).append(".".join(path))
    if old.queues != new.queues:
        live.append("queues")
    return Changes(tuple(live), tuple(after_restart))


def _differing(old: Struct, new: Struct, prefix: SettingPath) -> Iterator[SettingPath]:
    section = section_of(type(old))
    for setting in section.settings:
        if getattr(old, setting.field) != getattr(new, setting.field):
            yield (*prefix, setting.key)
    for name in section.tables:
        yield from _differing(getattr(old, name), getattr(new, name), (*prefix, name))
