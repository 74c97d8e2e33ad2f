"""Nodes and strays over HTTP."""

import re
from collections.abc import Iterator

from aiohttp import web
from msgspec import UNSET, Struct

from primusd.admission.events import (
    CordonRequested,
    DrainRequested,
    ForgiveRequested,
    NodeExclusionRequested,
    RemovalRequested,
    UncordonRequested,
)
from primusd.admission.model import Node
from primusd.api.asking import answer, caller_of, context_of, read_body
from primusd.api.context import Context
from primusd.api.hello import newest_of
from primusd.api.watching import is_watch, serve_watch
from primusd.core import World
from primusd.errors import ConflictError, MalformedError, NotFoundError
from primusd.inbox import PROPOSALS_PER_STEP_MAX
from primusd.job.events import AttemptVanished
from primusd.job.ids import AttemptId
from primusd.job.model import replicas_of
from primusd.job.phases import AttemptPhase, NodePhase
from primusd.keys import node_key
from primusd.launchers.base import Listed
from primusd.records import ADMISSION, Proposal
from primusd.sweep import sort_listed
from primusd.units import UnitError, parse_duration_ms
from primusd.views import cluster_documents as documents
from primusd.views.nodes import node_document

Act = (
    CordonRequested | DrainRequested | ForgiveRequested | NodeExclusionRequested | UncordonRequested
)
EXCLUDED_MS_MAX = 7 * 86_400_000
REASON_LENGTH_MAX = 1_000
NODE_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")


class DrainBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Body of `:drain`."""

    now: bool = False


class ExcludeBody(Struct, frozen=True, forbid_unknown_fields=True, rename={"for_": "for"}):
    """Body of `:exclude`."""

    for_: str
    """A duration, as `1h`."""
    namespace: str = "default"
    job: str = ""
    """The only one that is kept off; "" all."""
    reason: str = ""


class RemoveBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Body of `:remove`."""

    lost: bool = False
    """What ran there and is not known to be over is lost with it."""


async def list_nodes(request: web.Request) -> web.StreamResponse:
    """List or watch the nodes."""
    context = context_of(request)
    if is_watch(request):
        return await serve_watch(request, ("Node",), wants=lambda _document: True)
    world, live = context.engine.world, context.live()
    nodes = sorted(world.admission.nodes.values(), key=lambda one: one.name)
    return answer(
        documents.NodeList(
            resource_version=str(context.engine.revision),
            items=tuple(node_document(one, world, live) for one in nodes),
        )
    )


def _find_node(request: web.Request) -> Node:
    name = request.match_info["name"]
    node = context_of(request).engine.world.admission.nodes.get(name)
    if node is None:
        raise NotFoundError(f"there is no node {name}", hint="primusctl nodes list")
    return node


async def get_node(request: web.Request) -> web.Response:
    """Show one node."""
    context = context_of(request)
    return answer(node_document(_find_node(request), context.engine.world, context.live()))


async def cordon(request: web.Request) -> web.Response:
    """Place nothing new on a node."""
    return await _act(request, CordonRequested(_find_node(request).name))


async def uncordon(request: web.Request) -> web.Response:
    """Place on a node again."""
    return await _act(request, UncordonRequested(_find_node(request).name))


async def forgive(request: web.Request) -> web.Response:
    """End a node's exclusion."""
    return await _act(request, ForgiveRequested(_find_node(request).name))


async def drain(request: web.Request) -> web.Response:
    """Empty a node: what runs there moves elsewhere."""
    body = await read_body(request, DrainBody)
    return await _act(request, DrainRequested(_find_node(request).name, body.now))


async def exclude(request: web.Request) -> web.Response:
    """Leave a node out for a while, for all jobs or for one."""
    body = await read_body(request, ExcludeBody)
    try:
        for_ms = parse_duration_ms(body.for_)
    except UnitError as error:
        raise MalformedError(f"for: {error}", hint=error.allowed) from error
    if not 0 < for_ms <= EXCLUDED_MS_MAX:
        raise MalformedError(f"for is {body.for_}, must be more than nothing and at most 7d")
    job = _uid_of(request, body.namespace, body.job) if body.job else ""
    reason = body.reason[:REASON_LENGTH_MAX]
    return await _act(
        request, NodeExclusionRequested(_find_node(request).name, for_ms, job, reason)
    )


async def remove(request: web.Request) -> web.Response:
    """Forget a node that is gone for good; what is lost with it begins elsewhere at once."""
    body = await read_body(request, RemoveBody)
    context, node = context_of(request), _find_node(request)
    if node.phase is not NodePhase.AWAY:
        raise ConflictError(
            f"{node.name} is {node.phase}: only a node that is away can be removed",
            hint="end its `primusd node`; half a minute later it is Away",
        )
    world = context.engine.world
    left = tuple(_left_on(world, node.name))
    if left and not body.lost:
        raise ConflictError(
            _left_words(world, node.name, left), hint=f"{_REMOVE} {node.name} --lost"
        )
    shown = node_document(node, world, context.live())
    caller = caller_of(request)
    lost = [Proposal(one.job, AttemptVanished(one, None, "nodeLost"), caller) for one in left]
    for first in range(0, len(lost), PROPOSALS_PER_STEP_MAX):
        await context.engine.propose_all(lost[first : first + PROPOSALS_PER_STEP_MAX])
    # Refused where one of these was: the node then still keeps a slot.
    await context.engine.propose(ADMISSION, RemovalRequested(node.name), by=caller)
    return answer(shown)


