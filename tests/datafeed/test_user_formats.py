"""What people bring themselves: a class that reads files, and descriptors of their messages."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from primusd.datafeed.formats.base import ReadError, UnitFile
from primusd.datafeed.formats.opening import Opener
from primusd.datafeed.formats.settings import Place, Settings
from primusd.datafeed.formats.user_serving import load, told
from tests.datafeed.format_files import PACK, opened, prefixed, tfrecord, unit_of, values_of

SOURCES = '''
import os, signal, sys
import pyarrow as pa

class Pairs:
    """The original's customised source: key and value, each with what stands around it."""

    def __init__(self, parameters):
        self.around = parameters

    def records(self, file, location):
        print("noise on standard output")
        at = 0
        for line in file:
            value = line.rstrip(b"\\n").decode()
            a = self.around
            yield (f"{a['key-prefix']}-{at}-{a['key-suffix']}\\t"
                   f"{a['val-prefix']}-{value}-{a['val-suffix']}").encode()
            at += len(line)

class Table:
    def __init__(self, parameters):
        self.rows = int(parameters["rows"])

    def records(self, file, location):
        text = file.read().decode()
        yield pa.RecordBatch.from_pydict({"n": list(range(self.rows)), "s": [text] * self.rows})

class Broken:
    def __init__(self, parameters):
        self.how = parameters["how"]

    def records(self, file, location):
        yield b"good"
        if self.how == "raise":
            raise ValueError("row 1 is no good")
        if self.how == "exit":
            sys.stdout.flush()
            os._exit(3)
        if self.how == "type":
            yield "text"
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
'''
AROUND = {"key-prefix": "KP", "key-suffix": "KS", "val-prefix": "VP", "val-suffix": "VS"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(SOURCES)
    return tmp_path


@pytest.fixture
def by_class(folder: Path) -> Iterator[Callable[..., UnitFile]]:
    openers: list[Opener] = []

    def make(path: Path, name: str, compression: str = "none", **parameters: str) -> UnitFile:
        options = {"class": f"mine:{name}", "parameters": json.dumps(parameters)}
        made = Settings(format="class", options=options, place=Place(str(folder)))
        openers.append(Opener(made))
        return openers[-1].open(unit_of(path, format="class", compression=compression))

    yield make
    for opener in openers:
        opener.close()


def test_A6_A37_a_class_gives_key_and_value_with_what_stands_around_them(
    folder: Path, by_class: Any
) -> None:
    lines = [f"line {number} ".ljust(37) for number in range(4)]
    for name, end in (("0", "\n"), ("1", "")):
        path = folder / name
        path.write_text("\n".join(lines) + end)
        unit = by_class(path, "Pairs", **AROUND)

        found = values_of(list(unit.rows(0, unit.end, block_bytes=1 << 20)))

        assert [one.decode() for one in found] == [
            f"KP-{38 * number}-KS\tVP-{line}-VS" for number, line in enumerate(lines)
        ]
        assert (unit.end, unit.row_count, unit.cuts) == (4, 4, (4,))
        pieces = list(unit.pieces(0, 4, framing="lines"))
        assert b"".join(piece.data for piece in pieces) == b"".join(one + b"\n" for one in found)


def test_any_range_of_a_class_is_read_exactly(folder: Path, by_class: Any) -> None:
    path = folder / "a"
    path.write_bytes(PACK["gz"](b"".join(b"%d\n" % number for number in range(30))))
    unit = by_class(path, "Pairs", "gz", **AROUND)
    whole = values_of(list(unit.rows(0, unit.end, block_bytes=100)))

    for lo, hi in ((0, 30), (0, 0), (7, 8), (29, 30), (3, 28)):
        blocks = list(unit.rows(lo, hi, block_bytes=100))
        assert values_of(blocks) == whole[lo:hi]
        assert not blocks or (blocks[0].lo, blocks[-1].hi) == (lo, hi)


def test_a_class_may_give_batches_with_columns(folder: Path, by_class: Any) -> None:
    path = folder / "a"
    path.write_bytes(b"x")
    unit = by_class(path, "Table", rows="20000")

    blocks = list(unit.rows(5, unit.end, block_bytes=10_000))

    assert len(blocks) > 10
    assert [row["n"] for row in values_of(blocks)] == list(range(5, 20_000))
    assert blocks[0].batch.schema.names == ["n", "s"]


@pytest.mark.parametrize(
    ("name", "parameters", "kind", "words"),
    [
        ("Broken", {"how": "raise"}, "data", "ValueError: row 1 is no good"),
        ("Broken", {"how": "exit"}, "data", r"ended its process \(code 3\) after"),
        ("Broken", {"how": "type"}, "data", r"records\(\) gave a str; a record is bytes"),
        ("Broken", {"how": "kill"}, "transient", "process of its class was killed"),
        ("Broken", {}, "data", "KeyError: 'how'"),
        ("Nothing", {}, "data", "has no attribute 'Nothing'"),
    ],
)
def test_a_class_that_fails_is_told_and_its_reader_lives(
    folder: Path, by_class: Any, *, name: str, parameters: dict[str, str], kind: str, words: str
) -> None:
    path = folder / "a"
    path.write_bytes(b"x")
    unit = by_class(path, name, **parameters)

    with pytest.raises(ReadError, match=words) as caught:
        list(unit.rows(0, unit.end, block_bytes=100))

    assert caught.value.kind == kind


def test_a_module_that_is_not_there_is_told_without_what_looked_for_it() -> None:
    with pytest.raises(ModuleNotFoundError) as caught:
        load("no_such_module:Pairs", "")

    words = told(caught.value)
    assert words.endswith("; ModuleNotFoundError: No module named 'no_such_module'")
    assert words.count("File ") == 1, "that of this test alone"


def test_what_a_class_gave_before_it_failed_comes(folder: Path, by_class: Any) -> None:
    path = folder / "a"
    path.write_bytes(b"x")
    unit = by_class(path, "Broken", how="raise")
    found = []

    def read() -> None:
        found.extend(unit.rows(0, unit.end, block_bytes=100))

    with pytest.raises(ReadError) as caught:
        read()

    assert values_of(found) == [b"good"]
    assert caught.value.lo == 1


def test_closing_ends_the_processes(folder: Path) -> None:
    path = folder / "a"
    path.write_bytes(b"x\n")
    made = Settings(
        format="class",
        options={"class": "mine:Pairs", "parameters": json.dumps(AROUND)},
        place=Place(str(folder)),
    )
    opener = Opener(made)
    unit = opener.open(unit_of(path, format="class"))
    list(unit.rows(0, unit.end, block_bytes=100))
    (worker,) = opener._class_workers()._idle
    pid = worker._process.pid

    opener.close()

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


# Messages.


def descriptors(path: Path) -> Any:
    """Write a descriptor set; return the class of its message."""
    file = descriptor_pb2.FileDescriptorProto(name="ads.proto", package="ads", syntax="proto3")
    kind = descriptor_pb2.FieldDescriptorProto
    color = file.enum_type.add(name="Color")
    color.value.add(name="RED", number=0)
    color.value.add(name="BLUE", number=1)
    user = file.message_type.add(name="User")
    user.field.add(name="id", number=1, type=kind.TYPE_INT64, label=kind.LABEL_OPTIONAL)
    click = file.message_type.add(name="Click")
    one, many = kind.LABEL_OPTIONAL, kind.LABEL_REPEATED
    click.field.add(name="label", number=1, type=kind.TYPE_INT32, label=one)
    click.field.add(name="tags", number=2, type=kind.TYPE_STRING, label=many)
    click.field.add(name="user", number=3, type=kind.TYPE_MESSAGE, type_name=".ads.User", label=one)
    click.field.add(name="color", number=4, type=kind.TYPE_ENUM, type_name=".ads.Color", label=one)
    click.field.add(name="raw", number=5, type=kind.TYPE_BYTES, label=one)
    entry = click.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=kind.TYPE_STRING, label=one)
    entry.field.add(name="value", number=2, type=kind.TYPE_DOUBLE, label=one)
    click.field.add(
        name="counts",
        number=6,
        type=kind.TYPE_MESSAGE,
        type_name=".ads.Click.CountsEntry",
        label=many,
    )
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("ads.Click"))


@pytest.mark.parametrize("form", ["protobuf", "tfrecord", "records"])
def test_messages_become_columns_by_their_descriptors(tmp_path: Path, form: str) -> None:
    click = descriptors(tmp_path / "ads.pb")
    messages = [
        click(label=n, tags=["a", "b"][:n], user={"id": n} if n else None, color=n % 2, raw=b"\xff")
        for n in range(3)
    ]
    messages[1].counts["x"] = 1.5
    data = [one.SerializeToString() for one in messages]
    path = tmp_path / "a.bin"
    options = {"descriptors": str(tmp_path / "ads.pb"), "message": "ads.Click"}
    if form == "tfrecord":
        path.write_bytes(tfrecord(data))
    elif form == "records":
        path.write_bytes(prefixed(data, "u32be"))
        options["prefix"] = "u32be"
    else:
        path.write_bytes(prefixed(data, "varint"))

    unit = opened(path, form, Settings(format=form, options=options))
    found = values_of(list(unit.rows(0, unit.end, block_bytes=10)))

    assert found[1] == {
        "label": 1,
        "tags": ["a"],
        "user": {"id": 1},
        "color": "BLUE",
        "raw": b"\xff",
        "counts": [("x", 1.5)],
    }
    assert (found[0]["user"], found[0]["tags"], found[0]["label"]) == (None, [], 0)
    made = Settings(format=form, options=options, columns=("user.id", "label"))
    chosen = opened(path, form, made)
    assert values_of(list(chosen.rows(0, chosen.end, block_bytes=10)))[2] == {
        "user.id": 2,
        "label": 2,
    }


def test_a_record_that_is_no_message_is_told_alone(tmp_path: Path) -> None:
    click = descriptors(tmp_path / "ads.pb")
    good = click(label=1).SerializeToString()
    path = tmp_path / "a.pb"
    path.write_bytes(prefixed([good, b"\xff\xff\xff", good], "varint"))
    unit = opened(path, "protobuf", descriptors=str(tmp_path / "ads.pb"), message="ads.Click")

    with pytest.raises(ReadError, match=r"is no message ads\.Click") as caught:
        list(unit.rows(0, unit.end, block_bytes=100))

    assert (caught.value.lo, caught.value.hi) == (3, 7)
    assert len(values_of(list(unit.rows(7, unit.end, block_bytes=100)))) == 1


def test_descriptors_that_lack_the_message_are_told_with_what_they_have(tmp_path: Path) -> None:
    descriptors(tmp_path / "ads.pb")
    path = tmp_path / "a.pb"
    path.write_bytes(b"\0")

    with pytest.raises(ReadError, match=r"has no message ads\.Klick; it has ads\.User, ads\.Click"):
        opened(path, "protobuf", descriptors=str(tmp_path / "ads.pb"), message="ads.Klick")
    with pytest.raises(ReadError, match="cannot be read: No such file"):
        opened(path, "protobuf", descriptors=str(tmp_path / "none.pb"), message="ads.Klick")
