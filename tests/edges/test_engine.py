"""The loop: durable before visible, group commit, wedging by job, reload after a doubtful write."""

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
import structlog

from primusd import core
from primusd.admission.events import CordonRequested, NodeSeen, TermBegan, UncordonRequested
from primusd.core import Ignored, Recorded, Rejected
from primusd.engine import ENTRY_BYTES_MAX, Anew, Engine, EngineSettings
from primusd.errors import (
    DeposedError,
    NewerSchemaError,
    NotFoundError,
    NotLeaderError,
    PrimusdError,
    StoreFullError,
    StoreUnavailableError,
    TooManyRequestsError,
    WedgedError,
)
from primusd.inbox import PROPOSALS_PER_STEP_MAX, PROPOSALS_WAITING_MAX
from primusd.job import job as job_machine
from primusd.job.events import CancelRequested, JobSubmitted
from primusd.job.phases import JobPhase, NodePhase
from primusd.records import ADMISSION, SCHEMA, Entry, Proposal, encode_entry
from primusd.recovery import recover
from primusd.state.journal import Journal, Loaded, MemoryJournal, Snapshot
from primusd.subscription import PUBLISHED_WAITING_MAX, CutOffError, Published
from primusd.testing import SoleElection, VirtualTime
from tests.scenarios.daemon_lives import UID, small_job

SETTINGS = EngineSettings(cluster_id="c", version="0.1.0")
GIB = 1 << 30


class Store:
    """A journal in memory that fails, or waits, when a test says so."""

    def __init__(self) -> None:
        self.inner = MemoryJournal()
        self.fails_with: PrimusdError | None = None
        self.has_landed = False
        """The entry of a failing append is there all the same."""
        self.gate: anyio.Event | None = None
        self.appends: list[Entry | None] = []
        self.cannot_load = False

    async def load(self) -> Loaded:
        if self.cannot_load:
            raise StoreUnavailableError("cannot be read")
        return await self.inner.load()

    async def entries(self) -> tuple[Entry, ...]:
        return await self.inner.entries()

    async def append(
        self, entry: Entry | None, snapshots: tuple[Snapshot, ...] = (), keep_from: int = 0
    ) -> None:
        if self.gate is not None:
            await self.gate.wait()
        self.appends.append(entry)
        if self.fails_with is None or self.has_landed:
            await self.inner.append(entry, snapshots, keep_from)
        if self.fails_with is not None:
            raise self.fails_with

    async def replace(self, loaded: Loaded) -> None:
        await self.inner.replace(loaded)

    async def close(self) -> None:
        return


def seen(name: str = "n1", **labels: str) -> NodeSeen:
    return NodeSeen(name, "local", "boot", "0", 8_000, 8 * GIB, 0, 20_000, 20_999, labels)


def submitted(uid: str = UID, name: str = "small") -> JobSubmitted:
    return JobSubmitted(uid, small_job(name=name), {}, "test")


async def until(holds: Callable[[], bool]) -> None:
    with anyio.fail_after(10):
        while not holds():  # noqa: ASYNC110 - the engine sleeps in real time here.
            await anyio.sleep(0.01)


def play(
    work: Callable[[Engine, VirtualTime], Awaitable[None]],
    *,
    store: Journal | None = None,
    settings: EngineSettings = SETTINGS,
    **options: Any,  # of Engine
) -> Journal:
    """Run an engine, and `work` beside it."""
    journal = store or MemoryJournal()
    time = VirtualTime()

    async def main() -> None:
        engine = Engine(journal, SoleElection(), time.clock, settings=settings, **options)
        async with anyio.create_task_group() as group:
            await group.start(engine.run)
            with anyio.fail_after(20):
                await work(engine, time)
            group.cancel_scope.cancel()

    anyio.run(main)
    return journal


def entries(journal: Journal) -> tuple[Entry, ...]:
    found: list[Entry] = []

    async def main() -> None:
        found.extend((await journal.load()).entries)

    anyio.run(main)
    return tuple(found)


