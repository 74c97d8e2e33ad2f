"""Placement: rules between roles and nodes, gangs fitted whole, and the least busy node first."""

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from primusd.admission import events as ev
from primusd.admission import scoring
from primusd.admission.fitting import fit, unfit_sentence
from primusd.admission.model import Admission, Demand
from primusd.admission.placement import Asked, contradictions, rules_of
from primusd.admission.rooms import Amount, Room
from primusd.admission.scoring import Host, Load, busy
from primusd.admission.waits import Survey, why_waits
from primusd.job.events import Place
from primusd.job.ids import Span
from primusd.job.phases import DemandPhase
from primusd.job.spec import Placement
from tests.state.test_admission import GIB, drive, seen


def want(
    role: str = "worker",
    count: int = 1,
    *,
    cpu: int = 1,
    memory: int = 1,
    ports: int = 1,
    **rules: Any,  # of Placement
) -> ev.RoleDemand:
    """Return what a role asks for."""
    placement = Placement(**rules)
    return ev.RoleDemand(
        role, (Span(role, 0, count - 1),), cpu * 1000, memory * GIB, 0, ports, placement=placement
    )


def demand(*wants: ev.RoleDemand, job: str = "j1") -> ev.DemandRaised:
    return ev.DemandRaised(job, 1, "default", 50, wants)


def node(name: str, cpu: int = 4, memory: int = 64, **labels: str) -> ev.NodeSeen:
    return replace(seen(name, cpu=cpu, memory=memory), labels=labels)


def nodes_of(state: Admission, job: str = "j1") -> dict[str, list[str]]:
    """Return the nodes of each role's replicas, in the order of their indices."""
    found: dict[str, list[str]] = {}
    for (role, _), held in sorted(state.demands[job].held.items()):
        found.setdefault(role, []).append(held.node)
    return found


def phase(state: Admission, job: str = "j1") -> DemandPhase:
    return state.demands[job].phase


# Rules.


def test_labels_choose_nodes_m026() -> None:
    state, _ = drive(
        Admission(),
        node("n1", zone="a"),
        node("n2", zone="b", gpu="h100"),
        demand(want(count=3, nodes={"zone": "b", "gpu": "h100"})),
    )

    assert nodes_of(state) == {"worker": ["n2"] * 3}


def test_no_more_than_max_per_node_also_with_those_that_are_there_a30_m026() -> None:
    state, _ = drive(Admission(), node("n1"), node("n2"), demand(want(count=2, max_per_node=1)))
    assert sorted(nodes_of(state)["worker"]) == ["n1", "n2"]

    state, _ = drive(state, demand(want(count=3, max_per_node=1)))
    assert phase(state) is DemandPhase.WAITING

    state, _ = drive(state, node("n3"))
    assert nodes_of(state)["worker"][2] == "n3"


def test_apart_holds_both_ways_m026() -> None:
    roles = want("ps", 2), want("worker", 2, apart=("ps",))
    state, _ = drive(Admission(), node("n1", cpu=8), node("n2", cpu=8), demand(*roles))

    found = nodes_of(state)

    assert not set(found["ps"]) & set(found["worker"])


def test_apart_from_its_own_role_is_one_a_node() -> None:
    roles = (want(count=2, apart=("worker",)),)
    state, _ = drive(Admission(), node("n1", cpu=9), node("n2"), demand(*roles))

    assert sorted(nodes_of(state)["worker"]) == ["n1", "n2"]


def test_near_shares_a_node_with_one_of_the_role_it_names() -> None:
    roles = want("worker", 4, near=("ps",)), want("ps", 1, cpu=2)
    state, _ = drive(Admission(), node("n1", cpu=9), node("n2", cpu=8), demand(*roles))

    assert nodes_of(state) == {"ps": ["n1"], "worker": ["n1"] * 4}


def test_near_its_own_role_stays_on_one_node_that_has_room_for_all() -> None:
    roles = want("big", 1, cpu=4), want("worker", 4, near=("worker",))
    state, _ = drive(Admission(), node("n1", cpu=5), node("n2", cpu=4), demand(*roles))

    found = nodes_of(state)
    assert len(set(found["worker"])) == 1
    assert set(found["worker"]) != set(found["big"])


