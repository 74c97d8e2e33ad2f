"""Whole worlds driven by hand: `core.step` with a clock that the test moves.

After every step all invariants are checked (in large worlds after every so many), and at the end
of a test `check_replay` proves that the records alone lead to the same world.
"""

from collections.abc import Mapping
from typing import Any

from primusd import core
from primusd.admission import events as adm
from primusd.core import World
from primusd.errors import PrimusdError
from primusd.executor.protocol import Exit
from primusd.job import events as ev
from primusd.job import invariants
from primusd.job.ids import AttemptId, Span, parse_replica
from primusd.job.job import deadline_ms
from primusd.job.model import Attempt, Job, Replica, RoleState, find_replica, replicas_of
from primusd.job.phases import AttemptPhase
from primusd.job.spec import Budgets, JobSpec, Restart, RoleSpec, StreamSpec, Success
from primusd.records import Entry, Event, Proposal

GIB = 1 << 30
UID = "j1"


def role(
    name: str = "worker",
    replicas: int = 1,
    *,
    minimum: int = 0,
    success: str = "all",
    percent: int = 100,
    unit: str = "replica",
    delay_ms: int = 10_000,
    **fields: Any,  # of RoleSpec, as they come
) -> RoleSpec:
    """Return a role with everything defaulted."""
    return RoleSpec(
        name,
        replicas,
        minimum or replicas,
        "train",
        success=Success(success, percent),
        restart=Restart(unit, delay_ms),
        **fields,
    )


def spec(
    *roles: RoleSpec,
    streams: tuple[StreamSpec, ...] = (),
    **fields: Any,  # of JobSpec
) -> JobSpec:
    """Return a job of these roles; one worker when none is given."""
    found = roles or (role(),)
    return JobSpec(
        fields.pop("name", "train"),
        {one.name: one for one in found},
        data={one.name: one for one in streams},
        **fields,
    )


def budgets(application: int = 3, infrastructure: int = 20) -> Budgets:
    return Budgets(application, infrastructure)


def ended(
    code: int | None = 0,
    signal: int | None = None,
    *,
    oom_kills: int = 0,
    stop_seen: str = "",
    error: str = "",
    errno: int | None = None,
    lines: str = "",
) -> Exit:
    """Return an exit record."""
    return Exit(code, signal, errno, error, oom_kills, 0, 0, 0, stop_seen, (), lines, ())