def test_the_first_entry_of_a_term_says_that_it_began() -> None:
    async def work(engine: Engine, _time: VirtualTime) -> None:
        assert engine.term > 0

    journal = play(work)
    play(work, store=journal)

    found = entries(journal)
    assert [type(entry.records[0].event) for entry in found] == [TermBegan, TermBegan]
    assert [entry.revision for entry in found] == [1, 2]
    assert found[0].term < found[1].term


def test_a_proposal_is_answered_once_it_is_durable_and_published() -> None:
    store = Store()

    async def work(engine: Engine, _time: VirtualTime) -> None:
        published: list[Published] = []
        engine.on_published.append(published.append)
        store.gate = anyio.Event()
        answers: list[Recorded | Ignored] = []

        async def propose() -> None:
            answers.append(await engine.propose(ADMISSION, seen(), by="launcher:local"))

        async with anyio.create_task_group() as group:
            group.start_soon(propose)
            await anyio.wait_all_tasks_blocked()
            assert not answers
            assert not published
            assert engine.world.admission.nodes == {}
            store.gate.set()

        assert answers == [Recorded(2)]
        assert [one.entry.revision for one in published] == [2]
        assert published[0].before.admission.nodes == {}
        assert set(published[0].after.admission.nodes) == {"n1"}
        assert published[0].touched == (ADMISSION,)

    play(work, store=store)


def test_what_arrives_during_a_write_goes_into_one_entry() -> None:
    store = Store()

    async def work(engine: Engine, _time: VirtualTime) -> None:
        store.gate = anyio.Event()
        async with anyio.create_task_group() as group:
            for number in range(50):
                group.start_soon(propose_node, engine, f"n{number}")
            await anyio.wait_all_tasks_blocked()
            store.gate.set()
        assert len(engine.world.admission.nodes) == 50

    play(work, store=store)

    assert len(entries(store)) <= 3


async def propose_node(engine: Engine, name: str) -> None:
    await engine.propose(ADMISSION, seen(name), by="launcher:local")


def test_a_step_that_outgrows_its_entry_is_cut() -> None:
    async def work(engine: Engine, _time: VirtualTime) -> None:
        async with anyio.create_task_group() as group:
            for number in range(12):
                group.start_soon(propose_large, engine, f"n{number}")
        assert len(engine.world.admission.nodes) == 12

    found = entries(play(work))

    assert max(len(encode_entry(entry)) for entry in found) <= ENTRY_BYTES_MAX
    assert len(found) >= 4


async def propose_large(engine: Engine, name: str) -> None:
    await engine.propose(ADMISSION, seen(name, note="x" * 50_000), by="launcher:local")


def test_proposals_of_one_call_are_one_step_and_each_has_its_answer() -> None:
    async def work(engine: Engine, _time: VirtualTime) -> None:
        answers = await engine.propose_all(
            (
                Proposal(ADMISSION, seen(), "launcher:local"),
                Proposal("nobody", CancelRequested(), "test"),
                Proposal(ADMISSION, UncordonRequested("n1"), "test"),
                Proposal(ADMISSION, CordonRequested("n1"), "test"),
            )
        )

        assert answers[0] == answers[3] == Recorded(2)
        assert isinstance(answers[1], Rejected)
        assert isinstance(answers[1].error, NotFoundError)
        assert answers[2] == Ignored("already so")
        assert engine.world.admission.nodes["n1"].phase is NodePhase.CORDONED

    assert len(entries(play(work))) == 2


def test_a_refused_proposal_raises_its_error_and_records_nothing() -> None:
    async def work(engine: Engine, _time: VirtualTime) -> None:
        with pytest.raises(NotFoundError):
            await engine.propose("nobody", CancelRequested(), by="test")

    assert len(entries(play(work))) == 1


def test_who_is_not_leading_takes_nothing() -> None:
    async def main() -> None:
        clock = VirtualTime().clock
        engine = Engine(MemoryJournal(), SoleElection(), clock, settings=SETTINGS)

        with pytest.raises(NotLeaderError):
            await engine.propose(ADMISSION, seen(), by="test")
        engine.tell(ADMISSION, seen(), by="test")

    anyio.run(main)


