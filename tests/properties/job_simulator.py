"""A small world with faults around the core: processes, a launcher, people, a clock; one seed.

Edges are honest: they say what is so, late, doubled or not at all, as docs/protocol.md lets them.
Whatever they say that a table refuses is a finding. `lie` says anything at all, which may be
refused but never breaks the core.
"""

import random
from collections import Counter

from msgspec import Struct
from msgspec.structs import replace

from primusd import core
from primusd.admission import events as adm
from primusd.core import World
from primusd.executor.protocol import Exit, Hold, Leave, Start, Stop
from primusd.job import events as ev
from primusd.job import invariants
from primusd.job import job as machine
from primusd.job.commands import ReleaseAttempt, StopAttempt
from primusd.job.ids import AttemptId, Span
from primusd.job.machine import At, Ignore
from primusd.job.model import Attempt, Job, find_attempt, find_replica, replicas_of
from primusd.job.phases import AttemptPhase, JobPhase
from primusd.job.rules import endless_rule
from primusd.job.run_order import run_order
from primusd.job.spec import (
    Budgets,
    FailureRule,
    Hang,
    JobSpec,
    Reading,
    Ready,
    Resources,
    Restart,
    RoleSpec,
    Source,
    StreamSpec,
    Success,
)
from primusd.job.spec import (
    Stop as StopSpec,
)
from primusd.records import Entry, Event, Proposal

UID = "j1"
SELDOM = (JobPhase.QUEUED, JobPhase.DRAINING, JobPhase.SUSPENDED)
"""Phases that are short: people are quick then, so that every cell is reached."""
OVER = (AttemptPhase.ENDED, AttemptPhase.GONE)
FOURTH = 1 << 38
"""Of a node's memory: what a replica of an elastic role takes, so that not all have a place."""
DEADLINE_MS = 3_600_000
ATTEMPT_EVENTS = machine.ATTEMPT_EVENTS


class Process:
    """An executor with its trainer, as its host sees them."""

    def __init__(self) -> None:
        self.is_alive = True
        self.is_registered = False
        self.is_holding = False
        self.is_silent = False
        self.trainer_pid = 0
        self.exit: Exit | None = None
        self.word = ""
        self.has_checkpoint = False


class Wish(Struct, frozen=True):
    """What one seed draws before it begins."""

    fault_share: float
    lie_share: float
    people_share: float
    seldom_share: float


WISHES = (
    Wish(0, 0, 0, 0.6),
    Wish(0.05, 0, 0, 0),
    Wish(0.05, 0, 0.3, 0.4),
    Wish(0.2, 0.3, 0, 0.3),
    Wish(0.2, 0, 0.1, 0),
    Wish(0.5, 0.1, 0.1, 0.4),
)
"""Many runs with few kinds of faults find more than one average run."""


