"""The nodes of admission: seen, away, excluded after faults, cordoned.

Table: docs/state-machines.md §7.
"""

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from primusd.admission import events as ev
from primusd.admission.dependencies import name_of
from primusd.admission.memo import Memo
from primusd.admission.model import Admission, Fault, Node
from primusd.admission.scoring import Load
from primusd.errors import NotFoundError, PhaseConflictError
from primusd.job.machine import At, Ignore
from primusd.job.phases import NodePhase
from primusd.job.tables import ignored_reason, is_refused, parse_table

PORT_WAKE_MS = 1_000
"""Ports that rest are waited for in whole seconds: a thousand ends are not a thousand events."""
_first_ms: Memo[Mapping[int, int], int] = Memo(256)
FAULT_WINDOW_MS = 3_600_000
FAULTS_TO_EXCLUDE = 2
SAME_FAULT_MS = 60_000
"""Infrastructure ends of one boot within this time count once."""
EXCLUSION_MS = 30 * 60_000
EXCLUSION_MAX_MS = 6 * 3_600_000

KEEPS_SLOTS = frozenset({NodePhase.READY, NodePhase.CORDONED})
"""A replica may run again in its slot there; on a node that is away or excluded it may not."""

NODE_TABLE = parse_table("""
                   | Ready         | Excluded   | Cordoned | Away
NodeSeen           | =             | =          | =        | Ready, Excluded or Cordoned
NodeWentAway       | Away          | Away       | Away     | · r
NodeFaultCounted   | = or Excluded | =          | =        | =
NodeLoadMeasured   | =             | =          | =        | · o
CordonRequested    | Cordoned      | Cordoned   | · a      | =
DrainRequested     | Cordoned      | Cordoned   | =        | =
UncordonRequested  | · a           | · a        | Ready or Excluded | =
ForgiveRequested   | =             | Ready      | =        | =
NodeExclusionRequested | = or Excluded | =      | =        | =
RemovalRequested   | !             | !          | !        | removed
TimePassed         | =             | = or Ready | =        | · o
""")


def _node(state: Admission, name: str, event: object) -> Node | Ignore:
    """Return the node an event is about, or the table's Ignore.

    Raises:
        NotFoundError: There is no such node.
        PhaseConflictError: The cell is refused.
    """
    node = state.nodes.get(name)
    if node is None:
        known = ", ".join(sorted(state.nodes)) or "none yet"
        raise NotFoundError(f"there is no node {name}; known: {known}")
    kind = type(event).__name__
    cell = NODE_TABLE.cell(kind, node.phase)
    if is_refused(cell):
        raise PhaseConflictError(
            f"node {name} is {node.phase}: {kind} has no place there", phase=node.phase, event=kind
        )
    reason = ignored_reason(cell)
    return node if reason is None else Ignore(reason)


def _with(state: Admission, node: Node) -> Admission:
    return replace(state, nodes={**state.nodes, node.name: node})


def _moved(node: Node, phase: NodePhase, at: At) -> Node:
    since_ms = node.since_ms if node.phase is phase else at.at_ms
    return replace(node, phase=phase, since_ms=since_ms, changed_revision=at.revision)


def _phase_when_present(node: Node, at: At) -> NodePhase:
    if node.is_cordoned:
        return NodePhase.CORDONED
    return NodePhase.EXCLUDED if node.excluded_until_ms > at.at_ms else NodePhase.READY


def _node_seen(state: Admission, event: ev.NodeSeen, at: At) -> Admission | Ignore:
    old = state.nodes.get(event.node)
    node = Node(
        name=event.node,
        launcher=event.launcher,
        phase=NodePhase.READY,
        since_ms=at.at_ms if old is None else old.since_ms,
        boot_id=event.boot_id,
        version=event.version,
        cpu_milli=event.cpu_milli,
        memory_bytes=event.memory_bytes,
        gpu=event.gpu,
        first_port=event.first_port,
        last_port=event.last_port,
        labels=event.labels,
        changed_revision=at.revision,
    )
    if old is not None:
        node = replace(node, **{field: getattr(old, field) for field in _KEPT_OVER_A_HELLO})
        node = _moved(node, _phase_when_present(node, at), at)
        if replace(node, changed_revision=old.changed_revision) == old:
            return Ignore("already so")
    return _with(state, node)


_KEPT_OVER_A_HELLO = (
    "phase",
    "faults",
    "excluded_until_ms",
    "exclusions",
    "resting_ports",
    "is_cordoned",
    "load",
    "draining_ms",
    "drains_now",
    "shunned",
    "excluded_text",
)


def keeps_slots(node: Node, job: str) -> bool:
    """Return whether a replica of a job may run again in its slot on a node."""
    is_emptied = bool(node.draining_ms) or job in node.shunned
    return node.phase in KEEPS_SLOTS and not is_emptied


