"""How a replica counts, and when it has to be looked at: what chunks sum up."""

from collections import OrderedDict
from enum import IntEnum

from msgspec import Struct

from primusd.job.model import Attempt, Job, Outcome, Replica, RoleState
from primusd.job.phases import AttemptPhase, Budget, Cause, ReplicaPhase
from primusd.job.spec import JobSpec, budgets_of, gang_of, stream_of

REGISTRATION_MS = 300_000
"""Placed and no hello for so long: `noRegistration`."""
REPLACE_MS_MIN = 65_000
"""Later than the release effect gives up: by then the slot of a lost attempt is quarantined, and
the next attempt has another."""
START_MS = 60_000
"""Told to start and no trainer for so long: `startTimeout`."""

LIVING = frozenset(
    {
        AttemptPhase.REQUESTED,
        AttemptPhase.LAUNCHED,
        AttemptPhase.REGISTERED,
        AttemptPhase.STARTING,
        AttemptPhase.RUNNING,
    }
)
WANTING = frozenset({ReplicaPhase.WAITING, ReplicaPhase.ACTIVE, ReplicaPhase.DELAYED})


class Count(IntEnum):
    """What each position of `Chunk.counts` and `RoleState.counts` counts."""

    WAITING = 0
    ACTIVE = 1
    DELAYED = 2
    COMPLETED = 3
    FAILED = 4
    RETIRED = 5
    # Newest attempts by phase, those that are Gone left out.
    REQUESTED = 6
    LAUNCHED = 7
    REGISTERED = 8
    STARTING = 9
    RUNNING = 10
    STOPPING = 11
    ENDED = 12
    NOT_GONE = 13
    """Attempts, older ones too."""
    LIVING = 14
    """Newest attempts from Requested to Running."""
    HOLDING = 15
    """Wanted, in force, and holding or past it."""
    READY = 16
    PRESENT = 17
    """docs/state-machines.md §6."""
    FOR_GOOD = 18
    """Present without a run: completed, failed, or ended with no retry left."""
    STALE = 19
    """Living in a generation that is not in force any more."""
    SURPLUS = 20
    """Living though the role was made smaller."""
    RECALLED = 21
    """Living though a person asked for its restart."""
    NOTICED = 22
    """Living, and its back end announced a preemption."""
    MOVABLE = 23
    """Active with an attempt that is known to be over: the replica moves."""
    RESTARTER = 24
    """Active with an end that is charged, in force, and may be retried."""
    DOOMED = 25
    """Active with an end that leaves no retry."""
    PERMANENT = 26
    """Doomed or Failed by a permanent cause."""
    BACK = 27
    """Completed in an older generation, or asked to restart while nothing of it runs."""
    RETIRABLE = 28
    """Waiting or Delayed though the role was made smaller."""
    REVIVABLE = 29
    """Retired though wanted."""
    OPENABLE = 30
    """Registered, in force, and holding."""
    UNSETTLED = 31
    """Over, and a stream has not counted its end in."""
    ATTEMPTS = 32
    """Attempts ever begun."""


_PHASES = {phase: int(Count[phase.name]) for phase in ReplicaPhase}
_ATTEMPT_PHASES = {
    phase: int(Count[phase.name]) for phase in AttemptPhase if phase is not AttemptPhase.GONE
}


class RoleRules(Struct, frozen=True):
    """What of a role and its spec decides how a replica counts."""

    name: str
    generation: int
    size: int
    application: int
    infrastructure: int
    place_ms: int
    ready_ms: int
    replace_ms: int
    streams: tuple[str, ...]
    slot_floor: int
    """A slot of an older generation is none: its ports are stale. Without ports any will do."""
    restarts_hung: bool = False
    """`hang.action` is restart."""
    is_timed_holding: bool = True
    """Who holds waits for others of its gang only, for `readyTimeout`; else the start clock says
    how long."""
    is_elastic: bool = False
    """Who has no place yet may wait for one: the start clock says how long the minimum may."""


_known_rules: OrderedDict[tuple[int, str, int, int], tuple[JobSpec, RoleRules]] = OrderedDict()
"""By identity of the spec, which is kept so that it is not reused; role, generation and size."""
RULES_REMEMBERED = 512


def rules_of(job: Job, role: RoleState) -> RoleRules:
    """Return the rules in force for a role."""
    key = (id(job.spec), role.name, role.generation, role.size)
    known = _known_rules.get(key)
    if known is not None and known[0] is job.spec:
        return known[1]
    rules = _make_rules(job, role)
    _known_rules[key] = (job.spec, rules)
    if len(_known_rules) > RULES_REMEMBERED:
        _known_rules.popitem(last=False)
    return rules


