"""Units that were read are packed; nobody who asks for one can tell."""

import random
import tracemalloc

import msgspec
import pytest
from msgspec.structs import replace

from primusd.datafeed.ledger import invariants, listed, packing
from primusd.datafeed.ledger.carrying import carried_units
from primusd.datafeed.ledger.events import (
    BeatReceived,
    ReaderOpened,
    RestoreRequested,
    SavepointRequested,
)
from primusd.datafeed.ledger.listed import PACK_UNITS, UnitEntry, Units, packed
from primusd.datafeed.ledger.listing import AHEAD_UNITS
from primusd.datafeed.ledger.model import Stream, cuts_of, reader_of, size_of
from primusd.datafeed.protocol import FeedReport, Held, Unit, UnitMap
from primusd.state.snapshots import decode_machine, encode_parts
from tests.datafeed.ledger_driver import Driver, attempt_id, stream_spec
from tests.datafeed.test_ledger_properties import STEPS, WildReader, World

YEAR = "hdfs://nn1:8020/logs/clicks/2026/{:02}/{:02}/{:02}/part-{:05}-3f2a9c.parquet"
PIECE = 1_000
READER = attempt_id(0)


def file_unit(number: int, form: str = "text") -> Unit:
    """Return a file as a cluster has it: a long path, some bytes, a time in nanoseconds."""
    drawn = random.Random(number)
    hour = number // 100
    place = YEAR.format(hour // 720 + 1, hour // 24 % 30 + 1, hour % 24, number % 100)
    pin = str(1_767_225_600_000_000_000 + hour * 3_600_000_000_000 + drawn.randrange(10**12))
    return Unit("file", place, drawn.randrange(10**7, 2 * 10**8), pin, {"format": form})


class Reading:
    """One reader that reads all files as they are listed, a hundred at a time."""

    def __init__(self, form: str = "text", **spec: object) -> None:
        self.driver = Driver(stream_spec(**spec), checks=False)
        self.form = form
        self.driver.propose(ReaderOpened(READER, "a"))

    def list_piece(self, *, is_last: bool = False) -> None:
        known = len(self.driver.now.units)
        units = (file_unit(number, self.form) for number in range(known, known + PIECE))
        self.driver.list_all(units, is_complete=is_last)

    def read(self, pieces: int) -> None:
        """List and read so many pieces; as many files as a listing goes ahead are left."""
        for _ in range(pieces):
            self.list_piece()
            self.take(len(self.driver.now.units) - AHEAD_UNITS)

    def take(self, end: int) -> None:
        """Take files until so many were begun."""
        while self.driver.now.epochs and self.driver.now.epochs[0].next_unit < end:
            self.beat()

    def beat(self, want: int = 60) -> None:
        self.driver.records.clear()
        self.driver.sources.clear()
        reader = reader_of(self.driver.now, READER)
        assert reader is not None
        unknown = [one.unit for one in reader.leases if size_of(self.driver.now, one.unit) < 0]
        maps = tuple(UnitMap(one, (500 + one, 1_000 + one), 1_000 + one) for one in unknown)
        report = FeedReport("clicks", (), 0, mapped=maps)
        if maps:
            self.driver.propose(BeatReceived(READER, "a", report))
        reader = reader_of(self.driver.now, READER)
        assert reader is not None
        held = tuple(
            Held("clicks", one.epoch, one.unit, one.lo, one.token, one.hi, one.hi)
            for one in reader.leases
        )
        self.driver.propose(BeatReceived(READER, "a", FeedReport("clicks", held, want)))


def entries(count: int = PACK_UNITS) -> tuple[UnitEntry, ...]:
    forms = ("parquet", "text", "csv")
    units = [file_unit(number, forms[number % 3]) for number in range(count)]
    return tuple(
        UnitEntry(unit, number - 1, number % 2, tuple(range(number % 4)))
        for number, unit in enumerate(units)
    )


def test_a_pack_has_all_that_was_put_into_it() -> None:
    own = entries()
    units = Units((), own).with_packed(own).with_more(own[:3])

    assert list(units) == [*own, *own[:3]]
    assert len(units) == PACK_UNITS + 3
    assert [units[0], units[PACK_UNITS - 1], units[PACK_UNITS], units[-1]] == [
        own[0], own[-1], own[0], own[2],
    ]  # fmt: skip
    assert packed(own).byte_count == sum(one.unit.byte_count for one in own)
    assert packed(own).sized_bytes == sum(one.unit.byte_count for one in own if one.size >= 0)
    with pytest.raises(IndexError):
        units[len(units)]


def test_files_that_were_read_take_little_memory_and_all_is_known_of_them() -> None:
    """A year by the hour is 876,000 files, of which 2,000 are open."""
    world = Reading()
    tracemalloc.start()
    world.read(4)
    before, _ = tracemalloc.get_traced_memory()

    world.read(8)

    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (after - before) / (8 * PIECE) < 40
    stream = world.driver.now
    assert len(stream.units) - stream.units.packed_count < AHEAD_UNITS + PIECE + PACK_UNITS
    assert [entry.unit for entry in stream.units] == [file_unit(n) for n in range(12 * PIECE)]
    assert invariants.broken(stream) == ()
    assert len(msgspec.msgpack.encode(stream)) < 45 * len(stream.units) + 150 * AHEAD_UNITS


def test_sizes_and_cuts_that_were_found_are_packed_with_their_units() -> None:
    world = Reading("parquet")

    world.read(8)

    stream = world.driver.now
    passed = stream.units.packed_count
    assert passed > 4 * PIECE
    assert min(number for shard in stream.found for number in shard) >= passed
    assert all(size_of(stream, number) == 1_000 + number for number in range(passed))
    assert cuts_of(stream, 7) == (507, 1_007)
    assert invariants.broken(stream) == ()


def test_a_savepoint_of_before_is_restored_and_exported_from_packs() -> None:
    """M121."""
    world = Reading("parquet")
    world.read(4)
    world.driver.propose(SavepointRequested("early"))
    early = carried_units(world.driver.now, world.driver.now.savepoints[-1])
    consumed = world.driver.now.consumed
    world.read(8)

    again = carried_units(world.driver.now, world.driver.now.savepoints[-1])
    world.driver.propose(RestoreRequested("early"))

    assert again == early
    assert world.driver.now.consumed == consumed
    assert invariants.broken(world.driver.now) == ()
    world.list_piece(is_last=True)
    world.take(len(world.driver.now.units))
    world.beat()
    assert world.driver.now.phase == "Done", world.driver.now.failure


def test_the_next_pass_reads_what_was_packed() -> None:
    world = Reading(epochs=2)
    world.read(4)
    world.list_piece(is_last=True)

    while world.driver.now.phase == "Serving":
        world.beat()

    assert world.driver.now.phase == "Done", world.driver.now.failure
    assert world.driver.now.consumed == 2 * sum(file_unit(n).byte_count for n in range(5 * PIECE))


def test_a_snapshot_has_packs_and_writes_anew_only_parts_that_changed() -> None:
    world = Reading()
    world.read(12)
    before = world.driver.now
    parts = dict(encode_parts("0000000000000001/clicks", before))
    bodies = {key.partition("#")[2]: body for key, body in parts.items() if body is not None}

    world.read(1)
    later = dict(encode_parts("0000000000000001/clicks", world.driver.now, before))

    assert decode_machine("0000000000000001/clicks", bodies) == before
    assert later["0000000000000001/clicks#0"] is None
    assert later["0000000000000001/clicks#2"] is not None
    assert sum(map(len, bodies.values())) < 45 * len(before.units) + 150 * AHEAD_UNITS


def test_units_that_are_held_for_long_do_not_keep_all_behind_them_unpacked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packing, "BEHIND_MAX", 3 * PIECE)
    world = Reading()
    world.list_piece()
    slow = attempt_id(1)
    world.driver.propose(ReaderOpened(slow, "a"))
    world.driver.propose(BeatReceived(slow, "a", FeedReport("clicks", (), 1)))

    world.read(8)

    held = reader_of(world.driver.now, slow)
    assert held is not None
    assert held.leases[0].unit < world.driver.now.units.packed_count
    assert invariants.broken(world.driver.now) == ()


