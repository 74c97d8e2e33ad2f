"""Savepoints outside of a stream: the JSON that is exported and imported, by location of units."""

from collections.abc import Iterable

import msgspec
from msgspec import Struct

from primusd.datafeed.ledger.model import OPEN_END, CarriedUnit, DeadRange, Range
from primusd.errors import PrimusdError

FORM = 1
"""Raised when a form is written that older code cannot read."""
BYTES_MAX = 1 << 30


class PortableError(PrimusdError):
    """What should be a savepoint is none, or one of another form."""

    code = "InvalidSpec"
    status = 422


class Dead(Struct, frozen=True, rename="camel", omit_defaults=True):
    """A range that is left out."""

    lo: int
    hi: int
    """-1: to an end that nobody knows."""
    kind: str
    text: str = ""
    by: str = ""


class EpochPart(Struct, frozen=True, rename="camel", omit_defaults=True):
    """What of a unit was taken or left out in a pass."""

    epoch: int
    done: tuple[tuple[int, int], ...] = ()
    dead: tuple[Dead, ...] = ()


class PortableUnit(Struct, frozen=True, rename="camel", omit_defaults=True):
    """A file or a partition."""

    location: str
    byte_count: int = -1
    pin: str = ""
    size: int = -1
    """Positions in it; -1 not known."""
    epochs: tuple[EpochPart, ...] = ()
    cuts: tuple[int, ...] = ()


class Portable(Struct, frozen=True, rename="camel", kw_only=True):
    """A savepoint on its way."""

    kind: str = "Savepoint"
    form: int = FORM
    job: str = ""
    stream: str = ""
    name: str = ""
    sealed_at: str = ""
    whole_epochs: int = 0
    """Passes in which every unit named here is done."""
    order: str = ""
    """How rows of a file were permuted; "" they were not. Parts of files mean nothing otherwise."""
    units: tuple[PortableUnit, ...] = ()


def encode(portable: Portable) -> bytes:
    """Return it as JSON, a unit a line."""
    return msgspec.json.format(msgspec.json.encode(portable), indent=1) + b"\n"


def decode(data: bytes) -> Portable:
    """Return an exported savepoint.

    Raises:
        PortableError: It is none, or of a form that this version does not know.
    """
    try:
        head = msgspec.json.decode(data, type=_Head)
        if head.kind != "Savepoint":
            raise PortableError(f"this is a {head.kind or 'file'}, no Savepoint")
        if head.form > FORM:
            raise PortableError(
                f"the savepoint has form {head.form}, this version knows up to {FORM}",
                hint="import it with the version that wrote it, or a newer one",
            )
        found = msgspec.json.decode(data, type=Portable)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PortableError(f"this is no exported savepoint: {error}") from error
    for unit in found.units:
        check(unit)
    return found


class _Head(Struct, frozen=True):
    kind: str = ""
    form: int = FORM


def check(unit: PortableUnit) -> None:
    """Refuse ranges that are none.

    Raises:
        PortableError: They are out of order, or empty.
    """
    for part in unit.epochs:
        last = 0
        for lo, hi in part.done:
            if not last <= lo < hi:
                raise PortableError(
                    f"{unit.location}: the ranges done in pass {part.epoch} are not in order, or "
                    f"empty, at [{lo}, {hi})"
                )
            last = hi
        if part.epoch < 0 or any(not 0 <= one.lo < _end(one.hi) for one in part.dead):
            raise PortableError(f"{unit.location}: pass {part.epoch} has a range that is none")


def _end(hi: int) -> int:
    return OPEN_END if hi < 0 else hi


def as_portable(units: Iterable[CarriedUnit]) -> tuple[PortableUnit, ...]:
    """Return units in the form that leaves the daemon."""
    return tuple(
        PortableUnit(one.location, one.byte_count, one.pin, one.size, tuple(_parts(one)), one.cuts)
        for one in units
    )


def _parts(one: CarriedUnit) -> Iterable[EpochPart]:
    done, dead = dict(one.done), dict(one.dead)
    for epoch in sorted({*done, *dead}):
        yield EpochPart(
            epoch,
            tuple((part.lo, part.hi) for part in done.get(epoch, ())),
            tuple(
                Dead(part.lo, -1 if part.hi == OPEN_END else part.hi, part.kind, part.text, part.by)
                for part in dead.get(epoch, ())
            ),
        )


def as_carried(units: Iterable[PortableUnit]) -> tuple[CarriedUnit, ...]:
    """Return units in the ledger's form."""
    return tuple(
        CarriedUnit(
            one.location,
            one.byte_count,
            one.pin,
            one.size,
            tuple((p.epoch, tuple(Range(*pair) for pair in p.done)) for p in one.epochs if p.done),
            tuple((p.epoch, tuple(map(_dead, p.dead))) for p in one.epochs if p.dead),
            one.cuts,
        )
        for one in units
    )


def _dead(one: Dead) -> DeadRange:
    return DeadRange(one.lo, _end(one.hi), one.kind, one.text, one.by)
