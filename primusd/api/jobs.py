"""Jobs over HTTP: create, plan, list, get, patch, forget."""

import hashlib
import secrets

import msgspec
from aiohttp import web
from msgspec import UNSET, Struct

from primusd.api.acting import Act, check_job_version, job_now, propose_together, scaled
from primusd.api.after import waited_for
from primusd.api.asking import (
    answer,
    caller_of,
    choice,
    context_of,
    find_job,
    flag,
    page,
    wants_labels,
)
from primusd.api.context import Context
from primusd.api.planning import plan_document
from primusd.api.problems import Handler
from primusd.api.restoring import with_restores
from primusd.api.submitting import check_submit, learn_files, read_submit
from primusd.api.watching import is_watch, serve_watch
from primusd.core import check_new_job
from primusd.errors import (
    KeyReusedError,
    MalformedError,
    NotYetError,
    PhaseConflictError,
    Problem,
)
from primusd.job.events import ForgetRequested, JobSubmitted, SpecPatched
from primusd.job.ids import make_uid
from primusd.job.model import Job
from primusd.job.phases import JobPhase
from primusd.jobfile import Parsed, apply_patch, diff, split_sizes, to_yaml
from primusd.views import documents
from primusd.views.jobs import job_document
from primusd.views.queue import Queue, queue_of
from primusd.views.specs import spec_document

KEY_LENGTH_MAX = 128


def document_of(context: Context, job: Job, queue: Queue | None = None) -> documents.Job:
    """Return a job's document as of now."""
    engine = context.engine
    return job_document(job, engine.world, at_ms=engine.at_ms(), live=context.live(), queue=queue)


async def create(request: web.Request) -> web.Response:
    """Submit a job; `?dryRun` and `?plan` show what would come of it."""
    context = context_of(request)
    namespace = request.match_info["ns"]
    parsed = await read_submit(request, context, namespace)
    is_plan, is_dry_run = flag(request, "plan"), flag(request, "dryRun")
    if is_plan:
        return answer(plan_document(context, parsed))
    if not is_dry_run:
        await learn_files(context, parsed)
    key = request.headers.get("Idempotency-Key", "")
    if len(key) > KEY_LENGTH_MAX or not key.isprintable():
        raise MalformedError(f"Idempotency-Key has to be at most {KEY_LENGTH_MAX} plain characters")
    digest = spec_digest(parsed)
    known = _known(context, namespace, key, digest)
    if known is not None:
        return answer(plan_document(context, parsed) if is_dry_run else document_of(context, known))
    waits_for_nodes = flag(request, "waitForNodes")
    check_submit(context, parsed, waits_for_nodes=waits_for_nodes, sends_files_later=is_dry_run)
    after = waited_for(context.engine.world, parsed.spec)
    spec = with_restores(context.engine.world, parsed.spec)
    uid = make_uid(context.clock.wall_ms(), secrets.randbits(32))
    event = JobSubmitted(uid, spec, parsed.origins, caller_of(request), key, digest, after)
    if is_dry_run:
        check_new_job(context.engine.world.admission, event)
        return answer(plan_document(context, parsed))
    return await _submit(context, event, caller_of(request), namespace)


async def _submit(context: Context, event: JobSubmitted, by: str, namespace: str) -> web.Response:
    try:
        await context.engine.propose(event.uid, event, by=by)
    except KeyReusedError:
        # The same request came twice at once; the other one was first.
        known = _known(context, namespace, event.key, event.spec_digest)
        if known is None:
            raise
        return answer(document_of(context, known))
    job = context.engine.world.jobs[event.uid]
    location = f"/api/v1/namespaces/{namespace}/jobs/{event.uid}"
    return answer(document_of(context, job), status=201, headers={"Location": location})


def spec_digest(parsed: Parsed) -> str:
    """Return what tells one spec from another."""
    encoded = msgspec.json.encode(parsed.spec, order="deterministic")
    return hashlib.sha256(encoded).hexdigest()


def _known(context: Context, namespace: str, key: str, digest: str) -> Job | None:
    """Return the job that the key has made already.

    Raises:
        KeyReusedError: The key was used with another spec, or its job is forgotten.
    """
    world = context.engine.world
    use = world.admission.keys.get((namespace, key)) if key else None
    if use is None:
        return None
    job = world.jobs.get(use.job)
    if use.spec_digest != digest or job is None:
        raise KeyReusedError(
            f"the idempotency key {key} was used for job {use.job}, "
            + ("which was deleted" if job is None else "with another spec"),
            hint="take a new key for a new job",
        )
    return job


