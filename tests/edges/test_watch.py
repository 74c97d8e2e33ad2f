"""Watches: every change of an object is told once, in order, to those who keep up."""

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from msgspec import Struct

from primusd import watch as watching
from primusd.admission.events import (
    CordonRequested,
    NodeExclusionRequested,
    NodeSeen,
    NodeWentAway,
    RemovalRequested,
    UncordonRequested,
)
from primusd.clock import ManualClock
from primusd.core import World
from primusd.engine import Anew, Engine, EngineSettings
from primusd.errors import ResourceVersionTooOldError
from primusd.job.events import CancelRequested, ForgetRequested, JobSubmitted
from primusd.job.model import find_replica
from primusd.records import ADMISSION
from primusd.refill import refilled
from primusd.state.journal import MemoryJournal
from primusd.subscription import CutOffError
from primusd.testing import SoleElection
from primusd.watch import BOOKMARK, Watch, Watcher, WatchEvent
from tests.scenarios.daemon_lives import UID, small_job

GIB = 1 << 30


class Shown(Struct, frozen=True):
    kind: str
    key: str
    phase: str


def render(kind: str, key: str, world: World) -> Shown | None:
    """Show as much of an object as these tests look at."""
    match kind:
        case "Node":
            node = world.admission.nodes.get(key)
            return None if node is None else Shown(kind, key, node.phase.value)
        case "Job":
            job = world.jobs.get(key)
            return None if job is None else Shown(kind, key, job.phase.value)
        case "Replica":
            uid, _, name = key.partition("/")
            role, _, index = name.partition("-")
            found = world.jobs.get(uid)
            replica = find_replica(found, role, int(index)) if found is not None else None
            return None if replica is None else Shown(kind, key, replica.phase.value)
        case _:
            return Shown(kind, key, "")


class Stage:
    def __init__(self, journal: MemoryJournal) -> None:
        self.clock = ManualClock()
        self.engine = Engine(
            journal,
            SoleElection(),
            self.clock,
            settings=EngineSettings(cluster_id="c", version="0"),
        )
        self.watch = Watch(self.engine, self.clock, render, keep_ms=600_000)

    async def node(self, name: str = "n1") -> None:
        seen = NodeSeen(name, "local", "boot", "0", 64_000, 64 * GIB, 0, 20_000, 29_999)
        await self.engine.propose(ADMISSION, seen, by="test")

    async def cordon(self, *, times: int = 1) -> None:
        for number in range(times):
            event = UncordonRequested("n1") if number % 2 else CordonRequested("n1")
            await self.engine.propose(ADMISSION, event, by="test")

    async def submit(self) -> None:
        event = JobSubmitted(UID, small_job(), {}, "test")
        await self.engine.propose(UID, event, by="test")


def play(work: Callable[[Stage], Awaitable[None]], journal: MemoryJournal | None = None) -> None:
    async def main() -> None:
        stage = Stage(journal or MemoryJournal())
        async with anyio.create_task_group() as group:
            await group.start(stage.engine.run)
            with anyio.fail_after(20):
                await work(stage)
            group.cancel_scope.cancel()

    anyio.run(main)


def lines(events: tuple[WatchEvent, ...]) -> list[tuple[str, str, str]]:
    return [
        (one.type, one.object.key, one.object.phase) if isinstance(one.object, Shown)
        else (one.type, "", "")
        for one in events
    ]  # fmt: skip


async def next_lines(watcher: Watcher) -> list[tuple[str, str, str]]:
    return lines(await watcher.next())


def test_a_watch_from_nothing_tells_all_there_is_and_then_what_changes() -> None:
    async def work(stage: Stage) -> None:
        await stage.node("n1")
        await stage.node("n2")
        watcher = stage.watch.open(["Node"])

        assert await next_lines(watcher) == [
            ("ADDED", "n1", "Ready"), ("ADDED", "n2", "Ready"), (BOOKMARK, "", ""),
        ]  # fmt: skip
        await stage.cordon()
        assert await next_lines(watcher) == [("MODIFIED", "n1", "Cordoned")]
        await stage.node("n3")
        assert await next_lines(watcher) == [("ADDED", "n3", "Ready")]

    play(work)


def test_a_watch_goes_on_from_the_revision_of_a_list() -> None:
    async def work(stage: Stage) -> None:
        await stage.node("n1")
        listed = stage.engine.revision
        await stage.cordon()
        await stage.node("n2")

        watcher = stage.watch.open(["Node"], since=listed)

        assert sorted(await next_lines(watcher)) == [
            ("ADDED", "n2", "Ready"), ("MODIFIED", "n1", "Cordoned"),
        ]  # fmt: skip

    play(work)


