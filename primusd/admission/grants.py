"""What jobs hear of their demands: slots that they got, and those that went."""

from collections.abc import Mapping

from msgspec.structs import replace

from primusd.admission import events as ev
from primusd.admission.dependencies import name_of, refusals
from primusd.admission.fitting import is_good, missing
from primusd.admission.model import Admission, Demand, Held
from primusd.admission.usage import changed_jobs
from primusd.job.events import (
    JobAdmitted,
    JobEvicted,
    NodeDraining,
    Place,
    RoomMade,
    SlotsStranded,
    TimePassed,
)
from primusd.job.ids import Span, spans
from primusd.job.machine import Proposed
from primusd.job.phases import DemandPhase, NodePhase


def consequences(
    before: Admission, after: Admission, event: ev.AdmissionEvent | TimePassed
) -> tuple[Proposed, ...]:
    """Return JobAdmitted for each demand that got something, JobEvicted and NodeDraining."""
    found: list[Proposed] = []
    for job in sorted(changed_jobs(before.demands, after.demands)):
        old, demand = before.demands.get(job), after.demands.get(job)
        if demand is None:
            continue
        if demand.phase is DemandPhase.RELEASING:
            found += _of_eviction(after, old, demand)
            continue
        withdrawn = _withdrawn(old, demand, event)
        has_asked = isinstance(event, ev.DemandRaised) and event.job == job and event.lacking
        if has_asked or (
            _holds_what_it_lacked(demand)
            and (old is None or old.phase is not DemandPhase.GRANTED or old.held is not demand.held)
        ):
            places = _places(demand, _known(old, event))
        else:
            places = ()
        if places or withdrawn:
            found.append(Proposed(job, JobAdmitted(places, demand.generation, withdrawn)))
    found += _of_node(before, after, event)
    if isinstance(event, ev.JobEnded):
        found += refusals(before, event)
    return tuple(found)


def _of_eviction(state: Admission, old: Demand | None, demand: Demand) -> list[Proposed]:
    """Return what a job hears that was preempted just now, and the one that gets its room."""
    if not demand.evicted_text or (old is not None and old.evicted_text):
        return []
    evicted = JobEvicted(demand.evicted_text, demand.since_ms, demand.evicted_for)
    told = [Proposed(demand.job, evicted)]
    if demand.evicted_for in state.demands:
        made = RoomMade(demand.job, f"{name_of(state, demand.job)} is stopped to make room")
        told.append(Proposed(demand.evicted_for, made))
    return told


def _of_node(
    before: Admission, after: Admission, event: ev.AdmissionEvent | TimePassed
) -> list[Proposed]:
    """Return what the jobs with slots on a node hear of it."""
    told: NodeDraining | SlotsStranded
    only = ""
    match event:
        case ev.DrainRequested(node, is_now):
            told = NodeDraining(node, is_now)
        case ev.UncordonRequested(node) | ev.RemovalRequested(node):
            return _drain_over(before, after, node)
        case ev.NodeWentAway(node):
            told = SlotsStranded(node, is_away=True)
        case ev.NodeExclusionRequested(node, _, only):
            told = SlotsStranded(node)
        case ev.NodeFaultCounted(node) if _has_become_excluded(before, after, node):
            told = SlotsStranded(node)
        case _:
            return []
    return [
        Proposed(job, told)
        for job, demand in after.demands.items()
        if only in ("", job)
        and demand.phase is not DemandPhase.RELEASING
        and any(slot.node == node for slot in demand.held.values())
    ]


def _drain_over(before: Admission, after: Admission, node: str) -> list[Proposed]:
    """Return the word that a drain is over, to all: those that have moved already heard of it."""
    old = before.nodes.get(node)
    if old is None or not old.draining_ms:
        return []
    told = NodeDraining(node, is_over=True)
    return [
        Proposed(job, told)
        for job, demand in after.demands.items()
        if demand.phase is not DemandPhase.RELEASING
    ]


def _has_become_excluded(before: Admission, after: Admission, name: str) -> bool:
    old, new = before.nodes.get(name), after.nodes.get(name)
    return (
        old is not None
        and new is not None
        and new.phase is NodePhase.EXCLUDED
        and old.phase is not NodePhase.EXCLUDED
    )


def _holds_what_it_lacked(demand: Demand) -> bool:
    """Return whether all that is asked for is held, but for slots to move to."""
    if demand.phase is DemandPhase.GRANTED:
        return True
    return bool(demand.moving) and not any(missing(demand))


def moving_of(demand: Demand, named: tuple[Span, ...]) -> frozenset[tuple[str, int]]:
    """Return those of the replicas named that hold a slot and are wanted."""
    if not named:
        return frozenset()
    return frozenset(key for key in members(named) if key in demand.held and wants(demand, *key))


def _withdrawn(
    old: Demand | None, demand: Demand, event: ev.AdmissionEvent | TimePassed
) -> tuple[Span, ...]:
    """Return the wanted replicas whose slot went; of a quarantined one the job knows."""
    if old is None or isinstance(event, ev.SlotQuarantined):
        return ()
    gone = old.held.keys() - demand.held.keys()
    if isinstance(event, ev.DemandRaised) and event.job == demand.job:
        gone -= members(event.lacking)
    return spans((role, index) for role, index in gone if wants(demand, role, index))


def wants(demand: Demand, role: str, index: int) -> bool:
    """Return whether the demand names the replica."""
    want = demand.roles.get(role)
    return want is not None and any(one.low <= index <= one.high for one in want.wanted)


def _known(
    old: Demand | None, event: ev.AdmissionEvent | TimePassed
) -> Mapping[tuple[str, int], Held]:
    """Return the slots that the job knows of, those that it says it lacks left out."""
    if old is None:
        return {}
    if not isinstance(event, ev.DemandRaised) or event.job != old.job:
        return old.held
    lacking = members(event.lacking)
    return {key: slot for key, slot in old.held.items() if key not in lacking}


def _places(demand: Demand, known: Mapping[tuple[str, int], Held]) -> tuple[Place, ...]:
    """Return the slots that are new or moved, as runs."""
    runs: list[Place] = []
    new = [key for key, slot in demand.held.items() if known.get(key) != slot]
    for role, index in sorted(new):
        slot = demand.held[role, index]
        want = demand.roles.get(role)
        if want is None or not is_good(demand, want, index, slot):
            continue
        last = runs[-1] if runs else None
        count = slot.port_count
        if (
            last is not None
            and (last.node, last.role, last.first + last.count) == (slot.node, role, index)
            and (slot.first_port == 0) == (last.first_port == 0)
            and (not slot.first_port or last.first_port + last.count * count == slot.first_port)
            and last.memory_bytes == slot.memory_bytes
        ):
            runs[-1] = replace(last, count=last.count + 1)
        else:
            runs.append(Place(slot.node, role, index, 1, slot.first_port, slot.memory_bytes))
    return tuple(runs)


def members(named: tuple[Span, ...]) -> frozenset[tuple[str, int]]:
    """Return the replicas that spans name."""
    return frozenset(
        (span.role, index) for span in named for index in range(span.low, span.high + 1)
    )
