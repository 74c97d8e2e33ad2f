"""The whole world of one run: hosts, the store, heads that come and go, people; and its end."""

import random
from collections.abc import Callable, Iterator
from functools import partial

from msgspec.structs import replace

from primusd.admission.events import QueueSet, UncordonRequested
from primusd.core import World
from primusd.executor.protocol import Exit, Orders, Refused, Welcome
from primusd.job import events as ev
from primusd.job.ids import AttemptId
from primusd.job.model import Job
from primusd.job.phases import JobPhase
from primusd.job.spec import JobSpec, Resources, RoleSpec
from primusd.node.protocol import NodeHello, NodeOrders
from primusd.records import Event, Proposal
from primusd.sweep import Strays
from tests.simulation.checks import HEAD_DEEDS, Checks
from tests.simulation.etcd_head import EtcdHead, EtcdStore
from tests.simulation.executor import Executor
from tests.simulation.features import spec_of
from tests.simulation.files import Files
from tests.simulation.head import Head
from tests.simulation.host import Host, Size
from tests.simulation.keeping import Keeping, NodesLauncher
from tests.simulation.registry import NodeRegistry, Registry
from tests.simulation.schedule import Schedule
from tests.simulation.script import DEEDS_MS, PlannedJob, Script
from tests.simulation.store import Copy, Store
from tests.simulation.trainer import Act, act_of
from tests.simulation.wire import WEATHERS, Line, Wire

LIFE_MS = 7 * 86_400_000
"""Virtual; no job here may need longer by time alone."""
CALLS_MAX = 40_000
"""Of the schedule; a run that needs more goes round in circles."""
ETCD_CALLS_MAX = 100 * CALLS_MAX
"""Where heads renew leases all the time."""
TOO_MANY = "12: the run goes round in circles"
CARE_EVERY_MS = 120_000
SUBMIT_TRIES = 60
LONG_MS = 80_000
DEPOSED_MS = 1_000
"""Until who led is there again."""
QUIET_MS = 400_000
QUIET_CALM_MS = 75_000
"""From the last job's end until nothing may be left: stops, releases, ports that rest."""