async def list_jobs(request: web.Request) -> web.StreamResponse:
    """List or watch jobs."""
    context = context_of(request)
    namespace = request.match_info.get("ns", "")
    phases = frozenset(filter(None, ",".join(request.query.getall("phase", [])).split(",")))
    _check_phases(phases)
    labels = wants_labels(request)

    def wants(job: Job) -> bool:
        return (
            (not namespace or job.spec.namespace == namespace)
            and (not phases or job.phase.value in phases)
            and all(job.spec.labels.get(key) == value for key, value in labels.items())
        )

    def wants_document(document: Struct) -> bool:
        assert isinstance(document, documents.Job)
        return (
            (not namespace or document.namespace == namespace)
            and (not phases or document.status.phase in phases)
            and all(document.labels.get(key) == value for key, value in labels.items())
        )

    if is_watch(request):
        return await serve_watch(request, ("Job",), wants=wants_document)
    engine = context.engine
    found = sorted((uid, job) for uid, job in engine.world.jobs.items() if wants(job))
    shown, cursor = page(request, found)
    queue = queue_of(engine.world.admission)
    return answer(
        documents.JobList(
            resource_version=str(engine.revision),
            items=tuple(document_of(context, job, queue) for job in shown),
            cursor=cursor or UNSET,
        )
    )


async def list_ended(request: web.Request) -> web.Response:
    """List jobs that have ended, the newest first."""
    context, engine = context_of(request), context_of(request).engine
    namespace = request.query.get("namespace", "")
    phases = frozenset(filter(None, ",".join(request.query.getall("phase", [])).split(",")))
    _check_phases(phases)
    labels = wants_labels(request)
    found = sorted(
        (f"{(1 << 50) - job.ended_ms:016d}/{uid}", job)
        for uid, job in engine.world.jobs.items()
        if job.is_final
        and (not namespace or job.spec.namespace == namespace)
        and (not phases or job.phase.value in phases)
        and all(job.spec.labels.get(key) == value for key, value in labels.items())
    )
    shown, cursor = page(request, found)
    return answer(
        documents.JobList(
            resource_version=str(engine.revision),
            items=tuple(document_of(context, job) for job in shown),
            cursor=cursor or UNSET,
        )
    )


def _check_phases(phases: frozenset[str]) -> None:
    unknown = sorted(phases - set(JobPhase))
    if unknown:
        problem = Problem("?phase", found=unknown[0][:80], allowed=tuple(JobPhase))
        raise MalformedError(f"{unknown[0][:80]!r} is no phase of a job", errors=(problem,))


async def get(request: web.Request) -> web.StreamResponse:
    """Show or watch one job."""
    job = find_job(request)
    if is_watch(request):
        uid = job.uid

        def wants(document: Struct) -> bool:
            assert isinstance(document, documents.Job)
            return document.uid == uid

        return await serve_watch(request, ("Job",), wants=wants)
    return answer(document_of(context_of(request), job))


async def spec(request: web.Request) -> web.Response:
    """Show the job file, with all its defaults."""
    job = find_job(request)
    is_yaml = choice(request, "form", ("json", "yaml"), "json") == "yaml"
    if is_yaml or "yaml" in request.headers.get("Accept", ""):
        return web.Response(text=to_yaml(job.spec), content_type="application/yaml")
    body = msgspec.json.encode(spec_document(job.spec))
    return web.Response(body=body, content_type="application/json")


async def patch(request: web.Request) -> web.Response:
    """Change mutable fields of the spec by a merge patch (RFC 7396)."""
    context, job = context_of(request), find_job(request)
    data = await request.read()
    try:
        body = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedError(f"the body cannot be used: {error}") from error
    if not isinstance(body, dict) or not isinstance(body.get("spec"), dict):
        raise MalformedError('the body has to be a merge patch: {"spec": {"priority": 60}}')
    check_job_version(request, context, job)
    sizes, rest = split_sizes(job.spec, body["spec"])
    parsed = apply_patch(job.spec, rest)
    events: list[Act] = list(scaled(job, sizes))
    if parsed.spec != job.spec:
        origins = {path: job.origins.get(path, origin) for path, origin in parsed.origins.items()}
        changed = tuple(str(one["path"]) for one in diff(job.spec, parsed.spec))
        events.append(SpecPatched(parsed.spec, origins, changed))
    await propose_together(context, job, events, by=caller_of(request))
    return answer(job_now(context, job))


async def delete(request: web.Request) -> web.Response:
    """Forget an ended job."""
    context, job = context_of(request), find_job(request)
    check_job_version(request, context, job)
    if not job.is_final:
        raise PhaseConflictError(
            f"{job.spec.name} is {job.phase.value}: only an ended job can be deleted",
            phase=job.phase.value,
            event="ForgetRequested",
            hint=f"primusctl cancel {job.spec.name}",
        )
    last = document_of(context, job)
    await context.engine.propose(job.uid, ForgetRequested(), by=caller_of(request))
    return answer(last)


def not_yet(what: str) -> Handler:
    """Return the handler of a path that this build does not carry out."""

    async def refuse(_request: web.Request) -> web.StreamResponse:
        raise NotYetError(f"{what} is not carried out by this version of primusd yet")

    return refuse
