"""What the daemon says of itself: health, version, cluster, metrics, and one plain screen."""

import html

import msgspec
import structlog
from aiohttp import web
from msgspec import UNSET

from primusd.api.asking import CONTEXT, answer, caller_of, context_of, flag
from primusd.api.context import Context
from primusd.api.forwarding import FORWARDER, not_leader
from primusd.api.openapi import OPENAPI
from primusd.api.problems import LEADER
from primusd.errors import ConflictError, NotFoundError, NotLeaderError
from primusd.executor.protocol import VERSION as PROTOCOL_VERSION
from primusd.state.election import others_once_ready
from primusd.views import cluster_documents as documents
from primusd.views.original import status_json

log = structlog.get_logger()

API_VERSION = "v1"
READY_S = 3.0
"""How long a leader that is told to resign waits for another head to be ready."""
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>primusd: {cluster}</title>
<style>body{{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:3rem auto;padding:0 1rem}}
td,th{{text-align:left;padding:.1rem 1rem .1rem 0}}</style></head><body>
<h1>primusd {version}</h1>
<p>{member} leads cluster <b>{cluster}</b>, term {term}, revision {revision}.</p>
<table><tr><th>job</th><th>namespace</th><th>phase</th></tr>{rows}</table>
<p>The page does not exist yet. Until then: <code>primusctl list</code>, <code>primusctl describe
NAME</code>, and the API: <a href="/openapi.json">openapi.json</a>,
<a href="/metrics">metrics</a>.</p>
</body></html>
"""
ROWS_MAX = 50


async def healthz(request: web.Request) -> web.Response:
    """Tell whether the loop turns."""
    is_healthy = request.app[CONTEXT].is_healthy()
    return web.Response(text="ok\n" if is_healthy else "stuck\n", status=200 if is_healthy else 503)


async def readyz(request: web.Request) -> web.Response:
    """Tell whether this daemon does what it is asked: it leads and can record, or hands it on.

    With `?leads` whether it leads and can record.
    """
    context = request.app[CONTEXT]
    outage = context.engine.outage
    if not context.is_leader() and (outage is None or isinstance(outage, NotLeaderError)):
        outage = not_leader(context.members())
        if not flag(request, "leads"):
            return await _follows(request)
    if outage is None:
        return web.Response(text="ok\n")
    headers = {"Retry-After": "1"}
    if isinstance(outage, NotLeaderError) and outage.leader is not None:
        headers[LEADER] = outage.leader
    return web.Response(text=f"{outage.message}\n", status=503, headers=headers)


async def _follows(request: web.Request) -> web.Response:
    """Tell whether a head that stands by reaches the leader."""
    heads = request.app[CONTEXT].members()
    leader = heads.leader
    address = next(iter(leader.addresses), "") if leader is not None else ""
    text, status = "ok", 200
    try:
        await request.app[FORWARDER].check_reached()
    except NotLeaderError as error:
        text, status = error.message, 503
    headers = {LEADER: address} | ({} if status == 200 else {"Retry-After": "1"})
    return web.Response(text=f"{text}\n", status=status, headers=headers)


async def version(request: web.Request) -> web.Response:
    """Tell which program answers."""
    context = request.app[CONTEXT]
    return answer(
        documents.Version(version=context.version, api=API_VERSION, protocol=PROTOCOL_VERSION)
    )


async def resign(request: web.Request) -> web.Response:
    """Let another head lead; the answer is the last word of this one as the leader."""
    context = context_of(request)
    own = context.config().config.member
    others = await others_once_ready(context.members, context.news, own, within_s=READY_S)
    if not others:
        raise ConflictError(
            f"no other head stands by: {own} leads on", hint="start one with the same etcd first"
        )
    if not any(one.ready for one in others):
        names = ", ".join(one.member for one in others)
        raise ConflictError(
            f"no other head is ready, {own} leads on: {names} cannot take over yet",
            hint="try again in a moment; GET /cluster at a head that stands by says how far it is",
        )
    response = await cluster(request)
    log.info("leadership.resigned", by=caller_of(request))
    await context.resign()
    return response


async def cluster(request: web.Request) -> web.Response:
    """Tell who leads, and how well the journal follows."""
    context = request.app[CONTEXT]
    config, engine = context.config().config, context.engine
    heads = context.members()
    leads = context.is_leader() and engine.term > 0
    copy = None if leads else copy_of(context)
    leader = config.member if leads else heads.leader.member if heads.leader else ""
    world = engine.world if copy is None or context.copy is None else context.copy.world
    return answer(
        documents.Cluster(
            name=config.cluster,
            id=context.cluster_id,
            leader=leader,
            member=config.member,
            term=engine.term if leads else heads.term,
            revision=str(engine.revision) if copy is None else copy.revision,
            members=_members(context),
            store=_store(context),
            journal_lag_ms=engine.journal_lag_ms(),
            clock_skew_ms=engine.skew_ms(),
            jobs=len(world.jobs),
            pid=context.pid,
            wedged=world.admission.wedged,
            copy=UNSET if copy is None else copy,
        )
    )


def _store(context: Context) -> documents.StoreStatus:
    measured = context.measured()
    return documents.StoreStatus(
        kind=context.config().config.store.kind,
        used_percent=UNSET if measured is None else measured.used_percent,
    )


def _members(context: Context) -> tuple[documents.Member, ...]:
    """Return all heads, this one first."""
    config = context.config().config
    url = config.listen.advertise or config.listen.tcp
    if url and "://" not in url:
        # As the others are known.
        url = f"{'https' if config.listen.tls_cert else 'http'}://{url}"
    own = documents.Member(
        name=config.member,
        url=url,
        version=context.version,
        ready=context.copy is None or context.copy.may_lead,
    )
    others = (
        documents.Member(
            name=one.member,
            url=next(iter(one.addresses), ""),
            version=one.version,
            ready=one.ready,
        )
        for one in context.members().others(config.member)
    )
    return (own, *others)


def copy_of(context: Context) -> documents.Copy | None:
    """Return what this head has of another one's work; None: it is no head that stands by."""
    if context.copy is None:
        return None
    copy, seen = context.copy, context.copy.seen()
    age_ms = context.clock.boot_ms() - seen.complete_ms if seen.complete_ms else UNSET
    return documents.Copy(
        revision=str(copy.revision),
        behind=max(0, seen.newest - copy.revision),
        age_ms=age_ms,
        refused=copy.refused.message if copy.refused is not None else UNSET,
    )