class Simulation:
    """One run: `faults` for a number of steps, then `calm` until the job is final."""

    def __init__(self, seed: int, *, has_deadline: bool = False) -> None:
        self.random = random.Random(seed)
        self.world = World()
        self.now_ms = 1_000_000
        self.revision = 0
        self.entries: list[Entry] = []
        self.processes: dict[AttemptId, Process] = {}
        self.covered: Counter[tuple[str, str]] = Counter()
        self.log: list[str] = []
        self.has_faults = True
        self.has_deadline = has_deadline
        self.end = ""
        rnd = self.random
        self.wish = rnd.choice(WISHES)
        # Of its own, so that a seed's faults stay what they were.
        self.rules = random.Random(f"rules of {seed}")
        self.nodes = [f"n{number}" for number in range(rnd.randint(1, 3))]
        if rnd.random() < 0.8:
            self.see_nodes()
        self.say(UID, ev.JobSubmitted(UID, self._spec(), {}, "ann"))

    @staticmethod
    def _node(name: str) -> adm.NodeSeen:
        return adm.NodeSeen(name, "local", "b1", "0", 64_000, 1 << 40, 0, 20_000, 20_399)

    def _spec(self) -> JobSpec:
        rnd = self.random
        data: dict[str, StreamSpec] = {}
        if rnd.random() < 0.3:
            leftover = rnd.choice(("fail", "allow"))
            data["rows"] = StreamSpec("rows", (Source("/data"),), leftover=leftover)
        policy = rnd.choice(("gang", "gang", "gang", "dynamic", "ordered"))
        roles = {name: self._ruled(self._role(name, has_data=bool(data))) for name in self._names()}
        spec = JobSpec(
            "sim",
            self._in_order(roles, policy),
            data=data,
            policy=policy,
            gate=rnd.choice(("started", "ready")),
            step=rnd.choice((0, 0, 1, 2)) if policy == "ordered" else 0,
            framework=rnd.choice(("none", "torch")),
            budgets=Budgets(rnd.randint(0, 3), rnd.choice((0, 1, 1, 4))),
            deadline_ms=DEADLINE_MS if self.has_deadline else rnd.choice((0, 0, DEADLINE_MS)),
            deadline_warn_ms=300_000,
            max_replica_ms=rnd.choice((0, 0, 1_800_000)),
            replace_after_ms=rnd.choice((50_000, 300_000, -1)),
            gang_roles=(next(iter(roles)),) if policy == "gang" and rnd.random() < 0.15 else (),
            failure=self._failure(),
            hang=Hang(1_800_000, self.rules.choice(("report", "restart"))),
            reruns=self.rules.choice((0, 0, 1, 2)),
        )
        # What completes runs again for ever: only a deadline ends such a job.
        is_endless = any(endless_rule(spec, role) for role in roles)
        return replace(spec, deadline_ms=DEADLINE_MS) if is_endless else spec

    def _failure(self) -> tuple[FailureRule, ...]:
        """Return rules for some of what ends here."""
        rnd = self.rules
        rules = []
        for _ in range(rnd.choice((0, 0, 1, 3))):
            action = rnd.choice(("restart", "restart", "fail", "giveUp", "complete"))
            found = FailureRule(
                action,
                rnd.choice(((), ("crashed",), ("outOfMemory", "lost"), ("completed",))),
                rnd.choice(((), (), (1, 137), (0,))),
                rnd.choice(((), (), (15,))),
            )
            if action == "restart":
                found = replace(
                    found,
                    budget=rnd.choice(("", "application", "infrastructure", "none")),
                    unit=rnd.choice(("", "", "replica", "role", "job")),
                    delay_ms=rnd.choice((-1, 1_000, 60_000)),
                    memory_per_mille=rnd.choice((1000, 1500)),
                    exclude_node_ms=rnd.choice((0, 0, 600_000)),
                )
            rules.append(found)
        return tuple(rules)

    def _ruled(self, role: RoleSpec) -> RoleSpec:
        """Return a role with what its ends may ask for: memory, ports, a bound for one replica."""
        rnd = self.rules
        memory = role.resources.memory_bytes or rnd.choice((0, FOURTH // 4))
        own = Budgets(2, 3, replica=rnd.choice((0, 1))) if rnd.random() < 0.2 else role.budgets
        return replace(
            role,
            resources=Resources(memory_bytes=memory),
            restart=replace(role.restart, keep_ports=rnd.random() < 0.3),
            budgets=own,
        )

    def _in_order(self, roles: dict[str, RoleSpec], policy: str) -> dict[str, RoleSpec]:
        """Let some roles wait for earlier ones, as a job file may say."""
        names = list(roles)
        found = dict(roles)
        for place, name in enumerate(names[1:], start=1):
            if self.random.random() >= 0.3:
                continue
            other = self.random.choice(names[:place])
            gates = ["started", "ready"]
            is_voter = "never" not in (roles[other].success.kind, roles[name].success.kind)
            if is_voter and policy != "gang":
                gates.append("completed")
            found[name] = replace(found[name], depends_on={other: self.random.choice(gates)})
        return found

    def _names(self) -> tuple[str, ...]:
        return self.random.choice((("w",), ("w", "ps"), ("w", "eval"), ("chief", "w", "eval")))

    def _role(self, name: str, *, has_data: bool) -> RoleSpec:
        rnd = self.random
        kind = rnd.choice(("all", "all", "any", "percent"))
        if name in ("ps", "eval"):
            kind = "never"
        count = rnd.randint(1, 3)
        minimum = rnd.choice((count, count, 1))
        return RoleSpec(
            name,
            count,
            minimum,
            "x",
            Resources(memory_bytes=FOURTH if minimum < count else 0),
            ready=rnd.choice((None, None, Ready("sdk"))),
            has_minimum=rnd.random() < 0.3,
            success=Success(kind, rnd.choice((50, 100))),
            drain_ms=60_000 if name == "eval" else 0,
            restart=Restart(rnd.choice(("replica", "role", "job")), rnd.choice((1_000, 10_000))),
            data=(Reading("rows"),) if has_data and name == "w" else (),
            stop=StopSpec(grace_ms=rnd.choice((0, 30_000))),
            ports=rnd.choice((("main",), ("main", "aux"), ())),
        )

    def see_nodes(self) -> None:
        """Let all nodes be there and take work."""
        for name in self.nodes:
            self.say("", self._node(name))
            if self.world.admission.nodes[name].phase == "Excluded":
                self.say("", adm.ForgiveRequested(name))

    # The core.

    @property
    def job(self) -> Job:
        return self.world.jobs[UID]

    def say(self, to: str, *events: Event, by: str = "sim", is_lie: bool = False) -> None:
        """Propose events in one step, and check everything."""
        if to == UID and UID in self.world.jobs:
            self.log += [f"{self.now_ms} {type(one).__name__}" for one in events]
        before = self.world
        step = core.step(
            before,
            [Proposal(to, event, by) for event in events],
            at_ms=self.now_ms,
            term=1,
            revision=self.revision + 1,
        )
        for event, answer in zip(events, step.answers, strict=True):
            assert not isinstance(answer, core.Raised), answer.text
            if isinstance(answer, core.Rejected):
                assert is_lie, f"an honest edge was refused: {event}: {answer.error}"
            self._cover(before, event, answer)
        if step.entry is not None:
            self.revision += 1
            self.entries.append(step.entry)
            self._cover_records(before, step.world, step.entry)
        self.world = step.world
        invariants.check(self.world)
        invariants.check_change(before, self.world)

    def _cover(self, before: World, event: Event, answer: object) -> None:
        """Count what was ignored; what was recorded is counted from its record."""
        job = before.jobs.get(UID)
        if job is not None and isinstance(answer, core.Ignored):
            self._count(job, event)

    def _cover_records(self, before: World, after: World, entry: Entry) -> None:
        """Apply the job's records one by one: count their cells, and compare with the step."""
        state: Job | None = before.jobs.get(UID)
        for position, record in enumerate(entry.records):
            if record.machine != UID:
                continue
            if state is not None:
                self._count(state, record.event)
            at = At(entry.at_ms, entry.revision, position, record.by, record.cause, entry.term)
            one = machine.apply(state, record.event, at)  # type: ignore[arg-type] # of a job
            assert not isinstance(one, Ignore)
            if one is not None and one is not state:
                one = replace(one, changed_revision=entry.revision)
            state = one
        assert state == after.jobs.get(UID), "11: the records lead elsewhere"

    def _count(self, job: Job, event: Event) -> None:
        name = type(event).__name__
        if type(event) in ATTEMPT_EVENTS:
            attempt = find_attempt(job, event.attempt)  # type: ignore[union-attr,arg-type] # its id
            self.covered["any attempt event", str(job.phase)] += 1
            if attempt is not None:
                self.covered[name, str(attempt.phase)] += 1
            return
        if type(event) not in machine.DECIDED_EVENTS or name == "RoleRestarted":
            self.covered[name, str(job.phase)] += 1
            return
        for role, index in _named(event):
            replica = find_replica(job, role, index)
            if replica is None:
                continue
            is_attempts = name in ("StopDecided", "GateOpened")
            phase = replica.attempts[-1].phase if is_attempts else replica.phase
            self.covered[name, str(phase)] += 1

    # The world.

    def attempts(self) -> list[tuple[AttemptId, Attempt]]:
        if UID not in self.world.jobs:
            return []
        return [
            (AttemptId(UID, role.name, replica.index, attempt.number), attempt)
            for role in self.job.roles.values()
            for replica in replicas_of(role)
            for attempt in replica.attempts
        ]

    def known(self, name: AttemptId) -> Attempt | None:
        return find_attempt(self.job, name) if UID in self.world.jobs else None

    def live_step(self, *, has_faults: bool) -> None:
        """Let one thing happen."""
        rnd = self.random
        todo = [one for one in self.attempts() if one[1].phase is not AttemptPhase.GONE]
        is_drain = self.job.phase is JobPhase.DRAINING
        if has_faults or is_drain:
            if has_faults and rnd.random() < self.wish.lie_share:
                self.lie()
                return
            is_seldom = self.job.phase in SELDOM and self.wish.seldom_share > 0
            share = self.wish.seldom_share if is_seldom else self.wish.people_share
            if rnd.random() < share:
                self.people()
                return
        if not todo or rnd.random() < 0.15:
            if has_faults and rnd.random() < 0.3:
                self.node_fault()
            self.wait(rnd.choice((0, 1_000, 10_000, 60_000, 400_000)))
            return
        name, attempt = rnd.choice(todo)
        self.turn(name, attempt, has_faults=has_faults)

    def turn(self, name: AttemptId, attempt: Attempt, *, has_faults: bool) -> None:
        """Let something happen to one attempt, or be said of it."""
        process = self.processes.get(name)
        if process is None:
            self.launch(name, attempt, has_faults=has_faults)
            return
        if has_faults and self.random.random() < self.wish.fault_share:
            self.fault(name, process)
        elif process.is_alive:
            self.obey(name, process)
        if process.is_alive and not process.is_silent:
            self.report(name, process)
        elif process.is_silent:
            self.liveness(name, process, has_faults=has_faults)
        else:
            self.vanish(name, process)

    def launch(self, name: AttemptId, attempt: Attempt, *, has_faults: bool) -> None:
        rnd = self.random
        if attempt.phase is AttemptPhase.STOPPING or attempt.phase in OVER:
            if rnd.random() < 0.2 and attempt.phase is AttemptPhase.STOPPING:
                self.say(UID, ev.LaunchFailed(name, "told to stop", is_permanent=False))
            else:
                self.say(UID, ev.AttemptVanished(name))
            return
        if has_faults and rnd.random() < self.wish.fault_share:
            failed = ev.LaunchFailed(name, "no image", is_permanent=rnd.random() < 0.1)
            waiting = ev.AttemptWaiting(name, "no room")
            self.say(UID, rnd.choice((failed, waiting, ev.PreemptionNoticed(name, 5_000))))
            return
        self.processes[name] = Process()
        if rnd.random() < 0.8:
            self.say(UID, ev.AttemptLaunched(name, {"pid": "1"}))

    def obey(self, name: AttemptId, process: Process) -> None:
        """Do what the orders say, or go on training."""
        rnd = self.random
        match run_order(self.job, name, self.now_ms) if UID in self.world.jobs else Leave():
            case Hold():
                process.is_holding = process.is_registered
            case Start():
                if not process.trainer_pid:
                    process.trainer_pid = 7
                elif rnd.random() < (0.3 if self.has_faults else 0.7):
                    process.exit = _exit(code=0)
                elif rnd.random() < 0.2:
                    process.has_checkpoint = True
            case Stop(reason=reason):
                if process.exit is None:
                    is_racing = rnd.random() < 0.1
                    process.exit = _exit(code=0) if is_racing else _exit(signal=15, seen=reason)
            case Leave():
                process.is_alive = False

    def report(self, name: AttemptId, process: Process) -> None:
        """Say all that is so, as a report does: its events in one step, in their order."""
        attempt = self.known(name)
        if attempt is None:
            return
        if not process.is_registered or not attempt.registered_ms:
            process.is_registered = True
            self.say(UID, ev.ExecutorRegistered(name, "i", "h", "b1", 1, "0"), by="executor")
            return
        found: list[Event] = []
        if attempt.is_silent:
            found.append(ev.ExecutorReturned(name))
        if process.is_holding and attempt.phase is AttemptPhase.REGISTERED:
            found.append(ev.ExecutorHolding(name, attempt.ports))
        found += self._of_start(name, process, attempt)
        if attempt.phase is AttemptPhase.RUNNING:
            found += self._of_running(name, process)
        if process.exit is not None:
            found.append(ev.TrainerExited(name, process.exit))
        if found:
            self.say(UID, *found, by="executor")

    def _of_start(self, name: AttemptId, process: Process, attempt: Attempt) -> list[Event]:
        found: list[Event] = []
        is_news = self.has_faults or not attempt.trainer_pid
        is_told_to_start = attempt.phase not in (AttemptPhase.REGISTERED, *OVER)
        if process.trainer_pid and is_told_to_start and is_news:
            found.append(ev.TrainerStarted(name, process.trainer_pid, 5))
            if self.random.random() < 0.3:
                found.append(ev.TrainerReady(name))
        elif attempt.phase is AttemptPhase.RUNNING and not attempt.is_ready:
            found.append(ev.TrainerReady(name))
        return found

    def _of_running(self, name: AttemptId, process: Process) -> list[Event]:
        found: list[Event] = []
        if self.random.random() < 0.05:
            found.append(ev.TrainerHung(name, "no step for 30 min"))
        if process.has_checkpoint:
            found.append(ev.CheckpointNoted(name, "/ckpt", 5))
        return found

    def liveness(self, name: AttemptId, process: Process, *, has_faults: bool) -> None:
        attempt = self.known(name)
        if attempt is None or not attempt.registered_ms or attempt.phase in OVER:
            process.is_silent = False
        elif not has_faults or self.random.random() < 0.3:
            process.is_silent = False
            self.report(name, process)
        elif not attempt.is_silent:
            self.say(UID, ev.ExecutorFellSilent(name), by="liveness")
        else:
            self.say(UID, ev.ExecutorExpired(name), by="liveness")

    def vanish(self, name: AttemptId, process: Process) -> None:
        self.say(UID, ev.AttemptVanished(name, process.exit, process.word), by="launcher:local")

    def fault(self, name: AttemptId, process: Process) -> None:
        rnd = self.random
        match rnd.randrange(7):
            case 0 if process.trainer_pid:
                process.exit = _exit(code=rnd.choice((1, 3, 137)), oom=rnd.random() < 0.2)
            case 1:
                process.is_alive = False
                process.word = rnd.choice(("", "", "nodeLost", "preempted", "oom"))
            case 2:
                process.is_silent = True
            case 3 if process.is_registered and not process.trainer_pid:
                error = rnd.choice(("portTaken:main", "files:gone", "disk"))
                process.exit = _exit(error=error)
            case 4:
                self.say(UID, ev.PreemptionNoticed(name, 5_000), by="launcher:local")
            case 5:
                self.say(UID, ev.AttemptLaunched(name, {"pid": "1"}), by="launcher:local")
            case _:
                self.node_fault()

    def node_fault(self) -> None:
        name = self.random.choice(self.nodes)
        node = self.world.admission.nodes.get(name)
        event: Event = self._node(name)
        if node is not None and node.phase != "Away":
            event = adm.NodeWentAway(name)
        self.say("", event)

    def people(self) -> None:
        """Ask for something; what the phase does not allow is refused, and that is right."""
        rnd = self.random
        role = rnd.choice(tuple(self.job.roles.values()))
        failed = [one for one in replicas_of(role) if one.phase == "Failed"]
        if failed and rnd.random() < 0.3:
            one = Span(role.name, failed[0].index, failed[0].index)
            self.say(UID, ev.RestartRequested((one,)), is_lie=True)
            return
        span = Span(role.name, 0, rnd.randrange(max(1, role.size)))
        whole = tuple(Span(one.name, 0, one.size - 1) for one in self.job.roles.values())
        event: Event = rnd.choice(
            (
                ev.CancelRequested("enough"),
                ev.SuspendRequested(),
                ev.ResumeRequested(),
                ev.ResumeRequested(),
                ev.RestartRequested((span,)),
                ev.RestartRequested(whole),
                ev.RoleScaled(role.name, rnd.randint(1, 4)),
                ev.RoleScaled(role.name, rnd.randint(1, 4)),
                ev.RoleScaled(role.name, 4),
                ev.SpecPatched(self.job.spec, {}),
                ev.VerdictRequested(rnd.choice(("Succeeded", "Failed")), "so"),
                ev.JobEvicted("prod came"),
                ev.RoomMade("j2", "another is stopped to make room"),
                ev.JobRefused("DependencyFailed", "prepare failed"),
                ev.NodeDraining("n0"),
                ev.DrillRequested(rnd.choice(("kill", "preempt")), (span,)),
                ev.JobAdmitted((), 1),
                ev.TimePassed(),
            )
        )
        streams = self._of_streams()
        if streams and rnd.random() < 0.5:
            event = rnd.choice(streams)
        self.say(UID, event, by="uid:1 (ann)", is_lie=True)

    def _of_streams(self) -> tuple[Event, ...]:
        if not self.job.streams:
            return ()
        attempts = [AttemptId(UID, "w", 0, 1)]
        attempts += [name for name, one in self.attempts() if name.role == "w"]
        return (
            ev.StreamFinished("rows", 10, self.random.choice((0, 3))),
            ev.StreamFinished("rows", 10, 0),
            ev.StreamReopened("rows"),
            ev.StreamFailed("rows", "bad row"),
            ev.SavepointSealed("rows", "s"),
            ev.GroupLeaseLost("rows", attempts[-1]),
            ev.ReaderSettled(attempts[-1], "rows", 4),
        )

    def lie(self) -> None:
        """Say anything of any attempt: refused perhaps, never harmful."""
        rnd = self.random
        names = [name for name, _ in self.attempts()]
        if not names:
            return
        name = rnd.choice(names)
        event = rnd.choice(
            (
                ev.AttemptLaunched(name),
                ev.AttemptWaiting(name, "x"),
                ev.LaunchFailed(name, "x", is_permanent=False),
                ev.AttemptVanished(name),
                ev.StopFailed(name, was_delivered=rnd.random() < 0.5),
                ev.PreemptionNoticed(name, 10),
                ev.ExecutorRegistered(name, "i", "h", "b", 1, "0"),
                ev.ExecutorHolding(name),
                ev.TrainerStarted(name, 7, 1),
                ev.TrainerReady(name),
                ev.TrainerHung(name, "x"),
                ev.TrainerExited(name, _exit(code=1)),
                ev.ExecutorFellSilent(name),
                ev.ExecutorReturned(name),
                ev.ExecutorExpired(name),
                ev.TimePassed(),
                ev.JobAdmitted((), 1),
                ev.CheckpointNoted(name, "/c", 1),
            )
        )
        self.say(UID, event, is_lie=True)

    def check_replay(self) -> None:
        """11: what the journal says is what is in memory."""
        world = World()
        for entry in self.entries:
            world = core.replay(world, entry)
        assert world == self.world

    # Time.

    def effects(self) -> list[tuple[int, AttemptId]]:
        """Return when stop and release effects give up."""
        if UID not in self.world.jobs:
            return []
        return [
            (one.deadline_ms, one.attempt)
            for one in core.plan(self.world, UID)
            if isinstance(one, StopAttempt | ReleaseAttempt)
        ]

    def wait(self, ms: int) -> None:
        """Let time pass: timers ring, and effects that came to nothing say so."""
        end_ms = self.now_ms + ms
        for _ in range(200):
            due = [
                (at_ms, one)
                for one in ("", UID)
                if (at_ms := core.deadline_ms(self.world, one)) and at_ms <= end_ms
            ]
            gives_up = [one for one in self.effects() if one[0] <= end_ms]
            if not due and not gives_up:
                self.now_ms = end_ms
                return
            if not due or (gives_up and min(gives_up)[0] <= min(due)[0]):
                at_ms, name = min(gives_up)
                self.now_ms = max(self.now_ms, at_ms)
                failed = ev.StopFailed(name, was_delivered=self.random.random() < 0.3)
                self.say(UID, failed, by="launcher:local")
            else:
                at_ms, one = min(due)
                self.now_ms = max(self.now_ms, at_ms)
                self.say(one, ev.TimePassed(), by="timer")
        raise AssertionError(f"timers ring without end at {self.now_ms}")

    def next_ms(self) -> int:
        """Return when time alone does something; 0 never."""
        times = [at_ms for at_ms, _ in self.effects()]
        times += [core.deadline_ms(self.world, one) for one in ("", UID)]
        return min((one for one in times if one), default=0)

    # Whole runs.

    def run(self, steps: int) -> None:
        """Play faults for a number of steps, then let the job end, and speak on afterwards."""
        self.faults(steps)
        if not self.job.is_final:
            if self.job.spec.deadline_ms:
                self.by_time_alone()
            else:
                self.calm()
        self.after_the_end()

    def faults(self, steps: int) -> None:
        for _ in range(steps):
            if UID not in self.world.jobs or self.job.is_final:
                return
            self.live_step(has_faults=True)

    def calm(self) -> None:
        """Faults are over: the nodes are there and nobody pauses the job; it has to end."""
        self.has_faults = False
        self.see_nodes()
        if self.job.streams and not self.job.is_final:
            self.say(UID, ev.StreamFinished("rows", 10, 0), by="stream")
        for _ in range(2_000):
            if self.job.is_final:
                return
            if self.job.phase is JobPhase.SUSPENDED:
                self.say(UID, ev.ResumeRequested())
            self.live_step(has_faults=False)
            self.lift_quarantines()
            if not any(one.phase is not AttemptPhase.GONE for _, one in self.attempts()):
                self.wait(max(0, self.next_ms() - self.now_ms))
        raise AssertionError(f"the job did not end: {self.job.phase}")

    def lift_quarantines(self) -> None:
        """What could not be ended goes after all: a node that is back kills what it finds."""
        for name, attempt in self.attempts():
            if attempt.is_quarantined:
                self.say(UID, ev.AttemptVanished(name), by="launcher:local")

    def by_time_alone(self) -> None:
        """12: nobody does anything any more, and the job still ends."""
        self.see_nodes()
        for _ in range(3_000):
            if self.job.is_final:
                return
            if self.job.phase is JobPhase.SUSPENDED:
                self.say(UID, ev.ResumeRequested())
            at_ms = self.next_ms()
            assert at_ms, f"time alone does nothing in {self.job.phase}"
            self.wait(max(0, at_ms - self.now_ms))
        raise AssertionError(f"time alone does not end it: {self.job.phase}")

    def after_the_end(self) -> None:
        """Late words and late wishes change nothing; then the record goes."""
        final = self.job
        assert final.verdict is not None
        self.end = f"{final.phase} {final.verdict.reason}"
        for _ in range(2):
            self.people()
            self.lie()
        assert self.job.verdict == final.verdict
        if self.random.random() < 0.5:
            self.say(UID, ev.ForgetRequested())
            assert UID not in self.world.jobs


def _exit(
    *,
    code: int | None = None,
    signal: int | None = None,
    seen: str = "",
    error: str = "",
    oom: bool = False,
) -> Exit:
    return Exit(code, signal, None, error, int(oom), 0, 0, 0, seen, (), "last line", ())


def _named(event: Event) -> list[tuple[str, int]]:
    """Return the replicas that a decision names."""
    if isinstance(event, ev.RetryDecided | ev.RetriesExhausted):
        return [(event.role, event.index)]
    return [
        (span.role, index)
        for span in event.spans  # type: ignore[union-attr] # every other decision has them
        for index in range(span.low, span.high + 1)
    ]
