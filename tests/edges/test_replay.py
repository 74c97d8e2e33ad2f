"""F20: a job is shown as it was after any entry, from journal and archive, as it was shown then."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from primusd import core
from primusd.admission.events import NodeSeen
from primusd.core import World
from primusd.ctl.failures import ApiError
from primusd.datafeed.ledger.events import BeatReceived, UnitsListed
from primusd.datafeed.protocol import FeedReport, Held, Unit
from primusd.engine import Engine, EngineSettings
from primusd.errors import MalformedError, ResourceVersionTooOldError
from primusd.executor.protocol import Exit
from primusd.job import events as ev
from primusd.job.ids import AttemptId
from primusd.job.spec import JobSpec, Reading, Restart, RoleSpec, Source, StreamSpec
from primusd.records import Entry
from primusd.replaying import UNKNOWN, Moment, Replayed, replay
from primusd.state import bases as state_bases
from primusd.state.archive import Archive
from primusd.state.embedded import EmbeddedJournal
from primusd.testing import SoleElection, VirtualTime
from primusd.views.explanation_documents import Reach
from primusd.views.rendering import Renderer
from primusd.views.replays import replay_document
from primusd.watch import Watch
from tests.edges.api_server import NAMESPACE, Server, serve

GIB = 1 << 30
UID = "06f3k2m9q1x7abcd"
OTHER = "06f3k2m9q1x7aaaa"
CLICKS = f"{UID}/clicks"


class Life:
    """A daemon's loop over a real store, a job that lives in it, and what a watch told of it."""

    def __init__(self, folder: Path) -> None:
        self.archive = Archive(folder / "archive")
        self.journal = EmbeddedJournal(folder / "journal.db", archive=self.archive)
        self.time = VirtualTime()
        settings = EngineSettings(cluster_id="c", version="0", snapshot_every_ms=2_000)
        self.engine = Engine(self.journal, SoleElection(), self.time.clock, settings=settings)
        self.render = Renderer(self.engine.at_ms)
        self.told: dict[tuple[int, str, str], Any] = {}
        """Revision, kind, key to the document that the watch told."""
        self.worlds: dict[int, World] = {}

    async def run(self) -> None:
        async with anyio.create_task_group() as group:
            watch = Watch(self.engine, self.time.clock, self.render, keep_ms=600_000)
            self.engine.on_published.append(
                lambda one: self.worlds.__setitem__(one.entry.revision, one.after)
            )
            await group.start(self.engine.run)
            watcher = watch.open(("Job", "Replica"), coalesces=False)
            group.start_soon(self._record, watcher)
            with anyio.fail_after(20):
                await self._live()
            group.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await self.journal.close()

    async def _record(self, watcher: Any) -> None:
        while True:
            for event in await watcher.next():
                if event.object is not None:
                    document = msgspec.to_builtins(event.object)
                    key = document["name"]
                    self.told[event.revision, document["kind"], key] = document

    async def say(self, event: Any, machine: str = UID) -> None:
        """Record an event a second after the one before, and let the watch hear of it."""
        self.time.clock.advance(1_000)
        await self.engine.propose(machine, event, by="test")
        for _ in range(5):
            await anyio.lowlevel.checkpoint()

    async def _live(self) -> None:
        await self.say(NodeSeen("n1", "local", "b", "0", 8_000, 8 * GIB, 0, 20_000, 29_999), "")
        await self.say(ev.JobSubmitted(OTHER, small("other", ()), {}, "ann"), OTHER)
        job = small("ctr", (StreamSpec("clicks", (Source("/data/*.txt"),)),))
        await self.say(ev.JobSubmitted(UID, job, {}, "ann"))
        unit = Unit("file", "/data/1.txt", 1_000, "1", {"format": "text"})
        await self.say(UnitsListed((unit,), 0, is_complete=True), CLICKS)
        await self._bring_up(1)
        await self._read(0, 1, 400)
        await self.say(ev.TrainerExited(worker(1), exit_of(1)))
        await self.say(ev.AttemptVanished(worker(1)))
        self.time.clock.advance(60_000)
        await self.say(ev.TimePassed())
        await self._bring_up(2, only=1)
        await self._read(0, 1, 1_000)
        await self._end(OTHER, "worker", 1)
        for index, number in ((0, 1), (1, 2)):
            await self.say(ev.TrainerExited(worker(index, number), exit_of(0)))
            await self.say(ev.AttemptVanished(worker(index, number)))

    async def _end(self, uid: str, role: str, number: int) -> None:
        attempt = AttemptId(uid, role, 0, number)
        await self.say(ev.LaunchFailed(attempt, "no such image"), uid)
        await self.say(ev.AttemptVanished(attempt), uid)

    async def _bring_up(self, number: int, only: int = -1) -> None:
        for index in (0, 1) if only < 0 else (only,):
            attempt = worker(index, number)
            await self.say(ev.AttemptLaunched(attempt, {"pid": "1"}))
            await self.say(ev.ExecutorRegistered(attempt, "i1", "h1", "b1", 1, "0"))
            await self.say(ev.ExecutorHolding(attempt, ()))
        for index in (0, 1) if only < 0 else (only,):
            await self.say(ev.TrainerStarted(worker(index, number), 4_711, 1))

    async def _read(self, index: int, number: int, position: int) -> None:
        attempt = worker(index, number)
        if not self.engine.world.streams[CLICKS].leases:
            await self.say(BeatReceived(attempt, "i1", FeedReport("clicks", (), 1)), CLICKS)
        lease = next(iter(self.engine.world.streams[CLICKS].leases.values()))
        held = Held("clicks", lease.epoch, lease.unit, lease.lo, lease.token, position, lease.hi)
        await self.say(BeatReceived(attempt, "i1", FeedReport("clicks", (held,), 0)), CLICKS)

    def newest(self) -> tuple[Entry, ...]:
        async def load() -> tuple[Entry, ...]:
            journal = EmbeddedJournal(self.archive.folder.parent / "journal.db")
            try:
                return (await journal.load()).entries
            finally:
                await journal.close()

        return anyio.run(load)

    def replayed(self, *, revision: int = 0, at_ms: int = 0) -> Replayed:
        created_ms = self.engine.world.jobs[UID].created_ms
        moment = Moment(revision, at_ms)
        return replay(self.archive, self.newest(), UID, moment, created_ms=created_ms)

    def document(self, *, revision: int) -> Any:
        found = self.replayed(revision=revision)
        reach = Reach(job_from="1", cluster_from="1")
        document = replay_document(
            found.world.jobs[UID],
            found.world,
            reach,
            revision=found.revision,
            at_ms=found.at_ms,
        )
        return msgspec.to_builtins(document)