def takes_new(node: Node, job: str) -> bool:
    """Return whether a node takes replicas of a job that do not run there yet."""
    return node.phase is NodePhase.READY and job not in node.shunned


def _node_went_away(state: Admission, event: ev.NodeWentAway, at: At) -> Admission | Ignore:
    node = _node(state, event.node, event)
    if isinstance(node, Ignore):
        return node
    return _with(state, replace(_moved(node, NodePhase.AWAY, at), load=Load()))


def _node_fault_counted(state: Admission, event: ev.NodeFaultCounted, at: At) -> Admission | Ignore:
    if event.node not in state.nodes:
        return Ignore("no longer wanted")
    node = _node(state, event.node, event)
    assert isinstance(node, Node)
    oldest_ms = at.at_ms - FAULT_WINDOW_MS
    faults = tuple(one for one in node.faults if one.at_ms >= oldest_ms)
    if any(one.boot_id == event.boot_id and at.at_ms - one.at_ms < SAME_FAULT_MS for one in faults):
        return Ignore("repeat")
    faults = (*faults, Fault(at.at_ms, event.attempt, event.cause, event.boot_id))
    node = replace(node, faults=faults, changed_revision=at.revision)
    if (
        node.phase is NodePhase.READY
        and len(faults) >= FAULTS_TO_EXCLUDE
        and _may_exclude_one_more(state, at)
    ):
        lasting_ms = min(EXCLUSION_MS << node.exclusions, EXCLUSION_MAX_MS)
        node = replace(
            _moved(node, NodePhase.EXCLUDED, at),
            excluded_until_ms=at.at_ms + lasting_ms,
            exclusions=node.exclusions + 1,
            faults=(),
        )
    return _with(state, node)


def _may_exclude_one_more(state: Admission, at: At) -> bool:
    """Return whether at most a third of the nodes would be excluded with one more.

    Also those that are away or cordoned meanwhile: they come back as excluded as they went. Others
    that are away count for nothing: hosts that went for good would let all the rest be left out.
    """
    nodes = state.nodes.values()
    excluded = sum(node.excluded_until_ms > at.at_ms for node in nodes)
    gone = sum(
        node.phase is NodePhase.AWAY and node.excluded_until_ms <= at.at_ms for node in nodes
    )
    return 3 * (excluded + 1) <= len(nodes) - gone


def _node_load_measured(state: Admission, event: ev.NodeLoadMeasured, at: At) -> Admission | Ignore:
    node = _node(state, event.node, event)
    if isinstance(node, Ignore):
        return node
    load = Load(event.cpu_milli, event.memory_bytes)
    if node.load == load:
        return Ignore("already so")
    return _with(state, replace(node, load=load, changed_revision=at.revision))


def _node_exclusion_requested(
    state: Admission, event: ev.NodeExclusionRequested, at: At
) -> Admission | Ignore:
    node = _node(state, event.node, event)
    assert isinstance(node, Node), "the table ignores it nowhere"
    until_ms = at.at_ms + event.for_ms
    if event.job:
        return _shunned(state, node, event.job, until_ms, at)
    phase = NodePhase.EXCLUDED if node.phase is NodePhase.READY else node.phase
    excluded = replace(
        _moved(node, phase, at), excluded_until_ms=until_ms, excluded_text=event.reason
    )
    return _with(state, excluded)


def _shunned(state: Admission, node: Node, job: str, until_ms: int, at: At) -> Admission | Ignore:
    """Keep a job off a node; of a job's rules never off more than half of the nodes."""
    nodes = state.nodes.values()
    others = sum(job in one.shunned for one in nodes if one is not node)
    gone = sum(
        one.phase is NodePhase.AWAY and one is not node and job not in one.shunned for one in nodes
    )
    if 2 * (others + 1) > len(nodes) - gone:
        return Ignore("no longer wanted")
    shunned = {**node.shunned, job: max(until_ms, node.shunned.get(job, 0))}
    return _with(state, replace(node, shunned=shunned, changed_revision=at.revision))


def _cordon_requested(state: Admission, event: ev.CordonRequested, at: At) -> Admission | Ignore:
    node = _node(state, event.node, event)
    if isinstance(node, Ignore):
        return node
    return _with(state, _cordoned(node, at))


def _cordoned(node: Node, at: At) -> Node:
    phase = node.phase if node.phase is NodePhase.AWAY else NodePhase.CORDONED
    return replace(_moved(node, phase, at), is_cordoned=True)


def _drain_requested(state: Admission, event: ev.DrainRequested, at: At) -> Admission | Ignore:
    node = _node(state, event.node, event)
    if isinstance(node, Ignore):
        return node
    if node.draining_ms and (node.drains_now or not event.is_now):
        return Ignore("already so")
    drained = replace(
        _cordoned(node, at), draining_ms=node.draining_ms or at.at_ms, drains_now=event.is_now
    )
    return _with(state, drained)


