"""Every form that is stored loads for ever: `stored_forms.txt` has a value of each, as bytes.

A line is written once, by `pytest tests/golden --rewrite`, and never again: a form that gets a
field gets another line beside the older one.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Struct, inspect

from primusd.datafeed.ledger import listed
from primusd.records import Entry
from primusd.state import backup, snapshots
from primusd.state.etcd.redo import Change
from primusd.state.etcd.values import Stored

LINES = Path(__file__).with_name("stored_forms.txt")
ROOTS: tuple[Any, ...] = (
    Entry,
    *(snapshots._AdmissionPart, snapshots._JobPart, snapshots._ChunkPart),
    *(snapshots._StreamPart, snapshots._UnitsPart, listed._Columns),
    *(backup._Start, backup._Part, backup._Entry),
    Change,
    Stored,
)
INTEGER = 3


def named(kind: type[Struct]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def parts_of(info: Any) -> Iterator[Any]:
    """Yield the types that a type is made of."""
    match info:
        case inspect.StructType():
            yield from (field.type for field in info.fields)
        case inspect.UnionType():
            yield from info.types
        case inspect.DictType():
            yield from (info.key_type, info.value_type)
        case inspect.TupleType():
            yield from info.item_types
        case inspect.CollectionType():
            yield info.item_type
        case _:
            return


def forms() -> dict[str, inspect.StructType]:
    """Return every struct that is stored, by name."""
    found: dict[str, inspect.StructType] = {}
    left = list(inspect.multi_type_info(ROOTS))
    while left:
        info = left.pop()
        if isinstance(info, inspect.StructType):
            if named(info.cls) in found:
                continue
            found[named(info.cls)] = info
        left += parts_of(info)
    return found


def sample(info: Any, depth: int = 0) -> Any:
    """Return a value of a type as msgpack has it: nothing is empty that need not be."""
    match info:
        case inspect.StructType():
            values = [sample(field.type, depth + 1) for field in info.fields]
            if info.array_like:
                return values if info.tag is None else [info.tag, *values]
            names = [field.encode_name for field in info.fields]
            tagged = {} if info.tag is None else {info.tag_field: info.tag}
            return tagged | dict(zip(names, values, strict=True))
        case inspect.UnionType():
            some = [one for one in info.types if not isinstance(one, inspect.NoneType)]
            return sample(some[0], depth) if depth < 8 else None
        case inspect.DictType():
            key = sample(info.key_type, depth)
            return {
                tuple(key) if isinstance(key, list) else key: sample(info.value_type, depth + 1)
            }
        case inspect.TupleType():
            return [sample(one, depth + 1) for one in info.item_types]
        case inspect.CollectionType():
            return [sample(info.item_type, depth + 1)]
        case inspect.EnumType():
            return next(iter(info.cls)).value
        case inspect.LiteralType():
            return info.values[0]
        case _:
            return plain(info)


def plain(info: Any) -> Any:
    match info:
        case inspect.BoolType():
            return True
        case inspect.IntType():
            return INTEGER
        case inspect.FloatType():
            return 0.5
        case inspect.StrType():
            return "s"
        case inspect.BytesType():
            return b"b"
        case inspect.AnyType() | inspect.NoneType():
            return None
        case _:
            raise AssertionError(f"no sample of {info}")


def kept() -> dict[tuple[str, int], bytes]:
    """Return the lines by form and number of its fields."""
    found = {}
    for line in LINES.read_text().splitlines() if LINES.exists() else []:
        name, count, told = line.split()
        found[name, int(count)] = bytes.fromhex(told)
    return found


def is_kept(old: Any, new: Any) -> bool:
    """Return whether all of an old value is in the new one; what was appended since may follow."""
    if isinstance(old, list) and isinstance(new, list):
        return len(old) <= len(new) and all(map(is_kept, old, new))
    if isinstance(old, dict) and isinstance(new, dict):
        return all(key in new and is_kept(one, new[key]) for key, one in old.items())
    return bool(old == new)


def missing(known: dict[tuple[str, int], bytes]) -> list[tuple[str, int]]:
    return [one for name, form in forms().items() if (one := (name, len(form.fields))) not in known]


def written(names: Sequence[tuple[str, int]]) -> str:
    everything = forms()
    return "".join(
        f"{name} {count} {msgspec.msgpack.encode(sample(everything[name])).hex()}\n"
        for name, count in names
    )


def test_each_form_that_is_stored_has_a_line(request: pytest.FixtureRequest) -> None:
    known = kept()
    if request.config.getoption("--rewrite"):
        with LINES.open("a") as file:
            file.write(written(sorted(missing(known))))
        known = kept()

    assert len(known) > 100
    assert missing(known) == [], "a stored form is new: pytest tests/golden --rewrite appends it"


@pytest.mark.parametrize("form", sorted(kept()), ids=lambda form: f"{form[0]}-{form[1]}")
def test_what_was_stored_once_is_read_as_it_was(form: tuple[str, int]) -> None:
    name, _ = form
    info = forms().get(name)
    assert info is not None, f"{name} was stored: what is in journals must load for ever"
    body = kept()[form]

    value = msgspec.msgpack.decode(body, type=info.cls)

    again = msgspec.msgpack.decode(msgspec.msgpack.encode(value))
    assert is_kept(msgspec.msgpack.decode(body), again)


def test_a_change_of_what_is_stored_would_be_found() -> None:
    """Of fields that change places, go, or come without a default."""

    class Old(Struct, array_like=True, tag="x"):
        name: str
        count: int = 0

    class Longer(Old, tag="x"):
        late: str = ""

    class Swapped(Struct, array_like=True, tag="x"):
        count: int
        name: str

    class Retagged(Struct, array_like=True, tag="y"):
        name: str
        count: int = 0

    class Shorter(Struct, array_like=True, tag="x"):
        name: str

    body = msgspec.msgpack.encode(sample(inspect.type_info(Old)))
    old = msgspec.msgpack.decode(body)
    longer = msgspec.msgpack.decode(body, type=Longer)
    assert is_kept(old, msgspec.msgpack.decode(msgspec.msgpack.encode(longer)))
    for kind in (Swapped, Retagged):
        with pytest.raises(msgspec.ValidationError):
            msgspec.msgpack.decode(body, type=kind)
    shorter = msgspec.msgpack.decode(body, type=Shorter)
    assert not is_kept(old, msgspec.msgpack.decode(msgspec.msgpack.encode(shorter)))