class Cluster:
    """A daemon's core with one job at hand and a clock."""

    def __init__(
        self, *, nodes: int = 1, cpu: int = 64, now_ms: int = 1_000_000, checked_every: int = 1
    ) -> None:
        self.checked_every = checked_every
        self.world = World()
        self.now_ms = now_ms
        self.revision = 0
        self.entries: list[Entry] = []
        for number in range(1, nodes + 1):
            self.say(self._seen(f"n{number}", cpu), machine="")

    @staticmethod
    def _seen(name: str, cpu: int) -> adm.NodeSeen:
        return adm.NodeSeen(name, "local", "b1", "0", cpu * 1000, 64 * GIB, 8, 20_000, 29_999)

    def say(self, *events: Event, machine: str = UID, by: str = "test") -> str:
        """Propose events in one step; return the reason when the only one is ignored.

        Raises:
            PrimusdError: One was refused.
        """
        proposals = [Proposal(machine, event, by) for event in events]
        step = core.step(
            self.world, proposals, at_ms=self.now_ms, term=1, revision=self.revision + 1
        )
        before = self.world
        ignored = ""
        for answer in step.answers:
            match answer:
                case core.Rejected():
                    raise answer.error
                case core.Raised():
                    raise AssertionError(answer.text)
                case core.Ignored():
                    ignored = answer.reason
                case core.Recorded():
                    pass
        self.world = step.world
        if step.entry is not None:
            self.revision += 1
            self.entries.append(step.entry)
        if self.revision % self.checked_every == 0:
            invariants.check(self.world)
            invariants.check_change(before, self.world)
        return ignored

    def refusal(self, *events: Event, machine: str = UID) -> PrimusdError | None:
        """Return what refuses the events, None when nothing does."""
        try:
            self.say(*events, machine=machine)
        except PrimusdError as error:
            return error
        return None

    def submit(self, of: JobSpec | None = None, *, uid: str = UID) -> None:
        self.say(ev.JobSubmitted(uid, of or spec(), {}, "uid:1 (ann)"), machine=uid)

    # What there is.

    @property
    def job(self) -> Job:
        return self.world.jobs[UID]

    @property
    def phase(self) -> str:
        return str(self.job.phase)

    def role(self, name: str = "worker") -> RoleState:
        return self.job.roles[name]

    def replica(self, name: str) -> Replica:
        found = find_replica(self.job, *parse_replica(name))
        assert found is not None
        return found

    def newest(self, name: str) -> Attempt:
        found = self.replica(name).newest
        assert found is not None
        return found

    def id(self, name: str, uid: str = UID) -> AttemptId:
        """Return the newest attempt of `worker-0`, or that of `worker-0/2`."""
        name, _, number = name.partition("/")
        role_name, index = parse_replica(name)
        found = find_replica(self.world.jobs[uid], role_name, index)
        assert found is not None
        return AttemptId(uid, role_name, index, int(number) if number else found.last_number)

    def names(self, *phases: AttemptPhase, uid: str = UID) -> list[str]:
        """Return the replicas whose newest attempt is in one of the phases."""
        return [
            f"{one.name}-{replica.index}"
            for one in self.world.jobs[uid].roles.values()
            for replica in replicas_of(one)
            if replica.newest is not None and replica.newest.phase in phases
        ]

    def phases(self, name: str = "worker") -> list[str]:
        return [str(one.phase) for one in replicas_of(self.role(name))]

    def reasons(self) -> list[str]:
        return [one.reason for one in self.job.timeline]

    def told(self, reason: str) -> str:
        """Return the message of the newest timeline entry with this reason."""
        found = [one.message for one in self.job.timeline if one.reason == reason]
        assert found, f"nothing of {reason} in {self.reasons()}"
        return found[-1]

    # What happens.

    def launch(self, *names: str, uid: str = UID) -> None:
        for name in names or tuple(self.names(AttemptPhase.REQUESTED, uid=uid)):
            self.say(ev.AttemptLaunched(self.id(name, uid), {"launcher": "local"}), machine=uid)

    def register(self, *names: str, uid: str = UID) -> None:
        for name in names or tuple(self.names(AttemptPhase.LAUNCHED, uid=uid)):
            registered = ev.ExecutorRegistered(self.id(name, uid), "i1", "host", "b1", 7, "0")
            self.say(registered, machine=uid)

    def hold(self, *names: str, uid: str = UID) -> None:
        for name in names or tuple(self.names(AttemptPhase.REGISTERED, uid=uid)):
            self.say(ev.ExecutorHolding(self.id(name, uid)), machine=uid)

    def start(self, *names: str, uid: str = UID) -> None:
        for name in names or tuple(self.names(AttemptPhase.STARTING, uid=uid)):
            self.say(ev.TrainerStarted(self.id(name, uid), 8, 0), machine=uid)

    def bring_up(self, *names: str, uid: str = UID) -> None:
        """Let everything that was begun come to run."""
        self.launch(*names, uid=uid)
        self.register(*names, uid=uid)
        self.hold(*names, uid=uid)
        self.start(uid=uid)

    def run(self, of: JobSpec | None = None) -> None:
        """Submit a job and bring it up."""
        self.submit(of)
        self.bring_up()

    def exit(
        self, *names: str, code: int | None = 0, signal: int | None = None, **more: Any
    ) -> None:
        """Let trainers exit, and their executors leave."""
        for name in names:
            attempt = self.id(name)
            self.say(ev.TrainerExited(attempt, ended(code, signal, **more)), by="executor")
            self.gone(name, attempt)

    def gone(self, name: str, attempt: AttemptId | None = None, **more: Any) -> None:
        """Let the launcher say that nothing of an attempt is left."""
        self.say(ev.AttemptVanished(attempt or self.id(name), **more), by="launcher:local")

    def stop_all(self) -> None:
        """Let everything that was told to stop do so."""
        for name in self.names(AttemptPhase.STOPPING):
            reason = self.newest(name).stop
            assert reason is not None
            self.exit(name, code=None, signal=15, stop_seen=str(reason.reason))

    def wait(self, ms: int) -> None:
        """Let time pass; the timer speaks to every machine whose deadline comes."""
        end_ms = self.now_ms + ms
        while True:
            due = {
                machine: at_ms
                for machine in core.machines(self.world)
                if (at_ms := core.deadline_ms(self.world, machine)) and at_ms <= end_ms
            }
            if not due:
                break
            machine = min(due, key=lambda one: due[one])
            assert due[machine] >= self.now_ms or deadline_ms(self.job) >= 0
            self.now_ms = max(self.now_ms, due[machine])
            before = core.deadline_ms(self.world, machine)
            self.say(ev.TimePassed(), machine=machine, by="timer")
            after = core.deadline_ms(self.world, machine)
            assert after == 0 or after > self.now_ms or after != before, (
                f"the timer of {machine!r} would ring for ever at {after}"
            )
        self.now_ms = end_ms

    def quarantined(self) -> int:
        return len(self.world.admission.quarantined)

    def demands(self) -> Mapping[str, str]:
        return {uid: str(one.phase) for uid, one in self.world.admission.demands.items()}

    def replayed(self) -> World:
        """Return the world that the records alone lead to."""
        world = World()
        for entry in self.entries:
            world = core.replay(world, entry)
        return world

    def check_replay(self) -> None:
        """11: replaying the journal gives the state in memory."""
        assert self.replayed() == self.world


def span(name: str, low: int, high: int | None = None) -> tuple[Span, ...]:
    return (Span(name, low, low if high is None else high),)
