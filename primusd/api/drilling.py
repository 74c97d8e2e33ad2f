"""Faults on purpose over HTTP: recorded first, with who asked, then brought about for real."""

from collections import Counter
from collections.abc import Iterable, Iterator

import anyio
from aiohttp import web
from msgspec import Struct

from primusd.api.acting import conflict_in_words
from primusd.api.asking import answer, caller_of, context_of, find_job, read_body
from primusd.api.context import Context
from primusd.api.replicas import named_replica
from primusd.errors import MalformedError, NotFoundError, PhaseConflictError, PrimusdError, Problem
from primusd.executor.protocol import PAUSE_MS_MAX
from primusd.job.events import DrillRequested
from primusd.job.ids import AttemptId, Span, spans
from primusd.job.job_tables import check_job
from primusd.job.model import Attempt, Job, Replica, RoleState, replicas_of
from primusd.job.phases import AttemptPhase
from primusd.job.wording import duration_words, span_words
from primusd.views.drills import drill_document

FAULTS = ("kill", "pause", "preempt", "loseNode")
TARGETS_MAX = 100
_ASKS = {"kill": "kill", "pause": "pause", "loseNode": "die"}
"""What executors are asked for."""


class DrillBody(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Body of `:drill`."""

    fault: str
    """`kill`, `pause`, `preempt` or `loseNode`."""
    replicas: tuple[str, ...] = ()
    """Of `kill` and `pause`: who is met; none: the first replica that runs."""
    node: str = ""
    """Of `loseNode`; "": the one with most of the job's replicas."""
    pause_ms: int = 10_000


async def drill(request: web.Request) -> web.Response:
    """Bring a fault about, and tell how the job stood right before it."""
    body = await read_body(request, DrillBody)
    context, job = context_of(request), find_job(request)
    _check_body(body)
    try:
        check_job("DrillRequested", job.phase, job.spec.name)
    except PhaseConflictError as error:
        raise conflict_in_words(job, "drilled", error) from error
    targets = tuple(_targets(job, body))
    _check_connected(context, body.fault, targets)
    event = DrillRequested(body.fault, _spans(targets), _words(body, targets))
    await context.engine.propose(job.uid, event, by=caller_of(request))
    world = context.engine.world
    document = drill_document(world.jobs[job.uid], world, context.live(), targets, body.fault)
    await _inject(context, body, targets)
    return answer(document)


def _check_body(body: DrillBody) -> None:
    if body.fault not in FAULTS:
        problem = Problem("fault", found=body.fault[:80], allowed=FAULTS)
        raise MalformedError(f"fault has to be one of {', '.join(FAULTS)}", errors=(problem,))
    if not 1 <= body.pause_ms <= PAUSE_MS_MAX:
        allowed = f"a whole number from 1 to {PAUSE_MS_MAX}"
        problem = Problem("pauseMs", found=str(body.pause_ms), allowed=allowed)
        raise MalformedError(f"pauseMs has to be {allowed}", errors=(problem,))
    if body.replicas and body.fault not in ("kill", "pause"):
        raise MalformedError(f"{body.fault} names no replicas")
    if body.node and body.fault != "loseNode":
        raise MalformedError(f"{body.fault} names no node")
    if len(body.replicas) > TARGETS_MAX:
        raise MalformedError(f"at most {TARGETS_MAX} replicas can be named")


def _targets(job: Job, body: DrillBody) -> Iterator[AttemptId]:
    """Yield the attempts that the fault meets.

    Raises:
        NotFoundError: There is no such replica, or nothing of the job runs on such a node.
        PhaseConflictError: A replica that is named runs no trainer.
    """
    running = list(_running(job))
    match body.fault:
        case "kill" | "pause":
            yield from _named(job, body.replicas or _first(job, running))
        case "loseNode":
            node = body.node or _busiest(job, running)
            found = [attempt for attempt, one in running if one.node == node]
            if not found:
                raise NotFoundError(f"nothing of {job.spec.name} runs on a node {node!r}")
            yield from found
        case _:
            yield from (attempt for attempt, _ in running)


def _running(job: Job) -> Iterator[tuple[AttemptId, Attempt]]:
    for role in job.roles.values():
        for replica in replicas_of(role):
            found = _trainer_of(job, role, replica)
            if found is not None:
                yield found


def _trainer_of(job: Job, role: RoleState, replica: Replica) -> tuple[AttemptId, Attempt] | None:
    newest = replica.newest
    if newest is None or newest.phase is not AttemptPhase.RUNNING:
        return None
    return AttemptId(job.uid, role.name, replica.index, newest.number), newest


def _first(job: Job, running: list[tuple[AttemptId, Attempt]]) -> tuple[str, ...]:
    if not running:
        raise _nothing_runs(job)
    return (running[0][0].replica,)


def _nothing_runs(job: Job) -> PhaseConflictError:
    return PhaseConflictError(
        f"no trainer of {job.spec.name} runs", phase=job.phase.value, event="DrillRequested"
    )


def _named(job: Job, names: Iterable[str]) -> Iterator[AttemptId]:
    for name in dict.fromkeys(names):
        role, replica = named_replica(job, name)
        found = _trainer_of(job, role, replica)
        if found is None:
            raise PhaseConflictError(
                f"{name} has no trainer that runs",
                phase=replica.phase.value,
                event="DrillRequested",
            )
        yield found[0]


def _busiest(job: Job, running: list[tuple[AttemptId, Attempt]]) -> str:
    counts = Counter(one.node for _, one in running)
    if not counts:
        raise _nothing_runs(job)
    return max(sorted(counts), key=lambda node: counts[node])


def _check_connected(context: Context, fault: str, targets: Iterable[AttemptId]) -> None:
    """Refuse before anything is recorded what nobody could carry out."""
    if fault == "preempt":
        return
    away = [one.replica for one in targets if not context.is_connected(one)]
    if away:
        raise NotFoundError(f"the executors of {', '.join(sorted(away))} are not connected")


def _spans(targets: Iterable[AttemptId]) -> tuple[Span, ...]:
    return spans((one.role, one.index) for one in targets)


def _words(body: DrillBody, targets: tuple[AttemptId, ...]) -> str:
    who = span_words(_spans(targets))
    match body.fault:
        case "kill":
            return f"SIGKILL to {who}"
        case "pause":
            return f"{who} is stopped for {duration_words(body.pause_ms)}"
        case "loseNode":
            return f"{who} end without a word, as if their node had gone"
        case _:
            return "the job is preempted"


async def _inject(context: Context, body: DrillBody, targets: tuple[AttemptId, ...]) -> None:
    """Ask every executor at once.

    Raises:
        NotFoundError: One did not answer, or knows no such ask; others may have been met.
    """
    kind = _ASKS.get(body.fault)
    if kind is None:
        return
    failed: list[str] = []

    async def ask(attempt: AttemptId) -> None:
        path = str(body.pause_ms) if kind == "pause" else ""
        try:
            found = await context.ask(attempt, kind, path=path)
        except PrimusdError as error:
            failed.append(error.message)
            return
        if found.error:
            failed.append(f"{attempt.replica}: {found.error}")

    async with anyio.create_task_group() as group:
        for one in targets:
            group.start_soon(ask, one)
    if failed:
        raise NotFoundError("; ".join(sorted(failed)), hint="the drill is in the timeline")
