"""How a replica counts, and when it has to be looked at: what chunks sum up."""

from collections import OrderedDict
from collections.abc import Callable

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
IDLE = frozenset({ReplicaPhase.WAITING, ReplicaPhase.DELAYED})
WANTING = IDLE | {ReplicaPhase.ACTIVE}


class Count:
    """What each position of `Chunk.counts` and `RoleState.counts` counts.

    Plain numbers: looked up several dozen times for each event, the members of an `IntEnum` took a
    tenth of its time.
    """

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


COUNTS = 33


def bits(*positions: int) -> int:
    """Return a bit for each position, as in `Replica.marks`."""
    return sum(1 << one for one in positions)


_PHASES = {
    ReplicaPhase.WAITING: bits(Count.WAITING),
    ReplicaPhase.ACTIVE: bits(Count.ACTIVE),
    ReplicaPhase.DELAYED: bits(Count.DELAYED),
    ReplicaPhase.COMPLETED: bits(Count.COMPLETED),
    ReplicaPhase.FAILED: bits(Count.FAILED),
    ReplicaPhase.RETIRED: bits(Count.RETIRED),
}
_ATTEMPT_PHASES = {
    AttemptPhase.REQUESTED: bits(Count.REQUESTED),
    AttemptPhase.LAUNCHED: bits(Count.LAUNCHED),
    AttemptPhase.REGISTERED: bits(Count.REGISTERED),
    AttemptPhase.STARTING: bits(Count.STARTING),
    AttemptPhase.RUNNING: bits(Count.RUNNING),
    AttemptPhase.STOPPING: bits(Count.STOPPING),
    AttemptPhase.ENDED: bits(Count.ENDED),
    AttemptPhase.GONE: 0,
}
_LIVING, _NOTICED, _RECALLED = bits(Count.LIVING), bits(Count.NOTICED), bits(Count.RECALLED)
_STALE, _SURPLUS = bits(Count.STALE), bits(Count.SURPLUS)
_PRESENT, _HOLDING, _READY = bits(Count.PRESENT), bits(Count.HOLDING), bits(Count.READY)
_OPENABLE = bits(Count.HOLDING, Count.OPENABLE)
_FOR_GOOD = bits(Count.PRESENT, Count.FOR_GOOD)
_UNSETTLED, _MOVABLE = bits(Count.UNSETTLED), bits(Count.MOVABLE)
_RESTARTER, _DOOMED = bits(Count.RESTARTER), bits(Count.DOOMED)
_PERMANENT = bits(Count.PERMANENT)
_REVIVABLE, _RETIRABLE, _BACK = bits(Count.REVIVABLE), bits(Count.RETIRABLE), bits(Count.BACK)


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
    gone, count = AttemptPhase.GONE, 0
    for one in replica.attempts:
        if one.phase is not gone:
            count += 1
    return count


def marks_of(replica: Replica, rules: RoleRules) -> int:
    """Return where a replica is counted: bit n for position n of `Count`.

    Positions that add up something else than replicas are left out: NOT_GONE and ATTEMPTS.
    """
    marks = _PHASES[replica.phase]
    is_wanted = replica.index < rules.size
    if replica.attempts:
        newest = replica.attempts[-1]
        marks |= _ATTEMPT_PHASES[newest.phase]
        if newest.phase in LIVING:
            marks |= _living_marks(replica, newest, rules, is_wanted=is_wanted)
        elif newest.outcome is not None:
            marks |= _ended_marks(replica, newest, newest.outcome, rules, is_wanted=is_wanted)
    if replica.phase is not ReplicaPhase.ACTIVE:
        marks |= _resting_marks(replica, rules, is_wanted=is_wanted)
    return marks


def _living_marks(replica: Replica, attempt: Attempt, rules: RoleRules, *, is_wanted: bool) -> int:
    marks = _LIVING
    if attempt.preemption_ms:
        marks |= _NOTICED
    if replica.is_recalled:
        marks |= _RECALLED
    if attempt.generation < rules.generation:
        return marks | _STALE
    if not is_wanted:
        return marks | _SURPLUS
    phase = attempt.phase
    if phase is AttemptPhase.RUNNING:
        marks |= _HOLDING | _READY if attempt.is_ready else _HOLDING
    elif phase is AttemptPhase.STARTING:
        marks |= _HOLDING
    elif phase is AttemptPhase.REGISTERED and attempt.is_holding and not attempt.is_newcomer:
        marks |= _OPENABLE
    return marks | _PRESENT


