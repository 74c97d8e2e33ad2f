"""Why no node takes a replica, where it is not for want of room in all: rules and single nodes."""

from collections.abc import Mapping

from msgspec import Struct

from primusd.admission.events import RoleDemand
from primusd.admission.fitting import UNPLACED, missing, placement_rules, rooms_of
from primusd.admission.model import Admission, Demand
from primusd.admission.nodes import takes_new
from primusd.admission.placement import Rule, has_labels, words_of
from primusd.admission.rooms import Room
from primusd.admission.usage import used_now


class Shortage(Struct, frozen=True):
    """Why replicas of a role find no node: in words, and in numbers."""

    text: str
    numbers: Mapping[str, int]


def why_no_place(admission: Admission, demand: Demand, *, at_ms: int) -> Shortage | None:
    """Return what stands against the first role that has no place.

    None: neither rules nor a drain have to do with it.
    """
    wanting: dict[str, int] = {}
    for want, _ in missing(demand):
        wanting[want.role] = wanting.get(want.role, 0) + 1
    for role, index in demand.moving:
        if role in demand.roles and (role, index) in demand.held:
            wanting[role] = wanting.get(role, 0) + 1
    has_rules = any(want.placement != UNPLACED for want in demand.roles.values())
    if not has_rules and not demand.moving:
        return None
    rules = placement_rules(demand.roles.values())
    rooms = rooms_of(admission, demand, used_now(admission), at_ms=at_ms)
    for role in demand.roles:
        if role in wanting:
            return _of_role(admission, demand, role, wanting[role], rule=rules[role], rooms=rooms)
    return None


def _of_role(
    admission: Admission,
    demand: Demand,
    role: str,
    count: int,
    *,
    rule: Rule,
    rooms: Mapping[str, Room],
) -> Shortage:
    allowed = [one for one in admission.nodes.values() if has_labels(rule, one.labels)]
    ready = [one for one in allowed if takes_new(one, demand.job)]
    near = frozenset(other for other in rule.near if other in demand.roles)
    by_rules = [one for one in ready if rooms[one.name].takes(role, rule, near)]
    want = demand.roles[role]
    with_room = [one for one in by_rules if rooms[one.name].fits(want, squeezes_cpu=False)]
    numbers = {
        "replicas": count,
        "nodes": len(admission.nodes),
        "nodesAllowed": len(allowed),
        "nodesReady": len(ready),
        "nodesByRules": len(by_rules),
        "nodesWithRoom": len(with_room),
    }
    return Shortage(_sentence(demand, want, count, rule, numbers), numbers)


def _sentence(
    demand: Demand, want: RoleDemand, count: int, rule: Rule, numbers: Mapping[str, int]
) -> str:
    is_moving = any(role == want.role for role, _ in demand.moving)
    what = "a place to move to" if is_moving else "a place"
    labels = f" with {words_of(rule.labels)}" if rule.labels else ""
    nodes = "1 node" if numbers["nodes"] == 1 else f"{numbers['nodes']} nodes"
    parts = [f"{numbers['nodesAllowed']} of {nodes}{labels}" if labels else nodes]
    parts.append(f"{numbers['nodesReady']} ready")
    words = rule_words(rule)
    if words:
        parts.append(f"{numbers['nodesByRules']} by {words}")
    parts.append(f"{numbers['nodesWithRoom']} with room for one")
    return f"{count} of {want.role} {'needs' if count == 1 else 'need'} {what}: {', '.join(parts)}"


def rule_words(rule: Rule) -> str:
    """Return the rules between replicas, as people read them; "" none."""
    parts = []
    if rule.per_node:
        parts.append(f"at most {rule.per_node} a node")
    if rule.is_on_one_node:
        parts.append("all on one node")
    if rule.near:
        parts.append(f"near {' and '.join(rule.near)}")
    if rule.apart:
        parts.append(f"apart from {' and '.join(sorted(rule.apart))}")
    return ", ".join(parts)
