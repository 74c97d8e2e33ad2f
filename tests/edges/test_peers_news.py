"""M040: hearing of new peers costs in proportion to the replicas, not to their square."""

import anyio
import msgspec
import pytest
from msgspec.structs import replace

from primusd.api.peers_news import INTERVAL_MS_PER_REPLICA
from primusd.api.sessions import Session, Sessions, compose
from primusd.api.start_variables import Documents
from primusd.executor.protocol import Orders, Start
from primusd.executor.start_documents import Newest
from primusd.job.model import Peers
from primusd.job.spec import JobSpec
from primusd.records import Event
from primusd.subscription import Published
from tests.state.job_driver import UID, Cluster, role, spec

STEP_MS = 5
"""Between two replicas that come."""


class Executor(Session):
    """An executor that takes every order at once, and fetches each document that one names."""

    def __init__(self, daemon: "Daemon", name: str) -> None:
        super().__init__(daemon.id(name), "i1", ())
        self.daemon = daemon
        self.orders = 0
        self.documents: list[str] = []

    def wake(self) -> None:
        self.daemon.woken[self] = None

    def take(self, orders: Orders) -> None:
        self.orders += 1
        run = orders.run
        if isinstance(run, Start) and [run.peers] != self.documents[-1:]:
            self.documents.append(run.peers)
            self.daemon.fetch(run.peers)


class Daemon(Cluster):
    """A world and the executors that follow it; what is due at a time is done at that time."""

    def __init__(self) -> None:
        self.woken: dict[Executor, None] = {}
        self.due_ms = 0
        self.sessions = Sessions(lambda: self.now_ms, self._wish)
        self.documents = Documents()
        super().__init__(cpu=2_000, checked_every=100)

    def _wish(self, at_ms: int) -> None:
        self.due_ms = at_ms

    def say(self, *events: Event, machine: str = UID, by: str = "test") -> str:
        before = self.world
        ignored = super().say(*events, machine=machine, by=by)
        if self.world is not before:
            published = Published(self.entries[-1], before, self.world, (UID,))
            self.sessions.wake_changed(published)
            self.send()
        return ignored

    def send(self) -> None:
        while self.woken:
            executor, _ = self.woken.popitem()
            orders = compose(
                self.world,
                executor,
                term=1,
                revision=self.revision,
                at_ms=self.now_ms,
                beat_ms=1_000,
                ttl_ms=10_000,
                heads=(),
            )
            assert orders is not None
            executor.take(orders)

    def pass_ms(self, ms: int) -> None:
        end_ms = self.now_ms + ms
        while self.due_ms and self.due_ms <= end_ms:
            self.now_ms, self.due_ms = max(self.now_ms, self.due_ms), 0
            self.sessions.wake_due()
            self.send()
        self.now_ms = end_ms

    def fetch(self, digest: str) -> list[int]:
        """Return who stands in a document that an order named."""
        job = self.job if digest == self.job.peers.digest else self.sessions.published(UID, digest)
        assert job is not None, "who is told of a document can fetch it"
        document = msgspec.json.decode(self.documents.of(job))
        return [one["index"] for one in document["roles"]["worker"]]


def dynamic(replicas: int) -> JobSpec:
    return spec(role("worker", replicas, minimum=1), policy="dynamic")


def come_one_by_one(replicas: int, *, coming: int = 0) -> tuple[Daemon, list[Executor]]:
    """Return a daemon whose replicas started one after the other, and their executors."""
    daemon = Daemon()
    daemon.submit(dynamic(replicas))
    daemon.launch()
    daemon.register()
    executors = []
    for index in range(coming or replicas):
        executor = Executor(daemon, f"worker-{index}")
        executors.append(executor)
        daemon.sessions.add(executor)
        daemon.hold(f"worker-{index}")
        newest = daemon.job.peers.digest
        assert executor.documents == [newest], "a newcomer starts with the newest at once"
        daemon.start(f"worker-{index}")
        daemon.pass_ms(STEP_MS)
    return daemon, executors


def test_m040_fetches_grow_with_the_replicas_and_not_with_their_square() -> None:
    for replicas in (40, 160):
        daemon, executors = come_one_by_one(replicas)
        daemon.pass_ms(INTERVAL_MS_PER_REPLICA * replicas)

        openings_ms = STEP_MS * replicas
        hearings = 2 + openings_ms // (INTERVAL_MS_PER_REPLICA * replicas)
        assert sum(len(one.documents) for one in executors) <= replicas * (1 + hearings)
        assert sum(one.orders for one in executors) <= replicas * (4 + hearings)
        for executor in executors:
            assert executor.documents[-1] == daemon.job.peers.digest, "the newest always arrives"
        assert daemon.fetch(executors[0].documents[-1]) == list(range(replicas))
        assert daemon.due_ms == 0


def test_news_after_a_quiet_while_is_told_at_once() -> None:
    daemon, executors = come_one_by_one(3, coming=2)
    daemon.pass_ms(60_000)
    before = len(executors[0].documents)

    daemon.hold("worker-2")

    assert executors[0].documents[before:] == [daemon.job.peers.digest]
    assert daemon.fetch(daemon.job.peers.digest) == [0, 1, 2]


def test_a_new_world_is_told_as_it_is() -> None:
    daemon, executors = come_one_by_one(20)
    told = executors[0].documents[-1]
    assert told != daemon.job.peers.digest, "it has not heard of the last ones yet"

    daemon.sessions.wake_all()
    daemon.send()

    assert {one.documents[-1] for one in executors} == {daemon.job.peers.digest}


def test_a_new_generation_is_told_at_once() -> None:
    daemon, executors = come_one_by_one(20)
    job, executor = daemon.job, executors[0]
    news, told = executor.news, executor.documents[-1]
    assert news is not None
    assert news.due_ms > daemon.now_ms, "it is not to hear of the last ones yet"
    old = Start(job.peers.generation, job.peers.digest)
    assert executor.told.told(old, job.peers, news).peers == told
    peers = Peers(job.peers.generation + 1, 1, "sha256:next")
    later = replace(job, peers=peers)

    assert news.changed(job, later, daemon.now_ms)
    new = Start(peers.generation, peers.digest)
    assert executor.told.told(new, peers, news) == new


@pytest.mark.anyio
async def test_a_fetch_that_may_be_in_vain_is_given_up_for_the_next() -> None:
    newest, done = Newest(), []

    async def work(start: Start) -> None:
        if start.peers == "old":
            await anyio.sleep_forever()
        done.append(start.peers)

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            for peers in ("old", "new"):
                tasks.start_soon(newest.run, work, Start(1, peers))
                await anyio.lowlevel.checkpoint()

    assert done == ["new"]
