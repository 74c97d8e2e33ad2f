"""The admission machine: who gets slots and ports, which nodes there are, what outlives its job.

Tables: docs/state-machines.md §7.
"""

from collections.abc import Callable, Mapping, Set

from msgspec.structs import replace

from primusd.admission import choosing, dependencies, grants, nodes, queues, usage
from primusd.admission import events as ev
from primusd.admission.backfill import bound_of
from primusd.admission.fitting import indices, is_satisfied
from primusd.admission.growth import asked_bytes, has_bytes
from primusd.admission.memo import Memo
from primusd.admission.model import Admission, Demand, Held, KeyUse, Quarantined, Tombstone
from primusd.errors import PhaseConflictError
from primusd.job.commands import Command, WakeAt
from primusd.job.events import TimePassed
from primusd.job.machine import At, Ignore
from primusd.job.phases import DemandPhase
from primusd.job.tables import ignored_reason, is_refused, parse_table

KEY_KEPT_MS = 24 * 3_600_000
PORT_REST_MS = 60_000
PORT_TAKEN_REST_MS = 600_000
_first_end_ms: Memo[Mapping[str, Tombstone], int] = Memo(4)

DEMAND_TABLE = parse_table("""
                  | Waiting              | Granted              | Releasing
DemandRaised      | =                    | = or Waiting         | !
DemandMoved       | =                    | · o                  | · o
CapacityChanged   | =                    | = or Waiting         | =
DemandWithdrawn   | removed or Releasing | Releasing or removed | · r
SlotFreed         | =                    | = or Waiting         | = or removed
TimePassed        | =                    | =                    | =
DemandFitted      | Granted or Waiting   | =                    | !
DemandEvicted     | Releasing            | Releasing            | !
""")


def apply(state: Admission, event: ev.AdmissionEvent | TimePassed, at: At) -> Admission | Ignore:
    """Return admission after the event; see job/machine.py."""
    return _APPLIERS[type(event)](state, event, at)


def _checked(demand: Demand, event: object) -> Ignore | None:
    """Return the table's Ignore for a demand, None when the event counts.

    Raises:
        PhaseConflictError: The cell is refused.
    """
    name = type(event).__name__
    cell = DEMAND_TABLE.cell(name, demand.phase)
    if is_refused(cell):
        raise PhaseConflictError(
            f"the demand of job {demand.job} is {demand.phase}: {name} has no place there",
            phase=demand.phase,
            event=name,
        )
    reason = ignored_reason(cell)
    return None if reason is None else Ignore(reason)


def _with_demand(state: Admission, demand: Demand) -> Admission:
    return replace(state, demands=usage.with_demand(state.demands, demand.job, demand))


def _without_demand(state: Admission, job: str) -> Admission:
    return replace(state, demands=usage.with_demand(state.demands, job, None))


def _demand_raised(state: Admission, event: ev.DemandRaised, at: At) -> Admission | Ignore:
    old = state.demands.get(event.job)
    if old is not None and (ignored := _checked(old, event)) is not None:
        return ignored
    demand = Demand(
        job=event.job,
        phase=DemandPhase.WAITING,
        generation=event.generation,
        queue=event.queue,
        priority=event.priority,
        since_ms=(event.since_ms or at.at_ms) if old is None else old.since_ms,
        roles={want.role: want for want in event.roles},
        held={} if old is None else old.held,
        is_gang=event.is_gang,
        busy=grants.members(event.busy),
        leaving={} if old is None else {**old.leaving, **old.roles},
        old_ports={} if old is None else old.old_ports,
        runs_for_ms=event.runs_for_ms,
        ends_ms=event.ends_ms,
        granted_ms=0 if old is None else old.granted_ms,
        is_preemptible=event.is_preemptible,
        spared=event.spared,
        old_slots={} if old is None else old.old_slots,
    )
    demand = without_old_slots(demand, demand.old_slots.keys() - demand.busy)
    demand = replace(demand, moving=grants.moving_of(demand, event.moving))
    state, demand = _set_aside_taken_ports(state, demand, event, at)
    state, demand = _rest_old_ports(state, demand, demand.old_ports.keys() - demand.busy, at)
    state = _shed(state, demand, at)
    # Who lacks the slot that it has hears of it now, and begins before it can say so.
    demand = state.demands[event.job]
    told = grants.members(event.lacking) & demand.held.keys()
    return _with_demand(state, replace(demand, busy=demand.busy | told)) if told else state


