"""The queue as admission has it at one moment: surveyed once, asked for each job that is shown."""

from msgspec.structs import replace

from primusd.admission.fitting import is_satisfied
from primusd.admission.model import Admission, Demand
from primusd.admission.usage import with_demand
from primusd.admission.waits import Survey
from primusd.job.phases import DemandPhase

SURVEY_KEPT_MS = 1_000
"""Ports that rest and deadlines move with the clock."""


class Queue:
    """Who waits, and for what.

    Attributes:
        admission: As it is looked at.
    """

    def __init__(self, admission: Admission) -> None:
        self.admission = admission
        self._survey: Survey | None = None

    def survey(self, *, at_ms: int) -> Survey:
        """Return what becomes of the demands, worked out once for a while."""
        survey = self._survey
        if survey is None or not 0 <= at_ms - survey.at_ms < SURVEY_KEPT_MS:
            survey = self._survey = Survey(self.admission, at_ms=at_ms)
        return survey


def queue_of(admission: Admission) -> Queue:
    """Return the queue of admission as it is."""
    return Queue(admission)


def queue_with(admission: Admission, demand: Demand, *, after: tuple[str, ...] = ()) -> Queue:
    """Return the queue as it would be with one more demand that has just come.

    Args:
        admission: As it is.
        demand: Of a job that is not there yet.
        after: Uids of the jobs that it would wait for.
    """
    demands = with_demand(admission.demands, demand.job, demand)
    waits = {**admission.after, demand.job: after} if after else admission.after
    return Queue(replace(admission, demands=demands, after=waits))


def is_waiting(demand: Demand) -> bool:
    """Return whether a demand waits for something it does not hold yet."""
    return demand.phase is DemandPhase.WAITING and not is_satisfied(demand)
