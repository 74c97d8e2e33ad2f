"""What an event costs beside other jobs, counted in steps of the interpreter and not by the clock.

It does not depend on jobs that are over, and grows at most with the logarithm of those that live.
"""

import math
import sys
from collections import Counter
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from primusd import core
from primusd.admission.events import NodeSeen
from primusd.core import World
from primusd.executor.protocol import Exit
from primusd.job import events as ev
from primusd.job.ids import AttemptId
from primusd.jobfile import parse_document
from primusd.records import ADMISSION, Event, Proposal

REPLICAS = 2
NODES = 5
FEW, MANY = 10, 1_000
EXIT = Exit(0, None, None, "", 0, 0, 0, 0, "", (), "", ())
GIB = 1 << 30


class Jobs:
    """A world with jobs in it, stepped one event at a time."""

    def __init__(self, *, live: int, over: int) -> None:
        self.world = World()
        self._revision = 0
        self._at_ms = 0
        for number in range(NODES):
            node = NodeSeen(f"n{number}", "local", "b1", "0", 10**9, 999 * GIB, 0, 20_000, 29_999)
            self.tell(ADMISSION, node)
        for number in range(over + live):
            for uid, event in self.life(f"{number:016d}", is_over=number < over):
                self.tell(uid, event)

    def tell(self, machine: str, event: Event) -> None:
        # A second each: the ports of jobs that are over have rested long since.
        self._at_ms += 1_000
        self._revision += 1
        step = core.step(
            self.world,
            (Proposal(machine, event, "test"),),
            at_ms=self._at_ms,
            term=1,
            revision=self._revision,
        )
        assert isinstance(step.answers[0], core.Recorded), step.answers
        self.world = step.world

    def life(self, uid: str, *, is_over: bool) -> Iterator[tuple[str, Event]]:
        """Yield what happens to a job, up to its running or to its end."""
        roles = {"worker": {"replicas": REPLICAS, "command": ["x"]}}
        parsed = parse_document({"name": f"j{uid}", "roles": roles})
        yield uid, ev.JobSubmitted(uid, parsed.spec, {}, "test")
        attempts = [AttemptId(uid, "worker", index, 1) for index in range(REPLICAS)]
        yield from ((uid, ev.ExecutorRegistered(one, "i", "h", "b1", 1, "0")) for one in attempts)
        yield from ((uid, ev.ExecutorHolding(one, ())) for one in attempts)
        yield from ((uid, ev.TrainerStarted(one, 1, 1)) for one in attempts)
        if is_over:
            yield from ((uid, ev.TrainerExited(one, EXIT)) for one in attempts)
            yield from ((uid, ev.AttemptVanished(one, EXIT)) for one in attempts)

    def costs(self) -> Counter[str]:
        """Return the steps of the interpreter that each event of one more job takes, by name."""
        counted: Counter[str] = Counter()
        kind = ""

        def count(frame: FrameType, what: str, _argument: Any) -> Any:  # as sys.settrace wants it
            frame.f_trace_opcodes = True
            if what == "opcode":
                counted[kind] += 1
            return count

        for uid, event in tuple(self.life("9" * 16, is_over=True)):
            kind, before = type(event).__name__, sys.gettrace()
            sys.settrace(count)
            try:
                self.tell(uid, event)
            finally:
                sys.settrace(before)
        return counted


@pytest.fixture(scope="module")
def few() -> Counter[str]:
    return Jobs(live=FEW, over=0).costs()


def test_an_event_costs_at_most_logarithmically_more_with_the_jobs_that_live(
    few: Counter[str],
) -> None:
    many = Jobs(live=MANY, over=0).costs()

    for kind, cost in few.items():
        # Of steps that a search in what is sorted adds with each doubling.
        added = 50 * math.log2(MANY / FEW)
        assert many[kind] <= cost + added, f"{kind} costs {many[kind]} steps, with few jobs {cost}"


def test_an_event_costs_the_same_beside_jobs_that_are_over(few: Counter[str]) -> None:
    beside = Jobs(live=FEW, over=MANY).costs()

    for kind, cost in few.items():
        assert beside[kind] <= cost * 1.02, f"{kind} costs {beside[kind]} steps, alone {cost}"