def _uncordon_requested(
    state: Admission, event: ev.UncordonRequested, at: At
) -> Admission | Ignore:
    node = _node(state, event.node, event)
    if isinstance(node, Ignore):
        return node
    opened = replace(node, is_cordoned=False, draining_ms=0, drains_now=False)
    phase = node.phase if node.phase is NodePhase.AWAY else _phase_when_present(opened, at)
    return _with(state, _moved(opened, phase, at))


def _forgive_requested(state: Admission, event: ev.ForgiveRequested, at: At) -> Admission | Ignore:
    node = _node(state, event.node, event)
    if isinstance(node, Ignore):
        return node
    phase = NodePhase.READY if node.phase is NodePhase.EXCLUDED else node.phase
    forgiven = replace(
        _moved(node, phase, at),
        faults=(),
        excluded_until_ms=0,
        exclusions=0,
        shunned={},
        excluded_text="",
    )
    return _with(state, forgiven)


def _removal_requested(state: Admission, event: ev.RemovalRequested, _at: At) -> Admission:
    node = _node(state, event.node, event)
    assert isinstance(node, Node), "the table ignores it nowhere"
    names = {
        f"{role}-{index} of {name_of(state, demand.job)}"
        for demand in state.demands.values()
        for (role, index), slot in demand.held.items()
        if slot.node == node.name
    }
    names |= {f"an attempt of {one.job}" for one in state.quarantined if one.node == node.name}
    if names:
        raise PhaseConflictError(
            f"node {node.name} still keeps a slot for {', '.join(sorted(names)[:3])}",
            phase=node.phase,
            event="RemovalRequested",
        )
    return replace(state, nodes={key: one for key, one in state.nodes.items() if one is not node})


APPLIERS: dict[type, Callable[..., Admission | Ignore]] = {
    ev.NodeSeen: _node_seen,
    ev.NodeWentAway: _node_went_away,
    ev.NodeFaultCounted: _node_fault_counted,
    ev.CordonRequested: _cordon_requested,
    ev.DrainRequested: _drain_requested,
    ev.UncordonRequested: _uncordon_requested,
    ev.ForgiveRequested: _forgive_requested,
    ev.NodeExclusionRequested: _node_exclusion_requested,
    ev.NodeLoadMeasured: _node_load_measured,
    ev.RemovalRequested: _removal_requested,
}


def time_passed(state: Admission, at: At) -> Admission:
    """Return the nodes with ended exclusions lifted and rested ports free again."""
    return replace(state, nodes={name: _later(node, at) for name, node in state.nodes.items()})


def _later(node: Node, at: At) -> Node:
    """Return the node as of now; the same object when nothing of it changed."""
    resting = {port: ms for port, ms in node.resting_ports.items() if ms > at.at_ms}
    later = (
        node if len(resting) == len(node.resting_ports) else replace(node, resting_ports=resting)
    )
    shunned = {job: ms for job, ms in node.shunned.items() if ms > at.at_ms}
    if len(shunned) != len(node.shunned):
        later = replace(later, shunned=shunned, changed_revision=at.revision)
    if later.phase is NodePhase.EXCLUDED and later.excluded_until_ms <= at.at_ms:
        return replace(_moved(later, NodePhase.READY, at), excluded_text="")
    return later


def forget_job(state: Admission, job: str) -> Admission:
    """Return admission without what nodes remember of a job that is over."""
    if not any(job in node.shunned for node in state.nodes.values()):
        return state
    nodes = {
        name: replace(node, shunned={key: ms for key, ms in node.shunned.items() if key != job})
        for name, node in state.nodes.items()
    }
    return replace(state, nodes=nodes)


def rest_ports(state: Admission, name: str, ports: tuple[int, ...], *, until_ms: int) -> Admission:
    """Return admission with these ports of a node not given out until then."""
    node = state.nodes.get(name)
    if node is None or not ports:
        return state
    resting = {**node.resting_ports, **dict.fromkeys(ports, until_ms)}
    return _with(state, replace(node, resting_ports=resting))


def _first_of(resting: Mapping[int, int]) -> int:
    return min(resting.values())


def deadlines(state: Admission, *, is_waited_for: bool) -> list[int]:
    """Return the journal times at which a node changes by itself."""
    found: list[int] = []
    for node in state.nodes.values():
        if node.phase is NodePhase.EXCLUDED:
            found.append(node.excluded_until_ms)
        if node.resting_ports and is_waited_for:
            first_ms = _first_ms.of(node.resting_ports, _first_of)
            found.append(-(-first_ms // PORT_WAKE_MS) * PORT_WAKE_MS)
        if node.shunned:
            found.append(min(node.shunned.values()))
    return found