def _make_rules(job: Job, role: RoleState) -> RoleRules:
    spec = job.spec
    of_role = spec.roles[role.name]
    budgets = budgets_of(spec, role.name)
    return RoleRules(
        role.name,
        role.generation,
        role.size,
        budgets.application,
        budgets.infrastructure,
        spec.place_timeout_ms,
        spec.ready_timeout_ms,
        spec.replace_after_ms,
        tuple(stream_of(role.name, reading) for reading in of_role.data),
        port_generation(job, role),
        spec.hang.action == "restart",
        spec.policy == "gang"
        and role.name in gang_of(spec)
        and not any(one.depends_on for one in spec.roles.values()),
        of_role.minimum < of_role.replicas,
    )


def port_generation(job: Job, role: RoleState) -> int:
    """Return the oldest generation whose ports are good for a role's next attempts."""
    spec = job.spec.roles[role.name]
    return role.generation if spec.ports and not spec.restart.keep_ports else 1


def is_gone_for_sure(attempt: Attempt) -> bool:
    """Return whether nothing of the attempt runs any more, and that is known."""
    return attempt.phase is AttemptPhase.GONE and (
        not attempt.is_quarantined or attempt.was_kill_delivered or not attempt.registered_ms
    )


def has_retry(outcome: Outcome, rules: RoleRules) -> bool:
    """Return whether a charged end leaves another try within the budget."""
    if outcome.is_permanent or outcome.is_spent or outcome.action == "giveUp":
        return False
    if outcome.budget is Budget.NONE:
        return outcome.action == "restart"
    if outcome.budget is Budget.APPLICATION:
        return outcome.charged <= rules.application
    return outcome.charged <= rules.infrastructure


def is_completion(outcome: Outcome) -> bool:
    """Return whether an end is one that needs no other: by itself, or by a rule's word."""
    if outcome.action:
        return outcome.action == "complete"
    return outcome.cause is Cause.COMPLETED


def is_failure(outcome: Outcome) -> bool:
    """Return whether an end was charged, or leads on without being charged."""
    return bool(outcome.charged or outcome.is_permanent or outcome.action == "restart")


def not_gone_of(replica: Replica) -> int:
    """Return how many attempts of a replica are not Gone."""
    return sum(one.phase is not AttemptPhase.GONE for one in replica.attempts)


def marks_of(replica: Replica, rules: RoleRules) -> int:
    """Return where a replica is counted: bit n for position n of `Count`.

    Positions that add up something else than replicas are left out: NOT_GONE and ATTEMPTS.
    """
    marks = 0
    for position in _positions_of(replica, rules):
        marks |= 1 << position
    return marks


def _positions_of(replica: Replica, rules: RoleRules) -> list[int]:
    found = [_PHASES[replica.phase]]
    is_wanted = replica.index < rules.size
    newest = replica.attempts[-1] if replica.attempts else None
    if newest is not None:
        is_in_force = newest.generation >= rules.generation
        if newest.phase is not AttemptPhase.GONE:
            found.append(_ATTEMPT_PHASES[newest.phase])
        if newest.phase in LIVING:
            _count_living(found, replica, newest, is_wanted=is_wanted, is_in_force=is_in_force)
        elif newest.outcome is not None:
            _count_ended(found, replica, newest, newest.outcome, rules, is_wanted=is_wanted)
    if replica.phase is not ReplicaPhase.ACTIVE:
        _count_resting(found, replica, rules, is_wanted=is_wanted)
    return found


def _count_living(
    found: list[int], replica: Replica, attempt: Attempt, *, is_wanted: bool, is_in_force: bool
) -> None:
    found.append(Count.LIVING)
    if attempt.preemption_ms:
        found.append(Count.NOTICED)
    if replica.is_recalled:
        found.append(Count.RECALLED)
    if not is_in_force:
        found.append(Count.STALE)
        return
    if not is_wanted:
        found.append(Count.SURPLUS)
        return
    found.append(Count.PRESENT)
    phase = attempt.phase
    if phase is AttemptPhase.RUNNING:
        found.append(Count.HOLDING)
        if attempt.is_ready:
            found.append(Count.READY)
    elif phase is AttemptPhase.STARTING:
        found.append(Count.HOLDING)
    elif phase is AttemptPhase.REGISTERED and attempt.is_holding and not attempt.is_newcomer:
        found += (Count.HOLDING, Count.OPENABLE)