def small(name: str, streams: tuple[StreamSpec, ...]) -> JobSpec:
    reads = tuple(Reading(one.name) for one in streams)
    count = 2 if streams else 1
    worker_role = RoleSpec(
        "worker", count, count, "run", restart=Restart("replica", 10_000), data=reads
    )
    return JobSpec(name, {"worker": worker_role}, data={one.name: one for one in streams})


def worker(index: int, number: int = 1) -> AttemptId:
    return AttemptId(UID, "worker", index, number)


def exit_of(code: int) -> Exit:
    return Exit(code, None, None, "", 0, 0, 1, 2, "", (), "ValueError: bad" if code else "", ())


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Life:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(state_bases, "BASE_EVERY_REVISIONS", 5)
        patched.setattr(state_bases, "BASE_EVERY_MS", 0)
        one = Life(tmp_path_factory.mktemp("life"))
        anyio.run(one.run)
    return one


def job_revisions(life: Life) -> list[int]:
    return sorted(
        {revision for revision, kind, name in life.told if (kind, name) == ("Job", "ctr")}
    )


def test_the_life_is_one_that_leaves_journal_archive_and_bases(life: Life) -> None:
    archived = [one.revision for one in life.archive.read()]
    kept = [one.revision for one in life.newest()]

    assert archived[0] == 1
    assert len(archived) > 10
    assert kept[-1] == life.engine.revision
    assert len(state_bases.bases(life.archive.folder)) > 2
    assert life.engine.world.jobs[UID].phase == "Succeeded"


def test_F20_a_replay_of_each_entry_is_what_the_watch_told_then(life: Life) -> None:
    revisions = job_revisions(life)
    assert len(revisions) > 20

    for revision in revisions:
        shown = life.document(revision=revision)
        assert shown["job"] == life.told[revision, "Job", "ctr"], revision
        for replica in shown["replicas"]:
            told = life.told.get((revision, "Replica", replica["name"]))
            assert told is None or replica == told, revision