def _set_aside_taken_ports(
    state: Admission, demand: Demand, event: ev.DemandRaised, at: At
) -> tuple[Admission, Demand]:
    """Rest the ports that strangers hold, and forget the slots' ports so that they get others."""
    held = dict(demand.held)
    for role, index, port in event.ports_taken:
        slot = held.get((role, index))
        if slot is None or not slot.first_port <= port < slot.first_port + slot.port_count:
            continue
        state, demand = _without_ports(state, demand, (role, index), slot, at)
        until_ms = at.at_ms + PORT_TAKEN_REST_MS
        state = nodes.rest_ports(state, slot.node, (port,), until_ms=until_ms)
        held[role, index] = replace(slot, generation=0, first_port=0, port_count=0)
    return state, replace(demand, held=held)


def _without_ports(
    state: Admission, demand: Demand, key: tuple[str, int], slot: Held, at: At
) -> tuple[Admission, Demand]:
    """Give back a slot's ports: they rest, from the end of the attempt that still uses them."""
    if not slot.first_port:
        return state, demand
    ports = range(slot.first_port, slot.first_port + slot.port_count)
    if key not in demand.busy:
        until_ms = at.at_ms + PORT_REST_MS
        return nodes.rest_ports(state, slot.node, tuple(ports), until_ms=until_ms), demand
    used = (*demand.old_ports.get(key, ()), *((slot.node, port) for port in ports))
    return state, replace(demand, old_ports={**demand.old_ports, key: used})


def _rest_old_ports(
    state: Admission, demand: Demand, freed: Set[tuple[str, int]], at: At
) -> tuple[Admission, Demand]:
    """Let the ports rest that attempts used beside their slots until now."""
    gone = freed & demand.old_ports.keys()
    if not gone:
        return state, demand
    for key in sorted(gone):
        for node, port in demand.old_ports[key]:
            state = nodes.rest_ports(state, node, (port,), until_ms=at.at_ms + PORT_REST_MS)
    kept = {key: ports for key, ports in demand.old_ports.items() if key not in gone}
    return state, replace(demand, old_ports=kept)


def without_old_slots(demand: Demand, freed: Set[tuple[str, int]]) -> Demand:
    """Return the demand without slots that attempts ran in beside their new ones until now."""
    if not freed & demand.old_slots.keys():
        return demand
    kept = {key: slot for key, slot in demand.old_slots.items() if key not in freed}
    return replace(demand, old_slots=kept)


def _shed(
    state: Admission, demand: Demand, at: At, *, freed: frozenset[tuple[str, int]] = frozenset()
) -> Admission:
    """Give back what the demand holds and neither wants nor uses, and store it in its phase.

    A slot just freed on a node that is away goes too: its replica is better placed elsewhere. When
    nothing but `freed` changed, only these are looked at: a job that ends frees 10,000 one by one.
    """
    wanted: set[tuple[str, int]] = set()
    if not freed:
        wanted = {(want.role, index) for want in demand.roles.values() for index in indices(want)}
    kept = dict(demand.held)
    for key in sorted(freed) if freed else demand.held:
        slot = kept.get(key)
        if slot is None or key in demand.busy:
            continue
        node = state.nodes.get(slot.node)
        keeps = node is not None and nodes.keeps_slots(node, demand.job)
        is_wanted = grants.wants(demand, *key) if freed else key in wanted
        if is_wanted and keeps:
            continue
        del kept[key]
        if slot.first_port:
            ports = tuple(range(slot.first_port, slot.first_port + slot.port_count))
            state = nodes.rest_ports(state, slot.node, ports, until_ms=at.at_ms + PORT_REST_MS)
    leaving = {
        role: want
        for role, want in demand.leaving.items()
        if role not in demand.roles and any(one == role for one, _ in kept)
    }
    moving = demand.moving & kept.keys() if demand.moving else demand.moving
    demand = replace(demand, held=kept, leaving=leaving, moving=moving)
    if demand.phase is DemandPhase.RELEASING:
        return _with_demand(state, demand) if kept else _without_demand(state, demand.job)
    phase = DemandPhase.GRANTED if is_satisfied(demand) else DemandPhase.WAITING
    return _with_demand(state, replace(demand, phase=phase))


