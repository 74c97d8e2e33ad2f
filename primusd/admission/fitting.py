"""Which slots and ports a demand gets: all or nothing, on the least busy nodes that fit.

Usage is always computed from the slots that demands hold and from what is quarantined, never
counted up and down. CPU is compressible: a demand that asks for more than there is gets it when
nobody else holds any (docs/jobspec.md, "What could never fit").
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from primusd.admission.events import RoleDemand
from primusd.admission.growth import asked_bytes, has_bytes, is_answered, with_memory
from primusd.admission.model import Admission, Demand, Held, Node
from primusd.admission.nodes import keeps_slots, takes_new
from primusd.admission.placement import Asked, Rule, Trouble, has_labels, rules_of, unmeetable
from primusd.admission.rooms import Amount, Room
from primusd.admission.seating import Party, seat
from primusd.admission.usage import NOTHING, amount_of, ports_now, taken_by, used_now
from primusd.job.events import Place
from primusd.job.phases import NodePhase
from primusd.job.spec import Placement
from primusd.units import bytes_words

Key = tuple[str, int]
"""(role, index)."""
UNPLACED = Placement()


def indices(want: RoleDemand) -> Iterator[int]:
    """Yield the replicas that are asked for."""
    for span in want.wanted:
        yield from range(span.low, span.high + 1)


def has_good_ports(demand: Demand, want: RoleDemand, held: Held) -> bool:
    """Return whether a slot's ports are of the generation that its role is in."""
    return not want.port_count or held.generation >= (want.generation or demand.generation)


def is_good(demand: Demand, want: RoleDemand, index: int, held: Held) -> bool:
    """Return whether a slot is what its replica asks for, as far as it can be had."""
    return has_good_ports(demand, want, held) and is_answered(want, index, held)


def is_satisfied(demand: Demand) -> bool:
    """Return whether the demand holds all that it cannot do without, in its generation."""
    return not demand.moving and not any(missing(demand))


def missing(demand: Demand) -> Iterator[tuple[RoleDemand, int]]:
    """Yield the replicas without a slot, or with ports of an older generation.

    Of those of an elastic role that have no slot, the ones alone that it cannot do without.
    """
    for want in demand.roles.values():
        if not want.spare_count:
            yield from ((want, index) for index in _absent(demand, want))
        else:
            yield from ((want, index) for index in _parted(demand, want)[0])


def spares(demand: Demand) -> Iterator[tuple[RoleDemand, int]]:
    """Yield the replicas without a slot that an elastic role would run if there was room."""
    for want in demand.roles.values():
        if want.spare_count:
            yield from ((want, index) for index in _parted(demand, want)[1])


def _parted(demand: Demand, want: RoleDemand) -> tuple[list[int], list[int]]:
    """Return the replicas that an elastic role needs a slot or ports for, and those it can spare.

    Who has a slot keeps it.
    """
    absent = list(_absent(demand, want))
    without = [index for index in absent if (want.role, index) not in demand.held]
    spare_count = min(want.spare_count, len(without))
    spare = frozenset(without[len(without) - spare_count :])
    return [index for index in absent if index not in spare], sorted(spare)


def _absent(demand: Demand, want: RoleDemand) -> Iterator[int]:
    for index in indices(want):
        held = demand.held.get((want.role, index))
        if held is None or not is_good(demand, want, index, held):
            yield index


def fit(admission: Admission, demand: Demand, *, at_ms: int) -> tuple[Place, ...] | None:
    """Return where the demand's missing replicas go, None when they do not all fit now.

    A replica that keeps its node and only needs ports of a newer generation stays there. Those that
    are to move off a node go with the others, and wait alone where only the others fit.
    """
    lacking = list(missing(demand))
    known = {(want.role, index) for want, index in lacking}
    moving = [
        (demand.roles[role], index)
        for role, index in sorted(demand.moving)
        if role in demand.roles and (role, index) not in known
    ]
    if not lacking and not moving:
        return ()
    found = _fit(admission, demand, [*lacking, *moving], at_ms=at_ms)
    if found is None and moving:
        found = _fit_a_part(admission, demand, lacking, moving, at_ms=at_ms)
    if found is None and lacking and any(want.memory for want in demand.roles.values()):
        found = _fit(admission, demand, lacking, at_ms=at_ms, grows=False)
    return found


def _fit_a_part(
    admission: Admission,
    demand: Demand,
    lacking: Sequence[tuple[RoleDemand, int]],
    moving: Sequence[tuple[RoleDemand, int]],
    *,
    at_ms: int,
) -> tuple[Place, ...] | None:
    """Return where those go that have no slot; where all have one, who moves of the first role."""
    if lacking:
        return _fit(admission, demand, lacking, at_ms=at_ms)
    roles = dict.fromkeys(want.role for want, _ in moving)
    for role in roles if len(roles) > 1 else ():
        ones = [one for one in moving if one[0].role == role]
        found = _fit(admission, demand, ones, at_ms=at_ms)
        if found is not None:
            return found
    return None