_REMOVE = "if that host is gone for good they count as lost: primusctl nodes remove"


def _left_on(world: World, node: str) -> Iterator[AttemptId]:
    """Yield the attempts on a node that are not known to be over."""
    for job in world.jobs.values():
        for role in job.roles.values():
            for replica in replicas_of(role):
                for one in replica.attempts:
                    is_over = one.phase is AttemptPhase.GONE and not one.is_quarantined
                    if one.node == node and not is_over:
                        yield AttemptId(job.uid, role.name, replica.index, one.number)


def _left_words(world: World, node: str, left: tuple[AttemptId, ...]) -> str:
    names = [f"{one.replica} of {world.jobs[one.job].spec.name}" for one in left[:3]]
    more = f" and {len(left) - 3} more" if len(left) > 3 else ""
    return f"it is not known that {', '.join(names)}{more} ended on {node}"


def _uid_of(request: web.Request, namespace: str, name: str) -> str:
    uid = context_of(request).engine.world.admission.names.get((namespace, name))
    if uid is None:
        raise NotFoundError(f"no live job is called {name} in namespace {namespace}")
    return uid


async def _act(request: web.Request, event: Act) -> web.Response:
    context = context_of(request)
    await context.engine.propose(ADMISSION, event, by=caller_of(request))
    return answer(node_document(_find_node(request), context.engine.world, context.live()))


async def add_node(request: web.Request) -> web.Response:
    """Give out what a new node needs to dial this daemon: its key, and our addresses."""
    context, name = context_of(request), request.match_info["name"]
    if NODE_NAME.fullmatch(name) is None:
        raise MalformedError(f"{name[:80]!r} is no node's name", hint="a host name in lower case")
    return answer(
        documents.NodeBootstrap(
            name=name,
            cluster=context.cluster_id,
            heads=context.heads(),
            key=node_key(context.secret, name),
            ca=context.ca() or UNSET,
        )
    )


AHEAD = "it has seen what this store never had: the store lost its end, or is an older copy"
UNKNOWN = "neither a record nor a tombstone of it is in this store"


async def list_strays(request: web.Request) -> web.Response:
    """List what launchers have and this store does not know."""
    context = context_of(request)
    await _look(context)
    return answer(
        documents.StrayList(
            resource_version=str(context.engine.revision),
            items=tuple(_stray(context, one.launcher, one.listed) for one in context.strays.all()),
        )
    )


async def _look(context: Context) -> None:
    """Ask the launchers now: the last sweep may be older than what a person just saw."""
    for name, launcher in context.launchers.items():
        found = sort_listed(context.engine.world, await launcher.list(), context.strays.ahead)
        context.strays.put(name, found.strays)


def stray_id(listed: Listed) -> str:
    """Return what a person calls a stray: `<uid>.worker-3.2`."""
    attempt = listed.attempt
    return f"{attempt.job}.{attempt.replica}.{attempt.attempt}"


def _stray(context: Context, launcher: str, listed: Listed) -> documents.Stray:
    is_known = newest_of(context.engine.world, listed.attempt) is not None
    return documents.Stray(
        id=stray_id(listed),
        job_uid=listed.attempt.job,
        replica=listed.attempt.replica,
        attempt=listed.attempt.attempt,
        node=listed.node,
        alive=listed.is_alive,
        launcher=launcher,
        reason=AHEAD if is_known else UNKNOWN,
    )


def _find_stray(request: web.Request, context: Context) -> tuple[str, Listed]:
    name = request.match_info["id"]
    for stray in context.strays.all():
        if stray_id(stray.listed) == name:
            return stray.launcher, stray.listed
    raise NotFoundError(f"there is no stray {name}", hint="primusctl strays list")


async def stop_stray(request: web.Request) -> web.Response:
    """End a stray: a person has judged that it is not wanted."""
    context = context_of(request)
    launcher, listed = _find_stray(request, context)
    back_end = context.launchers[launcher]
    context.strays.take_in(listed.attempt)
    if listed.is_alive:
        await back_end.stop(listed.attempt, listed.node)
    await back_end.release(listed.attempt, listed.node)
    return answer(_stray(context, launcher, listed))


async def adopt_stray(request: web.Request) -> web.Response:
    """Let a stray in at its next hello: its store was older than what it has seen."""
    context = context_of(request)
    launcher, listed = _find_stray(request, context)
    if newest_of(context.engine.world, listed.attempt) is None:
        raise ConflictError(
            f"{listed.attempt.label} cannot be adopted: this store has no record of it",
            hint="restore the store that has it, or stop it: primusctl strays stop ID",
        )
    context.strays.adopt(listed.attempt)
    return answer(_stray(context, launcher, listed))