class LongWorld(World):
    """A life in which files keep coming."""

    def _list(self, _index: int, _reader: WildReader) -> None:
        self.list_one()

    def step(self) -> None:
        super().step()
        for reader in self.readers.values():
            reader.hear()
            reader.take(12)


@pytest.mark.parametrize("block", range(4))
def test_readers_and_restarts_find_all_in_packs_of_two(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C50: the lives of test_ledger_properties, with packs in many of them."""
    monkeypatch.setattr(listed, "PACK_UNITS", 2)
    with_packs = 0
    for seed in range(block * 10, block * 10 + 10):
        world = LongWorld(seed)
        for number in range(3 * STEPS):
            world.step()
            if world.random.random() < 0.15:
                if number % 2:
                    world.driver.stream = world.driver.replay()
                else:
                    world.driver.reload()

        world.drain()

        with_packs += bool(world.driver.now.units.packs)
        assert world.driver.now.phase == "Done", world.driver.now.failure
        assert set(world.read) == world.rows(), seed
        assert world.driver.now.consumed == len(world.rows()), seed
        assert world.driver.replay() == world.driver.now, seed
    assert with_packs


def test_state_of_before_there_were_packs_loads() -> None:
    stream = Driver(stream_spec()).now
    fields = msgspec.msgpack.decode(msgspec.msgpack.encode(replace(stream, units=Units())))
    fields[Stream.__struct_fields__.index("units")] = []

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(fields), type=Stream) == stream