def test_what_is_not_admitted_is_refused_before_the_step() -> None:
    error = StoreFullError("no new job is taken")

    async def work(engine: Engine, _time: VirtualTime) -> None:
        with pytest.raises(StoreFullError, match="no new job"):
            await engine.propose(UID, submitted(), by="test")
        await engine.propose(ADMISSION, seen(), by="test")

    play(work, admits=lambda event: error if isinstance(event, JobSubmitted) else None)


def test_a_late_word_of_a_job_that_is_gone_is_no_warning_and_any_other_refusal_is_one() -> None:
    async def work(engine: Engine, _time: VirtualTime) -> None:
        engine.tell(UID, CancelRequested("late"), by="launcher")
        await engine.propose(UID, submitted(), by="test")
        engine.tell(UID, submitted(), by="launcher")
        await engine.propose(ADMISSION, seen(), by="test")

    with structlog.testing.capture_logs() as told:
        play(work)

    levels = [one["log_level"] for one in told if one["event"] == "engine.told_refused"]
    assert levels == ["debug", "warning"]


def test_the_inbox_is_bounded() -> None:
    store = Store()

    async def work(engine: Engine, _time: VirtualTime) -> None:
        store.gate = anyio.Event()
        engine.tell(ADMISSION, seen(), by="test")
        await anyio.wait_all_tasks_blocked()
        for _ in range(PROPOSALS_WAITING_MAX):
            engine.tell(ADMISSION, CordonRequested("n1"), by="test")

        with pytest.raises(TooManyRequestsError):
            await engine.propose(ADMISSION, CordonRequested("n1"), by="test")
        # A fact of an edge is not lost for that.
        engine.tell(ADMISSION, seen("n2"), by="test")
        store.gate.set()
        store.gate = None

    play(work, store=store)


def test_a_step_takes_at_most_so_many_proposals() -> None:
    async def work(engine: Engine, _time: VirtualTime) -> None:
        for number in range(PROPOSALS_PER_STEP_MAX + 1):
            engine.tell(ADMISSION, seen(f"n{number}"), by="test")
        await engine.propose(ADMISSION, seen("last"), by="test")

    found = entries(play(work))

    assert [len(entry.records) for entry in found[1:]] == [PROPOSALS_PER_STEP_MAX, 2]


