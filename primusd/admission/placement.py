"""What placement rules ask of nodes: which may take a replica, and which rules nobody can meet.

`near: [ps]` on a worker says that each worker shares its node with a ps, so it holds for what ps is
near to as well; `near` of the own role keeps all of it on one node. `apart` holds both ways.
"""

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from primusd.job.spec import Placement

VALUES_SHOWN = 8


class Asked(Struct, frozen=True):
    """A role as placement sees it."""

    role: str
    count: int
    """Replicas that must have a place together."""
    placement: Placement


class Rule(Struct, frozen=True):
    """What holds for each replica of a role."""

    near: Mapping[str, tuple[str, ...]]
    """Role that has to be on the node, to the path of rules that leads to it."""
    apart: frozenset[str]
    """Roles that may not be on the node."""
    per_node: int
    """0 any number."""
    is_on_one_node: bool
    labels: Mapping[str, str]


class Trouble(Struct, frozen=True):
    """A rule that cannot be met: where it stands, and why."""

    role: str
    field: str
    text: str


def rules_of(placements: Mapping[str, Placement]) -> Mapping[str, Rule]:
    """Return the rule of each role; rules about roles that are not among them say nothing."""
    return {role: _rule(role, placements) for role in placements}


def _rule(role: str, placements: Mapping[str, Placement]) -> Rule:
    own = placements[role]
    near = _reached(role, placements)
    apart = {one for one in own.apart if one in placements and one != role}
    apart |= {one for one, other in placements.items() if role in other.apart and one != role}
    return Rule(
        near=near,
        apart=frozenset(apart),
        per_node=1 if role in own.apart else own.max_per_node,
        is_on_one_node=any(one in placements[one].near for one in (role, *near)),
        labels=own.nodes,
    )


def _reached(role: str, placements: Mapping[str, Placement]) -> dict[str, tuple[str, ...]]:
    """Return the roles that `near` leads to, each with its path."""
    found: dict[str, tuple[str, ...]] = {}
    paths: list[tuple[str, ...]] = [(role,)]
    while paths:
        path = paths.pop(0)
        for one in placements[path[-1]].near:
            if one in placements and one != role and one not in found:
                found[one] = (*path, one)
                paths.append(found[one])
    return found


def contradictions(asked: Iterable[Asked]) -> Iterator[Trouble]:
    """Yield the rules of a job that no nodes could ever meet."""
    roles = {one.role: one for one in asked}
    rules = rules_of({name: one.placement for name, one in roles.items()})
    for name, rule in rules.items():
        yield from _against_apart(name, rule, rules)
        yield from _too_few_nodes(name, rule, roles, rules)
        yield from _other_labels(name, rule, rules)


def _against_apart(name: str, rule: Rule, rules: Mapping[str, Rule]) -> Iterator[Trouble]:
    together: dict[str, tuple[str, ...]] = {name: (name,), **rule.near}
    for one in sorted(together):
        for other in sorted(rules[one].apart & together.keys()):
            if one < other:
                first, second = together[one], together[other]
                way = " near ".join(first if len(first) > len(second) else second)
                yield Trouble(name, "near", f"{way}, but {one} and {other} are to be apart")
                return


def _too_few_nodes(
    name: str, rule: Rule, roles: Mapping[str, Asked], rules: Mapping[str, Rule]
) -> Iterator[Trouble]:
    count = roles[name].count
    needed = nodes_needed(count, rule)
    if rule.is_on_one_node and needed > 1:
        yield Trouble(
            name, "maxPerNode", f"{count} replicas belong on one node, at most {rule.per_node} may"
        )
        return
    for other in rule.near:
        most = 1 if rules[other].is_on_one_node else roles[other].count
        if needed > most:
            nodes = f"{most} node" if most == 1 else f"{most} nodes"
            yield Trouble(
                name,
                "near",
                f"{count} replicas, at most {rule.per_node} a node, take {needed} nodes; "
                f"{other} is on {nodes} at most",
            )
            return


def _other_labels(name: str, rule: Rule, rules: Mapping[str, Rule]) -> Iterator[Trouble]:
    for other in rule.near:
        for key, value in rules[other].labels.items():
            if rule.labels.get(key, value) != value:
                yield Trouble(
                    name,
                    "nodes",
                    f"{key}={rule.labels[key]}, but near {other}, which asks for {key}={value}",
                )
                return


def nodes_needed(count: int, rule: Rule) -> int:
    """Return on how many nodes so many replicas are at the least."""
    return -(-count // rule.per_node) if rule.per_node else min(count, 1)


def has_labels(rule: Rule, labels: Mapping[str, str]) -> bool:
    """Return whether a node has the labels that a role asks for."""
    return all(labels.get(key) == value for key, value in rule.labels.items())


def labels_of(rule: Rule, rules: Mapping[str, Rule]) -> Mapping[str, str]:
    """Return the labels that a role's nodes must have, those of what it is near to counted in."""
    found: dict[str, str] = {}
    for name in rule.near:
        found |= rules[name].labels
    return {**found, **rule.labels}


def unmeetable(asked: Iterable[Asked], nodes: Mapping[str, Mapping[str, str]]) -> Trouble | None:
    """Return the first rule that these nodes could not meet even when empty, with the numbers.

    Args:
        asked: The roles of a job.
        nodes: Name to labels of every node that is known.
    """
    roles = {one.role: one for one in asked}
    rules = rules_of({name: one.placement for name, one in roles.items()})
    for name, rule in rules.items():
        labels = labels_of(rule, rules)
        wanted = words_of(labels)
        there = sum(_has(one, labels) for one in nodes.values())
        if labels and not there:
            return Trouble(name, "nodes", f"no node has {wanted}; {_known(nodes, labels)}")
        count = roles[name].count
        needed = nodes_needed(count, rule)
        if needed > there:
            which = f"{there} with {wanted}" if labels else f"{there} in all"
            text = f"{count} replicas, at most {rule.per_node} a node, take {needed} nodes; "
            return Trouble(name, "maxPerNode", f"{text}there are {which}")
        for other in sorted(rule.apart & roles.keys()):
            both = needed + nodes_needed(roles[other].count, rules[other])
            if roles[other].count and both > len(nodes):
                text = f"apart from {other}, both take {both} nodes; there are {len(nodes)}"
                return Trouble(name, "apart", text)
    return None


def _has(node: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    return all(node.get(key) == value for key, value in labels.items())


def words_of(labels: Mapping[str, str]) -> str:
    """Return labels as people write them: `gpu=h100, zone=a`."""
    return ", ".join(f"{key}={value}" for key, value in sorted(labels.items()))


def _known(nodes: Mapping[str, Mapping[str, str]], labels: Mapping[str, str]) -> str:
    """Return which labels there are, those of the asked-for keys first."""
    counted: dict[tuple[str, str], int] = {}
    for node in nodes.values():
        for pair in node.items():
            counted[pair] = counted.get(pair, 0) + 1
    shown = sorted(counted, key=lambda pair: (pair[0] not in labels, pair))
    if not shown:
        return "no node has any label"
    words = [f"{key}={value} ({counted[key, value]})" for key, value in shown[:VALUES_SHOWN]]
    return f"labels known: {', '.join(words)}" + (", …" if shown[VALUES_SHOWN:] else "")
