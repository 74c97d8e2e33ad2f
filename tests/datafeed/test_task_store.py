"""Savepoints of the original in form V2, built byte by byte as its format says (A10, A23, M119)."""

import struct
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from primusd.compat.task_store import (
    TaskStoreError,
    is_task_store,
    newest_checkpoint,
    read_task_store,
    read_tasks,
)
from primusd.datafeed.ledger.model import Range

FOLDER = "/primus/examples/input-file-text-checkpoint/data"
SIZE = 320


def varint(value: int) -> bytes:
    out = bytearray()
    value &= (1 << 64) - 1
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def field(number: int, value: int | bytes | str) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def sized(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def task(number: int, path: str, start: int = 0, length: int = SIZE) -> bytes:
    inner = field(1, "DEFAULT-BATCH-KEY") + field(2, path) + field(3, start) + field(4, length)
    return field(1, "default") + field(2, number) + field(3, 0) + field(100, inner)


def status(number: int, state: int, position: int = 0) -> bytes:
    progress = varint(21 << 3 | 5) + struct.pack(">f", 0.5)
    times = field(30, 1_680_000_000_000) + field(31, 0) + field(42, "executor_worker_0")
    return (
        field(1, "default")
        + field(2, number)
        + field(10, str(position))
        + field(20, state)
        + progress
        + times
    )


def record(
    start: int, *, success: int, failure: int = -1, running: Sequence[int] = (), count: int = 0
) -> bytes:
    body = sized(b"V2") + struct.pack(
        ">qfqqqqi", 1_680_000_000, 0.5, count, 0, success, failure, len(running)
    )
    body += b"".join(sized(status(one, 0, 64)) for one in running)
    return body + b"END" + struct.pack(">q", start)


def store(records: bytes, *, files: int = 4, failed: Sequence[int] = ()) -> dict[str, bytes]:
    tasks = [sized(task(n, f"{FOLDER}/data-{n}.txt")) for n in range(files)]
    offsets = [sum(map(len, tasks[:n])) for n in range(files)]
    return {
        "tasks.0": b"".join(tasks),
        "tasks.0.index": b"".join(struct.pack(">qq", n, at) for n, at in enumerate(offsets)),
        "tasks.index": struct.pack(">qi", files - 1, 0),
        "running_task_statuses": records,
        "success_task_statuses": b"".join(sized(status(n, 1)) for n in range(files)),
        "failure_task_statuses": b"".join(sized(status(n, 2)) for n in failed),
    }


def done(files: dict[str, bytes]) -> dict[str, tuple[Range, ...]]:
    return {one.location: dict(one.done)[0] for one in read_task_store(files) if one.done}


def data_file(number: int) -> str:
    return f"{FOLDER}/data-{number}.txt"


def test_a_torn_last_record_leaves_the_one_before() -> None:
    """A10: tasks 0 and 1 are done, though the list of successes names all four already."""
    first = record(0, success=0, running=(1,), count=1)
    second = record(len(first), success=1, running=(2,), count=2)
    torn = record(len(first + second), success=3, count=4)[: -struct.calcsize(">q")]

    found = done(store(first + second + torn))

    assert found == {data_file(0): (Range(0, SIZE),), data_file(1): (Range(0, SIZE),)}


def test_a_running_task_begins_at_its_first_byte() -> None:
    """What it had written to a pipe is not known to have been used."""
    found = done(store(record(0, success=1, running=(2,), count=2)))

    assert data_file(2) not in found


def test_two_good_records_followed_by_garbage_are_the_second() -> None:
    """A23."""
    first = record(0, success=0, count=1)
    second = record(len(first), success=2, count=3)

    found = newest_checkpoint(store(first + second + b"\x00\x01garbage\xff" * 3))

    assert found is not None
    assert (found.success_max, found.running) == (2, frozenset())


def test_a_store_without_a_whole_record_has_nothing_done() -> None:
    """A23: ids of -1; the original begins afresh then."""
    assert read_task_store(store(b"")) == ()
    assert read_task_store(store(record(0, success=-1))) == ()
    assert read_task_store(store(record(0, success=3)[:20])) == ()


def test_the_newest_archive_counts_where_the_file_has_no_whole_record() -> None:
    files = store(b"torn")
    files["running_task_statuses.archived.999"] = record(0, success=0, count=1)
    files["running_task_statuses.archived.1000"] = record(0, success=1, count=2)

    assert set(done(files)) == {data_file(0), data_file(1)}


def test_tasks_in_two_batches_keep_their_order() -> None:
    """A26."""
    files = store(record(0, success=4, count=5), files=2)
    files["tasks.1"] = b"".join(sized(task(n, data_file(n))) for n in range(2, 5))
    files["tasks.index"] += struct.pack(">qi", 4, 1)

    assert [one.number for one in read_tasks(files)] == [0, 1, 2, 3, 4]
    assert len(done(files)) == 5


def test_an_index_that_forgot_a_batch_does_not_hide_it() -> None:
    """On HDFS the original's `tasks.index` names the first batch only."""
    files = store(record(0, success=3, count=4), files=2)
    files["tasks.1"] = b"".join(sized(task(n, data_file(n))) for n in (2, 3))

    assert len(done(files)) == 4


def test_a_failed_task_is_left_out_and_named() -> None:
    """C48: the original counts it as complete and tells nobody."""
    files = store(record(0, success=2, failure=1, count=2), failed=(1,))

    units = {one.location: one for one in read_task_store(files)}

    dead = dict(units[data_file(1)].dead)[0]
    assert [(one.lo, one.hi, one.kind) for one in dead] == [(0, SIZE, "skipped")]
    assert "task 1 failed" in dead[0].text


def test_parts_of_one_file_are_joined() -> None:
    files = store(record(0, success=1, running=(2,), count=2), files=0)
    parts = [task(0, "/a", 0, 100), task(1, "/a", 100, 50), task(2, "/a", 150, 50)]
    files["tasks.0"] = b"".join(map(sized, parts))

    (unit,) = read_task_store(files)

    assert (unit.size, dict(unit.done)[0]) == (200, (Range(0, 150),))


def test_a_folder_without_tasks_is_refused_with_what_was_looked_for() -> None:
    with pytest.raises(TaskStoreError, match=r"tasks\.0"):
        read_task_store({"running_task_statuses": record(0, success=0)})


def test_what_is_a_store_is_told_by_its_names() -> None:
    assert is_task_store(frozenset({"tasks.index"}))
    assert not is_task_store(frozenset({"positions.json"}))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_no_bytes_make_it_fail_or_see_more_than_there_is(data: st.DataObject) -> None:
    """A truncation or a flipped byte anywhere: a record that is not whole never counts."""
    first = record(0, success=0, running=(1,), count=1)
    second = record(len(first), success=1, running=(2, 3), count=2)
    whole = first + second
    cut = data.draw(st.integers(0, len(whole)))
    tail = data.draw(st.binary(max_size=40))

    found = newest_checkpoint(store(whole[:cut] + tail))

    expected = 1 if cut == len(whole) else 0 if cut >= len(first) else None
    if tail and found is not None and found.success_max not in (0, 1):
        # Only bytes that are a whole record by themselves could make another one.
        raise AssertionError(found)
    if not tail:
        assert (None if found is None else found.success_max) == expected
