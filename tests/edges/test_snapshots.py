"""Snapshots: machines as bounded parts, of which only what changed is written."""

import sqlite3
from pathlib import Path

import anyio
import msgspec
import pytest
from msgspec.structs import replace

from primusd import core
from primusd.admission.events import NodeSeen
from primusd.core import World
from primusd.datafeed.ledger.events import (
    BeatReceived,
    ReaderOpened,
    SavepointRequested,
    UnitsListed,
)
from primusd.datafeed.ledger.model import Stream
from primusd.datafeed.protocol import FeedReport, Unit
from primusd.executor.protocol import Exit
from primusd.job.events import AttemptVanished, CancelRequested, JobSubmitted
from primusd.job.ids import AttemptId
from primusd.job.model import ATTEMPTS_KEPT, Job
from primusd.job.spec import RoleSpec, Source, StreamSpec
from primusd.records import ADMISSION, Entry, Event, Proposal, Record
from primusd.recovery import recover
from primusd.state.embedded import VALUE_BYTES_MAX, EmbeddedJournal
from primusd.state.journal import Loaded, Snapshot
from primusd.state.pieces import encode_stream
from primusd.state.snapshots import Snapshots, decode_machine, encode_parts
from primusd.testing import exited
from tests.datafeed.ledger_driver import Driver, attempt_id, stream_spec, text_unit
from tests.scenarios.daemon_lives import UID, small_job

GIB = 1 << 30


class Played:
    """A world after some steps, with their entries."""

    def __init__(self) -> None:
        self.world = World()
        self.entries: list[Entry] = []
        self.snapshots = Snapshots()

    def do(self, machine: str, event: Event) -> None:
        revision = len(self.entries) + 1
        step = core.step(
            self.world,
            (Proposal(machine, event, "test"),),
            at_ms=1_700_000_000_000 + revision,
            term=1,
            revision=revision,
        )
        assert step.entry is not None, step.answers
        self.world = step.world
        self.entries.append(step.entry)
        self.snapshots.appended(step.entry)

    @property
    def revision(self) -> int:
        return len(self.entries)


def node(name: str, cpu: int = 64) -> NodeSeen:
    return NodeSeen(name, "local", "boot", "0", cpu * 1000, cpu * GIB, 0, 20_000, 60_000)


def large(replicas: int) -> Played:
    played = Played()
    played.do(ADMISSION, node("n1", cpu=1_000_000))
    role = RoleSpec("worker", replicas, replicas, "run", ports=())
    played.do(UID, JobSubmitted(UID, small_job(role), {}, "test"))
    return played


def parts_of(value: Job | Stream, machine: str = UID) -> dict[str, bytes]:
    parts = dict(encode_parts(machine, value))
    return {key.partition("#")[2]: body for key, body in parts.items() if body is not None}


def test_a_job_comes_back_from_its_parts() -> None:
    job = large(250).world.jobs[UID]

    parts = parts_of(job)

    assert set(parts) == {"", "worker/0", "worker/1", "worker/2"}
    assert decode_machine(UID, parts) == job


@pytest.mark.parametrize("readers", [0, 1, 20])
def test_a_stream_made_piece_by_piece_has_the_bytes_of_one_go(readers: int) -> None:
    driver = Driver(stream_spec(epochs=2, split={"byte_count": 1_000}), checks=False)
    driver.list_all([text_unit(100_000), text_unit(70_000)])
    for index in range(readers):
        driver.propose(ReaderOpened(attempt_id(index), "a"))
        driver.propose(BeatReceived(attempt_id(index), "a", FeedReport("clicks", (), 9)))
        driver.propose(SavepointRequested(f"after-{index}"))

    assert encode_stream(1, driver.now) == msgspec.msgpack.encode((1, driver.now))


def test_c44_ten_thousand_replicas_with_long_errors_stay_in_small_values(tmp_path: Path) -> None:
    played = large(10_000)
    played.do(UID, vanished(3, replace(exited(1), last_lines="é" * 4_000)))
    job = played.world.jobs[UID]
    failed = job.roles["worker"].chunks[0].replicas[3].attempts * ATTEMPTS_KEPT
    assert failed[0].outcome is not None
    chunks = tuple(
        replace(chunk, replicas=tuple(replace(one, attempts=failed) for one in chunk.replicas))
        for chunk in job.roles["worker"].chunks
    )
    roles = {"worker": replace(job.roles["worker"], chunks=chunks)}
    world = replace(played.world, jobs={UID: replace(job, roles=roles)})

    async def write() -> Loaded:
        journal = EmbeddedJournal(tmp_path / "journal.db")
        await journal.load()
        for entry in played.entries:
            await journal.append(entry)
        while played.snapshots.has_due:
            due = played.snapshots.due(world, played.revision)
            await journal.append(None, due.snapshots, due.keep_from)
            played.snapshots.written(due)
        loaded = await journal.load()
        await journal.close()
        return loaded

    loaded = anyio.run(write)

    assert recover(loaded).world == world
    with sqlite3.connect(tmp_path / "journal.db") as db:
        rows = db.execute(
            "SELECT length(body) FROM journal UNION ALL SELECT length(body) FROM snapshots"
        )
        sizes = [row[0] for row in rows]
    db.close()
    assert max(sizes) <= VALUE_BYTES_MAX == 256 << 10
    assert len(sizes) > 100


