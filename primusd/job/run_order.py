"""What the executor beside a trainer should do, a pure view of the job; and who its peers are."""

from itertools import islice

from msgspec.structs import replace

from primusd.executor.protocol import Hold, Leave, Start, Stop
from primusd.job.gates import gang_roles, needs_all
from primusd.job.ids import AttemptId
from primusd.job.model import Attempt, Job, Peers, find_attempt, replicas_of
from primusd.job.peers import Place, encoded, peers_digest
from primusd.job.phases import AttemptPhase
from primusd.job.start_variables import has_variables

INLINE_BYTES_MAX = 16 << 10
"""A larger document is fetched, not pushed."""
INLINE_REPLICAS_MAX = 1_000
"""Of more it is larger, whatever they are called."""


def run_order(job: Job, attempt: AttemptId, at_ms: int) -> Hold | Start | Stop | Leave:
    """Return what an attempt should do; one that is not known (any more) leaves."""
    found = find_attempt(job, attempt)
    if found is None:
        return Leave()
    match found.phase:
        case AttemptPhase.REQUESTED | AttemptPhase.LAUNCHED | AttemptPhase.REGISTERED:
            return Hold()
        case AttemptPhase.STARTING | AttemptPhase.RUNNING:
            return Start(
                job.peers.generation, job.peers.digest, job.peers.inline, has_variables(job)
            )
        case AttemptPhase.STOPPING:
            assert found.stop is not None, "an attempt that stops knows why"
            left_ms = found.stop.decided_ms + found.stop.grace_ms - at_ms
            return Stop(found.stop.reason, found.stop.text, max(0, left_ms))
        case AttemptPhase.ENDED | AttemptPhase.GONE:
            return Leave()


def peers_of(job: Job) -> bytes:
    """Return the peers document of the last opening of a gate, or since a role was made smaller.

    It names, for each replica, its newest attempt that was told to start in the generation that its
    role is in: until a replacement is told so too, peers keep the address they know. Who is of a
    gang and holds is named too, also where it starts after others.
    """
    return encoded(job.peers.generation, places_of(job))


def publish(job: Job) -> Job:
    """Return the job with a new revision of the peers document: a gate opened."""
    old = job.peers
    is_same = old.generation == job.generation
    job = replace(job, peers=Peers(job.generation, old.revision + 1 if is_same else 1))
    if sum(role.size for role in job.roles.values()) > INLINE_REPLICAS_MAX:
        # Made when it is fetched: where each starts as it comes, it would be made for each.
        name = f"{job.uid}/{job.peers.generation}/{job.peers.revision}"
        return replace(job, peers=replace(job.peers, digest=peers_digest(name.encode())))
    document = peers_of(job)
    inline = document if len(document) <= INLINE_BYTES_MAX else b""
    return replace(job, peers=replace(job.peers, digest=peers_digest(document), inline=inline))


def is_expected(attempt: Attempt) -> bool:
    """Return whether an attempt has its address, and starts when its turn comes."""
    is_holding = attempt.phase is AttemptPhase.REGISTERED and attempt.is_holding
    return is_holding and not attempt.is_newcomer


def places_of(job: Job) -> dict[str, list[Place]]:
    """Return who stands in the peers document, by role."""
    found: dict[str, list[Place]] = {}
    for role in job.roles.values():
        is_gang = role.name in gang_roles(job.spec) or needs_all(job.spec)
        places: list[Place] = []
        for replica in islice(replicas_of(role), role.size):
            for attempt in reversed(replica.attempts):
                is_told = attempt.opened_ms or (is_gang and is_expected(attempt))
                if is_told and attempt.generation >= role.generation:
                    places.append(Place(attempt.host, replica.index, dict(attempt.ports)))
                    break
        if places:
            found[role.name] = places
    return found
