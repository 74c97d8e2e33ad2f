"""What people do to a job over HTTP: cancel, suspend, resume, restart, scale, finish.

Every act is journaled with its caller, and is a goal: asked for again it is no error.
"""

from collections.abc import Mapping, Sequence

from aiohttp import web
from msgspec import Struct

from primusd.api.asking import answer, caller_of, check_version, context_of, find_job, read_body
from primusd.api.context import Context
from primusd.api.replicas import no_replica
from primusd.core import Raised, Rejected
from primusd.engine import wedged_error
from primusd.errors import MalformedError, NotFoundError, PhaseConflictError, Problem
from primusd.job.events import (
    CancelRequested,
    RestartRequested,
    ResumeRequested,
    RoleScaled,
    SpecPatched,
    SuspendRequested,
    VerdictRequested,
)
from primusd.job.ids import Span, parse_replica, spans
from primusd.job.model import Job
from primusd.jobfile.patching import check_sizes
from primusd.records import Proposal
from primusd.views import documents
from primusd.views.jobs import job_document, shown_revision

REASON_LENGTH_MAX = 1_000
VERDICTS = ("Succeeded", "Failed")

Act = (
    CancelRequested
    | RestartRequested
    | ResumeRequested
    | RoleScaled
    | SpecPatched
    | SuspendRequested
    | VerdictRequested
)


WORDS: Mapping[type, str] = {
    SuspendRequested: "suspended",
    ResumeRequested: "resumed",
    RestartRequested: "restarted",
    RoleScaled: "scaled",
    SpecPatched: "changed",
    VerdictRequested: "finished",
}
"""What a job cannot be where its table refuses an act."""
HINTS = {"Draining": "primusctl cancel {name}", "Suspended": "primusctl resume {name}"}


class ReasonBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Body of `:cancel`, `:suspend` and `:resume`."""

    reason: str = ""


class RestartBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Body of `:restart`: whole roles, single replicas; neither is all of them."""

    roles: tuple[str, ...] = ()
    replicas: tuple[str, ...] = ()
    reason: str = ""


class FinishBody(Struct, frozen=True, forbid_unknown_fields=True, rename={"as_phase": "as"}):
    """Body of `:finish`."""

    as_phase: str
    reason: str = ""


async def cancel(request: web.Request) -> web.Response:
    """Stop a job for good."""
    body = await read_body(request, ReasonBody)
    return await _act(request, CancelRequested(_checked_reason(body.reason)))


async def suspend(request: web.Request) -> web.Response:
    """Stop a job's trainers and free its slots until it is resumed."""
    body = await read_body(request, ReasonBody)
    return await _act(request, SuspendRequested(_checked_reason(body.reason)))


async def resume(request: web.Request) -> web.Response:
    """End a pause: the job goes back to its queue."""
    body = await read_body(request, ReasonBody)
    return await _act(request, ResumeRequested(_checked_reason(body.reason)))


async def finish(request: web.Request) -> web.Response:
    """End a job with a verdict that a person decides."""
    body = await read_body(request, FinishBody)
    if body.as_phase not in VERDICTS:
        problem = Problem("as", found=body.as_phase[:80], allowed=VERDICTS)
        raise MalformedError("as has to be Succeeded or Failed", errors=(problem,))
    event = VerdictRequested(body.as_phase, _checked_reason(body.reason))
    return await _act(request, event)


async def restart(request: web.Request) -> web.Response:
    """Restart replicas, roles, or all."""
    body = await read_body(request, RestartBody)
    job = find_job(request)
    event = RestartRequested(_spans(job, body), _checked_reason(body.reason))
    return await _act(request, event)


def _spans(job: Job, body: RestartBody) -> tuple[Span, ...]:
    """Return the replicas that are named, all when none are.

    Raises:
        NotFoundError: The job has no such role or replica.
    """
    named: set[tuple[str, int]] = set()
    for role in body.roles or (() if body.replicas else tuple(job.roles)):
        _check_role(job, role)
        named |= {(role, index) for index in range(job.roles[role].size)}
    for name in body.replicas:
        try:
            role, index = parse_replica(name)
        except ValueError as error:
            raise NotFoundError(str(error)) from error
        if role not in job.roles or index >= job.roles[role].size:
            raise no_replica(job, name)
        named.add((role, index))
    return spans(named)


def _check_role(job: Job, role: str) -> None:
    if role not in job.roles:
        raise NotFoundError(
            f"{job.spec.name} has no role {role!r}", hint=f"it has {', '.join(job.roles)}"
        )


async def scale(request: web.Request) -> web.Response:
    """Change how many replicas roles have; all that are named, or none."""
    sizes = await read_body(request, dict[str, int])
    if not sizes:
        raise MalformedError('no role is named: give a number of replicas, as {"worker": 8}')
    job = find_job(request)
    for role in sizes:
        _check_role(job, role)
    check_sizes(job.spec, sizes)
    return await _act(request, *scaled(job, sizes))


def scaled(job: Job, sizes: Mapping[str, int]) -> tuple[RoleScaled, ...]:
    """Return the events that bring roles to their sizes; those that have theirs need none."""
    return tuple(
        RoleScaled(role, size) for role, size in sizes.items() if job.roles[role].size != size
    )


async def _act(request: web.Request, *events: Act) -> web.Response:
    """Record what a person asked for, and show the job as it is then."""
    context, job = context_of(request), find_job(request)
    check_job_version(request, context, job)
    await propose_together(context, job, events, by=caller_of(request))
    return answer(job_now(context, job))


async def propose_together(context: Context, job: Job, events: Sequence[Act], *, by: str) -> None:
    """Record events of a job in one step.

    Raises:
        PrimusdError: The first one that the job's table refuses.
    """
    proposals = [Proposal(job.uid, event, by) for event in events]
    for event, one in zip(events, await context.engine.propose_all(proposals), strict=True):
        match one:
            case Rejected(PhaseConflictError(hint="") as error) if type(event) in WORDS:
                raise conflict_in_words(job, WORDS[type(event)], error) from error
            case Rejected(error):
                raise error
            case Raised(machine):
                raise wedged_error(machine)
            case _:
                pass


def conflict_in_words(job: Job, word: str, error: PhaseConflictError) -> PhaseConflictError:
    """Return the refusal of a table's cell as a person understands it."""
    name = job.spec.name
    return PhaseConflictError(
        f"{name} is {error.phase}: it cannot be {word}",
        phase=error.phase,
        event=error.event,
        hint=HINTS.get(error.phase, "").format(name=name),
    )


def check_job_version(request: web.Request, context: Context, job: Job) -> None:
    """Refuse a write that was meant for an older state of the job."""
    now = shown_revision(job, context.engine.world)
    check_version(request, since=job.changed_revision, now=now)


def job_now(context: Context, job: Job) -> documents.Job:
    """Return the document of a job as it is now; as it was last when its record went meanwhile."""
    engine = context.engine
    found = engine.world.jobs.get(job.uid, job)
    return job_document(found, engine.world, at_ms=engine.at_ms(), live=context.live())


def _checked_reason(reason: str) -> str:
    if len(reason) > REASON_LENGTH_MAX:
        raise MalformedError(f"a reason has at most {REASON_LENGTH_MAX} characters")
    return reason