def test_F20_a_replay_of_each_event_is_the_state_of_then(life: Life) -> None:
    for moment in life.engine.world.jobs[UID].timeline:
        found = life.replayed(revision=moment.revision)
        then = life.worlds[moment.revision]

        assert found.world.jobs[UID] == then.jobs[UID]
        assert found.world.streams[CLICKS] == then.streams[CLICKS]
        assert core.plan(found.world, UID) == core.plan(then, UID)
        assert found.world.admission == then.admission


@pytest.fixture(scope="module")
def daily(tmp_path_factory: pytest.TempPathFactory) -> Life:
    """Give the same life with all live jobs in every base, as of one that lasts for days."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(state_bases, "BASE_EVERY_REVISIONS", 5)
        patched.setattr(state_bases, "BASE_EVERY_MS", 0)
        patched.setattr(state_bases, "ADMISSION_ONLY", state_bases.ALL)
        one = Life(tmp_path_factory.mktemp("daily"))
        anyio.run(one.run)
    return one


def test_F20_a_replay_from_a_base_with_the_job_is_the_same(daily: Life) -> None:
    bases = [one for one in state_bases.bases(daily.archive.folder) if one.has_jobs]
    assert len(bases) > 2
    began = set()

    for revision in job_revisions(daily):
        found = daily.replayed(revision=revision)
        then = daily.worlds[revision]
        assert found.world.jobs[UID] == then.jobs[UID], revision
        assert found.world.streams[CLICKS] == then.streams[CLICKS], revision
        assert found.world.admission == then.admission, revision
        assert found.revision == revision
        began.add(found.job_from)

    assert len(began) > 1, "the later ones begin with a base"


def test_a_job_older_than_the_archive_is_known_from_its_base_on(
    daily: Life, tmp_path: Path
) -> None:
    shutil.copytree(daily.archive.folder, tmp_path / "archive")
    archive = Archive(tmp_path / "archive")
    base = [one for one in state_bases.bases(archive.folder) if UID in one.parts()][-1]
    first = min(revision for key, (revision, _) in base.parts().items() if UID in key or not key)
    kept = [one for one in (*daily.archive.read(), *daily.newest()) if one.revision > first]
    for path in archive.files():
        path.unlink()
    revision = [one for one in job_revisions(daily) if one > base.revision][-1]

    found = replayed_from(daily, archive, revision, newest=kept)

    assert found.world.jobs[UID] == daily.worlds[revision].jobs[UID]
    with pytest.raises(ResourceVersionTooOldError):
        replayed_from(daily, archive, job_revisions(daily)[0], newest=kept)


def test_a_replay_tells_what_had_to_be_in_motion_and_why_it_waited(life: Life) -> None:
    first = job_revisions(life)[0]

    shown = life.document(revision=first)

    launches = [one for one in shown["plan"] if one["command"] == "LaunchAttempt"]
    assert [one["attempt"] for one in launches] == ["worker-0/1", "worker-1/1"]
    assert [one["reason"] for one in shown["explanations"]] == ["WaitingForPlacement"]
    assert shown["events"][0]["reason"] == "JobSubmitted"


def test_a_time_between_two_entries_is_the_state_after_the_first(life: Life) -> None:
    revision = job_revisions(life)[5]
    at_ms = life.replayed(revision=revision).at_ms

    found = life.replayed(at_ms=at_ms + 1)

    assert found.revision == revision
    assert found.at_ms == at_ms + 1


def test_a_moment_before_the_submit_is_refused(life: Life) -> None:
    with pytest.raises(MalformedError, match="no such job at that moment"):
        life.replayed(revision=job_revisions(life)[0] - 1)
    with pytest.raises(MalformedError):
        life.replayed(at_ms=1)


@pytest.fixture
def shortened(life: Life, tmp_path: Path) -> Archive:
    """Give an archive of one's own to damage."""
    shutil.copytree(life.archive.folder, tmp_path / "archive")
    return Archive(tmp_path / "archive")


def replayed_from(life: Life, archive: Archive, revision: int, *, newest: Any = None) -> Replayed:
    created_ms = life.engine.world.jobs[UID].created_ms
    kept = life.newest() if newest is None else newest
    return replay(archive, kept, UID, Moment(revision), created_ms=created_ms)


