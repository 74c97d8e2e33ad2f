"""The jobs that a job file names in `after`: found at submit, by name or uid."""

from collections.abc import Iterator

from primusd.core import World
from primusd.errors import Problem, SpecError
from primusd.job.ids import is_uid
from primusd.job.model import Job
from primusd.job.phases import JobPhase
from primusd.job.spec import JobSpec


def job_named(world: World, namespace: str, name: str) -> Job | None:
    """Return the live job of a name, else its newest, or that of a uid; None: there is none."""
    if is_uid(name) and name in world.jobs:
        return world.jobs[name]
    live = world.admission.names.get((namespace, name))
    if live is not None and live in world.jobs:
        return world.jobs[live]
    ended = [
        uid
        for uid, job in world.jobs.items()
        if job.spec.name == name and job.spec.namespace == namespace
    ]
    return world.jobs[max(ended)] if ended else None


def waited_for(world: World, spec: JobSpec) -> tuple[str, ...]:
    """Return the uids of the jobs that must have Succeeded before.

    Raises:
        SpecError: One is not known, or ended otherwise; all of them at once.
    """
    problems = tuple(_problems(world, spec))
    if problems:
        raise SpecError("; ".join(one.sentence() for one in problems[:3]), errors=problems)
    jobs = (_named(world, spec, name) for name in spec.after)
    return tuple(dict.fromkeys(job.uid for job in jobs if job is not None))


def still_awaited(world: World, spec: JobSpec) -> tuple[str, ...]:
    """Return the uids of those that live; who is not known, or did not succeed, is left out."""
    jobs = (_named(world, spec, name) for name in spec.after)
    return tuple(job.uid for job in jobs if job is not None and not job.is_final)


def _named(world: World, spec: JobSpec, name: str) -> Job | None:
    namespace, slash, rest = name.partition("/")
    return job_named(world, namespace, rest) if slash else job_named(world, spec.namespace, name)


def _problems(world: World, spec: JobSpec) -> Iterator[Problem]:
    for number, name in enumerate(spec.after):
        job = _named(world, spec, name)
        if job is None:
            hint = "submit it first, or name another: primusctl list -A"
            yield Problem(f"after[{number}]", found=name, allowed="a job there is", hint=hint)
        elif job.is_final and job.phase is not JobPhase.SUCCEEDED:
            yield Problem(
                f"after[{number}]",
                found=f"{name}, which ended {job.phase}",
                allowed="a job that lives or has Succeeded",
            )
