"""Three heads on one etcd in virtual time: the real election, lane, journal and client.

Each head that leads writes entries whose texts are a chain, snapshots of it now and then, and acts.
What etcd takes is looked at as it is taken, what heads believe as they believe it.
"""

import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import anyio

from primusd.admission.events import NodeWentAway
from primusd.errors import DeposedError, StoreUnavailableError
from primusd.records import SCHEMA, Entry, Record, decode_entry
from primusd.state.election import Identity
from primusd.state.etcd.election import EtcdElection
from primusd.state.etcd.journal import EtcdJournal
from primusd.state.etcd.lane import Lane
from primusd.state.etcd.layout import Layout, part, split
from primusd.state.etcd.leadership import Leadership
from primusd.state.etcd.requests import created_at
from primusd.state.etcd.values import first_part
from primusd.state.journal import Loaded, Snapshot, Written
from tests.simulation.etcd_members import EtcdCluster, SimulatedClient
from tests.simulation.etcd_state import Message
from tests.simulation.schedule import Schedule
from tests.simulation.virtual_loop import HOST, VirtualLoop, no_threads

TTL_MS = 3_000
TRY_MS = 400
HEADS = ("a", "b", "c")
TROUBLE_MS = 30_000
CALM_MS = 25_000
"""Long enough for a lease to expire, a campaign, and a load."""
LARGE = 300_000
"""Characters of an entry that takes several transactions with others like it."""


class AnomalyError(AssertionError):
    """Something that must never be."""


class NoLane(Lane):
    """What the lane is there for: writes that compare the leader key alone."""

    def _fences(self, created: int) -> tuple[Any, ...]:
        return (created_at(self._layout.leader, created),)


class Durable:
    """What etcd took of the journal, looked at as it is taken.

    Attributes:
        texts: Of each entry that was ever written, by revision.
        last: Revision of the newest.
        covers: Of the newest snapshot.
    """

    def __init__(self, layout: Layout, cluster: EtcdCluster) -> None:
        self.texts: dict[int, str] = {}
        self.last = 0
        self.covers = 0
        self._layout = layout
        self._state = cluster.state
        self._term = 0
        cluster.state.on_taken = self._taken

    def _taken(self, request: Message) -> None:
        layout = self._layout
        puts = [one.request_put for one in request.success if one.HasField("request_put")]
        if not any(one.key == layout.lane for one in puts):
            return
        leader = self._state.row(layout.leader)
        if leader is None:
            raise AnomalyError("written while nobody leads")
        for one in puts:
            if one.key == layout.lane:
                term = int(one.value.partition(b".")[0])
                _must(term == leader.create_revision, f"term {term} wrote, another one leads")
                _must(term >= self._term, f"term {term} wrote after term {self._term}")
                self._term = term
            elif one.key.startswith(layout.journal):
                self._entry_taken(split(one.key)[0])
            elif one.key == layout.snapshot("") and b"!" not in one.key:
                covers = first_part(one.key, one.value).covers
                _must(covers >= self.covers, f"snapshot {covers} over snapshot {self.covers}")
                self.covers = covers

    def _entry_taken(self, key: bytes) -> None:
        body = self._body(key)
        if body is None:
            return
        revision = int(key[len(self._layout.journal) :])
        written = text_of(decode_entry(body))
        # A write that takes several transactions may be carried out twice, as it was.
        again = revision == self.last and written == self.texts[revision]
        _must(again or revision == self.last + 1, f"entry {revision} after {self.last}")
        self.texts[revision], self.last = written, revision

    def _body(self, key: bytes) -> bytes | None:
        """Return an entry, once all its parts are there."""
        row = self._state.row(key)
        if row is None:
            return None
        first = first_part(key, row.value)
        rest = [self._state.row(part(key, number)) for number in range(1, first.parts)]
        bodies = [one.value for one in rest if one is not None]
        return b"".join((first.body, *bodies)) if len(bodies) == len(rest) else None