class Town:
    """One cluster.

    Attributes:
        heads: Every life of a daemon so far, the newest last.
        is_calm: Fate has done with this run.
        exits: How attempts ended, as their executors saw it.
        ended_by_people: What a person wanted ended.
        has_lost_knowledge: The store was set back: what it forgot, nobody ends but a person.
    """

    def __init__(self, script: Script, checks: Checks | None = None) -> None:
        self.script = script
        self.schedule = Schedule()
        self.random = random.Random(f"{script.seed}/world")
        weather = WEATHERS[script.weather]
        self.wire = Wire(self.schedule, weather, random.Random(f"{script.seed}/wire"))
        self.etcd = EtcdStore(self.schedule, script.seed) if script.store == "etcd" else None
        self.store = self.etcd or Store(is_encoded=weather.is_encoded)
        self.checks = checks or Checks()
        self.files = Files()
        self.heads: list[Head] = []
        self.strays = Strays()
        self.is_calm = False
        self.has_lost_knowledge = False
        self.backup: Copy | None = None
        self.diary: list[str] = []
        self._keepings: dict[Head, Keeping] = {}
        self._launchers: dict[Head, NodesLauncher] = {}
        self._registries: dict[Head, tuple[Registry, NodeRegistry]] = {}
        self._lines: dict[Head, list[Line]] = {}
        self._calls = 0
        self._calls_max = CALLS_MAX if self.etcd is None else ETCD_CALLS_MAX
        self._submitted: set[str] = set()
        self._planned = {f"j{one.number}" for one in script.jobs}
        self._living = ""
        """A job that was not at its end when all were looked at last."""
        self._rushes = 0
        self.exits: dict[AttemptId, Exit] = {}
        self.ended_by_people: set[AttemptId] = set()
        self.hosts = {
            name: Host(name, Size(), self, self.schedule, self.wire)
            for name in (f"n{number}" for number in range(1, script.hosts + 1))
        }

    # Heads.

    @property
    def head(self) -> Head | None:
        """The newest head, None while it is dead."""
        newest = self.heads[-1]
        return None if newest.is_dead else newest

    @property
    def world(self) -> World:
        """What is durable."""
        return self.store.world

    @property
    def jobs(self) -> dict[str, Job]:
        """The jobs that the store knows."""
        return dict(self.store.world.jobs)

    def start_head(self) -> Head:
        """Start a daemon; those before it may live on for a while."""
        skew_ms = self.heads[-1].clock.skew_ms if self.heads else 0
        head = self._new_head(skew_ms)
        self.strays = Strays()
        launcher = NodesLauncher(lambda: head.term)
        self._launchers[head] = launcher
        self._registries[head] = (Registry(head, self.strays), NodeRegistry(head, launcher))
        self._keepings[head] = Keeping(head, launcher, self.files, self.strays)
        self._lines[head] = []
        self.heads.append(head)
        head.start()
        return head

    def _new_head(self, skew_ms: int) -> Head:
        if self.etcd is None:
            return Head(self.schedule, self.store, self.checks, skew_ms=skew_ms)
        taken = {one.host for one in self.heads if isinstance(one, EtcdHead) and not one.is_dead}
        host = next(name for name in ("h1", "h2", "h3", "h4") if name not in taken)
        head = EtcdHead(self.schedule, self.etcd, self.checks, skew_ms=skew_ms, host=host)
        head.on_deposed = partial(self._deposed, head)
        return head

    def _deposed(self, head: Head) -> None:
        """Let a head that leads no more end, and be started anew."""
        self.note("a head leads no more")
        for line in self._lines[head]:
            line.end()
        self.schedule.later(DEPOSED_MS, self._start_unless_there)

    def _start_unless_there(self) -> None:
        if self.head is None:
            self.start_head()

    def kill_head(self, head: Head, *, lands: bool) -> None:
        """Kill a daemon; its connections break."""
        head.kill(lands=lands)
        self.note("a head dies")
        for line in self._lines[head]:
            line.end()

    def end_attempt(self, attempt: AttemptId) -> None:
        """Let a person end what the store does not know."""
        head = self.head
        if head is not None:
            self.strays.take_in(attempt)
            self.ended_by_people.add(attempt)
            for host in self.hosts.values():
                if attempt in host.directories:
                    launcher = self._launchers[head]
                    launcher.end_now(attempt, host.name, is_release=True)

    def is_undisturbed(self, head: Head, for_ms: int) -> bool:
        """Return whether a head has led for so long, and nothing kept it from working."""
        quiet = self.script.deeds and not any(
            deed.name in HEAD_DEEDS and deed.at_ms > self.schedule.now_ms - for_ms - 100_000
            for deed in self.script.deeds
        )
        return bool(quiet) and head is self.head and head.outage is None

    # What hosts ask for.

    def _line_to_head(self, host: Host) -> tuple[Head, Line] | None:
        head = self.head
        if head is None or head.outage is not None or host.name in self.wire.cut:
            return None
        line = Line(self.wire, self.schedule, host.name)
        lines = self._lines[head]
        if len(lines) > 50:
            lines[:] = [one for one in lines if one.is_open]
        lines.append(line)
        return head, line

    def dial_node(self, host: Host) -> Line | None:
        """Return a node's line to the head, its hello on the way."""
        found = self._line_to_head(host)
        if found is None:
            return None
        head, line = found

        def to_host(orders: NodeOrders) -> None:
            host.hear(line, orders)

        def greet(hello: NodeHello) -> None:
            if self._registries[head][1].connect(hello, line, to_host):
                line.send(1, host.welcomed)
            else:
                line.end()

        line.send(0, head.later, 0, greet, host.hello())
        return line

    def dial_executor(self, host: Host, executor: Executor) -> Line | None:
        """Return an executor's line to the head, its hello on the way."""
        found = self._line_to_head(host)
        if found is None:
            return None
        head, line = found

        def to_host(message: Welcome | Refused | Orders) -> None:
            executor.hear(line, message)

        registry = self._registries[head][0]
        line.send(0, head.later, 0, registry.hello, executor.hello(), line, to_host)
        return line

    def act_of(self, attempt: AttemptId) -> Act:
        """Return what an attempt's run will do."""
        job = self.world.jobs.get(attempt.job)
        role = job.spec.roles.get(attempt.role) if job is not None else None
        is_helper = role is not None and role.success.kind == "never"
        trouble = 0.0 if self.is_calm else self.wire.weather.trouble_share
        act = act_of(attempt, self.script.seed, trouble, is_endless=is_helper)
        is_long = job is not None and job.spec.labels.get("work") == "long"
        return replace(act, run_ms=act.run_ms + LONG_MS) if is_long else act

    def trainer_started(self, host: Host, executor: Executor) -> None:
        """See to it that no replica has two trainers."""
        self.checks.trainer_started(self, host, executor)

    def exited(self, attempt: AttemptId, exit_: Exit) -> None:
        """Remember how an attempt ended in truth."""
        self.exits[attempt] = exit_

    def ends_by_force(self, executor: Executor) -> None:
        """See to it that only knowledge kills."""
        self.checks.ends_by_force(self, executor)

    def executors(self) -> Iterator[tuple[Host, Executor]]:
        """Yield every executor that lives."""
        for host in self.hosts.values():
            for executor in host.live:
                yield host, executor

    # People.

    def note(self, text: str) -> None:
        """Write something into the diary of the run."""
        self.diary.append(f"{self.schedule.now_ms / 1000:10.3f} s  {text}")

    def ask(self, machine: str, event: Event) -> None:
        """Let a person ask for something; refused or not, that is right."""
        head = self.head
        if head is not None:
            head.propose((Proposal(machine, event, "uid:1 (ann)"),))

    def _submit(self, planned: PlannedJob, tries: int = 0) -> None:
        """Submit a job, and again until the store has it: the key makes it one."""
        uid = f"j{planned.number}"
        if uid in self._submitted:
            return
        if tries == SUBMIT_TRIES:
            # The job that it is to come after is forgotten.
            self._submitted.add(uid)
            return
        spec = spec_of(self.script.seed, planned.number, planned.features)
        # The API finds the uids of the names in `after`.
        uids = {name: name.replace("job", "j") for name in spec.after}
        after = tuple(found for found in uids.values() if found in self._planned)
        if len(after) < len(uids):
            known = tuple(name for name in spec.after if uids[name] in self._planned)
            spec = replace(spec, after=known)
        submitted = ev.JobSubmitted(uid, spec, {}, "ann", key=uid, spec_digest="d", after=after)
        self.ask(uid, submitted)
        self.schedule.later(2_000, self._submit, planned, tries + 1)

    def submit_rush(self, gpus: int) -> None:
        """Submit a job of the highest priority."""
        self._rushes += 1
        uid = f"r{self._rushes}"
        count = len(self.hosts)
        role = RoleSpec("worker", count, count, "train", resources=Resources(gpu=gpus))
        spec = JobSpec(uid, {"worker": role}, priority=100)
        self.ask(uid, ev.JobSubmitted(uid, spec, {}, "boss", key=uid, spec_digest="d"))

    # A run.

    def run(self, deeds: dict[str, Callable[["Town", random.Random], None]]) -> None:
        """Play the script to its end, and prove that nothing is left."""
        self.start_head()
        for host in self.hosts.values():
            host.start()
        for planned in self.script.jobs:
            self.schedule.later(planned.arrives_ms + 300, self._submit, planned)
        for deed in self.script.deeds:
            self.schedule.later(deed.at_ms, self._do, deeds, deed.name, deed.chance)
        calm_ms = max((one.at_ms for one in self.script.deeds), default=0)
        self.schedule.later(min(calm_ms, DEEDS_MS) + 60_000, self._calm)
        self._until(self._is_over)
        self.checks.all_over(self)
        is_troubled = self.script.deeds or WEATHERS[self.script.weather].trouble_share
        quiet_ms = self.schedule.now_ms + (QUIET_MS if is_troubled else QUIET_CALM_MS)
        while self.schedule.now_ms < quiet_ms and self.schedule.step(quiet_ms):
            self._calls += 1
            assert self._calls < self._calls_max, TOO_MANY
        self.checks.nothing_left(self)

    def _do(
        self, deeds: dict[str, Callable[["Town", random.Random], None]], name: str, chance: int
    ) -> None:
        self.note(name)
        deeds[name](self, random.Random(f"{self.script.seed}/{name}/{chance}"))

    def _calm(self) -> None:
        """Mend everything: from here on time alone has to bring all jobs to their ends."""
        self.note("all is calm")
        self.is_calm = True
        self.wire.cut.clear()
        is_encoded = self.wire.weather.is_encoded
        self.wire.weather = replace(WEATHERS["calm"], is_encoded=is_encoded)
        self.store.is_full, self.store.latency_ms = False, 1
        if self.etcd is not None:
            self.etcd.calm()
        self.files.is_gone = False
        if self.head is None:
            self.start_head()
        for host in self.hosts.values():
            host.fork_fails = False
            host.boot_up()
        self.schedule.later(CARE_EVERY_MS, self._care)

    def _care(self) -> None:
        """Do what only a person can: for jobs that wait for one, and for strays."""
        strays = {one.listed.attempt for one in self.strays.all()} | self.strays.ahead
        for attempt in sorted(strays):
            self.end_attempt(attempt)
        for queue in ("default", "prod"):
            self.ask("", QueueSet(queue))
        for name, node in self.world.admission.nodes.items():
            if node.phase == "Cordoned":
                self.ask("", UncordonRequested(name))
        for uid, job in self.jobs.items():
            if not job.is_final and self.checks.waits_for_a_person(self, job):
                is_first = job.phase is JobPhase.SUSPENDED and not job.suspended_ms
                self.ask(uid, ev.ResumeRequested() if is_first else ev.CancelRequested("enough"))
        if not self._is_over():
            self.schedule.later(CARE_EVERY_MS, self._care)

    def _is_over(self) -> bool:
        jobs = self.store.world.jobs
        if not self._planned <= self._submitted:
            self._submitted.update(jobs)
            if not self._planned <= self._submitted:
                return False
        if self.script.deeds and not self.is_calm:
            return False
        witness = jobs.get(self._living)
        if witness is not None and not witness.is_final:
            return False
        self._living = next((uid for uid, job in jobs.items() if not job.is_final), "")
        return not self._living

    def _until(self, holds: Callable[[], bool]) -> None:
        revision = -1
        heads, step = self.heads, self.schedule.step
        while True:
            if heads[-1].revision != revision or self._calls % 50 == 0:
                revision = heads[-1].revision
                if holds():
                    return
            if not step(LIFE_MS):
                raise AssertionError("12: a job does not end by time alone")
            self._calls += 1
            assert self._calls < self._calls_max, TOO_MANY

    @property
    def timers(self) -> dict[str, int]:
        """Machines for which the newest head's timer is set."""
        return self._keepings[self.heads[-1]].timers
