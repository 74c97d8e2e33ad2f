"""The core at its full size, in one process: 1,000 jobs of 100 replicas through their lives.

Costs are of this process's CPU, so that a busy machine does not change the figures much.
"""

import time
from collections.abc import Iterator

from bench.core import UID, Stage
from bench.figures import Figure
from primusd import core
from primusd.admission.events import NodeSeen
from primusd.executor.protocol import Exit
from primusd.job import events as ev
from primusd.job.ids import AttemptId
from primusd.job.model import replicas_of
from primusd.jobfile import parse_document
from primusd.records import ADMISSION, Event
from primusd.recovery import recover
from primusd.state.journal import Loaded
from primusd.state.snapshots import Snapshots

JOBS, REPLICAS = 1_000, 100
FEW_JOBS = 10
NODES = 100
GIB = 1 << 30
RATIO_MAX = 3.0
RECOVERY_S_MAX = 2.0
EVENT_US_MAX = 100.0
PLAN_US_MAX = 50.0
PLAN_ALL_US_MAX = 2_000.0
EXIT = Exit(0, None, None, "", 0, 0, 0, 0, "", (), "", ())


class Fleet(Stage):
    """Many jobs in one world; each event is a step of its own, as they come from executors."""

    def __init__(self, nodes: int, replicas: int = REPLICAS) -> None:
        super().__init__()
        self.events = 0
        for number in range(nodes):
            seen = NodeSeen(
                f"n{number}", "local", "b1", "0", 1_000_000, 512 * GIB, 0, 20_000, 29_999
            )
            self.tell(ADMISSION, seen)
        document = {"name": "j", "roles": {"worker": {"replicas": replicas, "command": ["x"]}}}
        self._parsed = parse_document(document)

    def submit(self, number: int) -> str:
        """Submit a job; return its uid."""
        uid = f"{number:016d}"
        spec = self._parsed.spec
        spec = type(spec)(**{**_fields(spec), "name": f"j{number}"})
        self.tell(uid, ev.JobSubmitted(uid, spec, {}, "bench"))
        return uid

    def say(self, uid: str, events: Iterator[Event]) -> None:
        """Take events one by one."""
        for event in events:
            self.tell(uid, event)
            self.events += 1

    def attempts(self, uid: str) -> list[AttemptId]:
        """Return the newest attempts of a job."""
        return [
            AttemptId(uid, role.name, replica.index, replica.last_number)
            for role in self.world.jobs[uid].roles.values()
            for replica in replicas_of(role)
        ]

    def bring_up(self, uid: str) -> None:
        """Let all of a job run."""
        attempts = self.attempts(uid)
        self.say(uid, (ev.ExecutorRegistered(one, "i", "h", "b1", 1, "0") for one in attempts))
        self.say(uid, (ev.ExecutorHolding(one, ()) for one in attempts))
        self.say(uid, (ev.TrainerStarted(one, 1, 1) for one in attempts))

    def end(self, uid: str) -> None:
        """Let all of a job complete."""
        for one in self.attempts(uid):
            self.say(uid, iter((ev.TrainerExited(one, EXIT), ev.AttemptVanished(one, EXIT))))


def _fields(spec: object) -> dict[str, object]:
    return {name: getattr(spec, name) for name in spec.__struct_fields__}  # type: ignore[attr-defined] # of a Struct


def run() -> list[Figure]:
    """Return the cost of an event in small and large worlds, of recovery, and of large jobs."""
    few_us = _lives_us(FEW_JOBS, NODES)
    fleet = Fleet(NODES)
    began = time.process_time()
    uids = [fleet.submit(number) for number in range(JOBS)]
    for uid in uids:
        fleet.bring_up(uid)
    recovery_s = _recovery_s(fleet)
    for uid in uids:
        fleet.end(uid)
    many_us = (time.process_time() - began) * 1e6 / fleet.events
    assert all(fleet.world.jobs[uid].phase == "Succeeded" for uid in uids)
    after_us = _event_us(fleet, JOBS)
    alone_us = _event_us(Fleet(NODES), JOBS)
    beside = f"10 jobs: {few_us:.0f} µs, ratio {many_us / few_us:.1f}"
    after = f"none: {alone_us:.0f} µs, ratio {after_us / alone_us:.1f}"
    return [
        _figure("event, 1,000 jobs of 100 replicas", many_us, "µs", EVENT_US_MAX, beside),
        _figure("event, 1,000 finished jobs beside", after_us, "µs", RATIO_MAX * alone_us, after),
        _figure("recovery of 1,000 jobs of 100 replicas", recovery_s, "s", RECOVERY_S_MAX, ""),
        *_large_job(),
    ]


def _figure(name: str, value: float, unit: str, most: float, rival: str) -> Figure:
    return Figure(name, value, unit, f"≤ {most:.3g} {unit}", value <= most, rival)


def _lives_us(jobs: int, nodes: int) -> float:
    """Return the microseconds of an event in a world of so many jobs, from submit to end."""
    fleet = Fleet(nodes)
    began = time.process_time()
    uids = [fleet.submit(number) for number in range(jobs)]
    for uid in uids:
        fleet.bring_up(uid)
    for uid in uids:
        fleet.end(uid)
    return (time.process_time() - began) * 1e6 / fleet.events


def _event_us(fleet: Fleet, number: int) -> float:
    """Return the microseconds of an event of one more job."""
    uid = fleet.submit(number)
    fleet.bring_up(uid)
    attempts = fleet.attempts(uid)
    began = time.process_time()
    for one in attempts:
        fleet.tell(uid, ev.ExecutorFellSilent(one))
        fleet.tell(uid, ev.ExecutorReturned(one))
    return (time.process_time() - began) * 1e6 / (2 * len(attempts))


def _recovery_s(fleet: Fleet) -> float:
    """Return the seconds to come from the stored form of a world to the world."""
    snapshots = Snapshots()
    snapshots._uncovered = dict.fromkeys(core.machines(fleet.world), 1)  # noqa: SLF001 - all of it
    stored = {}
    while True:
        due = snapshots.due(fleet.world, fleet.revision)
        stored.update({one.machine: one for one in due.snapshots})
        snapshots.written(due)
        if not snapshots.has_more:
            break
    began = time.process_time()
    recovered = recover(Loaded(stored, (), 1, fleet.revision))
    took_s = time.process_time() - began
    assert recovered.world.jobs.keys() == fleet.world.jobs.keys()
    return took_s


def _large_job() -> Iterator[Figure]:
    """Yield what one event costs in a job of 10,000 replicas: its step, and the plan after it."""
    stage = Stage()
    attempts = stage.run(9_000, 1_000)
    core.plan(stage.world, UID)
    steps_s, plans_s = 0.0, 0.0
    few = attempts[::20]
    for one in few:
        began = time.process_time()
        stage.tell(UID, ev.ExecutorFellSilent(one))
        stepped = time.process_time()
        core.plan(stage.world, UID)
        plans_s += time.process_time() - stepped
        steps_s += stepped - began
    yield _figure(
        "event, 10,000 replicas in one job", steps_s * 1e6 / len(few), "µs", EVENT_US_MAX, ""
    )
    yield _figure("plan after it", plans_s * 1e6 / len(few), "µs", PLAN_US_MAX, "")
    stage.tell(UID, *(ev.ExecutorReturned(one) for one in few))
    began = time.process_time()
    core.plan(stage.world, UID)
    all_us = (time.process_time() - began) * 1e6
    yield _figure("plan after every chunk changed", all_us, "µs", PLAN_ALL_US_MAX, "")
