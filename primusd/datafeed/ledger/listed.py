"""The units of a stream in the order they were listed; those read long ago are packed. Frozen.

There may be a million files, and a stream knows all of them: for savepoints, for the next pass, for
a restore, for people. As objects a file takes about 300 bytes. Packed, with 511 others, it takes 10
to 20, and is unpacked when somebody asks for it.
"""

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from primusd.datafeed.protocol import Unit

PACK_UNITS = 512
UNPACKED_MAX = 32
"""Packs of which the units are kept for the next who asks."""


class UnitEntry(Struct, frozen=True, array_like=True):
    """A pinned unit as it was listed."""

    unit: Unit
    size: int
    """Where it ends; -1: known once it is opened, or it grows (`Stream.found`)."""
    first: int = 0
    """Where it begins: files at 0, a partition at the offset that the stream starts from."""
    cuts: tuple[int, ...] = ()
    """Of one that was packed: where it may be cut cheaply."""


class ChangedFile(Struct, frozen=True, array_like=True):
    """A file that is not what it was when it was listed."""

    unit: int
    byte_count: int
    pin: str


class Scanning(Struct, frozen=True, array_like=True):
    """How folders that were listed are looked at again. Journal times; 0 not yet, or none."""

    count: int = 0
    """Looks that came to their end."""
    last_ms: int = 0
    """When the last one did."""
    next_ms: int = 0
    """When the next one is due."""
    due_ms: int = 0
    """When the one was due that is under way."""
    ended_ms: int = 0
    """When all was listed for the first time."""
    late_count: int = 0
    """Files that they brought."""
    changed: tuple[ChangedFile, ...] = ()


class Pack(Struct, frozen=True, array_like=True):
    """`PACK_UNITS` units."""

    byte_count: int
    """Of all of them."""
    sized_bytes: int
    """Of those whose size was known when they were packed."""
    body: bytes


class Units(Struct, frozen=True, array_like=True):
    """All units by number, as a sequence: the first ones packed, the others as they are."""

    packs: tuple[Pack, ...] = ()
    tail: tuple[UnitEntry, ...] = ()

    @property
    def packed_count(self) -> int:
        """How many units are packed."""
        return len(self.packs) * PACK_UNITS

    def __len__(self) -> int:
        return len(self.packs) * PACK_UNITS + len(self.tail)

    def __getitem__(self, number: int) -> UnitEntry:
        place = number - len(self.packs) * PACK_UNITS
        if number >= 0 <= place:
            return self.tail[place]
        if number < 0:
            return self[len(self) + number]
        return _unpacked(self.packs[number // PACK_UNITS].body)[number % PACK_UNITS]

    def __iter__(self) -> Iterator[UnitEntry]:
        for pack in self.packs:
            yield from _unpacked(pack.body)
        yield from self.tail

    def with_more(self, entries: Iterable[UnitEntry]) -> "Units":
        """Return the units with further ones behind them."""
        return Units(self.packs, (*self.tail, *entries))

    def with_packed(self, entries: Sequence[UnitEntry]) -> "Units":
        """Return the units with the next `PACK_UNITS` of them packed.

        Args:
            entries: They, with what became known of them since they were listed.
        """
        assert len(entries) == PACK_UNITS
        return Units((*self.packs, packed(entries)), self.tail[PACK_UNITS:])


class _Columns(Struct, frozen=True, array_like=True):
    """Units side by side, which packs better than one after the other."""

    locations: tuple[str, ...]
    byte_counts: tuple[int, ...]
    pins: tuple[str, ...]
    sizes: tuple[int, ...]
    """Empty: as the bytes."""
    forms: tuple[tuple[str, Mapping[str, str]], ...]
    """Kinds and options that there are."""
    form_of: tuple[int, ...]
    """Empty: there is one."""
    firsts: tuple[int, ...]
    """Empty: all begin at 0."""
    cuts: tuple[tuple[int, ...], ...]
    """Empty: none has any."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Columns).decode


def packed(entries: Sequence[UnitEntry]) -> Pack:
    """Return units as a pack."""
    forms: list[tuple[str, Mapping[str, str]]] = []
    form_of: list[int] = []
    for entry in entries:
        form = (entry.unit.kind, entry.unit.options)
        if not forms or forms[form_of[-1]] != form:
            forms += [form] if form not in forms else []
        form_of.append(forms.index(form))
    byte_counts = tuple(entry.unit.byte_count for entry in entries)
    sizes = tuple(entry.size for entry in entries)
    columns = _Columns(
        tuple(entry.unit.location for entry in entries),
        byte_counts,
        tuple(entry.unit.pin for entry in entries),
        () if sizes == byte_counts else sizes,
        tuple(forms),
        tuple(form_of) if len(forms) > 1 else (),
        tuple(entry.first for entry in entries) if any(one.first for one in entries) else (),
        tuple(entry.cuts for entry in entries) if any(one.cuts for one in entries) else (),
    )
    known = (entry.unit.byte_count for entry in entries if entry.size >= 0)
    return Pack(sum(byte_counts), sum(known), zlib.compress(_encode(columns), 6))


@lru_cache(UNPACKED_MAX)
def _unpacked(body: bytes) -> tuple[UnitEntry, ...]:
    """Return the units of a pack."""
    found = _decode(zlib.decompress(body))
    count = len(found.locations)
    nothing = (0,) * count
    form_of = found.form_of or nothing
    return tuple(
        UnitEntry(Unit(kind, location, byte_count, pin, options), size, first, cuts)
        for location, byte_count, pin, size, first, cuts, (kind, options) in zip(
            found.locations,
            found.byte_counts,
            found.pins,
            found.sizes or found.byte_counts,
            found.firsts or nothing,
            found.cuts or ((),) * count,
            (found.forms[one] for one in form_of),
            strict=True,
        )
    )


def alike(units: Iterable[Unit], options: Mapping[str, str] | None) -> Iterator[Unit]:
    """Yield units with one mapping of options where those of one after the other are equal.

    A mapping takes as much memory as all else of a unit.

    Args:
        units: In order.
        options: Of the unit before the first; None there is none.
    """
    for unit in units:
        if unit.options == options:
            yield unit if unit.options is options else replace(unit, options=options)
        else:
            options = unit.options
            yield unit
