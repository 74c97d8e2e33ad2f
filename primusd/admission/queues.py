"""Queues: their settings, and what their jobs use of what they may use together.

Usage is added up from the slots that demands hold (`admission/usage.py`). A slot whose process
could not be ended is the node's loss, not the queue's.
"""

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from primusd.admission import events as ev
from primusd.admission.model import Admission, Demand, QueueState
from primusd.admission.rooms import Amount
from primusd.admission.usage import NOTHING, book_of
from primusd.job.machine import At, Ignore

DEFAULT = "default"
LOWER_PRIORITY = "lowerPriority"
QUOTA_FIELDS = {"cpuMilli": "cpu_milli", "memoryBytes": "memory_bytes", "gpu": "gpu"}
"""Key of a quota to the field of `Amount`."""


def _with(state: Admission, queue: QueueState, at: At) -> Admission:
    stamped = replace(queue, changed_revision=at.revision)
    return replace(state, queues={**state.queues, queue.name: stamped})


def _declared(state: Admission, event: ev.QueueDeclared, at: At) -> Admission | Ignore:
    old = state.queues.get(event.queue)
    queue = QueueState(event.queue, dict(event.quota), event.preemption)
    if old is not None and (old.is_set or is_alike(old, queue)):
        return Ignore("already so")
    return _with(state, queue, at)


def _set(state: Admission, event: ev.QueueSet, at: At) -> Admission | Ignore:
    old = state.queues.get(event.queue)
    queue = QueueState(
        event.queue, dict(event.quota), event.preemption, is_open=event.is_open, is_set=True
    )
    if old is not None and old.is_set and is_alike(old, queue):
        return Ignore("already so")
    return _with(state, queue, at)


def _dropped(state: Admission, event: ev.QueueDropped, at: At) -> Admission | Ignore:
    if event.queue not in state.queues:
        return Ignore("already so")
    return replace(
        state, queues={name: one for name, one in state.queues.items() if name != event.queue}
    )


APPLIERS: dict[type, Callable[..., Admission | Ignore]] = {
    ev.QueueDeclared: _declared,
    ev.QueueSet: _set,
    ev.QueueDropped: _dropped,
}


def is_alike(one: QueueState, other: QueueState) -> bool:
    """Return whether two queues have the same settings."""
    return (
        one.quota == other.quota
        and one.preemption == other.preemption
        and one.is_open is other.is_open
    )


def queue_named(state: Admission, name: str) -> QueueState:
    """Return a queue; one that nobody set up has no limit."""
    return state.queues.get(name) or QueueState(name)


def names_of(state: Admission) -> tuple[str, ...]:
    """Return the queues there are; `default` always is."""
    return tuple(dict.fromkeys((DEFAULT, *sorted(state.queues))))


def used_of(state: Admission, queue: str) -> Amount:
    """Return what the jobs of a queue hold together."""
    return book_of(state.demands).by_queue.get(queue, NOTHING)


def over_quota(queue: QueueState, used: Amount, more: Amount) -> Mapping[str, tuple[int, int]]:
    """Return what a quota has too little of: key to what would be used and what is allowed.

    Args:
        queue: Whose quota counts.
        used: Before.
        more: Of what it takes nothing of it is never too much.
    """
    found = {}
    for key, limit in queue.quota.items():
        field = QUOTA_FIELDS[key]
        asked: int = getattr(more, field)
        would_be = getattr(used, field) + asked
        if asked and would_be > limit:
            found[key] = (would_be, limit)
    return found


def may_preempt(state: Admission, demand: Demand) -> bool:
    """Return whether the demand's queue lets it stop others."""
    return queue_named(state, demand.queue).preemption == LOWER_PRIORITY