async def metrics(request: web.Request) -> web.Response:
    """Tell figures in Prometheus' text form."""
    # Its client costs a tenth of the daemon's start.
    from primusd.api.metrics import metrics_text  # noqa: PLC0415

    text = metrics_text(request.app[CONTEXT])
    return web.Response(body=text, headers={"Content-Type": "text/plain; version=0.0.4"})


async def openapi_json(request: web.Request) -> web.Response:
    """Describe the API by the types its documents are made from."""
    return web.Response(body=request.app[OPENAPI], content_type="application/json")


async def screen(request: web.Request) -> web.Response:
    """Show one plain screen until the page exists."""
    context = context_of(request)
    config, engine = context.config().config, context.engine
    newest = sorted(engine.world.jobs.values(), key=lambda job: job.uid, reverse=True)[:ROWS_MAX]
    rows = "".join(
        f"<tr><td>{html.escape(job.spec.name)}</td><td>{html.escape(job.spec.namespace)}</td>"
        f"<td>{job.phase.value}</td></tr>"
        for job in newest
    )
    page = _PAGE.format(
        version=html.escape(context.version),
        member=html.escape(config.member),
        cluster=html.escape(config.cluster),
        term=engine.term,
        revision=engine.revision,
        rows=rows,
    )
    return web.Response(
        text=page,
        content_type="text/html",
        headers={
            "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
            "X-Content-Type-Options": "nosniff",
        },
    )


async def original_status(request: web.Request) -> web.Response:
    """Answer in the original's shape, for scripts that read it."""
    context = context_of(request)
    name = request.query.get("job", "")
    world = context.engine.world
    found = [
        job
        for uid, job in world.jobs.items()
        if name in (uid, job.spec.name, f"{job.spec.namespace}/{job.spec.name}")
    ]
    if not found:
        raise NotFoundError(f"there is no job {name!r}", hint="?job=NAME, namespace/NAME or a uid")
    job = max(found, key=lambda one: one.uid)
    return web.Response(
        body=msgspec.json.encode(status_json(job, world)), content_type="application/json"
    )
