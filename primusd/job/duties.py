"""What must be in motion because of a job: its plan, remembered by chunk."""

from collections import OrderedDict
from itertools import chain, compress, count, repeat
from operator import is_not

from msgspec import Struct

from primusd.job.commands import Command, LaunchAttempt, PublishPeers, ReleaseAttempt, StopAttempt
from primusd.job.counts import Count, bits
from primusd.job.ids import AttemptId
from primusd.job.model import Attempt, Chunk, Job, RoleState
from primusd.job.phases import AttemptPhase, JobPhase, StopReason

BACKSTOP_MS = 10_000
"""After the grace, or after an end, the launcher does what the executor did not."""
STOP_DEADLINE_MS = 40_000
AWAY_STOP_DEADLINE_MS = 5_000
"""Of an attempt that never said hello on a node that does not answer: nobody is there to ask."""
RELEASE_DEADLINE_MS = 60_000
FOR_EVER_MS = 1 << 62
ROLES_REMEMBERED = 2_048
PLANNED = frozenset(
    {AttemptPhase.REQUESTED, AttemptPhase.STOPPING, AttemptPhase.ENDED, AttemptPhase.GONE}
)
"""Phases in which something is in motion; of those that are Gone, for quarantined ones only."""
QUIET_COUNTS = slice(Count.LAUNCHED, Count.RUNNING + 1)
QUIET = bits(Count.LAUNCHED, Count.REGISTERED, Count.STARTING, Count.RUNNING)
"""Where the newest attempt of a replica is counted while nothing is in motion for it."""

Commands = tuple[Command, ...]


class _Known(Struct, frozen=True):
    """What was planned for a role as it was."""

    chunks: tuple[Chunk, ...]
    parts: tuple[Commands, ...]
    """One per chunk."""
    commands: Commands


NOTHING = _Known((), (), ())
_remembered: OrderedDict[tuple[str, str], _Known] = OrderedDict()
"""By job and role; the chunks are kept, so that one that is the same object is the same."""


def plan_of(state: Job) -> Commands:
    """Return what must be in motion for the job; the timer is the engine's, by `deadline_ms`."""
    found: Commands = ()
    for role in state.roles.values():
        commands = _of_role(state, role)
        found = found + commands if found and commands else found or commands
    is_published = state.peers.generation and not state.peers.inline
    if is_published and state.phase in (JobPhase.STARTING, JobPhase.RUNNING, JobPhase.DRAINING):
        return (*found, PublishPeers(state.uid, state.peers.generation, state.peers.revision))
    return found


def _of_role(state: Job, role: RoleState) -> Commands:
    """Return a role's part, the same object as long as it is equal; only new chunks are opened."""
    key = (state.uid, role.name)
    known = _remembered.get(key, NOTHING)
    if known.chunks is role.chunks:
        return known.commands
    parts = list(known.parts[: len(role.chunks)])
    parts += [()] * (len(role.chunks) - len(parts))
    is_same = len(known.chunks) == len(role.chunks)
    olds = chain(known.chunks, repeat(None))
    for number in compress(count(), map(is_not, olds, role.chunks)):
        new = role.chunks[number]
        is_quiet = not state.has_quarantined and _is_quiet(new)
        part = () if is_quiet else _of_chunk(state.uid, role.name, new)
        if part != parts[number]:
            parts[number] = part
            is_same = False
    commands = known.commands if is_same else tuple(chain.from_iterable(parts))
    _remembered[key] = _Known(role.chunks, tuple(parts), commands)
    if len(_remembered) > ROLES_REMEMBERED:
        _remembered.popitem(last=False)
    return commands


def _is_quiet(chunk: Chunk) -> bool:
    """Return whether its counts tell that nothing is in motion, quarantined attempts left out."""
    counts = chunk.counts
    return bool(counts) and counts[Count.NOT_GONE] == sum(counts[QUIET_COUNTS])


def _of_chunk(uid: str, role: str, chunk: Chunk) -> Commands:
    return tuple(
        command
        for replica in chunk.replicas
        if not replica.marks & QUIET or len(replica.attempts) > 1
        for attempt in replica.attempts
        if attempt.phase in PLANNED
        and (command := _of_attempt(AttemptId(uid, role, replica.index, attempt.number), attempt))
    )


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
