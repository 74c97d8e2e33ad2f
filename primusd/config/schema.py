"""The settings of one section, taken from the annotations of its Struct."""

from functools import cache
from typing import Annotated, get_args, get_origin

from msgspec import Struct
from msgspec.structs import fields

from primusd.config.values import NotYet, Rule, Size

SettingPath = tuple[str, ...]
"""Tables, then the key: as it is written with dots."""

_UNIT_SUFFIXES = ("_ms", "_bytes", "_milli")


class Setting(Struct, frozen=True):
    """One key of the file."""

    field: str
    key: str
    rule: Rule
    not_yet: NotYet | None
    default: object


class Section(Struct, frozen=True):
    """The keys of one table of the file, and the tables in it."""

    settings: tuple[Setting, ...]
    tables: tuple[str, ...]
    """Names of the fields that are sections themselves; `queues`, a map of them, is not listed."""

    def keys(self) -> tuple[str, ...]:
        """Return all that may stand in the table."""
        return (*(setting.key for setting in self.settings), *self.tables)


@cache
def section_of(kind: type[Struct]) -> Section:
    """Return the keys of a section."""
    settings, tables = [], []
    for info in fields(kind):
        if get_origin(info.type) is Annotated:
            _, rule, *marks = get_args(info.type)
            not_yet = next((mark for mark in marks if isinstance(mark, NotYet)), None)
            key = _key(info.name, rule)
            settings.append(Setting(info.name, key, rule, not_yet, info.default))
        elif isinstance(info.type, type) and issubclass(info.type, Struct):
            tables.append(info.name)
    return Section(tuple(settings), tuple(tables))


def _key(name: str, rule: Rule) -> str:
    if isinstance(rule, Size) and rule.key:
        return rule.key
    for suffix in _UNIT_SUFFIXES:
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return name
