"""A partition as a unit: when a range is over, and what becomes of records that are bad."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2

from primusd.datafeed.drawing import Drawing
from primusd.datafeed.formats.base import PipeBlock, ReadError, RowBlock
from primusd.datafeed.formats.decoders import BadRecordError
from primusd.datafeed.formats.partition import EMPTY_FOR_S, Fetched, PartitionUnit
from primusd.datafeed.formats.settings import Settings
from primusd.datafeed.formats.values import Values
from primusd.datafeed.protocol import Unit
from primusd.datafeed.reader.drawn import drawn
from primusd.job.spec import Sample

UNIT = Unit("kafka", "clicks/3", 0, "", {"source": "0", "bootstrap": "k1:9092"})


@dataclass
class Fact:
    offset: int
    value: bytes | None = b""
    key: bytes | None = None
    timestamp: int = 1_700_000_000_000
    headers: Sequence[tuple[str, bytes]] = ()


@dataclass
class ScriptedClient:
    """Answers each fetch by the next of its answers; asked further, nothing new is there."""

    answers: list[Fetched]
    end: int
    asked: list[int] = field(default_factory=list)

    def fetch(self, position: int) -> Fetched:
        self.asked.append(position)
        if not self.answers:
            return Fetched((), position, is_answered=True)
        return self.answers.pop(0)

    def reach(self) -> tuple[int, int]:
        return 0, self.end


class Ticks:
    """Seconds that go on by themselves, a step each time somebody looks."""

    def __init__(self, step_s: float = 1.0) -> None:
        self.now_s = 0.0
        self.step_s = step_s

    def __call__(self) -> float:
        self.now_s += self.step_s
        return self.now_s


def fetched(*offsets: int, then: int = -1) -> Fetched:
    records = [Fact(at, b"%d" % at) for at in offsets]
    return Fetched(records, then if then >= 0 else offsets[-1] + 1, is_answered=True)


def nothing(at: int, *, is_answered: bool = True) -> Fetched:
    return Fetched((), at, is_answered=is_answered)


def opened(client: ScriptedClient, clock: Callable[[], float] = time.monotonic) -> PartitionUnit:
    return PartitionUnit(UNIT, client, clock=clock)


def offsets(blocks: Sequence[RowBlock]) -> list[int]:
    return [int(row["offset"]) for block in blocks for row in block.batch.to_pylist()]


def spans(blocks: Sequence[RowBlock | PipeBlock]) -> list[tuple[int, int]]:
    return [(block.lo, block.hi) for block in blocks]


def test_a_record_behind_the_end_ends_a_range_and_begins_the_next() -> None:
    client = ScriptedClient([fetched(0, 1, 4, 7, 8)], end=9)
    unit = opened(client)

    first = list(unit.rows(0, 5, block_bytes=1))
    second = list(unit.rows(5, 9, block_bytes=1))

    assert (offsets(first), spans(first)) == ([0, 1, 4], [(0, 5)])
    assert (offsets(second), spans(second)) == ([7, 8], [(5, 9)])
    assert client.asked == [0]


def test_a_position_that_reached_the_end_ends_a_range() -> None:
    """Marks of transactions behind the last record have offsets and are no records."""
    client = ScriptedClient([fetched(0, 1, then=2), nothing(5)], end=5)

    blocks = list(opened(client).rows(0, 5, block_bytes=1))

    assert (offsets(blocks), spans(blocks)) == ([0, 1], [(0, 2), (2, 5)])
    assert client.asked == [0, 2]


def test_half_a_minute_of_empty_answers_ends_a_range_that_the_partition_has_passed() -> None:
    clock = Ticks()
    client = ScriptedClient([fetched(0)], end=9)

    blocks = list(opened(client, clock=clock).rows(0, 3, block_bytes=1))

    assert spans(blocks) == [(0, 1), (1, 3)]
    assert clock.now_s >= EMPTY_FOR_S
    assert set(client.asked[1:]) == {1}, "it is never sought elsewhere"


def test_two_empty_answers_are_no_end_a_slowed_client_gets_them_too() -> None:
    client = ScriptedClient([nothing(0), nothing(0), nothing(0), fetched(0, 1, 2)], end=3)

    blocks = list(opened(client, clock=Ticks(0.01)).rows(0, 3, block_bytes=1))

    assert offsets(blocks) == [0, 1, 2]


def test_silence_is_no_answer() -> None:
    silent = [nothing(0, is_answered=False) for _ in range(100)]
    client = ScriptedClient([*silent, fetched(0, 1)], end=2)

    blocks = list(opened(client, clock=Ticks()).rows(0, 2, block_bytes=1))

    assert offsets(blocks) == [0, 1]


def test_what_was_fetched_ahead_is_not_used_for_another_range() -> None:
    client = ScriptedClient([fetched(0, 1, 2, 3), fetched(7, 8)], end=9)
    unit = opened(client)

    list(unit.rows(0, 2, block_bytes=1))
    far = list(unit.rows(7, 9, block_bytes=1))

    assert offsets(far) == [7, 8]
    assert client.asked == [0, 7]


def test_a_cut_in_a_hole_gives_the_record_behind_it_to_one_side() -> None:
    (block,) = opened(ScriptedClient([fetched(3, 7, 8, then=12)], end=12)).rows(
        2, 12, block_bytes=1
    )

    assert [block.position_after(count) for count in range(4)] == [2, 7, 8, 12]
    assert [block.rows_before(limit) for limit in (3, 4, 7, 8, 9, 12)] == [0, 1, 1, 2, 3, 3]
    assert spans([block.up_to(8)]) == [(2, 8)]


def test_a_sample_takes_the_same_records_wherever_a_range_is_cut() -> None:
    """Holes have no hash: a record is taken or not by its own offset."""
    drawing = Drawing(sample=Sample(500_000, seed=3))

    def sampled(*ranges: tuple[int, int]) -> list[int]:
        client = ScriptedClient([fetched(*range(0, 90, 3), then=90)], end=90)
        unit, _ = drawn(opened(client), UNIT, 0, drawing)
        return offsets([one for lo, hi in ranges for one in unit.rows(lo, hi, block_bytes=1)])

    whole, parts = sampled((0, 90)), sampled((0, 31), (31, 60), (60, 90))

    assert whole == parts
    assert 5 < len(whole) < 25


def test_a_value_that_cannot_be_decoded_is_one_bad_record_and_nothing_is_fetched_twice() -> None:
    good, bad = b'{"a": 1}', b'{"a": "x"'
    records = [Fact(at, bad if at == 5 else good) for at in (2, 3, 5, 6)]
    client = ScriptedClient([Fetched(records, 9, is_answered=True)], end=9)
    unit = PartitionUnit(UNIT, client, decode=Values(Settings(format="jsonl"), "clicks/3").decode)
    found: list[RowBlock] = []

    with pytest.raises(ReadError) as caught:
        found += unit.rows(2, 9, block_bytes=1)
    error = caught.value
    rest = list(unit.rows(6, 9, block_bytes=1))

    assert (error.kind, error.lo, error.hi, error.head) == ("data", 5, 6, bad)
    assert "clicks/3 offset 5" in error.message
    assert [block.batch.num_rows for block in rest] == [1]
    assert client.asked == [2]


def test_values_before_a_bad_one_are_given() -> None:
    def decode(some: Sequence[bytes | None]) -> pa.RecordBatch:
        if b"5" in some:
            raise BadRecordError("no", some.index(b"5"))
        return pa.RecordBatch.from_arrays([pa.array(some, pa.binary())], names=["record"])

    unit = PartitionUnit(UNIT, ScriptedClient([fetched(2, 3, 5, 6)], end=7), decode=decode)
    blocks = unit.rows(2, 7, block_bytes=1)

    block = next(blocks)
    with pytest.raises(ReadError):
        next(blocks)

    assert (block.lo, block.hi, block.row_count) == (2, 5, 2)


def test_null_values_are_empty_lines_in_a_pipe_and_rows_of_nulls_in_json() -> None:
    records = [Fact(0, b'{"a": 1,\n"b": "x"}'), Fact(1, None)]
    answer = Fetched(records, 2, is_answered=True)
    (piece,) = opened(ScriptedClient([answer], end=2)).pieces(0, 2, framing="lines")
    batch = Values(Settings(format="jsonl"), "clicks/3").decode([one.value for one in records])

    assert piece.data == b'{"a": 1,\n"b": "x"}\n\n'
    assert piece.locate(len(piece.data) - 1) == 1
    assert piece.locate(len(piece.data)) == 2
    assert batch.to_pylist() == [{"a": 1, "b": "x"}, {"a": None, "b": None}]


def test_values_are_messages_where_they_are_described_and_bytes_where_not(tmp_path: Path) -> None:
    file = descriptor_pb2.FileDescriptorProto(name="a.proto", package="ads", syntax="proto3")
    kind = descriptor_pb2.FieldDescriptorProto
    click = file.message_type.add(name="Click")
    one = kind.LABEL_OPTIONAL
    click.field.add(name="label", number=1, type=kind.TYPE_INT32, label=one)
    (tmp_path / "ads.pb").write_bytes(
        descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    )
    options = {"descriptors": str(tmp_path / "ads.pb"), "message": "ads.Click"}
    values = [b"\x08\x05", None, b"\x08\x07"]

    described = Values(Settings(format="protobuf", options=options), "clicks/3").decode(values)
    plain = Values(Settings(format="protobuf"), "clicks/3").decode(values)
    with pytest.raises(BadRecordError) as caught:
        Values(Settings(format="protobuf", options=options), "clicks/3").decode(
            [b"\x08\x05", b"\x08"]
        )

    assert described.to_pylist() == [{"label": 5}, {"label": 0}, {"label": 7}]
    assert plain.to_pylist() == [{"record": b"\x08\x05"}, {"record": b""}, {"record": b"\x08\x07"}]
    assert caught.value.index == 1


def test_a_column_that_no_record_has_is_refused_with_those_there_are() -> None:
    unit = PartitionUnit(UNIT, ScriptedClient([fetched(0)], end=1), columns=("key", "user"))

    with pytest.raises(ReadError, match="no column user; a record has key, value, offset"):
        list(unit.rows(0, 1, block_bytes=1))


def test_a_format_of_files_decodes_no_values() -> None:
    with pytest.raises(ReadError, match="format parquet decodes no values"):
        Values(Settings(format="parquet"), "clicks/3")
