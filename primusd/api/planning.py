"""What a job file would come to here: its plan, with what only the daemon knows."""

from primusd.admission.model import Demand
from primusd.admission.turns import Turn
from primusd.admission.waits import why_waits
from primusd.api.after import still_awaited
from primusd.api.context import Context
from primusd.api.submitting import demands_of
from primusd.job.demand import runs_for_ms
from primusd.job.phases import DemandPhase
from primusd.job.spec import JobSpec
from primusd.jobfile import Parsed, plan
from primusd.views import documents
from primusd.views.plans import plan_view
from primusd.views.queue import queue_with
from primusd.views.waiting import Waiting

UNBORN = "~"
"""Sorts behind every uid: the job that is planned would be the youngest."""


def plan_document(context: Context, parsed: Parsed) -> documents.Plan:
    """Return the plan of a job file, against the live job of its name if there is one."""
    spec, world = parsed.spec, context.engine.world
    uid = world.admission.names.get((spec.namespace, spec.name))
    old = world.jobs.get(uid) if uid is not None else None
    return plan_view(
        plan(spec, parsed.origins, old.spec if old is not None else None),
        spec,
        cluster=context.config().config.cluster,
        would_wait=_would_wait(context, spec),
        warnings=parsed.warnings,
    )


def _would_wait(context: Context, spec: JobSpec) -> Waiting | None:
    """Return what the job would wait for if it came now; None: it would start at once."""
    at_ms = context.engine.at_ms()
    demand = Demand(
        job=UNBORN,
        phase=DemandPhase.WAITING,
        generation=1,
        queue=spec.queue,
        priority=spec.priority,
        since_ms=at_ms,
        roles={one.role: one for one in demands_of(spec)},
        runs_for_ms=runs_for_ms(spec),
    )
    world = context.engine.world
    pending = still_awaited(world, spec)
    survey = queue_with(world.admission, demand, after=pending).survey(at_ms=at_ms)
    outcome = survey.outcome(UNBORN)
    if outcome is not None and outcome.turn is Turn.STARTS:
        return None
    return why_waits(survey, demand)