def _ended_marks(
    replica: Replica, attempt: Attempt, outcome: Outcome, rules: RoleRules, *, is_wanted: bool
) -> int:
    marks = 0
    if attempt.registered_ms and len(attempt.settled_streams) < len(rules.streams):
        marks |= _UNSETTLED
    if replica.phase is not ReplicaPhase.ACTIVE:
        return marks
    is_gone = attempt.phase is AttemptPhase.GONE
    if is_gone and is_gone_for_sure(attempt):
        marks |= _MOVABLE
        is_gone = False
    if attempt.generation < rules.generation or replica.is_recalled:
        return marks
    is_for_good = is_completion(outcome)
    if not is_for_good:
        if not is_failure(outcome):
            return marks
        if has_retry(outcome, rules):
            # Who never joined the members of its role does not take them along.
            return marks if attempt.is_newcomer else marks | _RESTARTER
        # Lost is not final until the replica moves.
        is_for_good = outcome.cause is not Cause.LOST
        marks |= (_DOOMED if is_for_good else 0) | (_PERMANENT if outcome.is_permanent else 0)
    if is_for_good and is_gone:
        # Nobody begins in its place, so it does not matter what is left of it.
        marks |= _MOVABLE
    return marks | _FOR_GOOD if is_for_good and is_wanted else marks


def _resting_marks(replica: Replica, rules: RoleRules, *, is_wanted: bool) -> int:
    phase = replica.phase
    if phase is ReplicaPhase.RETIRED:
        return _REVIVABLE if is_wanted else 0
    if phase is ReplicaPhase.WAITING or phase is ReplicaPhase.DELAYED:
        if not is_wanted:
            return _RETIRABLE
        return _BACK if replica.is_recalled else 0
    if not is_wanted:
        return 0
    is_old = phase is ReplicaPhase.COMPLETED and replica.attempts[-1].generation < rules.generation
    if replica.is_recalled or is_old:
        return _BACK
    outcome = replica.attempts[-1].outcome if replica.attempts else None
    is_permanent = outcome is not None and outcome.is_permanent
    return _FOR_GOOD | _PERMANENT if is_permanent else _FOR_GOOD


def due_of(replica: Replica, rules: RoleRules) -> int:
    """Return the journal time at which the replica has to be looked at; 0 none."""
    attempt = replica.newest
    due = _DUE.get(attempt.phase) if attempt is not None else None
    return due(replica, attempt, rules) if attempt is not None and due is not None else 0


def _placed_by(_replica: Replica, attempt: Attempt, rules: RoleRules) -> int:
    return 0 if rules.is_elastic else attempt.requested_ms + rules.place_ms


def _registered_by(replica: Replica, attempt: Attempt, rules: RoleRules) -> int:
    if attempt.waiting_for:
        return _placed_by(replica, attempt, rules)
    return attempt.launched_ms + REGISTRATION_MS


def _holding_by(_replica: Replica, attempt: Attempt, rules: RoleRules) -> int:
    if attempt.is_holding and (attempt.is_newcomer or not rules.is_timed_holding):
        return 0
    return attempt.registered_ms + rules.ready_ms


def _started_by(_replica: Replica, attempt: Attempt, _rules: RoleRules) -> int:
    return attempt.phase_since_ms + START_MS


def _hung_since(_replica: Replica, attempt: Attempt, rules: RoleRules) -> int:
    return attempt.hung_ms if rules.restarts_hung else 0


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


_DUE: dict[AttemptPhase, Callable[[Replica, Attempt, RoleRules], int]] = {
    AttemptPhase.REQUESTED: _placed_by,
    AttemptPhase.LAUNCHED: _registered_by,
    AttemptPhase.REGISTERED: _holding_by,
    AttemptPhase.STARTING: _started_by,
    AttemptPhase.RUNNING: _hung_since,
    AttemptPhase.ENDED: _replaced_at,
    AttemptPhase.GONE: _replaced_at,
}


def begins_at(replica: Replica, rules: RoleRules) -> int:
    """Return the journal time from which a new attempt may begin; 0 it cannot."""
    if replica.phase not in IDLE or replica.is_recalled:
        return 0
    if replica.slot_generation < rules.slot_floor or replica.index >= rules.size:
        return 0
    if replica.phase is ReplicaPhase.WAITING:
        return 1
    return max(1, replica.not_before_ms)