@pytest.mark.parametrize("off", [-10, 1_000])
def test_a_revision_that_is_not_kept_or_not_of_this_store_is_refused(off: int) -> None:
    async def work(stage: Stage) -> None:
        for number in range(20):
            await stage.node(f"n{number}")
        stage.clock.advance(3_600_000)
        await stage.cordon(times=2)
        since = stage.engine.revision + off

        with pytest.raises(ResourceVersionTooOldError) as caught:
            stage.watch.open(["Node"], since=since)
        assert (caught.value.status, caught.value.oldest) == (410, stage.watch.oldest)

    play(work)


def test_several_changes_of_one_object_come_as_one() -> None:
    async def work(stage: Stage) -> None:
        await stage.node()
        watcher = stage.watch.open(["Node"], since=stage.engine.revision)
        await stage.cordon(times=9)

        assert await next_lines(watcher) == [("MODIFIED", "n1", "Cordoned")]

    play(work)


def test_a_change_after_a_quiet_while_is_told_at_once_and_what_follows_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watching, "COALESCE_S", 60.0)

    async def work(stage: Stage) -> None:
        await stage.node()
        watcher = stage.watch.open(["Node"], since=stage.engine.revision)
        await stage.cordon()
        with anyio.fail_after(10):
            assert await next_lines(watcher) == [("MODIFIED", "n1", "Cordoned")]

        await stage.cordon()
        with anyio.move_on_after(0.05) as waited:
            await watcher.next()
        assert waited.cancelled_caught

    play(work)


def test_who_asks_for_each_change_gets_each_as_it_was() -> None:
    async def work(stage: Stage) -> None:
        await stage.node()
        watcher = stage.watch.open(["Node"], since=stage.engine.revision, coalesces=False)
        await stage.cordon(times=4)

        assert [phase for _, _, phase in await next_lines(watcher)] == [
            "Cordoned", "Ready", "Cordoned", "Ready",
        ]  # fmt: skip

    play(work)


def test_only_kinds_and_documents_that_are_wanted_are_told() -> None:
    async def work(stage: Stage) -> None:
        await stage.node("n1")
        start = stage.engine.revision
        watcher = stage.watch.open(
            ["Node", "Job"],
            since=start,
            wants=lambda one: isinstance(one, Shown) and one.key != "n1",
        )
        await stage.cordon()
        await stage.submit()
        await stage.node("n2")

        told = await next_lines(watcher)
        assert {(kind, key) for kind, key, _ in told} == {("ADDED", UID), ("ADDED", "n2")}

    play(work)


def test_replicas_and_events_of_a_job_are_told_one_by_one() -> None:
    async def work(stage: Stage) -> None:
        start = stage.engine.revision
        watcher = stage.watch.open(["Replica", "Event"], since=start)
        await stage.submit()
        told = await next_lines(watcher)
        names = {key.partition("/")[2] for _, key, _ in told}
        assert {"chief-0", "worker-0", "worker-1"} <= names
        assert all(kind == "ADDED" for kind, _, _ in told)
        assert any(name.startswith(f"{stage.engine.revision}.") for name in names)

        await stage.node()
        told = await next_lines(watcher)
        assert ("MODIFIED", f"{UID}/worker-1", "Active") in told

    play(work)


def test_c79_a_job_whose_record_went_is_told_as_deleted_with_its_last_document() -> None:
    async def work(stage: Stage) -> None:
        await stage.submit()
        await stage.engine.propose(UID, CancelRequested(), by="test")
        watcher = stage.watch.open(["Job", "Replica"], since=stage.engine.revision)
        await stage.engine.propose(UID, ForgetRequested(), by="test")

        told = await next_lines(watcher)
        assert ("DELETED", UID, "Cancelled") in told
        assert {kind for kind, _, _ in told} == {"DELETED"}
        assert len(told) == 4

    play(work)


def test_what_came_and_went_unseen_is_not_told() -> None:
    async def work(stage: Stage) -> None:
        watcher = stage.watch.open(["Job"], since=stage.engine.revision)
        await stage.submit()
        await stage.engine.propose(UID, CancelRequested(), by="test")
        await stage.engine.propose(UID, ForgetRequested(), by="test")
        await stage.node()
        assert watcher._pending == {}

    play(work)


def test_silence_is_filled_with_bookmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "BOOKMARK_S", 0.01)

    async def work(stage: Stage) -> None:
        await stage.node()
        watcher = stage.watch.open(["Job"], since=stage.engine.revision)

        assert await watcher.next() == (WatchEvent(BOOKMARK, stage.engine.revision),)
        assert await watcher.next() == (WatchEvent(BOOKMARK, stage.engine.revision),)

    play(work)


