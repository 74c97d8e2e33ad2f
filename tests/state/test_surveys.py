"""Why jobs wait is told by what admission decides, at a cost that many who wait do not raise."""

import random
import sys
from collections.abc import Callable
from types import FrameType

import pytest

from primusd.admission import events as ev
from primusd.admission import machine as admission
from primusd.admission.lacking import why_never
from primusd.admission.model import Admission
from primusd.admission.turns import Outcome, Round, Turn
from primusd.admission.usage import waiting_in
from primusd.admission.waits import Survey, why_waits
from primusd.job.events import TimePassed
from primusd.job.ids import Span
from primusd.job.machine import At, Ignore

GIB = 1 << 30
NOW_MS = 1_000_000


class Crowd:
    """Admission of some nodes, told what jobs want."""

    def __init__(self, nodes: int = 4) -> None:
        self.state = Admission()
        self._count = 0
        for number in range(nodes):
            self.tell(
                ev.NodeSeen(f"n{number}", "local", "b", "0", 8_000, 8 * GIB, 2, 20_000, 20_099)
            )

    def tell(self, event: ev.AdmissionEvent | TimePassed) -> None:
        self._count += 1
        at = At(NOW_MS + self._count, self._count, 0, "test")
        after = admission.apply(self.state, event, at)
        assert not isinstance(after, Ignore)
        self.state = after
        while (decided := admission.settle(self.state, at.at_ms)) is not None:
            settled = admission.apply(self.state, decided, at)
            assert isinstance(settled, Admission)
            self.state = settled

    def wants(
        self,
        job: str,
        replicas: int,
        *,
        cpu_milli: int = 1_000,
        memory_bytes: int = 0,
        gpu: int = 0,
        queue: str = "default",
        priority: int = 50,
        **more: object,
    ) -> None:
        wanted = (Span("worker", 0, replicas - 1),)
        role = ev.RoleDemand("worker", wanted, cpu_milli, memory_bytes, gpu, 1)
        raised = ev.DemandRaised(job, 1, queue, priority, (role,), **more)  # type: ignore[arg-type]
        self.tell(raised)


def calls_in(work: Callable[[], object]) -> int:
    """Return how many calls of functions of ours a piece of work takes."""
    count = 0

    def seen(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        count += event == "call" and "primusd" in frame.f_code.co_filename

    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def one_by_one(state: Admission, at_ms: int) -> dict[str, Outcome]:
    """Return what becomes of everybody, each judged in its turn."""
    round_, found = Round(state, at_ms=at_ms), {}
    for demand in waiting_in(state):
        outcome = round_.judge(demand)
        if outcome.turn is Turn.BEHIND and (never := why_never(state, demand)):
            outcome = Outcome(Turn.NEVER, outcome.lacking, sentence=never)
        found[demand.job] = outcome
    return found


def places(state: Admission) -> dict[str, tuple[int | None, int]]:
    """Return how many are ahead of everybody, counted out."""
    found: dict[str, tuple[int | None, int]] = {}
    before: list[str] = []
    for demand in waiting_in(state):
        if demand.job in state.after:
            found[demand.job] = None, 0
            continue
        found[demand.job] = before.count(demand.queue), len(before)
        before.append(demand.queue)
    return found


@pytest.mark.parametrize("seed", range(60))
def test_each_is_told_what_judging_all_in_order_would_tell(seed: int) -> None:
    chance = random.Random(seed)
    crowd = Crowd()
    quota = {"cpuMilli": chance.choice((6_000, 20_000, 100_000))}
    crowd.tell(ev.QueueSet("small", quota, ""))
    for number in range(40):
        crowd.wants(
            f"j{number:02}",
            chance.choice((1, 1, 2, 3, 9)),
            cpu_milli=chance.choice((0, 1_000, 3_000, 9_000)),
            memory_bytes=chance.choice((0, GIB, 5 * GIB, 9 * GIB)),
            gpu=chance.choice((0, 0, 1, 3)),
            queue=chance.choice(("default", "small")),
            priority=chance.choice((10, 50)),
            runs_for_ms=chance.choice((0, 0, 60_000)),
        )
    state, at_ms = crowd.state, NOW_MS + 1_000
    wanted, stands = one_by_one(state, at_ms), places(state)
    assert len(wanted) > 10
    asked = list(wanted)
    chance.shuffle(asked)
    survey = Survey(state, at_ms=at_ms)

    assert {job: survey.outcome(job) for job in asked} == wanted
    assert {job: (survey.ahead(job), survey.ahead_in_all(job)) for job in asked} == stands
    assert survey.outcome("nobody") is None


@pytest.mark.parametrize("runs_for_ms", [0, 3_600_000])
def test_the_last_of_many_learns_why_it_waits_without_all_being_judged(runs_for_ms: int) -> None:
    def cost(count: int) -> int:
        crowd = Crowd()
        for number in range(4):
            crowd.wants(f"runs{number}", 7)
        crowd.wants("first", 30)
        for number in range(count):
            crowd.wants(f"w{number:04}", 2 + number % 5, runs_for_ms=runs_for_ms)
        state = crowd.state
        last = list(waiting_in(state))[-1]
        assert last.job == f"w{count - 1:04}"

        def look() -> None:
            wait = why_waits(Survey(state, at_ms=NOW_MS + 10_000), last)
            assert wait is not None
            assert wait.numbers["jobsAhead"] == count

        look()
        return calls_in(look)

    few, many = cost(50), cost(300)

    # Who has a deadline might pass: each is looked at, though none is fitted to the nodes.
    assert many - few <= (250 * 50 if runs_for_ms else 10)
