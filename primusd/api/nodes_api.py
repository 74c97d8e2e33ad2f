"""Nodes and strays over HTTP."""

import re

from aiohttp import web
from msgspec import UNSET

from primusd.api.asking import answer, caller_of, context_of
from primusd.api.context import Context
from primusd.api.hello import newest_of
from primusd.api.watching import is_watch, serve_watch
from primusd.errors import ConflictError, MalformedError, NotFoundError
from primusd.job.admission_events import CordonRequested, ForgiveRequested, UncordonRequested
from primusd.job.admission_model import Node
from primusd.keys import node_key
from primusd.launchers.base import Listed
from primusd.records import ADMISSION
from primusd.sweep import sort_listed
from primusd.views import cluster_documents as documents
from primusd.views.nodes import node_document

NODE_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")


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


async def _act(
    request: web.Request, event: CordonRequested | UncordonRequested | ForgiveRequested
) -> web.Response:
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
            heads=context.heads,
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
