"""The peers document: who else is in the gang and where (docs/protocol.md §11)."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter

import msgspec
from msgspec import Struct


class Member(Struct, frozen=True):
    """A replica that is placed and has its ports."""

    role: str
    index: int
    host: str
    """As its peers call it."""
    ports: Mapping[str, int]


class Place(Struct, frozen=True):
    """Where a member of a role is; in the order of the alphabet, as other keys of the document."""

    host: str
    index: int
    ports: Mapping[str, int]


BY_INDEX = attrgetter("index")


class _Document(Struct, frozen=True):
    generation: int
    roles: Mapping[str, tuple[Place, ...]]


def peers_document(generation: int, members: Iterable[Member]) -> bytes:
    """Return the document of a generation as JSON; the same members give the same bytes."""
    roles: dict[str, list[Place]] = {}
    for one in members:
        roles.setdefault(one.role, []).append(Place(one.host, one.index, one.ports))
    for places in roles.values():
        places.sort(key=BY_INDEX)
    return encoded(generation, roles)


def encoded(generation: int, roles: Mapping[str, Sequence[Place]]) -> bytes:
    """Return the document of a generation, with the places of each role in their order."""
    return msgspec.json.encode({"generation": generation, "roles": roles}, order="deterministic")


def members_of(document: bytes) -> tuple[Member, ...]:
    """Return who stands in a document; nobody in an empty one."""
    if not document:
        return ()
    found = msgspec.json.decode(document, type=_Document)
    return tuple(
        Member(role, one.index, one.host, one.ports)
        for role, ones in found.roles.items()
        for one in ones
    )


def peers_digest(document: bytes) -> str:
    """Return the name of a document by its content, as orders carry it."""
    return f"sha256:{hashlib.sha256(document).hexdigest()}"