def vanished(index: int, record: Exit) -> AttemptVanished:
    return AttemptVanished(AttemptId(UID, "worker", index, 1), record)


def test_only_machines_with_records_are_due_and_only_chunks_that_changed() -> None:
    played = large(250)
    first = played.snapshots.due(played.world, played.revision)
    assert {one.machine for one in first.snapshots} == {
        ADMISSION, UID, f"{UID}#worker/0", f"{UID}#worker/1", f"{UID}#worker/2",
    }  # fmt: skip
    played.snapshots.written(first)
    assert not played.snapshots.has_due

    played.do(UID, vanished(120, exited(1)))
    second = played.snapshots.due(played.world, played.revision)

    changed = {one.machine for one in second.snapshots}
    assert f"{UID}#worker/1" in changed
    assert f"{UID}#worker/2" not in changed


def test_entries_are_kept_from_the_oldest_record_that_nothing_covers() -> None:
    played = large(1)
    played.do(ADMISSION, node("n2"))
    due = played.snapshots.due(played.world, played.revision)

    # The newest entry always stays: it tells term and time.
    assert due.keep_from == played.revision
    played.snapshots.written(due)
    assert played.snapshots.due(played.world, played.revision).keep_from == 0


def test_a_round_is_taken_in_turns_and_keeps_what_is_not_covered_yet() -> None:
    played = large(10_000)
    played.do(ADMISSION, node("n2"))

    first = played.snapshots.due(played.world, played.revision)

    assert played.snapshots.has_more != (len(first.machines) == 2)
    if played.snapshots.has_more:
        assert first.keep_from <= 2


def test_a_machine_that_went_takes_its_parts_with_it() -> None:
    played = large(150)
    due = played.snapshots.due(played.world, played.revision)
    played.snapshots.written(due)
    keys = {one.machine for one in due.snapshots if one.machine != ADMISSION}
    gone = replace(played.world, jobs={})
    record = Record(UID, -1, "test", CancelRequested())
    played.snapshots.appended(Entry(1, 1, played.revision + 1, 1, (record,)))

    removed = played.snapshots.due(gone, played.revision + 1).snapshots

    assert {one.machine for one in removed if one.body == b""} == keys


def test_recovery_leaves_alone_what_a_snapshot_covers() -> None:
    played = large(3)
    due = played.snapshots.due(played.world, played.revision)
    played.do(UID, CancelRequested("enough"))
    found = {one.machine: one for one in due.snapshots}

    recovered = recover(Loaded(found, tuple(played.entries), 1, played.revision))

    assert recovered.world == played.world
    assert recovered.uncovered[UID] == 3


def test_a_snapshot_that_cannot_be_read_wedges_its_job_alone() -> None:
    played = large(3)
    due = played.snapshots.due(played.world, played.revision)
    found = {one.machine: one for one in due.snapshots}
    found[UID] = Snapshot(UID, played.revision, b"\x92\x01\xa3bad")

    recovered = recover(Loaded(found, (), 1, played.revision))

    assert set(recovered.wedged) == {UID}
    assert recovered.world.jobs == {}
    assert recovered.world.admission == played.world.admission


def test_a_stream_comes_back_from_its_parts() -> None:
    played = Played()
    stream = StreamSpec("clicks", (Source("/data/*"),), format="text")
    role = RoleSpec("worker", 1, 1, "run")
    played.do(UID, JobSubmitted(UID, small_job(role, data={"clicks": stream}), {}, "test"))
    units = tuple(Unit("file", f"/data/{number:05}", 1_000, "1") for number in range(5_000))
    played.do(f"{UID}/clicks", UnitsListed(units, 0, is_complete=True))
    value = played.world.streams[f"{UID}/clicks"]

    parts = parts_of(value, f"{UID}/clicks")

    assert set(parts) == {"", "0", "1"}
    assert decode_machine(f"{UID}/clicks", parts) == value