def test_near_in_a_circle_is_fitted() -> None:
    roles = want("a", 2, near=("b",)), want("b", 2, near=("a",))
    state, _ = drive(Admission(), node("n1", cpu=2), node("n2", cpu=2), demand(*roles))

    found = nodes_of(state)
    assert set(found["a"]) == set(found["b"])


@pytest.mark.parametrize(
    ("roles", "text"),
    [
        (
            [("worker", 2, Placement(near=("ps",), apart=("ps",))), ("ps", 1, Placement())],
            "worker near ps, but ps and worker are to be apart",
        ),
        (
            [
                ("worker", 2, Placement(near=("ps",))),
                ("ps", 1, Placement(near=("chief",))),
                ("chief", 1, Placement(apart=("worker",))),
            ],
            "worker near ps near chief, but chief and worker are to be apart",
        ),
        (
            [("worker", 3, Placement(near=("worker",), max_per_node=2))],
            "3 replicas belong on one node, at most 2 may",
        ),
        (
            [("worker", 8, Placement(near=("ps",), max_per_node=2)), ("ps", 2, Placement())],
            "8 replicas, at most 2 a node, take 4 nodes; ps is on 2 nodes at most",
        ),
        (
            [
                ("worker", 1, Placement(near=("ps",), nodes={"zone": "a"})),
                ("ps", 1, Placement(nodes={"zone": "b"})),
            ],
            "zone=a, but near ps, which asks for zone=b",
        ),
    ],
)
def test_rules_that_no_nodes_could_meet_are_told_with_their_numbers(
    roles: list[tuple[str, int, Placement]], text: str
) -> None:
    found = list(contradictions(Asked(*one) for one in roles))

    assert text in [one.text for one in found]


def test_rules_about_roles_that_ask_for_nothing_any_more_say_nothing() -> None:
    rules = rules_of({"worker": Placement(near=("ps",), apart=("chief",))})

    assert (rules["worker"].near, rules["worker"].apart) == ({}, frozenset())


@pytest.mark.parametrize(
    ("roles", "text"),
    [
        (
            [want(nodes={"gpu": "h100"})],
            "worker: no node has gpu=h100; labels known: gpu=a100 (1), zone=a (2), zone=b (1)",
        ),
        (
            [want(count=4, max_per_node=1)],
            "worker: 4 replicas, at most 1 a node, take 4 nodes; there are 3 in all",
        ),
        (
            [want(count=3, max_per_node=1, nodes={"zone": "a"})],
            "worker: 3 replicas, at most 1 a node, take 3 nodes; there are 2 with zone=a",
        ),
        (
            [want("ps", 2, max_per_node=1), want(count=2, max_per_node=1, apart=("ps",))],
            "ps: apart from worker, both take 4 nodes; there are 3",
        ),
        (
            [want(memory=65, nodes={"zone": "b"})],
            "a replica of worker asks for 65Gi of memory, the largest with its labels has 64Gi",
        ),
    ],
)
def test_what_the_nodes_could_never_hold_is_told_with_their_numbers(
    roles: list[ev.RoleDemand], text: str
) -> None:
    nodes = node("n1", zone="a"), node("n2", zone="a", gpu="a100"), node("n3", memory=64, zone="b")
    state, _ = drive(Admission(), *nodes, node("n1", memory=128, zone="a"))

    assert unfit_sentence(state, roles) == text


# Gangs whole.


def test_most_constrained_role_chooses_first() -> None:
    """Spread first, the small ones would leave no node whole for the large one."""
    roles = want("small", 2, cpu=2), want("large", 1, cpu=4)
    state, _ = drive(Admission(), node("n1"), node("n2"), demand(*roles))

    found = nodes_of(state)
    assert len(set(found["small"])) == 1
    assert found["large"] != found["small"][:1]


def test_large_replicas_choose_first_also_where_there_are_too_many_to_search() -> None:
    roles = want("small", 70, memory=1, cpu=0), want("large", 1, memory=10, cpu=0)
    nodes = node("n1", memory=40), node("n2", memory=40)
    state, _ = drive(Admission(), *nodes, demand(*roles))

    assert phase(state) is DemandPhase.GRANTED


