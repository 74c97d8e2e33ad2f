"""Steps of the core with a job of 10,000 replicas, against a job of 10: it must not feel them."""

import statistics
import time

from bench.figures import Figure
from primusd import core
from primusd.admission import events as admission
from primusd.core import World
from primusd.job import events as ev
from primusd.job.ids import AttemptId
from primusd.job.model import replicas_of
from primusd.jobfile import parse_document
from primusd.records import Event, Proposal

REPLICAS, FEW = 9_000, 10
"""One node has 10,000 ports; the other thousand replicas have none."""
PORTLESS = 1_000
STEPS = 400
PROPOSALS_PER_STEP = 256
UID = "06f3k2m9q1x7abcd"
GIB = 1 << 30
RATIO_MAX = 5.0


class Stage:
    """A world that is stepped by hand."""

    def __init__(self) -> None:
        self.world = World()
        self.revision = 0
        self.at_ms = 1_700_000_000_000

    def tell(self, machine: str, *events: Event) -> None:
        """Take events in as few steps as the engine would."""
        for first in range(0, len(events), PROPOSALS_PER_STEP):
            part = events[first : first + PROPOSALS_PER_STEP]
            self.at_ms += 1
            self.revision += 1
            proposals = tuple(Proposal(machine, event, "bench") for event in part)
            step = core.step(
                self.world, proposals, at_ms=self.at_ms, term=1, revision=self.revision
            )
            self.world = step.world

    def run(self, replicas: int, portless: int) -> list[AttemptId]:
        """Submit a job and let all of it run; return its attempts."""
        seen = admission.NodeSeen("n1", "local", "b1", "0.1.0", 1_000_000, GIB, 0, 20_000, 29_999)
        self.tell("", seen)
        roles = {"worker": {"replicas": replicas, "command": ["x"]}}
        if portless:
            roles["free"] = {"replicas": portless, "command": ["x"], "ports": []}
        parsed = parse_document({"name": "bench", "roles": roles})
        self.tell(UID, ev.JobSubmitted(UID, parsed.spec, parsed.origins, "bench"))
        attempts = [
            AttemptId(UID, role.name, replica.index, 1)
            for role in self.world.jobs[UID].roles.values()
            for replica in replicas_of(role)
        ]
        registered = [ev.ExecutorRegistered(one, "i1", "h1", "b1", 1, "0.1.0") for one in attempts]
        self.tell(UID, *registered, *(ev.ExecutorHolding(one, ()) for one in attempts))
        self.tell(UID, *(ev.TrainerStarted(one, 1, 1) for one in attempts))
        return attempts


def run() -> list[Figure]:
    """Return steps a second, one event each, and how many more replicas cost."""
    many, few = _step_s(REPLICAS, PORTLESS), _step_s(FEW, 0)
    ratio = many / few
    return [
        Figure(
            "steps, 10,000 replicas",
            1 / many,
            "steps/s",
            f"≤ {RATIO_MAX:g} times of 10",
            ratio <= RATIO_MAX,
            f"10 replicas: {1 / few:,.0f} steps/s, ratio {ratio:.1f}",
        )
    ]


def _step_s(replicas: int, portless: int) -> float:
    """Return the median seconds of a step that takes one event."""
    stage = Stage()
    attempts = stage.run(replicas, portless)
    took = []
    for number in range(STEPS):
        attempt = attempts[number * 7 % len(attempts)]
        for event in (ev.ExecutorFellSilent(attempt), ev.ExecutorReturned(attempt)):
            began = time.perf_counter()
            stage.tell(UID, event)
            took.append(time.perf_counter() - began)
    return statistics.median(took)