def fit_spares(
    admission: Admission, demand: Demand, wishes: Sequence[tuple[RoleDemand, int]], *, at_ms: int
) -> tuple[Place, ...] | None:
    """Return where these of the demand's spares go, None when they do not all fit now."""
    return _fit(admission, demand, wishes, at_ms=at_ms, may_squeeze=False)


def _fit(
    admission: Admission,
    demand: Demand,
    wishes: Sequence[tuple[RoleDemand, int]],
    *,
    at_ms: int,
    grows: bool = True,
    may_squeeze: bool = True,
) -> tuple[Place, ...] | None:
    used = used_now(admission)
    rooms = rooms_of(admission, demand, used, at_ms=at_ms)
    open_rooms = [
        room for room in rooms.values() if takes_new(admission.nodes[room.name], demand.job)
    ]
    # Who runs already is not moved to where there is less for it.
    may_squeeze = may_squeeze and not demand.moving
    squeezes_cpu = may_squeeze and _may_squeeze_cpu(admission, demand, used)
    rules = placement_rules(demand.roles.values())
    chosen: dict[Key, tuple[str, int, int]] = {}
    new: dict[str, list[int]] = {}
    for want, index in wishes:
        key = (want.role, index)
        kept = _kept(demand, key, rooms)
        grown = None
        if grows and asked_bytes(want, index):
            rule = rules[want.role]
            grown = _grown(want, index, kept, open_rooms, rule, squeezes_cpu=squeezes_cpu)
        if grown is not None and kept is not None and grown[0] == kept[0].node:
            first_port = _first_port(demand, want, *kept)
            if first_port is None:
                return None
            chosen[key] = (grown[0], first_port, grown[2])
        elif grown is not None:
            chosen[key] = grown
        elif kept is None:
            new.setdefault(want.role, []).append(index)
        else:
            held, room = kept
            first_port = _first_port(demand, want, held, room)
            if first_port is None:
                return None
            chosen[key] = room.name, first_port, held.memory_bytes
    parties = tuple(
        Party(demand.roles[role], rules[role], tuple(ones)) for role, ones in new.items()
    )
    seated = seat(parties, open_rooms, squeezes_cpu=squeezes_cpu)
    if seated is None:
        return None
    chosen |= {key: (*place, 0) for key, place in seated.items()}
    order = {role: place for place, role in enumerate(demand.roles)}
    keys = sorted(chosen, key=lambda key: (order[key[0]], key[1]))
    return _as_runs([(*key, *chosen[key], demand.roles[key[0]].port_count) for key in keys])


def rooms_of(
    admission: Admission, demand: Demand, used: Mapping[str, Amount], *, at_ms: int
) -> dict[str, Room]:
    """Return what is left on each node that keeps slots of the job."""
    ports, own = ports_now(admission), _own(demand)
    return {
        node.name: Room(
            node,
            used.get(node.name, NOTHING),
            ports.get(node.name, 0),
            own.get(node.name, {}),
            at_ms=at_ms,
        )
        for node in sorted(admission.nodes.values(), key=lambda one: one.name)
        if keeps_slots(node, demand.job)
    }


def _kept(demand: Demand, key: Key, rooms: Mapping[str, Room]) -> tuple[Held, Room] | None:
    """Return the slot that a replica keeps, with its room; None it needs another one."""
    held = demand.held.get(key)
    if held is None or key in demand.moving or held.node not in rooms:
        return None
    return held, rooms[held.node]


def _first_port(demand: Demand, want: RoleDemand, held: Held, room: Room) -> int | None:
    """Return the first port of a slot that is kept: its own as long as they are good."""
    if has_good_ports(demand, want, held):
        return held.first_port
    return None if room.next_ports(want.port_count) is None else room.take_ports(want.port_count)


def _grown(
    want: RoleDemand,
    index: int,
    kept: tuple[Held, Room] | None,
    others: Sequence[Room],
    rule: Rule,
    *,
    squeezes_cpu: bool,
) -> tuple[str, int, int] | None:
    """Return node, first port and memory of a replica that would have more than its role.

    On its own node if that has enough, else where there is enough, else with what its own has left.

    Args:
        want: Of its role.
        index: Its own.
        kept: Its slot and the room that it is in; None it needs one.
        others: Rooms that take new replicas.
        rule: Of its role.
        squeezes_cpu: More processor may be taken than there is.

    Returns:
        None when it gets no more here than its role's replicas do.
    """
    asked = asked_bytes(want, index)
    if kept is not None:
        held, room = kept
        others = [one for one in others if one is not room]
        more = max(0, asked - has_bytes(want, held))
        if room.free_bytes >= more:
            return _with_more(want, held, room, more)
    party = Party(with_memory(want, asked), rule, (index,))
    seated = seat((party,), others, squeezes_cpu=squeezes_cpu)
    if seated is not None:
        return *seated[want.role, index], asked
    if kept is None or not kept[1].free_bytes:
        return None
    return _with_more(want, kept[0], kept[1], kept[1].free_bytes)