def test_fit_that_no_simple_order_finds_is_searched_for() -> None:
    """5, 4 and twice 3 into 9 and 6: the emptiest node first leads to 5 + 3 and 4, and no 3."""
    roles = want("e", 1, cpu=5), want("d", 1, cpu=4), want("c", 2, cpu=3)
    state, _ = drive(Admission(), node("n1", cpu=9), node("n2", cpu=6), demand(*roles))

    assert nodes_of(state) == {"e": ["n1"], "d": ["n1"], "c": ["n2", "n2"]}


@settings(max_examples=150, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 2), st.integers(1, 4)), min_size=1, max_size=4),
    cpus=st.lists(st.integers(2, 8), min_size=1, max_size=3),
    rules=st.lists(st.sampled_from(["", "one", "apart", "near", "zone"]), min_size=4, max_size=4),
)
def test_gang_fits_exactly_when_some_way_of_seating_it_exists(
    sizes: list[tuple[int, int]], cpus: list[int], rules: list[str]
) -> None:
    placements = {
        "": Placement(),
        "one": Placement(max_per_node=1),
        "apart": Placement(apart=("r0",)),
        "near": Placement(near=("r0",)),
        "zone": Placement(nodes={"zone": "z0"}),
    }
    wants = [
        ev.RoleDemand(
            f"r{place}",
            (Span(f"r{place}", 0, count - 1),),
            0,
            cpu * GIB,
            0,
            1,
            placement=placements[rules[place]] if place else Placement(),
        )
        for place, (count, cpu) in enumerate(sizes)
    ]
    nodes = [node(f"n{place}", memory=cpu, zone=f"z{place}") for place, cpu in enumerate(cpus)]
    state, _ = drive(Admission(), *nodes)
    asked = Demand("j1", DemandPhase.WAITING, 1, "default", 50, 0, {one.role: one for one in wants})

    places = fit(state, asked, at_ms=1_000)

    seats = [(one, index) for one in wants for index in range(one.wanted[0].high + 1)]
    can = any(
        _is_right(dict(zip(map(_key, seats), chosen, strict=True)), wants, cpus)
        for chosen in itertools.product(range(len(cpus)), repeat=len(seats))
    )
    assert (places is not None) == can
    if places is not None:
        assert _is_right(_numbers(places), wants, cpus)


def _key(seat: tuple[ev.RoleDemand, int]) -> tuple[str, int]:
    return seat[0].role, seat[1]


def _numbers(places: tuple[Place, ...]) -> dict[tuple[str, int], int]:
    return {
        (place.role, place.first + offset): int(place.node[1:])
        for place in places
        for offset in range(place.count)
    }


def _is_right(
    chosen: dict[tuple[str, int], int], wants: list[ev.RoleDemand], cpus: list[int]
) -> bool:
    """Return whether seats keep every rule, judged in the plainest way."""
    by_role = {one.role: one for one in wants}
    for number, size in enumerate(cpus):
        here = [role for (role, _), one in chosen.items() if one == number]
        if sum(by_role[role].memory_bytes for role in here) > size * GIB:
            return False
        for role in here:
            rule = by_role[role].placement
            if rule.max_per_node and here.count(role) > rule.max_per_node:
                return False
            if any(other in here for other in rule.apart):
                return False
            if any(other not in here for other in rule.near):
                return False
            if rule.nodes.get("zone", f"z{number}") != f"z{number}":
                return False
    return True


# Load.


def test_next_replica_goes_to_the_idle_node_although_that_one_holds_more() -> None:
    state, _ = drive(Admission(), node("n1", cpu=8), node("n2", cpu=8))
    state, _ = drive(state, demand(want(count=2, nodes={}), job="j0"))
    assert sorted(nodes_of(state, "j0")["worker"]) == ["n1", "n2"]

    state, _ = drive(state, ev.NodeLoadMeasured("n1", 6_000, 0))
    state, _ = drive(state, demand(want(count=3)))

    assert nodes_of(state) == {"worker": ["n2"] * 3}


def test_node_whose_memory_others_use_is_busy_too() -> None:
    state, _ = drive(Admission(), node("n1"), node("n2"), ev.NodeLoadMeasured("n1", 0, 60 * GIB))

    state, _ = drive(state, demand(want(count=2)))

    assert nodes_of(state) == {"worker": ["n2", "n2"]}


def test_replicas_that_ask_for_nothing_spread_by_their_number() -> None:
    state, _ = drive(Admission(), node("n1"), node("n2"), demand(want(cpu=0, memory=0, count=4)))

    assert sorted(nodes_of(state)["worker"]) == ["n1", "n1", "n2", "n2"]


