"""Savepoints and staging folders of the original Primus, form V2, as positions by file.

A folder of one stream: `tasks.index` names files `tasks.N` of tasks with their paths, and
`running_task_statuses` has records, each a state of the whole, appended one after the other. The
newest one that is whole counts: what comes behind it was torn by a crash. All numbers are
big-endian, tasks are protobuf messages. Source: reference/primus.md §5.6 of the design.

What is done there was written to a pipe; what was running begins at the first byte of its file
again, since how far its trainer was is not in the folder.
"""

import struct
from collections.abc import Iterator, Mapping
from itertools import pairwise

from msgspec import Struct

from primusd.datafeed.ledger.model import CarriedUnit, DeadRange, Range
from primusd.datafeed.ledger.ranges import union
from primusd.errors import PrimusdError

RUNNING = "running_task_statuses"
ARCHIVED = f"{RUNNING}.archived."
FAILED = "failure_task_statuses"
INDEX = "tasks.index"
VERSION = b"V2"
END = b"END"
MESSAGE_BYTES_MAX = 64 << 20
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_META = struct.Struct(">qfqqqqi")
"""Time, progress, successes, failures, highest id of each, number of running tasks."""
_INDEX = struct.Struct(">qi")
_VARINT, _BYTES = 0, 2
_FIXED_BYTES = {1: 8, 5: 4}
_TASK_ID, _FILE_TASK, _PATH, _START, _LENGTH = 2, 100, 2, 3, 4


class TaskStoreError(PrimusdError):
    """The folder cannot be read as one of the original's."""

    code = "InvalidSpec"
    status = 422


class Task(Struct, frozen=True):
    """A file, or a part of one."""

    number: int
    path: str
    start: int
    length: int


class Checkpoint(Struct, frozen=True):
    """A record of `running_task_statuses`: what was so at one moment."""

    success_max: int
    failure_max: int
    running: frozenset[int]

    @property
    def loaded_max(self) -> int:
        """The highest id that was handed out by then."""
        return max(self.success_max, self.failure_max, *self.running, -1)


class _TornError(Exception):
    """The bytes end in the middle of something, or are something else."""


def is_task_store(names: frozenset[str]) -> bool:
    """Return whether file names are those of a stream's folder."""
    return INDEX in names or RUNNING in names


def read_task_store(files: Mapping[str, bytes]) -> tuple[CarriedUnit, ...]:
    """Return what was done and what was left out, by file.

    Args:
        files: Content by name, of one stream's folder.

    Raises:
        TaskStoreError: There are no tasks in it.
    """
    tasks = tuple(read_tasks(files))
    if not tasks:
        raise TaskStoreError(
            f"there are no tasks in it: neither {INDEX} nor tasks.0 holds any",
            hint="the folder of one stream is meant, as savepoint/default",
        )
    newest = newest_checkpoint(files)
    if newest is None:
        return ()
    failed = frozenset(_task_number(one) for one in _messages(files.get(FAILED, b"")))
    by_path: dict[str, list[Task]] = {}
    for task in tasks:
        by_path.setdefault(task.path, []).append(task)
    units = (_unit(path, parts, newest, failed) for path, parts in by_path.items())
    return tuple(unit for unit in units if unit.done or unit.dead)


def _unit(path: str, parts: list[Task], newest: Checkpoint, failed: frozenset[int]) -> CarriedUnit:
    over = [
        one
        for one in parts
        if one.number <= newest.loaded_max and one.number not in newest.running and one.length > 0
    ]
    done = union(
        Range(one.start, one.start + one.length) for one in over if one.number not in failed
    )
    dead = tuple(
        DeadRange(
            one.start,
            one.start + one.length,
            "skipped",
            f"task {one.number} failed in the original system",
            "import",
        )
        for one in sorted(over, key=lambda task: task.start)
        if one.number in failed
    )
    size = _size(parts)
    return CarriedUnit(
        path,
        size,
        "",
        size,
        ((0, done),) if done else (),
        ((0, dead),) if dead else (),
    )


def _size(parts: list[Task]) -> int:
    """Return how long a file was, when its tasks cover it without a gap; -1 not known."""
    ends = sorted((one.start, one.start + one.length) for one in parts)
    is_whole = ends[0][0] == 0 and all(a[1] == b[0] for a, b in pairwise(ends))
    return ends[-1][1] if is_whole else -1


def read_tasks(files: Mapping[str, bytes]) -> Iterator[Task]:
    """Yield the tasks of all `tasks.N`, in order; a torn end of a file is left out."""
    numbers = {number for _, number in _index(files.get(INDEX, b""))}
    numbers |= {int(n) for name in files if (n := name.removeprefix("tasks.")).isdecimal()}
    for number in sorted(numbers):
        for message in _messages(files.get(f"tasks.{number}", b"")):
            task = _task(message)
            if task is not None:
                yield task


