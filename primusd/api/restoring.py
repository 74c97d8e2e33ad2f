"""Savepoints that a job file starts at: found at submit, and named by uid from then on.

Later the name of the other job may be another's: often it is the new one's own.
"""

from collections.abc import Iterator

from msgspec.structs import replace

from primusd.carriage import find_savepoint
from primusd.core import World
from primusd.errors import NotFoundError, Problem, SpecError
from primusd.job.spec import JobSpec


def with_restores(world: World, spec: JobSpec) -> JobSpec:
    """Return the spec whose streams name jobs by uid, and savepoints by name.

    Raises:
        SpecError: There is no such savepoint; all of them at once.
    """
    problems = tuple(_problems(world, spec))
    if problems:
        raise SpecError("; ".join(one.sentence() for one in problems[:3]), errors=problems)
    data = dict(spec.data)
    for name, stream in spec.data.items():
        if stream.restore is not None and stream.restore.job:
            other, found = find_savepoint(world, stream.restore, spec.namespace, name)
            restore = replace(
                stream.restore, job=other.job, stream=other.name, savepoint=found.name
            )
            data[name] = replace(stream, restore=restore)
    return replace(spec, data=data)


def _problems(world: World, spec: JobSpec) -> Iterator[Problem]:
    for name, stream in spec.data.items():
        if stream.restore is None or not stream.restore.job:
            continue
        try:
            find_savepoint(world, stream.restore, spec.namespace, name)
        except NotFoundError as error:
            yield Problem(f"data.{name}.restore", found=stream.restore.job, hint=error.message)
