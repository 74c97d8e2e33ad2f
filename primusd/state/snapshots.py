"""Machines as bytes: what a snapshot is made of, and which are due.

A machine is stored in parts, so that no value grows without bound and a part that did not change is
not written again: a job as its state and one part per chunk of replicas, a stream as its state and
one part per 4,096 units. The first field of every part is its schema.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from primusd.admission.model import Admission
from primusd.core import Machine, World, find
from primusd.datafeed.ledger import listed
from primusd.datafeed.ledger.listed import Pack, UnitEntry, Units, alike
from primusd.datafeed.ledger.model import Stream
from primusd.job.events import ForgetRequested
from primusd.job.model import Chunk, Job
from primusd.records import ADMISSION, SCHEMA, Entry, job_of
from primusd.state.journal import Loaded, Snapshot, Written
from primusd.state.pieces import encode_stream
from primusd.state.schema import Head, check_schema

UNITS_PER_PART = 4_096
SNAPSHOT_BYTES_PER_TURN = 1 << 20
"""What one turn of the loop encodes and writes at most, but for a single larger machine."""


_WORD = (1 << 64) - 1


class _AdmissionPart(Struct, frozen=True, array_like=True):
    schema: int
    admission: Admission


class _JobPart(Struct, frozen=True, array_like=True):
    schema: int
    job: Job
    """With its chunks left out."""


class _ChunkPart(Struct, frozen=True, array_like=True):
    schema: int
    chunk: Chunk
    """With its bits left out: they are more than msgpack's integers hold."""
    wanted_low: int
    wanted_high: int


class _StreamPart(Struct, frozen=True, array_like=True):
    schema: int
    stream: Stream
    """With its units left out."""


class _UnitsPart(Struct, frozen=True, array_like=True):
    schema: int
    units: tuple[bytes | UnitEntry, ...]
    """Those that are packed as encoded packs, which older versions refuse to take for units."""


_encode = msgspec.msgpack.Encoder().encode


def encode_parts(
    machine: str, value: Machine, before: Machine | None = None
) -> Iterator[tuple[str, bytes | None]]:
    """Yield key and body of each part of a machine; None for a part that is as it was `before`."""
    match value:
        case Admission():
            yield machine, _encode(_AdmissionPart(SCHEMA, value))
        case Job():
            yield from _encode_job(machine, value, before if isinstance(before, Job) else None)
        case Stream():
            old = before if isinstance(before, Stream) else None
            yield from _encode_stream(machine, value, old)


def _encode_job(machine: str, job: Job, before: Job | None) -> Iterator[tuple[str, bytes | None]]:
    roles = {name: replace(role, chunks=()) for name, role in job.roles.items()}
    yield machine, _encode(_JobPart(SCHEMA, replace(job, roles=roles)))
    for name, role in job.roles.items():
        old = before.roles[name].chunks if before is not None and name in before.roles else ()
        for number, chunk in enumerate(role.chunks):
            is_same = number < len(old) and old[number] is chunk
            yield (
                f"{machine}#{name}/{number}",
                None if is_same else _encode(_chunk_part(chunk)),
            )


def _chunk_part(chunk: Chunk) -> _ChunkPart:
    low, high = chunk.wanted & _WORD, chunk.wanted >> 64
    return _ChunkPart(SCHEMA, replace(chunk, wanted=0), low, high)


def _decode_chunk(body: bytes) -> Chunk:
    part = msgspec.msgpack.decode(body, type=_ChunkPart)
    return replace(part.chunk, wanted=part.wanted_high << 64 | part.wanted_low)


def _encode_stream(
    machine: str, stream: Stream, before: Stream | None
) -> Iterator[tuple[str, bytes | None]]:
    yield machine, encode_stream(SCHEMA, replace(stream, units=Units()))
    old = _unit_parts(before.units) if before is not None else iter(())
    for number, units in enumerate(_unit_parts(stream.units)):
        # Entries are shared between versions, so this compares identities, not contents.
        yield f"{machine}#{number}", None if next(old, ()) == units else _encode_units(units)