def test_load_never_keeps_a_replica_from_the_only_node_with_room() -> None:
    state, _ = drive(Admission(), node("n1"), ev.NodeLoadMeasured("n1", 9_000, 64 * GIB))

    state, _ = drive(state, demand(want(count=2)))

    assert phase(state) is DemandPhase.GRANTED


def test_load_of_a_node_that_went_away_is_forgotten() -> None:
    state, _ = drive(Admission(), node("n1"), ev.NodeLoadMeasured("n1", 3_000, 0))

    state, _ = drive(state, ev.NodeWentAway("n1"), node("n1"))

    assert state.nodes["n1"].load == Load()


def test_host_is_as_busy_as_the_fuller_of_processor_and_memory() -> None:
    assert busy(Host(4_000, 8 * GIB)) == 0
    assert busy(Host(4_000, 8 * GIB, taken_cpu_milli=2_000)) == 0.5
    assert busy(Host(4_000, 8 * GIB, taken_memory_bytes=6 * GIB)) == 0.75
    assert busy(Host(4_000, 8 * GIB, load=Load(3_000, 0), taken_cpu_milli=1_000)) == 1
    assert busy(Host(1_000, GIB, unstated=2)) == 0.5


@pytest.mark.parametrize(
    ("cpu_milli", "memory_bytes", "is_step"),
    [(999, 0, False), (1_000, 0, True), (0, GIB - 1, False), (0, GIB, True)],
)
def test_load_is_a_step_from_a_quarter_of_the_cores_or_an_eighth_of_the_memory(
    cpu_milli: int,
    memory_bytes: int,
    is_step: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    after = Load(cpu_milli, memory_bytes)

    found = scoring.is_step(Load(), after, cpu_milli=4_000, memory_bytes=8 * GIB)

    assert found is is_step
    assert scoring.is_step(after, Load(), cpu_milli=4_000, memory_bytes=8 * GIB) is is_step


# Why it waits.


def waits(state: Admission, job: str = "j1") -> tuple[str, str, dict[str, int]]:
    found = why_waits(Survey(state, at_ms=1_000), state.demands[job])
    assert found is not None
    return found.reason, found.message, dict(found.numbers)


def test_what_waits_for_a_node_that_its_rules_allow_says_so_with_numbers() -> None:
    roles = (want(count=3, max_per_node=1, nodes={"zone": "a"}),)
    nodes = [node(name, zone="a") for name in ("n1", "n2", "n3")]
    state, _ = drive(
        Admission(), *nodes, node("n4", zone="b"), ev.CordonRequested("n1"), demand(*roles)
    )

    reason, message, numbers = waits(state)

    assert reason == "WaitingForPlacement"
    assert message == (
        "3 of worker need a place: 3 of 4 nodes with zone=a, 2 ready, 2 by at most 1 a node, "
        "2 with room for one"
    )
    assert (numbers["nodesReady"], numbers["replicas"]) == (2, 3)


def test_what_moves_off_a_node_says_that_it_waits_for_another() -> None:
    state, _ = drive(Admission(), node("n1", memory=1), demand(want(count=1)))
    busy = (Span("worker", 0, 0),)
    moving = replace(demand(want(count=1)), moving=busy, busy=busy)
    state, _ = drive(state, ev.DrainRequested("n1"), node("n2", memory=0), moving)

    reason, message, _ = waits(state)

    assert reason == "WaitingForPlacement"
    assert message.startswith("1 of worker needs a place to move to: 2 nodes, 1 ready")


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
def test_a_row_of_ports_is_the_first_that_is_free_from_where_the_last_one_ended(count: int) -> None:
    taken = {2, 3, 7, 11, 12, 13, 20, 21, 30, 38}
    bits = sum(1 << 20_000 + one for one in taken)
    state, _ = drive(Admission(), seen("n1", ports=40))
    room = Room(state.nodes["n1"], Amount(), bits, {}, at_ms=0)

    found = []
    while room.next_ports(count) is not None:
        found.append(room.take_ports(count) - 20_000)

    expected, first = [], 0
    while first + count <= 40:
        if taken & set(range(first, first + count)):
            first += 1
        else:
            expected.append(first)
            first += count
    assert found == expected