def _demand_moved(state: Admission, event: ev.DemandMoved, at: At) -> Admission | Ignore:
    demand = state.demands.get(event.job)
    if demand is None:
        return Ignore("no longer wanted")
    ignored = _checked(demand, event)
    if ignored is not None:
        return ignored
    since_ms = event.since_ms or demand.since_ms
    return _with_demand(state, replace(demand, priority=event.priority, since_ms=since_ms))


def _demand_withdrawn(state: Admission, event: ev.DemandWithdrawn, at: At) -> Admission | Ignore:
    demand = state.demands.get(event.job)
    if demand is None:
        return Ignore("already so")
    ignored = _checked(demand, event)
    if ignored is not None:
        return ignored
    withdrawn = replace(
        demand,
        phase=DemandPhase.RELEASING,
        roles={},
        busy=grants.members(event.busy),
        leaving={**demand.leaving, **demand.roles},
        moving=frozenset(),
    )
    withdrawn = without_old_slots(withdrawn, withdrawn.old_slots.keys() - withdrawn.busy)
    state, withdrawn = _rest_old_ports(
        state, withdrawn, withdrawn.old_ports.keys() - withdrawn.busy, at
    )
    return _shed(state, withdrawn, at)


def _slot_freed(state: Admission, event: ev.SlotFreed, at: At) -> Admission | Ignore:
    demand = state.demands.get(event.job)
    if demand is None:
        return Ignore("already so")
    if (ignored := _checked(demand, event)) is not None:
        return ignored
    freed = grants.members(event.spans)
    state, demand = _rest_old_ports(state, demand, freed, at)
    demand = without_old_slots(demand, freed)
    if event.is_reused or all(_keeps_slot(state, demand, key) for key in freed):
        # Its replica is likely to run there again: it counts as busy until the job says otherwise.
        return state if demand is state.demands[event.job] else _with_demand(state, demand)
    return _shed(state, replace(demand, busy=demand.busy - freed), at, freed=freed)


def _keeps_slot(state: Admission, demand: Demand, key: tuple[str, int]) -> bool:
    """Return whether a slot that nothing runs in stays with its demand."""
    slot = demand.held.get(key)
    if slot is None or demand.phase is DemandPhase.RELEASING:
        return False
    node = state.nodes.get(slot.node)
    keeps = node is not None and nodes.keeps_slots(node, demand.job)
    return keeps and grants.wants(demand, *key)


def _capacity_changed(state: Admission, event: ev.CapacityChanged, at: At) -> Admission:
    for demand in tuple(state.demands.values()):
        if any(slot.node == event.node for slot in demand.held.values()):
            state = _shed(state, demand, at)
    return state


