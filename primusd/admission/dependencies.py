"""Jobs that wait for other jobs: `after` of the job file.

Kept apart from the demands: a job that is suspended has none, and still hears how those it waits
for ended. A job can name only jobs that were there before it, and `after` never changes; so nobody
can wait for himself, however long the way round.
"""

from msgspec.structs import replace

from primusd.admission import events as ev
from primusd.admission.model import Admission
from primusd.job.events import JobRefused
from primusd.job.machine import Proposed

SUCCEEDED = "Succeeded"
REFUSED = "DependencyFailed"


def waits_after(state: Admission, event: ev.JobNoted) -> Admission:
    """Return admission with the jobs that a new one waits for: those of them that still live."""
    if not event.after:
        return state
    live = frozenset(state.names.values())
    waited_for = tuple(job for job in event.after if job in live)
    return replace(state, after={**state.after, event.job: waited_for}) if waited_for else state


def without_ended(state: Admission, event: ev.JobEnded) -> Admission:
    """Return admission after a job's end: it waits for nobody, and who waited for it may go.

    One that did not succeed stays named: whoever waits for it hears of that in this same step, and
    must not be given slots before.
    """
    if not state.after:
        return state
    is_enough = event.as_phase == SUCCEEDED
    kept = {}
    for job, waited_for in state.after.items():
        left = tuple(one for one in waited_for if one != event.job) if is_enough else waited_for
        if left and job != event.job:
            kept[job] = left
    return replace(state, after=kept)


def refusals(before: Admission, event: ev.JobEnded) -> tuple[Proposed, ...]:
    """Return what the jobs hear that waited for one that did not succeed, however far behind it.

    All of them at once, nearest first: one after the other would be as deep as the row is long.
    """
    if event.as_phase == SUCCEEDED or not before.after:
        return ()
    how = event.as_phase or "otherwise"
    message = f"{name_of(before, event.job)}, which it waits for, ended {how}"
    told = {job: message for job, ones in before.after.items() if event.job in ones}
    row = list(told)
    while row:
        failed = row.pop(0)
        text = f"{name_of(before, failed)}, which it waits for, will not start: {told[failed]}"
        for job, ones in before.after.items():
            if failed in ones and job not in told:
                told[job] = text if told[failed] == message else told[failed]
                row.append(job)
    return tuple(Proposed(job, JobRefused(REFUSED, text)) for job, text in told.items())


def name_of(state: Admission, job: str) -> str:
    """Return how people call a live job: `ctr`, or with its namespace `ads/ctr`."""
    namespace, name = next((key for key, uid in state.names.items() if uid == job), ("", job))
    return name if namespace in ("", "default") else f"{namespace}/{name}"