def _with_more(want: RoleDemand, held: Held, room: Room, more: int) -> tuple[str, int, int]:
    room.take_bytes(more)
    return room.name, held.first_port, has_bytes(want, held) + more


def placement_rules(roles: Iterable[RoleDemand]) -> Mapping[str, Rule]:
    """Return the placement rule of each role of a demand."""
    return rules_of({one.role: one.placement for one in roles})


def _own(demand: Demand) -> dict[str, dict[str, int]]:
    """Return how many replicas of each role a demand has on each node, those that move left out."""
    if all(want.placement == UNPLACED for want in demand.roles.values()):
        return {}
    own: dict[str, dict[str, int]] = {}
    for (role, index), held in demand.held.items():
        if (role, index) not in demand.moving:
            roles = own.setdefault(held.node, {})
            roles[role] = roles.get(role, 0) + 1
    return own


def _may_squeeze_cpu(admission: Admission, demand: Demand, used: Mapping[str, Amount]) -> bool:
    """Return whether the demand may take more CPU than there is: nobody else holds any."""
    others = sum(amount.cpu_milli for amount in used.values())
    others -= taken_by(demand).total.cpu_milli
    there = sum(
        node.cpu_milli for node in admission.nodes.values() if node.phase is NodePhase.READY
    )
    return others == 0 and total_of(demand.roles.values()).cpu_milli > there


def _as_runs(chosen: Sequence[tuple[str, int, str, int, int, int]]) -> tuple[Place, ...]:
    """Return the chosen slots as runs of neighbours on one node with consecutive ports."""
    runs: list[Place] = []
    for role, index, node, port, memory, count in chosen:
        last = runs[-1] if runs else None
        if (
            last is not None
            and (last.role, last.node, last.first + last.count) == (role, node, index)
            and (port == 0 or last.first_port + last.count * count == port)
            and last.memory_bytes == memory
        ):
            runs[-1] = Place(node, role, last.first, last.count + 1, last.first_port, memory)
        else:
            runs.append(Place(node, role, index, 1, port, memory))
    return tuple(runs)


def total_of(roles: Iterable[RoleDemand]) -> Amount:
    """Return what all asked-for replicas take together."""
    total = NOTHING
    for want in roles:
        total = total.plus(amount_of(want), count_of(want))
    return total


def count_of(want: RoleDemand) -> int:
    """Return how many replicas are asked for that the job cannot do without."""
    return sum(span.high - span.low + 1 for span in want.wanted) - want.spare_count


def unfit_sentence(admission: Admission, roles: Iterable[RoleDemand]) -> str:
    """Return why the nodes known now could never hold this even when empty; "" they could.

    CPU is left out: it is compressible. Without any node nothing can be said.
    """
    nodes = tuple(admission.nodes.values())
    wants = tuple(roles)
    if not nodes:
        return ""
    trouble = unmeetable_rule(admission, wants)
    if trouble is not None:
        return f"{trouble.role}: {trouble.text}"
    return _too_large(nodes, wants)


def unmeetable_rule(admission: Admission, wants: Iterable[RoleDemand]) -> Trouble | None:
    """Return the first placement rule that the nodes known now could not meet when empty."""
    asked = [Asked(one.role, count_of(one), one.placement) for one in wants]
    return unmeetable(asked, {node.name: node.labels for node in admission.nodes.values()})


def _too_large(nodes: Sequence[Node], wants: Sequence[RoleDemand]) -> str:
    total = total_of(wants)
    rules = placement_rules(wants)
    for unit, show, each, asked in (
        ("of memory", bytes_words, [node.memory_bytes for node in nodes], total.memory_bytes),
        ("GPUs", str, [node.gpu for node in nodes], total.gpu),
    ):
        if asked > sum(each):
            there = show(sum(each))
            return f"the job asks for {show(asked)} {unit} in all, the nodes have {there}"
        for want in wants:
            one = want.gpu if show is str else want.memory_bytes
            labelled = [
                has
                for node, has in zip(nodes, each, strict=True)
                if has_labels(rules[want.role], node.labels)
            ]
            if one > max(labelled):
                which = "largest node" if len(labelled) == len(nodes) else "largest with its labels"
                return (
                    f"a replica of {want.role} asks for {show(one)} {unit}, "
                    f"the {which} has {show(max(labelled))}"
                )
    ports = sum(node.last_port - node.first_port + 1 for node in nodes)
    if total.port_count > ports:
        return f"the job asks for {total.port_count} ports, the nodes have {ports}"
    return ""
