"""A job file that comes with a request: read, and held against what this daemon has and allows."""

from collections.abc import Iterable

from aiohttp import web

from primusd.admission import fitting
from primusd.admission.events import RoleDemand
from primusd.admission.queues import names_of, over_quota, queue_named
from primusd.admission.usage import NOTHING, book_of
from primusd.admission.waits import amount_words, shown_amount
from primusd.api.context import Context
from primusd.datafeed.storage.schemes import what_is_lacking
from primusd.errors import (
    NotYetError,
    Problem,
    QueueClosedError,
    SpecError,
    TooManyRequestsError,
)
from primusd.job.ids import Span
from primusd.job.spec import JobSpec, ShippedSpec
from primusd.jobfile import ParseContext, Parsed, parse
from primusd.jobfile.section import nearest
from primusd.views.blobs import blob_path

YAML_TYPES = frozenset({"application/yaml", "application/x-yaml", "text/yaml"})
TOML_TYPES = frozenset({"application/toml", "text/toml"})


async def read_submit(request: web.Request, context: Context, namespace: str) -> Parsed:
    """Return the job file in a request's body: JSON, or YAML or TOML by its content type.

    Raises:
        PrimusdError: It cannot be read, or is wrong; everything at once.
    """
    data = await request.read()
    config = context.config().config
    parsed = parse(
        data,
        filename=_filename(request.content_type),
        context=ParseContext(namespace=namespace, launcher=config.launchers.default),
    )
    if parsed.spec.namespace != namespace:
        problem = Problem(
            "namespace",
            found=parsed.spec.namespace,
            allowed=namespace,
            hint="the path and the job file name one namespace",
        )
        raise SpecError(problem.sentence(), errors=(problem,))
    return parsed


def _filename(content_type: str) -> str:
    if content_type in YAML_TYPES:
        return "job.yaml"
    return "job.toml" if content_type in TOML_TYPES else "job.json"


def check_submit(
    context: Context, parsed: Parsed, *, waits_for_nodes: bool, sends_files_later: bool
) -> None:
    """Hold a spec against this daemon: its launchers, limits, nodes, and the files sent before.

    Raises:
        SpecError: It could never run here; every reason at once.
        NotYetError: It names a launcher that this build does not have.
        TooManyRequestsError: There are as many jobs as the daemon takes on.
    """
    spec, config = parsed.spec, context.config().config
    if spec.launcher not in config.launchers.enabled:
        enabled = ", ".join(config.launchers.enabled)
        raise NotYetError(
            f"launcher {spec.launcher} is not enabled here; enabled: {enabled}",
            errors=(Problem("launcher", found=spec.launcher, allowed=config.launchers.enabled),),
        )
    live = len(context.engine.world.admission.names)
    if live >= config.limits.jobs_live:
        raise TooManyRequestsError(
            f"{live} jobs live already, limits.jobs_live is {config.limits.jobs_live}",
            hint="wait until some have ended",
        )
    waiting = len(book_of(context.engine.world.admission.demands).waiting)
    if waiting >= config.limits.queue:
        raise TooManyRequestsError(
            f"{waiting} jobs wait already, limits.queue is {config.limits.queue}",
            hint="wait until some have begun",
        )
    _check_queue_open(context, spec)
    problems = [
        *_unknown_queue(context, spec),
        *_too_many_replicas(spec, config.limits.replicas_per_job),
        *_unreadable_sources(spec),
    ]
    if not sends_files_later:
        problems += _missing_files(spec.files, context)
    if not waits_for_nodes:
        problems += _never_fits(context, spec)
    if problems:
        message = "; ".join(problem.sentence() for problem in problems[:3])
        raise SpecError(message, errors=tuple(problems))


def _check_queue_open(context: Context, spec: JobSpec) -> None:
    queue = queue_named(context.engine.world.admission, spec.queue)
    if not queue.is_open:
        raise QueueClosedError(
            f"queue {spec.queue} is closed: it takes no new jobs",
            hint=f"primusctl queue set {spec.queue} state=open, or another queue",
        )


def _unknown_queue(context: Context, spec: JobSpec) -> Iterable[Problem]:
    known = names_of(context.engine.world.admission)
    if spec.queue not in known:
        yield Problem("queue", found=spec.queue, allowed=known, hint=nearest(spec.queue, known))


def _too_many_replicas(spec: JobSpec, most: int) -> Iterable[Problem]:
    count = sum(role.replicas for role in spec.roles.values())
    if count > most:
        yield Problem("roles", found=f"{count} replicas", allowed=f"at most {most} in a job")


def _unreadable_sources(spec: JobSpec) -> Iterable[Problem]:
    for name, stream in spec.data.items():
        for number, source in enumerate(stream.sources):
            if source.files and (lacking := what_is_lacking(source.files)):
                path = f"data.{name}.sources[{number}].files"
                yield Problem(path, found=source.files, hint=lacking)


async def learn_files(context: Context, parsed: Parsed) -> None:
    """Look which of the files that a job ships are in the place that all heads share.

    Raises:
        StoreUnavailableError: Nobody can tell.
    """
    if context.shared_blobs is not None:
        named = [one.digest for one in parsed.spec.files if one.digest]
        await context.shared_blobs.learn(blob_path(context.blobs, one).name for one in named)


def _is_here(context: Context, digest: str) -> bool:
    path = blob_path(context.blobs, digest)
    if context.shared_blobs is None:
        return path.is_file()
    return context.shared_blobs.is_known(path.name)


def _missing_files(files: Iterable[ShippedSpec], context: Context) -> Iterable[Problem]:
    for number, file in enumerate(files):
        path = f"files[{number}]"
        if not file.digest:
            yield Problem(path, found=file.path, hint="send files with primusctl submit")
        elif not _is_here(context, file.digest):
            yield Problem(path, found=file.digest, hint=f"PUT /api/v1/blobs/{file.digest} first")


def _never_fits(context: Context, spec: JobSpec) -> Iterable[Problem]:
    sentence = fitting.unfit_sentence(context.engine.world.admission, demands_of(spec))
    if sentence:
        yield Problem("roles", hint=f"{sentence}; --wait-for-nodes queues it all the same")
    state = context.engine.world.admission
    queue = queue_named(state, spec.queue)
    for key, (asked, limit) in over_quota(
        queue, NOTHING, fitting.total_of(demands_of(spec))
    ).items():
        hint = (
            f"the job asks for {amount_words(key, asked)}, queue {spec.queue} may use "
            f"{shown_amount(key, limit)} in all; --wait-for-nodes queues it all the same"
        )
        yield Problem("roles", hint=hint)


def demands_of(spec: JobSpec) -> tuple[RoleDemand, ...]:
    """Return what a job would ask admission for at its start."""
    return tuple(
        RoleDemand(
            role=role.name,
            wanted=(Span(role.name, 0, role.minimum - 1),),
            cpu_milli=role.resources.cpu_milli,
            memory_bytes=role.resources.memory_bytes,
            gpu=role.resources.gpu,
            port_count=len(role.ports),
            placement=role.placement,
        )
        for role in spec.roles.values()
        if role.minimum
    )
