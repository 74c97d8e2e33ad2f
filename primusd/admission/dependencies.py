"""Jobs that wait for other jobs: `after` of the job file, and `staging` of their streams.

Positions go from one job to the next in a staging folder. Who waited for them in slots would keep
those from the very job that is to leave them; so it waits here, until that one is over.

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
    live = frozenset(state.names.values()) if event.after or event.stages else frozenset()
    waited_for = tuple(job for job in event.after if job in live)
    if event.stages:
        state, earlier = _staged(state, event)
        waited_for = tuple(dict.fromkeys((*waited_for, *earlier)))
    return replace(state, after={**state.after, event.job: waited_for}) if waited_for else state


def _staged(state: Admission, event: ev.JobNoted) -> tuple[Admission, tuple[str, ...]]:
    """Return admission with the folders of a new job, and who has one of them before it."""
    wanted = frozenset(event.stages)
    earlier = tuple(job for job, ones in state.stages.items() if not wanted.isdisjoint(ones))
    state = replace(state, stages={**state.stages, event.job: event.stages})
    # What `after` names as well must have Succeeded.
    over_first = tuple(job for job in earlier if job not in event.after)
    if over_first:
        state = replace(state, over_first={**state.over_first, event.job: over_first})
    return state, earlier


def without_ended(state: Admission, event: ev.JobEnded) -> Admission:
    """Return admission after a job's end: it waits for nobody, and who waited for it may go.

    One that did not succeed stays named: whoever waits for it hears of that in this same step, and
    must not be given slots before.
    """
    if event.job in state.stages:
        stages = {job: ones for job, ones in state.stages.items() if job != event.job}
        state = replace(state, stages=stages)
    if not state.after:
        return state
    kept = {}
    for job, waited_for in state.after.items():
        is_enough = event.as_phase == SUCCEEDED or event.job in state.over_first.get(job, ())
        left = tuple(one for one in waited_for if one != event.job) if is_enough else waited_for
        if left and job != event.job:
            kept[job] = left
    over_first = {job: ones for job, ones in state.over_first.items() if job in kept}
    return replace(state, after=kept, over_first=over_first)


def refusals(before: Admission, event: ev.JobEnded) -> tuple[Proposed, ...]:
    """Return what the jobs hear that waited for one that did not succeed, however far behind it.

    All of them at once, nearest first: one after the other would be as deep as the row is long.
    """
    if event.as_phase == SUCCEEDED or not before.after:
        return ()
    how = event.as_phase or "otherwise"
    message = f"{name_of(before, event.job)}, which it waits for, ended {how}"
    told = {job: message for job in before.after if _needs(before, job, event.job)}
    row = list(told)
    while row:
        failed = row.pop(0)
        text = f"{name_of(before, failed)}, which it waits for, will not start: {told[failed]}"
        for job in before.after:
            if job not in told and _needs(before, job, failed):
                told[job] = text if told[failed] == message else told[failed]
                row.append(job)
    return tuple(Proposed(job, JobRefused(REFUSED, text)) for job, text in told.items())


def _needs(state: Admission, job: str, other: str) -> bool:
    """Return whether a job starts only if another one Succeeds."""
    return other in state.after[job] and other not in state.over_first.get(job, ())


def name_of(state: Admission, job: str) -> str:
    """Return how people call a live job: `ctr`, or with its namespace `ads/ctr`."""
    namespace, name = next((key for key, uid in state.names.items() if uid == job), ("", job))
    return name if namespace in ("", "default") else f"{namespace}/{name}"