def _demand_fitted(state: Admission, event: ev.DemandFitted, at: At) -> Admission | Ignore:
    demand = state.demands[event.job]
    if (ignored := _checked(demand, event)) is not None:
        return ignored
    held = dict(demand.held)
    old_slots = dict(demand.old_slots)
    for place in event.places:
        count = demand.roles[place.role].port_count
        for offset in range(place.count):
            port = place.first_port + offset * count if place.first_port else 0
            key = (place.role, place.first + offset)
            old = held.get(key)
            if old is not None and (old.node, old.first_port) != (place.node, port):
                state, demand = _without_ports(state, demand, key, old, at)
                if old.node != place.node and key in demand.busy:
                    old_slots.setdefault(key, old)
            asked = asked_bytes(demand.roles[place.role], place.first + offset)
            held[key] = Held(place.node, port, event.generation, count, place.memory_bytes, asked)
    placed = {
        (place.role, index)
        for place in event.places
        for index in range(place.first, place.first + place.count)
    }
    demand = replace(
        demand,
        held=held,
        old_slots=old_slots,
        busy=demand.busy | placed,
        moving=demand.moving - placed if placed else frozenset(),
    )
    phase = DemandPhase.GRANTED if is_satisfied(demand) else DemandPhase.WAITING
    had_slots = bool(state.demands[event.job].held)
    granted_ms = demand.granted_ms if had_slots else at.at_ms
    ends_ms = bound_of(demand, at.at_ms)
    return _with_demand(state, replace(demand, phase=phase, granted_ms=granted_ms, ends_ms=ends_ms))


def _demand_evicted(state: Admission, event: ev.DemandEvicted, at: At) -> Admission | Ignore:
    demand = state.demands[event.job]
    if (ignored := _checked(demand, event)) is not None:
        return ignored
    evicted = replace(
        demand,
        phase=DemandPhase.RELEASING,
        roles={},
        busy=frozenset(demand.held),
        leaving={**demand.leaving, **demand.roles},
        moving=frozenset(),
        evicted_for=event.by_job,
        evicted_text=event.message,
    )
    return _with_demand(state, evicted)


def _slot_quarantined(state: Admission, event: ev.SlotQuarantined, at: At) -> Admission | Ignore:
    demand = state.demands.get(event.job)
    key = (event.role, event.index)
    moved_from = demand.old_slots.get(key) if demand is not None else None
    slot = moved_from or (demand.held.get(key) if demand is not None else None)
    if demand is None or slot is None:
        return Ignore("already so")
    want = demand.roles.get(event.role) or demand.leaving[event.role]
    ports = (
        tuple(range(slot.first_port, slot.first_port + slot.port_count)) if slot.first_port else ()
    )
    if key in demand.old_ports:
        # The attempt began before its slot got these ports: it holds others.
        if moved_from is None:
            until_ms = at.at_ms + PORT_REST_MS
            state = nodes.rest_ports(state, slot.node, ports, until_ms=until_ms)
        ports = tuple(port for _, port in demand.old_ports[key])
        kept = {one: old for one, old in demand.old_ports.items() if one != key}
        demand = replace(demand, old_ports=kept)
    taken = Quarantined(
        job=event.job,
        role=event.role,
        index=event.index,
        attempt=event.attempt,
        node=slot.node,
        cpu_milli=want.cpu_milli,
        memory_bytes=has_bytes(want, slot),
        gpu=want.gpu,
        ports=ports,
    )
    held = demand.held
    if moved_from is None:
        held = {one: place for one, place in held.items() if one != key}
    state = replace(state, quarantined=(*state.quarantined, taken))
    demand = without_old_slots(demand, {key})
    return _shed(state, replace(demand, held=held, busy=demand.busy - {key}), at)


def _quarantine_lifted(state: Admission, event: ev.QuarantineLifted, at: At) -> Admission | Ignore:
    kept = tuple(
        one
        for one in state.quarantined
        if (one.job, one.role, one.index, one.attempt)
        != (event.job, event.role, event.index, event.attempt)
    )
    if len(kept) == len(state.quarantined):
        return Ignore("already so")
    return replace(state, quarantined=kept)


def _job_noted(state: Admission, event: ev.JobNoted, at: At) -> Admission:
    oldest_ms = at.at_ms - KEY_KEPT_MS
    keys = {key: use for key, use in state.keys.items() if use.at_ms >= oldest_ms}
    if event.key:
        keys[event.namespace, event.key] = KeyUse(event.job, event.spec_digest, at.at_ms)
    names = {**state.names, (event.namespace, event.name): event.job}
    return dependencies.waits_after(replace(state, names=names, keys=keys), event)