def test_a_reader_that_is_too_slow_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "CHANGES_WAITING_MAX", 10)

    async def work(stage: Stage) -> None:
        await stage.node()
        slow = stage.watch.open(["Node"], since=stage.engine.revision, coalesces=False)
        fast = stage.watch.open(["Node"], since=stage.engine.revision)
        await stage.cordon(times=12)

        with pytest.raises(CutOffError, match="too slow"):
            await slow.next()
        assert len(await fast.next()) == 1

    play(work)


def test_after_a_reload_everybody_lists_again() -> None:
    async def work(stage: Stage) -> None:
        await stage.node()
        before = stage.engine.revision
        await stage.cordon()
        watcher = stage.watch.open(["Node"], since=before)
        stage.engine._tell_anew(Anew.RELOAD)

        with pytest.raises(CutOffError, match="loaded again"):
            await watcher.next()
        with pytest.raises(ResourceVersionTooOldError):
            stage.watch.open(["Node"], since=before)
        stage.watch.open(["Node"], since=stage.engine.revision)

    play(work)


def test_the_ring_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "CHANGES_KEPT_MAX", 5)

    async def work(stage: Stage) -> None:
        await stage.node()
        await stage.cordon(times=12)

        assert stage.watch.oldest == stage.engine.revision - 5
        stage.watch.open(["Node"], since=stage.watch.oldest)

    play(work)


def test_a_document_is_made_once_however_many_follow() -> None:
    made: list[str] = []

    def counting(kind: str, key: str, world: World) -> Any:
        made.append(key)
        return render(kind, key, world)

    async def work(stage: Stage) -> None:
        stage.watch._render = counting
        await stage.node()
        watchers = [stage.watch.open(["Node"], since=stage.engine.revision) for _ in range(50)]
        await stage.cordon()
        made.clear()
        for watcher in watchers:
            assert await next_lines(watcher) == [("MODIFIED", "n1", "Cordoned")]

        assert made == ["n1"]

    play(work)


def test_a_watch_goes_on_over_a_restart_of_the_daemon() -> None:
    journal = MemoryJournal()
    revisions: list[int] = []

    async def first(stage: Stage) -> None:
        await stage.node()
        revisions.append(stage.engine.revision)
        await stage.submit()
        await stage.cordon()

    async def second(stage: Stage) -> None:
        loaded = await journal.load()
        entries = [one for one in loaded.entries if one.revision <= stage.watch.oldest]
        changes, oldest = refilled(entries, stage.engine.world)
        stage.watch.refill(changes, oldest=oldest)

        watcher = stage.watch.open(["Job", "Node", "Replica"], since=revisions[0])

        told = await next_lines(watcher)
        assert ("MODIFIED", "n1", "Cordoned") in told
        assert ("ADDED", UID, "Starting") in told
        assert {key for _, key, _ in told} >= {f"{UID}/chief-0", f"{UID}/worker-1"}
        assert stage.watch.oldest == 0

    play(first, journal)
    play(second, journal)


def test_a_refill_reaches_back_to_the_newest_deletion_or_gap() -> None:
    journal = MemoryJournal()

    async def first(stage: Stage) -> None:
        await stage.submit()
        await stage.engine.propose(UID, CancelRequested(), by="test")
        await stage.engine.propose(UID, ForgetRequested(), by="test")
        await stage.node()

    async def second(stage: Stage) -> None:
        entries = (await journal.load()).entries
        forgotten = len(entries) - 2

        assert refilled(entries, stage.engine.world)[1] == forgotten
        assert refilled((*entries[:2], *entries[-1:]), stage.engine.world)[1] == len(entries) - 1

    play(first, journal)
    play(second, journal)


def test_a_refill_tells_of_a_node_left_out_and_reaches_back_to_one_that_was_removed() -> None:
    journal = MemoryJournal()

    async def first(stage: Stage) -> None:
        await stage.node()
        for event in (NodeWentAway("n1"), RemovalRequested("n1")):
            await stage.engine.propose(ADMISSION, event, by="test")
        await stage.node()
        await stage.engine.propose(ADMISSION, NodeExclusionRequested("n1", 60_000), by="test")

    async def second(stage: Stage) -> None:
        entries = (await journal.load()).entries

        changes, oldest = refilled(entries, stage.engine.world)
        newest = max(one.revision for one in changes if one.key == "n1")

        # The last entry is that of the new term.
        assert (oldest, newest) == (0, entries[-2].revision)
        for event in (NodeWentAway("n1"), RemovalRequested("n1")):
            await stage.engine.propose(ADMISSION, event, by="test")
        entries = (await journal.load()).entries
        assert refilled(entries, stage.engine.world)[1] == entries[-1].revision

    play(first, journal)
    play(second, journal)