def _index(data: bytes) -> Iterator[tuple[int, int]]:
    whole = len(data) - len(data) % _INDEX.size
    yield from _INDEX.iter_unpack(data[:whole])


def newest_checkpoint(files: Mapping[str, bytes]) -> Checkpoint | None:
    """Return the newest record that is whole, of the newest file that has one; None: none."""
    archived = sorted(
        (name for name in files if name.startswith(ARCHIVED)),
        key=lambda name: (len(name), name),
        reverse=True,
    )
    for name in (RUNNING, *archived):
        found = _last_whole(files.get(name, b""))
        if found is not None:
            return found
    return None


def _last_whole(data: bytes) -> Checkpoint | None:
    if len(data) >= _LONG.size:
        start = int(_LONG.unpack_from(data, len(data) - _LONG.size)[0])
        try:
            found, end = _checkpoint(data, start)
        except _TornError:
            pass
        else:
            if end == len(data):
                return found
    at, last = 0, None
    while True:
        try:
            last, at = _checkpoint(data, at)
        except _TornError:
            return last


def _checkpoint(data: bytes, start: int) -> tuple[Checkpoint, int]:
    """Return the record that begins at an offset, and where it ends.

    Raises:
        _TornError: There is no whole one.
    """
    version, at = _sized(data, start)
    if version != VERSION:
        raise _TornError
    if at + _META.size > len(data):
        raise _TornError
    _, _, _, _, success_max, failure_max, count = _META.unpack_from(data, at)
    at += _META.size
    running = set()
    if not 0 <= count <= len(data):
        raise _TornError
    for _ in range(count):
        message, at = _sized(data, at)
        running.add(_task_number(message))
    end = at + len(END) + _LONG.size
    if data[at : at + len(END)] != END or end > len(data):
        raise _TornError
    if int(_LONG.unpack_from(data, at + len(END))[0]) != start:
        raise _TornError
    return Checkpoint(success_max, failure_max, frozenset(running)), end


def _sized(data: bytes, at: int) -> tuple[bytes, int]:
    """Return the bytes behind a length, and where they end."""
    if not 0 <= at <= len(data) - _INT.size:
        raise _TornError
    length = int(_INT.unpack_from(data, at)[0])
    begin = at + _INT.size
    if not 0 <= length <= min(MESSAGE_BYTES_MAX, len(data) - begin):
        raise _TornError
    return data[begin : begin + length], begin + length


def _messages(data: bytes) -> Iterator[bytes]:
    """Yield messages with a length each, up to the first that is torn."""
    at = 0
    try:
        while at < len(data):
            message, at = _sized(data, at)
            yield message
    except _TornError:
        return


# Protobuf, as much of it as is needed: fields of a message by number, the last of each.


def _task_number(message: bytes) -> int:
    return _whole(_fields(message).get(_TASK_ID, 0))


def _task(message: bytes) -> Task | None:
    """Return a task that reads a file, None of another kind."""
    fields = _fields(message)
    inner = fields.get(_FILE_TASK)
    if not isinstance(inner, bytes):
        return None
    of_file = _fields(inner)
    path = of_file.get(_PATH, b"")
    return Task(
        _whole(fields.get(_TASK_ID, 0)),
        path.decode("utf-8", "surrogateescape") if isinstance(path, bytes) else "",
        _whole(of_file.get(_START, 0)),
        _whole(of_file.get(_LENGTH, 0)),
    )


def _whole(value: int | bytes) -> int:
    if isinstance(value, bytes):
        return 0
    return value - (1 << 64) if value >= 1 << 63 else value


def _fields(message: bytes) -> dict[int, int | bytes]:
    """Return the fields of a message; what makes no sense ends it."""
    found: dict[int, int | bytes] = {}
    at = 0
    try:
        while at < len(message):
            number, value, at = _field(message, at)
            found[number] = value
    except _TornError:
        return found
    return found


def _field(message: bytes, at: int) -> tuple[int, int | bytes, int]:
    """Return a field's number and value, and where it ends."""
    key, at = _varint(message, at)
    kind = key & 7
    if kind == _VARINT:
        value, at = _varint(message, at)
        return key >> 3, value, at
    if kind == _BYTES:
        length, at = _varint(message, at)
    else:
        length = _FIXED_BYTES.get(kind, -1)
    if not 0 <= length <= len(message) - at:
        raise _TornError
    return key >> 3, message[at : at + length], at + length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(10):
        if at + place >= len(data):
            raise _TornError
        byte = data[at + place]
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value & ((1 << 64) - 1), at + place + 1
    raise _TornError