def _job_ended(state: Admission, event: ev.JobEnded, at: At) -> Admission | Ignore:
    key: tuple[str, str] | None = (event.namespace, event.name)
    if not event.name:
        key = next((key for key, uid in state.names.items() if uid == event.job), None)
    if key is None or state.names.get(key) != event.job:
        return Ignore("already so")
    names = dict(state.names)
    del names[key]
    state = dependencies.without_ended(replace(state, names=names), event)
    return nodes.forget_job(state, event.job)


def _job_forgotten(state: Admission, event: ev.JobForgotten, at: At) -> Admission:
    kept = {uid: one for uid, one in state.tombstones.items() if one.until_ms > at.at_ms}
    kept[event.job] = Tombstone(event.job, at.at_ms + event.keep_ms)
    quarantined = tuple(one for one in state.quarantined if one.job != event.job)
    return replace(state, tombstones=kept, quarantined=quarantined)


def _term_began(state: Admission, event: ev.TermBegan, at: At) -> Admission:
    return replace(state, terms=(*state.terms, (at.term, at.revision)))


def _machine_wedged(state: Admission, event: ev.MachineWedged, at: At) -> Admission:
    return replace(state, wedged={**state.wedged, event.machine: event.text})


def _machine_unwedged(state: Admission, event: ev.MachineUnwedged, at: At) -> Admission | Ignore:
    if event.machine not in state.wedged:
        return Ignore("already so")
    wedged = {key: text for key, text in state.wedged.items() if key != event.machine}
    return replace(state, wedged=wedged)


def _time_passed(state: Admission, event: TimePassed, at: At) -> Admission:
    kept = {uid: one for uid, one in state.tombstones.items() if one.until_ms > at.at_ms}
    return nodes.time_passed(replace(state, tombstones=kept), at)


_APPLIERS: dict[type, Callable[..., Admission | Ignore]] = {
    ev.DemandRaised: _demand_raised,
    ev.DemandMoved: _demand_moved,
    ev.DemandWithdrawn: _demand_withdrawn,
    ev.SlotFreed: _slot_freed,
    ev.CapacityChanged: _capacity_changed,
    ev.DemandFitted: _demand_fitted,
    ev.DemandEvicted: _demand_evicted,
    ev.SlotQuarantined: _slot_quarantined,
    ev.QuarantineLifted: _quarantine_lifted,
    ev.JobNoted: _job_noted,
    ev.JobEnded: _job_ended,
    ev.JobForgotten: _job_forgotten,
    ev.TermBegan: _term_began,
    ev.MachineWedged: _machine_wedged,
    ev.MachineUnwedged: _machine_unwedged,
    TimePassed: _time_passed,
    **nodes.APPLIERS,
    **queues.APPLIERS,
}


def in_order(state: Admission) -> tuple[Demand, ...]:
    """Return the demands that wait: by priority, then by age, then by uid."""
    return tuple(usage.waiting_in(state))


settle = choosing.settle
consequences = grants.consequences


def plan(state: Admission) -> tuple[Command, ...]:
    """Return what admission keeps in motion: its timer."""
    at_ms = deadline_ms(state)
    return (WakeAt("", at_ms),) if at_ms else ()


def deadline_ms(state: Admission) -> int:
    """Return when the next exclusion, port rest or tombstone ends; 0 none."""
    times = [_first_end_ms.of(state.tombstones, _end_of_first)] if state.tombstones else []
    is_waited_for = bool(usage.book_of(state.demands).waiting)
    times += nodes.deadlines(state, is_waited_for=is_waited_for)
    return min(times, default=0)


def _end_of_first(tombstones: Mapping[str, Tombstone]) -> int:
    return min(one.until_ms for one in tombstones.values())