class SimulatedHead:
    """One life of a head.

    Attributes:
        name: Under which it is known.
        host: As the loop knows this life.
        terms: In which it led.
        is_dead: It was killed.
    """

    def __init__(self, world: "EtcdWorld", name: str, life: int) -> None:
        self.name = name
        self.terms: list[int] = []
        self.is_dead = False
        self._world = world
        self.host = f"{name}{life}"
        client = SimulatedClient(world.cluster, name, try_ms=TRY_MS)
        self._leadership = Leadership(world.loop.time)
        identity = Identity(name, home=name)
        self._election = EtcdElection(
            client, world.layout, self._leadership, identity=lambda: identity, ttl_ms=TTL_MS
        )
        self._journal = EtcdJournal(client, world.layout, self._leadership)
        if not world.has_lane:
            self._journal._lane = NoLane(client, world.layout, self._leadership)
        self._random = random.Random(f"{world.seed}/{name}/{life}")
        self._revision, self._text = 0, ""
        self._leads = False

    async def resign(self) -> None:
        """Let another lead."""
        await self._election.resign()

    async def live(self) -> None:
        """Follow and campaign, lead, and again."""
        while True:
            self._leads = False
            try:
                async with anyio.create_task_group() as group:
                    group.start_soon(self._journal.follow, self._loaded, self._written)
                    term = await self._election.campaign(last_term=0, wall_ms=0)
                    self.terms.append(term)
                    async with self._election.held():
                        await self._take_over()
                        await self._lead(term)
            except* DeposedError:
                self._world.deposed += 1

    async def _loaded(self, loaded: Loaded) -> None:
        if self._leads:
            # What it was reading when it took over.
            return
        self._revision, self._text = recovered(loaded)

    def _written(self, written: Written) -> None:
        for entry in written.entries:
            text = text_of(entry)
            _must(entry.revision == self._revision + 1, f"told {entry.revision} out of turn")
            _must(text.startswith(hash_of(self._text)), f"told {entry.revision} of another chain")
            self._revision, self._text = entry.revision, text

    async def _take_over(self) -> None:
        self._leads = True
        while True:
            with suppress(StoreUnavailableError):
                self._leadership.check()
                if await self._journal.caught_up():
                    self._world.warm += 1
                else:
                    self._world.cold += 1
                    await self._load()
                self._world.took_over(self._revision, self._text)
                return
            self._leadership.check()
            await anyio.sleep(0.05)

    async def _lead(self, term: int) -> None:
        while True:
            try:
                await self._write(term)
                self._act()
            except StoreUnavailableError as error:
                if isinstance(error, DeposedError):
                    raise
                await self._reload()
            await anyio.sleep(self._random.choice((0.0, 0.02, 0.1, 0.5)))

    async def _reload(self) -> None:
        """Read what there is, for it is not known what was written."""
        while True:
            await anyio.sleep(0.05)
            with suppress(StoreUnavailableError):
                self._leadership.check()
                await self._load()
                return
            self._leadership.check()

    async def _load(self) -> None:
        loaded = await self._journal.load()
        self._revision, self._text = recovered(loaded)

    async def _write(self, term: int) -> None:
        revision = self._revision + 1
        size = LARGE if self._random.random() < 0.01 else 3
        text = f"{hash_of(self._text)} {self.host} {'x' * size}"
        entry = entry_of(revision, term, text)
        is_due = self._random.random() < 0.1
        snapshots = (Snapshot("", revision, text.encode()),) if is_due else ()
        keep_from = max(0, revision - self._random.choice((0, 3, 30))) if is_due else 0
        await self._journal.append(entry, snapshots, keep_from)
        self._revision, self._text = revision, text
        self._world.recorded(revision, text)

    def _act(self) -> None:
        """Do something outside, as who leads may."""
        if self._leadership.left_s:
            self._world.acted(self, self._leadership.created)


