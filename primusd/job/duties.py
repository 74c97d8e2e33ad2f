"""What must be in motion because of a job: its plan, remembered by chunk."""

from collections import OrderedDict

from primusd.job.commands import Command, LaunchAttempt, PublishPeers, ReleaseAttempt, StopAttempt
from primusd.job.ids import AttemptId
from primusd.job.model import Attempt, Chunk, Job
from primusd.job.phases import AttemptPhase, JobPhase, StopReason

BACKSTOP_MS = 10_000
"""After the grace, or after an end, the launcher does what the executor did not."""
STOP_DEADLINE_MS = 40_000
AWAY_STOP_DEADLINE_MS = 5_000
"""Of an attempt that never said hello on a node that does not answer: nobody is there to ask."""
RELEASE_DEADLINE_MS = 60_000
FOR_EVER_MS = 1 << 62
CHUNKS_REMEMBERED = 4096

_remembered: OrderedDict[tuple[str, str, int], tuple[Chunk, tuple[Command, ...]]] = OrderedDict()
"""By job, role and identity of the chunk; the chunk is kept, so an identity is not reused."""


def plan_of(state: Job) -> tuple[Command, ...]:
    """Return what must be in motion for the job; the timer is the engine's, by `deadline_ms`."""
    found: list[Command] = []
    for role in state.roles.values():
        for chunk in role.chunks:
            found += _of_chunk(state, role.name, chunk)
    is_published = state.peers.generation and not state.peers.inline
    if is_published and state.phase in (JobPhase.STARTING, JobPhase.RUNNING, JobPhase.DRAINING):
        found.append(PublishPeers(state.uid, state.peers.generation, state.peers.revision))
    return tuple(found)


def _of_chunk(job: Job, role: str, chunk: Chunk) -> tuple[Command, ...]:
    key = (job.uid, role, id(chunk))
    known = _remembered.get(key)
    if known is not None and known[0] is chunk:
        return known[1]
    commands = tuple(
        command
        for replica in chunk.replicas
        for attempt in replica.attempts
        if (
            command := _of_attempt(AttemptId(job.uid, role, replica.index, attempt.number), attempt)
        )
    )
    _remembered[key] = (chunk, commands)
    if len(_remembered) > CHUNKS_REMEMBERED:
        _remembered.popitem(last=False)
    return commands


def _of_attempt(name: AttemptId, attempt: Attempt) -> Command | None:
    match attempt.phase:
        case AttemptPhase.REQUESTED:
            return LaunchAttempt(name, attempt.node)
        case AttemptPhase.STOPPING:
            assert attempt.stop is not None, "an attempt that stops knows why"
            graced_ms = attempt.stop.decided_ms + attempt.stop.grace_ms
            # Nobody is there to be graceful before the executor said hello.
            chance_ms = BACKSTOP_MS if attempt.registered_ms else 0
            is_away = attempt.stop.reason is StopReason.NODE_GIVEN_UP
            deadline_ms = AWAY_STOP_DEADLINE_MS if is_away else STOP_DEADLINE_MS
            return StopAttempt(name, attempt.node, graced_ms + chance_ms, graced_ms + deadline_ms)
        case AttemptPhase.ENDED:
            chance_ms = BACKSTOP_MS if attempt.registered_ms else 0
            return ReleaseAttempt(
                name,
                attempt.node,
                attempt.ended_ms + chance_ms,
                attempt.ended_ms + RELEASE_DEADLINE_MS,
            )
        case AttemptPhase.GONE if attempt.is_quarantined:
            # Whoever leads asks until its node says that nothing is left; the slot is free then.
            return ReleaseAttempt(name, attempt.node, 0, FOR_EVER_MS)
        case _:
            return None