def _count_ended(
    found: list[int],
    replica: Replica,
    attempt: Attempt,
    outcome: Outcome,
    rules: RoleRules,
    *,
    is_wanted: bool,
) -> None:
    if attempt.registered_ms and len(attempt.settled_streams) < len(rules.streams):
        found.append(Count.UNSETTLED)
    if replica.phase is not ReplicaPhase.ACTIVE:
        return
    is_gone = attempt.phase is AttemptPhase.GONE
    if is_gone and is_gone_for_sure(attempt):
        found.append(Count.MOVABLE)
        is_gone = False
    if attempt.generation < rules.generation or replica.is_recalled:
        return
    if is_completion(outcome):
        is_for_good = True
    elif not is_failure(outcome):
        return
    elif has_retry(outcome, rules):
        # Who never joined the members of its role does not take them along.
        found += () if attempt.is_newcomer else (Count.RESTARTER,)
        return
    else:
        is_for_good = _count_doomed(found, outcome)
    if is_for_good and is_gone:
        # Nobody begins in its place, so it does not matter what is left of it.
        found.append(Count.MOVABLE)
    if is_for_good and is_wanted:
        found += (Count.PRESENT, Count.FOR_GOOD)


def _count_doomed(found: list[int], outcome: Outcome) -> bool:
    """Return whether an end without a retry is final; Lost is not until the replica moves."""
    if outcome.is_permanent:
        found.append(Count.PERMANENT)
    if outcome.cause is Cause.LOST:
        return False
    found.append(Count.DOOMED)
    return True


def _count_resting(
    found: list[int], replica: Replica, rules: RoleRules, *, is_wanted: bool
) -> None:
    phase = replica.phase
    if phase is ReplicaPhase.RETIRED:
        if is_wanted:
            found.append(Count.REVIVABLE)
        return
    if phase is ReplicaPhase.WAITING or phase is ReplicaPhase.DELAYED:
        if not is_wanted:
            found.append(Count.RETIRABLE)
        elif replica.is_recalled:
            found.append(Count.BACK)
        return
    is_old = phase is ReplicaPhase.COMPLETED and replica.attempts[-1].generation < rules.generation
    if is_wanted and (replica.is_recalled or is_old):
        found.append(Count.BACK)
    elif is_wanted:
        found += (Count.PRESENT, Count.FOR_GOOD)
        outcome = replica.attempts[-1].outcome if replica.attempts else None
        if outcome is not None and outcome.is_permanent:
            found.append(Count.PERMANENT)


def due_of(replica: Replica, rules: RoleRules) -> int:
    """Return the journal time at which the replica has to be looked at; 0 none."""
    attempt = replica.newest
    if attempt is None:
        return 0
    match attempt.phase:
        case AttemptPhase.REQUESTED:
            return 0 if rules.is_elastic else attempt.requested_ms + rules.place_ms
        case AttemptPhase.LAUNCHED:
            if attempt.waiting_for:
                return 0 if rules.is_elastic else attempt.requested_ms + rules.place_ms
            return attempt.launched_ms + REGISTRATION_MS
        case AttemptPhase.REGISTERED:
            if attempt.is_holding and (attempt.is_newcomer or not rules.is_timed_holding):
                return 0
            return attempt.registered_ms + rules.ready_ms
        case AttemptPhase.STARTING:
            return attempt.phase_since_ms + START_MS
        case AttemptPhase.RUNNING:
            return attempt.hung_ms if rules.restarts_hung else 0
        case AttemptPhase.ENDED | AttemptPhase.GONE:
            return _replaced_at(replica, attempt, rules)
        case _:
            return 0


def _replaced_at(replica: Replica, attempt: Attempt, rules: RoleRules) -> int:
    """Return when a replica moves though it is not known that its attempt is over; 0 never."""
    if replica.phase is not ReplicaPhase.ACTIVE or rules.replace_ms < 0:
        return 0
    if is_gone_for_sure(attempt):
        return 0
    is_lost = attempt.outcome is not None and attempt.outcome.cause is Cause.LOST
    if attempt.phase is AttemptPhase.GONE or is_lost:
        return attempt.ended_ms + max(rules.replace_ms, REPLACE_MS_MIN)
    return 0


def begins_at(replica: Replica, rules: RoleRules) -> int:
    """Return the journal time from which a new attempt may begin; 0 it cannot."""
    if replica.slot_generation < rules.slot_floor or replica.index >= rules.size:
        return 0
    if replica.is_recalled:
        return 0
    if replica.phase is ReplicaPhase.WAITING:
        return 1
    if replica.phase is ReplicaPhase.DELAYED:
        return max(1, replica.not_before_ms)
    return 0