class EtcdWorld:
    """One run of a seed.

    Attributes:
        seed: Of all that is drawn.
        has_lane: False: writes compare the leader key alone.
        acknowledged: Text of each entry that a head was told to be durable.
        warm: How often a leader went on from what it had followed.
        cold: How often it had to read all.
        deposed: How often a leader learned that it leads no more.
        actions: What leaders did outside.
    """

    def __init__(self, seed: int, *, has_lane: bool = True) -> None:
        self.seed = seed
        self.has_lane = has_lane
        self.schedule = Schedule()
        self.loop = VirtualLoop(self.schedule)  # type: ignore[abstract]
        self.layout = Layout("c1")
        self.acknowledged: dict[int, str] = {}
        self._random = random.Random(f"{seed}/etcd")
        self.cluster = EtcdCluster(self.schedule, self.loop, random.Random(f"{seed}/ways"))
        self.durable = Durable(self.layout, self.cluster)
        self.heads: dict[str, SimulatedHead] = {}
        self.lives = 0
        self.actions = 0
        self.warm = 0
        self.cold = 0
        self.deposed = 0
        self._was_frozen: set[str] = set()
        self._broken: list[BaseException] = []

    # What heads tell.

    def recorded(self, revision: int, text: str) -> None:
        """Note what a head was told to be durable."""
        _must(self.durable.texts.get(revision) == text, f"entry {revision} is another head's")
        self.acknowledged[revision] = text

    def took_over(self, revision: int, text: str) -> None:
        """See that a new leader goes on from the newest entry."""
        texts = self.durable.texts
        _must(revision == self.durable.last, f"a leader begins at {revision}, not at the newest")
        _must(not revision or texts[revision] == text, f"a leader has another entry {revision}")

    def acted(self, head: SimulatedHead, created: int) -> None:
        """See that who acts leads; one that stood still may learn it a moment too late."""
        self.actions += 1
        row = self.cluster.state.row(self.layout.leader)
        leads = row is not None and row.create_revision == created
        _must(leads or head.name in self._was_frozen, f"head {head.name} acted, and led no more")

    # A run.

    def run(self) -> "EtcdWorld":
        """Play the seed to its end.

        Raises:
            AnomalyError: Something was that must never be.
        """
        random.seed(self.seed)
        with no_threads():
            for name in HEADS:
                self._start(name)
            self._expire()
            for at_ms in sorted(self._random.randrange(TROUBLE_MS) for _ in range(self._count())):
                self.schedule.later(at_ms, self._trouble)
            self._until(TROUBLE_MS)
            self._calm()
            before = len(self.acknowledged)
            self._until(TROUBLE_MS + CALM_MS)
            _must(len(self.acknowledged) > before, "nobody writes though all is well")
            self._look_at_the_end()
        return self

    def _count(self) -> int:
        return self._random.choice((1, 3, 8, 20))

    def _until(self, at_ms: int) -> None:
        while self.schedule.step(at_ms):
            if self._broken:
                raise self._broken[0]
        for error in self.loop.failures:
            raise error

    def _start(self, name: str) -> None:
        self.lives += 1

        def begin() -> None:
            self.heads[name] = SimulatedHead(self, name, self.lives)
            self.spawn(self.heads[name].live(), self.heads[name].host)

        self.loop.call_soon(begin)

    def spawn(self, work: Coroutine[Any, Any, None], host: str) -> None:
        """Start a task of a host; it must not fail."""

        async def guarded() -> None:
            HOST.set(host)
            try:
                await work
            except BaseException as error:  # noqa: BLE001 - told to who plays the world
                self._broken.append(error)

        def begin() -> None:
            self.loop.create_task(guarded())

        self.loop.call_soon(begin)

    def _expire(self) -> None:
        self.cluster.tick()
        self.schedule.later(100, self._expire)

    # Trouble.

    def _trouble(self) -> None:
        kinds: tuple[Callable[[], None], ...] = (
            self._stop_member,
            self._stop_member,
            self._kill_member,
            self._cut_way,
            self._cut_head,
            self._freeze_head,
            self._kill_head,
            self._resign,
            self._slow,
            self._compact,
        )
        self._random.choice(kinds)()

    def _duration_ms(self) -> int:
        return self._random.choice((200, 600, 1_500, 4_000, 9_000))

    def _stop_member(self) -> None:
        number = self._random.randrange(3)
        self.cluster.stop(number)
        self.schedule.later(self._duration_ms(), self.cluster.go_on, number)

    def _kill_member(self) -> None:
        number = self._random.randrange(3)
        self.cluster.kill(number)
        self.schedule.later(self._duration_ms(), self.cluster.go_on, number)

    def _cut_way(self) -> None:
        way = (self._random.choice(HEADS), self._random.randrange(3))
        self.cluster.cut.add(way)
        self.schedule.later(self._duration_ms(), self.cluster.cut.discard, way)

    def _cut_head(self) -> None:
        name = self._random.choice(HEADS)
        ways = {(name, number) for number in range(3)}
        self.cluster.cut |= ways
        self.schedule.later(self._duration_ms(), self.cluster.cut.difference_update, ways)

    def _freeze_head(self) -> None:
        name = self._random.choice(HEADS)
        self._was_frozen.add(name)
        until_ms = self.schedule.now_ms + self._duration_ms()
        self.loop.freeze(self.heads[name].host, until_ms)

    def _kill_head(self) -> None:
        head = self.heads[self._random.choice(HEADS)]
        if not head.is_dead:
            head.is_dead = True
            self.loop.bury(head.host)
            self.schedule.later(self._duration_ms(), self._start, head.name)

    def _resign(self) -> None:
        for head in self.heads.values():
            if not head.is_dead:
                self.spawn(head.resign(), head.host)

    def _slow(self) -> None:
        self.cluster.delay_ms = self._random.choice(((1, 4), (5, 150), (100, 700)))

    def _compact(self) -> None:
        self.cluster.state.compacted = self.cluster.state.revision

    def _calm(self) -> None:
        for number in range(3):
            self.cluster.go_on(number)
        self.cluster.cut.clear()
        self.cluster.delay_ms = (1, 4)

    def _look_at_the_end(self) -> None:
        """See that what was told to be durable is, and that the journal is one chain."""
        texts = self.durable.texts
        for revision, text in self.acknowledged.items():
            _must(texts.get(revision) == text, f"entry {revision} was recorded, and is another")
        for revision in range(2, self.durable.last + 1):
            before = hash_of(texts[revision - 1])
            _must(texts[revision].startswith(before), f"entry {revision} does not follow")
        found: list[Loaded] = []

        async def load() -> None:
            client = SimulatedClient(self.cluster, "reader", try_ms=TRY_MS)
            found.append(await EtcdJournal(client, self.layout, Leadership()).load())

        newest = max(self.acknowledged)
        self.spawn(load(), "reader")
        self._until(self.schedule.now_ms + 2_000)
        revision, text = recovered(found[0])
        _must(revision >= newest, "the newest entries are gone")
        _must(texts[revision] == text, "what is recovered is not what was written")


def entry_of(revision: int, term: int, text: str) -> Entry:
    """Return an entry that says so."""
    return Entry(SCHEMA, term, revision, revision, (Record("", -1, "engine", NodeWentAway(text)),))


def text_of(entry: Entry) -> str:
    """Return what an entry says."""
    event = entry.records[0].event
    assert isinstance(event, NodeWentAway)
    return event.node


def recovered(loaded: Loaded) -> tuple[int, str]:
    """Return revision and text of the last entry, and see that all fits together."""
    revision, text = 0, ""
    if (snapshot := loaded.snapshots.get("")) is not None:
        revision, text = snapshot.covers, snapshot.body.decode()
    for entry in loaded.entries:
        if entry.revision <= revision:
            continue
        _must(entry.revision == revision + 1, f"entry {entry.revision} follows {revision}")
        _must(text_of(entry).startswith(hash_of(text)), f"entry {entry.revision} does not follow")
        revision, text = entry.revision, text_of(entry)
    return revision, text


def hash_of(text: str) -> str:
    """Return a few letters that stand for a text, the same in every process."""
    return f"{random.Random(text).getrandbits(64):016x}"


def _must(holds: object, text: str) -> None:
    if not holds:
        raise AnomalyError(text)
