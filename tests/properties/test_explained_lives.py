"""C36: through any life there is a reason while a job is pending, out of the closed lists."""

from collections import Counter

import pytest

from primusd.job.phases import JobPhase
from primusd.job.reasons import QUESTIONS, RESTARTED, VERDICTS, WAITING
from primusd.records import Event
from primusd.views.explaining import explanations
from primusd.views.queue import queue_of
from primusd.views.waiting import why
from tests.properties.job_simulator import UID, Simulation

SEEDS = 150
STEPS = 16
EXPLAINED_EVERY = 5


class Asked(Simulation):
    """A life of which after every step it is asked why it waits, and now and then everything."""

    reasons: Counter[str]
    asked = 0

    def say(self, to: str, *events: Event, by: str = "sim", is_lie: bool = False) -> None:
        super().say(to, *events, by=by, is_lie=is_lie)
        job = self.world.jobs.get(UID)
        if job is None:
            return
        self.reasons = self.__dict__.setdefault("reasons", Counter())
        queue = queue_of(self.world.admission)
        if job.phase in (JobPhase.QUEUED, JobPhase.STARTING):
            waiting = why(job, self.world, queue, at_ms=self.now_ms)
            assert waiting is not None, job.phase
            assert waiting.reason in WAITING
            assert waiting.message
            self.reasons[waiting.reason] += 1
        self.asked += 1
        if self.asked % EXPLAINED_EVERY and not job.is_final:
            return
        for one in explanations(job, self.world, queue, at_ms=self.now_ms):
            assert one.reason in QUESTIONS[one.question], (one.question, one.reason)
            assert one.answer
            self.reasons[one.reason] += 1
        assert job.verdict is None or job.verdict.reason in VERDICTS


@pytest.mark.timeout(120)
def test_C36_whatever_happens_to_a_job_the_lists_have_the_reason() -> None:
    seen: Counter[str] = Counter()

    for seed in range(SEEDS):
        life = Asked(seed)
        life.run(STEPS)
        seen.update(life.reasons)

    assert len(seen.keys() & WAITING.keys()) >= 6, seen
    assert len(seen.keys() & RESTARTED.keys()) >= 5, seen
    assert len(seen.keys() & VERDICTS.keys()) >= 5, seen
