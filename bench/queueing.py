"""1,000 jobs of 100 replicas through admission, and what one event costs when many live or wait."""

import statistics
import time

from bench.figures import Figure
from primusd.admission import events as ev
from primusd.admission import machine as admission
from primusd.admission.model import Admission
from primusd.job.events import TimePassed
from primusd.job.ids import Span
from primusd.job.machine import At, Ignore
from primusd.job.phases import DemandPhase

JOBS, REPLICAS = 1_000, 100
NODES = 20
LIVES_S = 30.0
LIVE_FEW, LIVE_MANY, WAITING = 50, 5_000, 1_000
EVENTS = 200
RATIO_MAX = 3.0
GIB = 1 << 30

Event = ev.AdmissionEvent | TimePassed


class Stage:
    """Admission, driven as core.step does."""

    def __init__(self, nodes: int, *, cpu: int) -> None:
        self.state = Admission()
        self.at_ms = 1_000_000
        self.settled = 0
        for number in range(nodes):
            self.tell(
                ev.NodeSeen(
                    f"n{number}", "local", "b1", "0", cpu * 1000, cpu * GIB, 8, 20_000, 29_999
                )
            )

    def tell(self, event: Event) -> None:
        """Apply an event and all that admission decides after it."""
        self.at_ms += 1
        before = self.state
        at = At(self.at_ms, self.at_ms, 0, "bench")
        after = admission.apply(before, event, at)
        if isinstance(after, Ignore):
            return
        self.state = after
        while (decided := admission.settle(self.state, self.at_ms)) is not None:
            settled = admission.apply(self.state, decided, at)
            assert isinstance(settled, Admission)
            self.state = settled
            self.settled += 1
        admission.consequences(before, self.state, event)

    def raised(self, job: str, replicas: int, *, cpu_milli: int = 1_000) -> None:
        """Let a job ask for its slots."""
        wanted = (Span("worker", 0, replicas - 1),)
        role = ev.RoleDemand("worker", wanted, cpu_milli, 0, 0, 1)
        self.tell(ev.DemandRaised(job, 1, "default", 50, (role,)))

    def ends(self, job: str) -> None:
        """Let a job end: nothing is asked for any more, and its slots come free one by one."""
        held = self.state.demands[job].held
        spans = tuple(Span(role, index, index) for role, index in held)
        self.tell(ev.DemandWithdrawn(job, spans))
        for span in spans:
            self.tell(ev.SlotFreed(job, (span,)))

    def granted(self) -> list[str]:
        """Return the jobs that have their slots."""
        demands = self.state.demands.items()
        return [job for job, one in demands if one.phase is DemandPhase.GRANTED]


def run() -> list[Figure]:
    """Return how long all lives take, and how much more an event costs beside many jobs."""
    lives_s, events = _lives()
    few, many = _event_s(LIVE_FEW, WAITING), _event_s(LIVE_MANY, WAITING)
    return [
        Figure(
            "admission, 1,000 jobs of 100 replicas",
            lives_s,
            "s",
            f"≤ {LIVES_S:g} s",
            lives_s <= LIVES_S,
            f"all wait for room of 20 at a time; {events / lives_s:,.0f} events/s",
        ),
        Figure(
            "admission, one slot freed",
            many * 1e6,
            "µs",
            f"≤ {RATIO_MAX:g} times of few",
            many <= RATIO_MAX * few,
            f"{WAITING:,} wait, {LIVE_MANY:,} live; "
            f"{LIVE_FEW} live: {few * 1e6:.0f} µs, ratio {many / few:.1f}",
        ),
    ]


def _lives() -> tuple[float, int]:
    """Return the seconds of all lives, in which 20 jobs have room at a time, and their events."""
    stage = Stage(NODES, cpu=REPLICAS)
    began = time.perf_counter()
    events = 0
    for number in range(JOBS):
        stage.raised(f"j{number:04}", REPLICAS)
        events += 1
    for _ in range(JOBS):
        stage.ends(stage.granted()[0])
        # Ports rest for a minute; time goes by in the lives of jobs.
        stage.at_ms += 10_000
        stage.tell(TimePassed())
        events += REPLICAS + 2
    assert not stage.state.demands, "every job had its turn"
    return time.perf_counter() - began, events


def _event_s(live: int, waiting: int) -> float:
    """Return the median seconds in which a slot that comes free is taken note of."""
    stage = Stage(NODES, cpu=10_000)
    for number in range(live):
        stage.raised(f"j{number:04}", 2)
    for number in range(waiting):
        stage.raised(f"w{number:04}", 2, cpu_milli=6_000_000)
    took = []
    for number in range(EVENTS):
        job = f"j{number % live:04}"
        if job not in stage.state.demands:
            break
        spans = (Span("worker", 0, 1),)
        stage.tell(ev.DemandWithdrawn(job, spans))
        began = time.perf_counter()
        stage.tell(ev.SlotFreed(job, (Span("worker", 0, 0),)))
        took.append(time.perf_counter() - began)
        stage.tell(ev.SlotFreed(job, (Span("worker", 1, 1),)))
    return statistics.median(took)


if __name__ == "__main__":
    for figure in run():
        print(figure)
