"""How a hello is judged: what may be refused, and with which code (docs/protocol.md §3). Pure."""

from primusd.core import World
from primusd.executor.protocol import SPEAKS, Hello, Refused, spoken
from primusd.job.ids import AttemptId
from primusd.job.model import Attempt, Job, find_attempt, find_replica
from primusd.job.phases import AttemptPhase

OVER = (AttemptPhase.ENDED, AttemptPhase.GONE)


def judge(
    world: World,
    hello: Hello,
    *,
    cluster: str,
    term: int,
    revision: int,
    is_adopted: bool = False,
) -> Refused | None:
    """Return why an executor is not taken; None when it is.

    Only a daemon that knows an attempt to be over says so in a way that ends its trainer.

    Args:
        world: As of `revision`.
        hello: Of an executor whose key was right.
        cluster: Id of this cluster.
        term: Of this leadership.
        revision: Of the newest entry.
        is_adopted: A person has vouched for it, although it has seen what this store never had.
    """
    if hello.cluster != cluster:
        return Refused("wrongCluster", f"this is cluster {cluster}, not {hello.cluster}")
    if not spoken(hello.speaks):
        return Refused("versionUnknown", f"this daemon speaks {SPEAKS[0]} to {SPEAKS[1]}")
    is_known = was_here(world, hello, term=term, revision=revision)
    if hello.seen_term and not is_known and not is_adopted:
        return Refused(
            "stateBehind",
            f"entry {hello.seen_revision} of term {hello.seen_term} was never in this store",
        )
    job = world.jobs.get(hello.attempt.job)
    if job is None:
        if hello.attempt.job in world.admission.tombstones:
            return Refused("attemptOver", "the record of its job was dropped")
        return Refused("unknownJob", "neither a record nor a tombstone of its job is here")
    return _judge_attempt(job, hello.attempt, hello.incarnation)


def was_here(world: World, hello: Hello, *, term: int, revision: int) -> bool:
    """Return whether this store ever had the entry that the newest orders spoke of."""
    following = [first for number, first in world.admission.terms if number > hello.seen_term]
    if not any(number == hello.seen_term for number, _ in world.admission.terms):
        return False
    if following:
        return hello.seen_revision < min(following)
    return hello.seen_term <= term and hello.seen_revision <= revision


def _judge_attempt(job: Job, attempt: AttemptId, incarnation: str) -> Refused | None:
    replica = find_replica(job, attempt.role, attempt.index)
    if replica is None or attempt.attempt > replica.last_number:
        return Refused("stateBehind", f"{attempt.label} has never begun here")
    if attempt.attempt < replica.last_number:
        return Refused("superseded", f"{attempt.replica}/{replica.last_number} took its place")
    found = find_attempt(job, attempt)
    if found is None or found.phase in OVER or job.is_final:
        return Refused("attemptOver", f"{attempt.label} is over")
    if found.incarnation not in ("", incarnation):
        return Refused("attemptTaken", f"another executor runs {attempt.label}")
    return None


def newest_of(world: World, attempt: AttemptId) -> tuple[Job, Attempt] | None:
    """Return an attempt with its job; None when either is not known (any more)."""
    job = world.jobs.get(attempt.job)
    found = find_attempt(job, attempt) if job is not None else None
    return (job, found) if job is not None and found is not None else None