def test_a_machine_that_raises_is_wedged_and_the_others_go_on_m064(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sound = job_machine.apply

    def broken(state: Any, event: Any, at: Any) -> Any:
        if isinstance(event, CancelRequested) and state.uid == UID:
            raise ZeroDivisionError("a bug of ours")
        return sound(state, event, at)

    other = "06f3k2m9q1x7abce"
    monkeypatch.setattr(job_machine, "apply", broken)

    async def work(engine: Engine, _time: VirtualTime) -> None:
        await engine.propose(UID, submitted(), by="test")
        event = JobSubmitted(other, small_job(labels={"a": "b"}), {}, "test")
        with pytest.raises(PrimusdError, match="lives in namespace"):
            await engine.propose(other, event, by="test")

        with pytest.raises(WedgedError):
            await engine.propose(UID, CancelRequested(), by="test")
        await anyio.wait_all_tasks_blocked()

        assert engine.world.jobs[UID].phase is JobPhase.QUEUED
        assert "a bug of ours" in engine.wedged(UID)
        assert set(engine.world.admission.wedged) == {UID}
        with pytest.raises(WedgedError, match="its processes run on"):
            await engine.propose(UID, CancelRequested(), by="test")
        await engine.propose(ADMISSION, seen(), by="test")

    journal = play(work)

    # A version without the bug takes the job up again.
    monkeypatch.setattr(job_machine, "apply", sound)

    async def again(engine: Engine, _time: VirtualTime) -> None:
        assert engine.world.admission.wedged == {}
        await engine.propose(UID, CancelRequested(), by="test")
        assert engine.world.jobs[UID].then == "Cancelled"

    play(again, store=journal)


def test_a_record_that_raises_on_replay_wedges_its_job_and_is_kept_until_it_loads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def first(engine: Engine, _time: VirtualTime) -> None:
        await engine.propose(UID, submitted(), by="test")
        await engine.propose(UID, CancelRequested(), by="test")

    journal = play(first)
    sound = job_machine.apply

    def broken(state: Any, event: Any, at: Any) -> Any:
        if isinstance(event, CancelRequested):
            raise ZeroDivisionError("a bug of ours")
        return sound(state, event, at)

    monkeypatch.setattr(job_machine, "apply", broken)

    async def second(engine: Engine, time: VirtualTime) -> None:
        assert engine.world.jobs[UID].phase is JobPhase.QUEUED
        assert set(engine.world.admission.wedged) == {UID}
        for _ in range(3):
            await time.run_for(60_000)
            await engine.propose(ADMISSION, seen(), by="test")
            await anyio.wait_all_tasks_blocked()

    play(second, store=journal)
    kept = entries(journal)
    assert any(record.machine == UID for entry in kept for record in entry.records)

    monkeypatch.setattr(job_machine, "apply", sound)

    async def third(engine: Engine, _time: VirtualTime) -> None:
        assert engine.world.jobs[UID].phase is JobPhase.CANCELLED
        assert engine.world.admission.wedged == {}

    play(third, store=journal)


@pytest.mark.parametrize("has_landed", [False, True])
def test_after_an_uncertain_write_the_world_is_what_the_journal_holds(*, has_landed: bool) -> None:
    store = Store()

    async def work(engine: Engine, _time: VirtualTime) -> None:
        heard: list[Anew] = []
        engine.on_anew.append(heard.append)
        subscription = engine.subscribe()
        store.fails_with = StoreUnavailableError("the disk went away")
        store.has_landed = has_landed
        with pytest.raises(StoreUnavailableError, match="went away"):
            await engine.propose(ADMISSION, seen(), by="test")
        outage = engine.outage
        assert outage is not None
        with pytest.raises(StoreUnavailableError):
            await engine.propose(ADMISSION, seen("n2"), by="test")

        store.fails_with = None
        await until(lambda: engine.outage is None)

        assert set(engine.world.admission.nodes) == ({"n1"} if has_landed else set())
        assert engine.revision == (2 if has_landed else 1)
        assert heard == [Anew.RELOAD]
        with pytest.raises(CutOffError, match="loaded again"):
            await subscription.next()
        await engine.propose(ADMISSION, seen("n3"), by="test")

    journal = play(work, store=store)

    found = entries(journal)
    assert [entry.revision for entry in found] == list(range(1, len(found) + 1))


def test_a_full_disk_answers_with_its_own_code_and_the_daemon_lives_on() -> None:
    store = Store()

    async def work(engine: Engine, _time: VirtualTime) -> None:
        store.fails_with = StoreFullError("the disk is full")
        with pytest.raises(StoreFullError) as caught:
            await engine.propose(ADMISSION, seen(), by="test")
        assert (caught.value.status, caught.value.code) == (503, "StoreFull")

        store.fails_with = None
        await until(lambda: engine.outage is None)
        await engine.propose(ADMISSION, seen(), by="test")

    play(work, store=store)


def test_a_store_that_cannot_be_read_for_a_while_is_tried_again() -> None:
    store = Store()

    async def work(engine: Engine, _time: VirtualTime) -> None:
        store.fails_with = StoreUnavailableError("the disk went away")
        store.cannot_load = True
        with pytest.raises(StoreUnavailableError):
            await engine.propose(ADMISSION, seen(), by="test")
        await anyio.sleep(0.3)
        assert engine.outage is not None
        store.fails_with, store.cannot_load = None, False
        await until(lambda: engine.outage is None)

    play(work, store=store)


def test_who_is_deposed_stops() -> None:
    store = Store()

    async def main() -> None:
        engine = Engine(store, SoleElection(), VirtualTime().clock, settings=SETTINGS)
        with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012 - the group is the point.
            async with anyio.create_task_group() as group:
                await group.start(engine.run)
                store.fails_with = DeposedError("term 9 has written")
                with pytest.raises(DeposedError):
                    await engine.propose(ADMISSION, seen(), by="test")
        assert caught.group_contains(DeposedError)
        with pytest.raises(NotLeaderError):
            await engine.propose(ADMISSION, seen(), by="test")

    anyio.run(main)


def test_a_newer_schema_is_not_led() -> None:
    store = MemoryJournal()

    async def main() -> None:
        await store.append(Entry(SCHEMA + 1, 1, 1, 1, ()))
        engine = Engine(store, SoleElection(), VirtualTime().clock, settings=SETTINGS)
        with pytest.raises(NewerSchemaError):
            await engine.run()
        assert (await store.load()).revision == 1

    anyio.run(main)


def test_a_slow_subscriber_is_cut_off_with_the_reason() -> None:
    async def work(engine: Engine, _time: VirtualTime) -> None:
        slow = engine.subscribe()
        for number in range(PUBLISHED_WAITING_MAX + 1):
            event = CordonRequested("n1") if number % 2 else UncordonRequested("n1")
            await engine.propose(ADMISSION, seen() if number == 0 else event, by="test")

        with pytest.raises(CutOffError, match="too slow"):
            await slow.next()

    play(work)


def test_snapshots_cover_what_changed_and_entries_go() -> None:
    async def work(engine: Engine, time: VirtualTime) -> None:
        await engine.propose(UID, submitted(), by="test")
        for number in range(5):
            await time.run_for(31_000)
            await engine.propose(ADMISSION, seen(f"n{number}"), by="test")
            await anyio.wait_all_tasks_blocked()

    journal = MemoryJournal()
    play(work, store=journal)

    async def look() -> None:
        loaded = await journal.load()
        assert {"", UID, f"{UID}#worker/0", f"{UID}#chief/0"} <= set(loaded.snapshots)
        # The job is idle: its snapshot stays what it was, and keeps no entry.
        assert loaded.snapshots[UID].covers < loaded.snapshots[""].covers
        assert len(loaded.entries) < 4
        recovered = recover(loaded)
        assert set(recovered.world.admission.nodes) == {f"n{number}" for number in range(5)}
        assert recovered.world.jobs[UID].phase is JobPhase.STARTING

    anyio.run(look)


def test_an_idle_daemon_writes_nothing() -> None:
    store = Store()

    async def work(engine: Engine, time: VirtualTime) -> None:
        await time.run_for(31_000)
        await engine.propose(ADMISSION, seen(), by="test")
        await anyio.wait_all_tasks_blocked()
        count = len(store.appends)
        await time.run_for(3_600_000)
        await anyio.sleep(0.05)

        assert len(store.appends) == count

    play(work, store=store)


def test_replaying_the_journal_gives_the_world_in_memory() -> None:
    worlds: list[core.World] = []

    async def work(engine: Engine, time: VirtualTime) -> None:
        await engine.propose(UID, submitted(), by="test")
        await engine.propose(ADMISSION, seen(), by="test")
        await time.run_for(31_000)
        await engine.propose(ADMISSION, CordonRequested("n1"), by="test")
        await engine.propose(UID, CancelRequested("enough"), by="test")
        worlds.append(engine.world)

    journal = play(work)

    async def look() -> None:
        assert recover(await journal.load()).world == worlds[0]

    anyio.run(look)


def test_a_stalled_loop_accuses_nobody() -> None:
    async def work(engine: Engine, time: VirtualTime) -> None:
        heard: list[Anew] = []
        engine.on_anew.append(heard.append)
        await anyio.wait_all_tasks_blocked()
        time.clock.advance(7_000)
        await until(lambda: bool(heard))
        assert heard == [Anew.STALL]

    play(work)


def test_a_follower_that_raises_does_not_stop_the_loop() -> None:
    def broken(_published: Published) -> None:
        raise ZeroDivisionError

    async def work(engine: Engine, _time: VirtualTime) -> None:
        engine.on_published.append(broken)
        await engine.propose(ADMISSION, seen(), by="test")
        await engine.propose(ADMISSION, seen("n2"), by="test")

    play(work)