def _unit_parts(units: Units) -> Iterator[tuple[Pack | UnitEntry, ...]]:
    """Yield what each part has of the units."""
    packed = units.packed_count
    for first in range(0, len(units), UNITS_PER_PART):
        end = first + UNITS_PER_PART
        packs = units.packs[first // listed.PACK_UNITS : end // listed.PACK_UNITS]
        yield (*packs, *units.tail[max(0, first - packed) : max(0, end - packed)])


def _encode_units(units: tuple[Pack | UnitEntry, ...]) -> bytes:
    bodies = tuple(_encode(one) if isinstance(one, Pack) else one for one in units)
    return _encode(_UnitsPart(SCHEMA, bodies))


def decode_machine(machine: str, parts: Mapping[str, bytes]) -> Machine:
    """Return the machine that `encode_parts` made these parts of.

    Args:
        machine: Its key.
        parts: By what follows `#` in the key; "" is the state.

    Raises:
        NewerSchemaError: A newer version wrote a part.
        msgspec.MsgspecError: A part is not what this version writes.
    """
    for body in parts.values():
        check_schema(msgspec.msgpack.decode(body, type=Head).schema)
    state = parts[""]
    if machine == ADMISSION:
        return msgspec.msgpack.decode(state, type=_AdmissionPart).admission
    if "/" in machine:
        return _decode_stream(state, parts)
    return _decode_job(state, parts)


def _decode_job(state: bytes, parts: Mapping[str, bytes]) -> Job:
    job = msgspec.msgpack.decode(state, type=_JobPart).job
    roles = {}
    for name, role in job.roles.items():
        chunks = tuple(_decode_chunk(body) for body in _numbered(parts, f"{name}/"))
        roles[name] = replace(role, chunks=chunks)
    return replace(job, roles=roles)


def _decode_stream(state: bytes, parts: Mapping[str, bytes]) -> Stream:
    stream = msgspec.msgpack.decode(state, type=_StreamPart).stream
    packs: list[Pack] = []
    tail: list[UnitEntry] = []
    for body in _numbered(parts, ""):
        for one in msgspec.msgpack.decode(body, type=_UnitsPart).units:
            if isinstance(one, bytes):
                packs.append(msgspec.msgpack.decode(one, type=Pack))
            else:
                tail.append(one)
    units = alike((entry.unit for entry in tail), None)
    shared = (replace(entry, unit=unit) for entry, unit in zip(tail, units, strict=True))
    return replace(stream, units=Units(tuple(packs), tuple(shared)))


def live_jobs(admission: bytes) -> frozenset[str]:
    """Return the jobs that live, as a snapshot of admission has them.

    Args:
        admission: Body of its snapshot.
    """
    state = decode_machine(ADMISSION, {"": admission})
    assert isinstance(state, Admission)
    return frozenset(state.names.values())


def _numbered(parts: Mapping[str, bytes], prefix: str) -> Iterator[bytes]:
    """Yield the parts `<prefix>0`, `<prefix>1`, … as far as there are."""
    number = 0
    while f"{prefix}{number}" in parts:
        yield parts[f"{prefix}{number}"]
        number += 1


class Due(Struct, frozen=True):
    """Snapshots to write now, and what is known once they are durable."""

    snapshots: tuple[Snapshot, ...]
    keep_from: int
    """Entries with a lower revision may go; 0 none."""
    machines: Mapping[str, Machine | None]
    """The machines that they cover, as they are in them."""
    keys: Mapping[str, frozenset[str]]
    """All keys of each of these machines."""


class Snapshots:
    """Which machines have records that no snapshot covers, and what was written of each last.

    Attributes:
        last_at_ms: Journal time of the newest entry; 0 none.
    """

    def __init__(self) -> None:
        self.last_at_ms = 0
        self._uncovered: dict[str, int] = {}
        """Machine to its oldest record that no snapshot covers."""
        self._raw_jobs: frozenset[str] = frozenset()
        self._keys: dict[str, frozenset[str]] = {}
        self._values: dict[str, Machine] = {}
        self._kept_from = 0
        self._round: list[str] = []

    @classmethod
    def of(
        cls, loaded: Loaded, *, uncovered: Mapping[str, int], raw_jobs: Iterable[str]
    ) -> "Snapshots":
        """Return what is known after a load.

        Args:
            loaded: What the journal holds.
            uncovered: Machine to its oldest record that its snapshot does not cover.
            raw_jobs: Jobs that raised on replay: their records and snapshots stay as they are.
        """
        found = cls()
        found._uncovered = dict(uncovered)
        found._raw_jobs = frozenset(raw_jobs)
        keys: defaultdict[str, set[str]] = defaultdict(set)
        for key in loaded.snapshots:
            keys[key.partition("#")[0]].add(key)
        found._keys = {machine: frozenset(some) for machine, some in keys.items()}
        if loaded.entries:
            found.last_at_ms = loaded.entries[-1].at_ms
            found._kept_from = loaded.entries[0].revision
        return found

    def appended(self, entry: Entry) -> None:
        """Note the records of an entry that is durable."""
        self.last_at_ms = entry.at_ms
        for record in entry.records:
            self._uncovered.setdefault(record.machine, entry.revision)
            if isinstance(record.event, ForgetRequested):
                # Its streams went with it, without records of their own.
                for machine in self._keys:
                    if job_of(machine) == record.machine:
                        self._uncovered.setdefault(machine, entry.revision)

    def leave_raw(self, jobs: Iterable[str]) -> None:
        """Leave the records and snapshots of jobs as they are, for they raised on replay."""
        self._raw_jobs = frozenset(jobs)

    def told(self, written: Written) -> None:
        """Note the snapshots that another head wrote, behind the entries that came with them."""
        for key, covers in written.covers.items():
            machine, _, part = key.partition("#")
            self._keys[machine] = self._keys.get(machine, frozenset()) | {key}
            if not part and self._uncovered.get(machine, covers + 1) <= covers:
                del self._uncovered[machine]
        for key in written.gone:
            machine, _, part = key.partition("#")
            left = self._keys.pop(machine, frozenset()) - {key}
            if left:
                self._keys[machine] = left
            if not part:
                self._uncovered.pop(machine, None)
        if written.keep_from > self._kept_from:
            self._kept_from = written.keep_from
            # What went was covered: of jobs that are forgotten no snapshot tells it.
            self._uncovered = {
                machine: at for machine, at in self._uncovered.items() if at >= self._kept_from
            }

    @property
    def has_due(self) -> bool:
        """Whether a machine has records since its snapshot."""
        return bool(self._round) or any(map(self._may_be_written, self._uncovered))

    @property
    def has_more(self) -> bool:
        """Whether the round that has begun is not at its end."""
        return bool(self._round)

    def due(self, world: World, revision: int) -> Due:
        """Return the next snapshots of this round; to be called in a thread, for they may be large.

        Args:
            world: As of the revision.
            revision: Of the newest entry, which is always kept: it tells the term and the time.
        """
        if not self._round:
            self._round = [one for one in self._uncovered if self._may_be_written(one)]
        snapshots: list[Snapshot] = []
        machines: dict[str, Machine | None] = {}
        keys: dict[str, frozenset[str]] = {}
        byte_count = 0
        while self._round and byte_count < SNAPSHOT_BYTES_PER_TURN:
            machine = self._round.pop()
            machines[machine] = find(world, machine)
            found, keys[machine] = self._of_machine(machine, machines[machine], revision)
            snapshots += found
            byte_count += sum(len(snapshot.body) for snapshot in found)
        left = (at for machine, at in self._uncovered.items() if machine not in machines)
        keep_from = min(left, default=revision)
        return Due(
            tuple(snapshots), keep_from if keep_from > self._kept_from else 0, machines, keys
        )

    def written(self, due: Due) -> None:
        """Note that what `due` returned is durable."""
        self._kept_from = max(self._kept_from, due.keep_from)
        for machine, value in due.machines.items():
            self._uncovered.pop(machine, None)
            if value is None:
                self._keys.pop(machine, None)
                self._values.pop(machine, None)
            else:
                self._keys[machine] = due.keys[machine]
                self._values[machine] = value

    def _may_be_written(self, machine: str) -> bool:
        return job_of(machine) not in self._raw_jobs

    def _of_machine(
        self, machine: str, value: Machine | None, revision: int
    ) -> tuple[list[Snapshot], frozenset[str]]:
        """Return the snapshots of a machine, and all its keys; those that went have no body."""
        parts = {} if value is None else encode_parts(machine, value, self._values.get(machine))
        bodies = dict(parts)
        found = [Snapshot(key, revision, body) for key, body in bodies.items() if body is not None]
        gone = self._keys.get(machine, frozenset()) - bodies.keys()
        found += [Snapshot(key, revision, b"") for key in sorted(gone)]
        return found, frozenset(bodies)