def test_without_a_base_and_the_first_entry_only_the_job_is_known(
    life: Life, shortened: Archive
) -> None:
    for base in state_bases.bases(shortened.folder):
        base.path.unlink()
    revision = job_revisions(life)[3]
    entries = [one for one in life.archive.read() if one.revision > 2]
    for path in shortened.files():
        path.unlink()

    found = replayed_from(life, shortened, revision, newest=entries)

    assert found.admission_from == UNKNOWN
    assert found.world.jobs[UID] == life.worlds[revision].jobs[UID]


def test_a_job_whose_first_entries_are_pruned_cannot_be_replayed(
    life: Life, shortened: Archive
) -> None:
    for path in shortened.files():
        path.unlink()

    with pytest.raises(ResourceVersionTooOldError, match=r"history\.keep"):
        replayed_from(life, shortened, life.engine.revision)


def test_a_hole_in_the_archive_is_told_and_not_skipped(life: Life, shortened: Archive) -> None:
    entries = list(life.archive.read())
    hole = entries[len(entries) // 2].revision
    for path in shortened.files():
        path.unlink()
    kept = [one for one in (*entries, *life.newest()) if one.revision != hole]

    with pytest.raises(ResourceVersionTooOldError, match=f"entries {hole} to {hole}"):
        replayed_from(life, shortened, life.engine.revision, newest=kept)


def test_bases_go_with_the_entries_of_their_day(tmp_path: Path) -> None:
    parts = {"": (5, b"x")}
    for day, revision in (("2026-01-01", 5), ("2026-01-02", 9)):
        state_bases.keep_base(
            tmp_path, parts, kind=state_bases.ALL, revision=revision, at_ms=revision, day=day
        )

    state_bases.prune_bases(tmp_path, oldest_day="2026-01-02")

    assert [one.revision for one in state_bases.bases(tmp_path)] == [9]
    assert state_bases.bases(tmp_path)[0].parts() == parts


def test_the_first_base_of_a_day_has_the_jobs_and_others_come_after_a_while() -> None:
    first = state_bases.Base(100, 1_000, Path("2026-01-01-000000000100-1000.all"))
    many, later_ms = 100 + state_bases.BASE_EVERY_REVISIONS, 1_000 + state_bases.BASE_EVERY_MS

    def due(known: tuple[state_bases.Base, ...], revision: int, at_ms: int, day: str) -> str:
        return state_bases.due(known, revision=revision, at_ms=at_ms, day=day)

    assert due((), 1, 1_000, "2026-01-01") == state_bases.ALL
    assert due((first,), many, later_ms, "2026-01-01") == state_bases.ADMISSION_ONLY
    assert due((first,), many - 1, later_ms, "2026-01-01") == ""
    assert due((first,), many, later_ms - 1, "2026-01-01") == ""
    assert due((first,), 101, 1_001, "2026-01-02") == state_bases.ALL


# Over HTTP.


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serve(tmp_path) as running:
        running.node()
        yield running


def test_a_replay_over_http_shows_the_job_at_an_event(server: Server) -> None:
    uid = str(server.submit()["uid"])
    server.run_job(uid)
    server.end_attempts(uid, code=1, only="worker-1", last="ValueError: label")
    events: Any = server.client.get(f"{NAMESPACE}/{uid}/events")["items"]
    submitted = events[0]["id"]

    shown: Any = server.client.get(f"{NAMESPACE}/hello/replay", {"event": submitted})

    assert shown["kind"] == "Replay"
    assert shown["reach"] == {"jobFrom": submitted.partition(".")[0], "clusterFrom": "1"}
    assert shown["job"]["status"]["phase"] == "Starting"
    assert shown["job"]["status"]["reason"] == "WaitingForPlacement"
    now: Any = server.client.get(f"{NAMESPACE}/hello/replay", {"at": "1ms"})
    assert now["job"]["status"]["firstCause"]["attempt"] == "worker-1/1"


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ({"event": "99999"}, "a revision from 1 to"),
        ({"event": "-1"}, "a revision from 1 to"),
        ({"event": "1.2.3"}, "a revision from 1 to"),
        ({"at": "yesterday"}, "duration or a time"),
        ({"at": "1s", "event": "1"}, "not both"),
        ({"event": "1"}, "no such job at that moment"),
    ],
)
def test_what_is_no_moment_is_refused(server: Server, query: dict[str, str], says: str) -> None:
    server.submit()

    with pytest.raises(ApiError) as caught:
        server.client.get(f"{NAMESPACE}/hello/replay", query)

    assert caught.value.status == 400
    assert re.search(says, caught.value.message)
