"""The admission machine: tables cell by cell, fitting, ports, nodes."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from primusd.admission import events as ev
from primusd.admission import machine as admission
from primusd.admission.fitting import unfit_sentence
from primusd.admission.machine import DEMAND_TABLE
from primusd.admission.model import Admission
from primusd.admission.nodes import NODE_TABLE
from primusd.errors import PhaseConflictError
from primusd.job.events import JobAdmitted, Place, TimePassed
from primusd.job.ids import Span
from primusd.job.machine import At, Ignore
from primusd.job.phases import DemandPhase, NodePhase
from primusd.job.tables import Table

GIB = 1 << 30
PAGE = Path(__file__).parents[2] / "docs" / "state-machines.md"


def at(now_ms: int = 1_000, revision: int = 1) -> At:
    return At(at_ms=now_ms, revision=revision, position=0, by="test")


def seen(
    name: str = "n1", *, cpu: int = 4, memory: int = 8, gpu: int = 0, ports: int = 100
) -> ev.NodeSeen:
    return ev.NodeSeen(
        node=name,
        launcher="local",
        boot_id="b1",
        version="0.1.0",
        cpu_milli=cpu * 1000,
        memory_bytes=memory * GIB,
        gpu=gpu,
        first_port=20_000,
        last_port=20_000 + ports - 1,
    )


def raised(
    job: str,
    count: int,
    *,
    cpu: int = 1,
    gpu: int = 0,
    ports: int = 1,
    generation: int = 1,
    priority: int = 50,
    roles: tuple[ev.RoleDemand, ...] = (),
    busy: tuple[Span, ...] = (),
    ports_taken: tuple[tuple[str, int, int], ...] = (),
) -> ev.DemandRaised:
    want = ev.RoleDemand("worker", (Span("worker", 0, count - 1),), cpu * 1000, GIB, gpu, ports)
    return ev.DemandRaised(
        job=job,
        generation=generation,
        queue="default",
        priority=priority,
        roles=roles or (want,),
        ports_taken=ports_taken,
        busy=busy,
    )


def drive(
    state: Admission, *events: ev.AdmissionEvent | TimePassed, now_ms: int = 1_000
) -> tuple[Admission, list[JobAdmitted]]:
    """Apply events as core.step does, and return what was admitted."""
    admitted: list[JobAdmitted] = []
    for event in events:
        before = state
        after = admission.apply(state, event, at(now_ms))
        if isinstance(after, Ignore):
            continue
        state = after
        while (decided := admission.settle(state, now_ms)) is not None:
            settled = admission.apply(state, decided, at(now_ms))
            assert isinstance(settled, Admission)
            state = settled
        caused = admission.consequences(before, state, event)
        admitted += [one.event for one in caused if isinstance(one.event, JobAdmitted)]
    return state, admitted


def page_rows(columns: tuple[str, ...]) -> dict[str, list[str]]:
    """Return the rows of the table of the page that has these columns."""
    rows: dict[str, list[str]] = {}
    inside = False
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip().replace("**", "") for cell in line.strip("| ").split("|")]
        if line.startswith("|") and tuple(cells[2:]) == columns:
            inside = True
        elif inside and not line.startswith("|"):
            return rows
        elif inside and not set(line) <= set("|- "):
            rows[cells[0].strip("`")] = cells[2:]
    return rows


@pytest.mark.parametrize("table", [DEMAND_TABLE, NODE_TABLE], ids=["demand", "node"])
def test_every_cell_of_the_table_is_as_the_page_has_it(table: Table) -> None:
    rows = page_rows(table.columns)

    assert rows.keys() == table.rows.keys()
    for name, cells in rows.items():
        assert tuple(cells) == table.rows[name], name


def test_gang_gets_all_its_slots_and_ports_at_once() -> None:
    state, admitted = drive(Admission(), seen(), raised("j1", 3, ports=2))

    assert [one.places for one in admitted] == [(Place("n1", "worker", 0, 3, 20_000),)]
    assert state.demands["j1"].phase is DemandPhase.GRANTED
    assert state.demands["j1"].held["worker", 2].first_port == 20_004


def test_second_gang_waits_and_gets_the_slots_when_the_first_is_gone() -> None:
    state, admitted = drive(Admission(), seen(cpu=3), raised("j1", 3), raised("j2", 3))
    assert len(admitted) == 1
    assert state.demands["j2"].phase is DemandPhase.WAITING

    busy = (Span("worker", 0, 2),)
    state, admitted = drive(state, ev.DemandWithdrawn("j1", busy))
    assert admitted == []
    assert state.demands["j1"].phase is DemandPhase.RELEASING

    state, admitted = drive(state, ev.SlotFreed("j1", (Span("worker", 0, 1),)))
    assert admitted == []
    state, admitted = drive(state, ev.SlotFreed("j1", (Span("worker", 2, 2),)))

    assert "j1" not in state.demands
    assert len(admitted) == 1
    assert admitted[0].places[0].first_port == 20_003, "ports rest for 60 s after Gone"


def test_job_that_takes_nothing_passes_one_that_waits() -> None:
    state, _ = drive(Admission(), seen(), raised("j1", 3), raised("j2", 3))

    free = ev.RoleDemand("worker", (Span("worker", 0, 0),), 0, 0, 0, 0)
    _, admitted = drive(state, raised("j3", 1, roles=(free,)))

    assert len(admitted) == 1


def test_job_that_could_never_fit_delays_nobody() -> None:
    state, admitted = drive(
        Admission(), seen(gpu=1), raised("j1", 1, gpu=2), raised("j2", 1, gpu=1)
    )

    assert state.demands["j1"].phase is DemandPhase.WAITING
    assert len(admitted) == 1
    assert "2 GPUs" in unfit_sentence(state, state.demands["j1"].roles.values())


def test_more_cpu_than_there_is_runs_when_nobody_else_holds_any() -> None:
    state, admitted = drive(Admission(), seen(cpu=2), raised("j1", 3))
    assert len(admitted) == 1

    state, admitted = drive(state, raised("j2", 3))

    assert admitted == []
    assert state.demands["j2"].phase is DemandPhase.WAITING


def test_higher_priority_comes_first() -> None:
    state, _ = drive(Admission(), raised("low", 3), raised("high", 3, priority=90))

    _, admitted = drive(state, seen())

    assert len(admitted) == 1
    assert admission.in_order(state)[0].job == "high"


def test_new_generation_keeps_the_slots_and_gets_new_ports() -> None:
    state, _ = drive(Admission(), seen(), raised("j1", 2))

    state, admitted = drive(state, raised("j1", 2, generation=2, busy=(Span("worker", 0, 1),)))

    assert admitted == [JobAdmitted((Place("n1", "worker", 0, 2, 20_002),), 2)]


def test_port_found_taken_is_set_aside_and_another_is_given_C65() -> None:
    state, _ = drive(Admission(), seen(), raised("j1", 2))

    state, admitted = drive(state, raised("j1", 2, ports_taken=(("worker", 1, 20_001),)))

    assert admitted == [JobAdmitted((Place("n1", "worker", 1, 1, 20_002),), 1)]
    assert state.nodes["n1"].resting_ports[20_001] == 1_000 + 600_000


def test_twenty_jobs_on_one_host_never_share_a_port_C64() -> None:
    state, admitted = drive(
        Admission(), seen(cpu=64, memory=64), *(raised(f"j{n}", 2) for n in range(20))
    )

    ports = [slot.first_port for one in state.demands.values() for slot in one.held.values()]
    assert len(admitted) == 20
    assert len(set(ports)) == 40


def test_quarantined_slot_stays_taken_until_it_vanishes() -> None:
    state, _ = drive(Admission(), seen(gpu=1), raised("j1", 1, gpu=1))

    state, _ = drive(
        state,
        ev.SlotQuarantined("j1", "worker", 0, 1),
        ev.DemandWithdrawn("j1"),
        raised("j2", 1, gpu=1),
    )
    assert state.demands["j2"].phase is DemandPhase.WAITING

    state, admitted = drive(state, ev.QuarantineLifted("j1", "worker", 0, 1))

    assert len(admitted) == 1
    assert state.quarantined == ()


def test_freed_slot_of_a_node_that_is_away_goes_elsewhere() -> None:
    state, _ = drive(Admission(), seen("n1"), raised("j1", 2))

    state, _ = drive(state, ev.NodeWentAway("n1"), ev.SlotFreed("j1", (Span("worker", 0, 1),)))
    assert state.demands["j1"].phase is DemandPhase.WAITING
    _, admitted = drive(state, seen("n2"))

    assert [place.node for one in admitted for place in one.places] == ["n2"]


def test_infrastructure_faults_exclude_a_node_but_never_more_than_a_third() -> None:
    names = ("n1", "n2", "n3")
    state, _ = drive(Admission(), *(seen(name) for name in names))

    for name in ("n1", "n2"):
        for number in range(2):
            fault = ev.NodeFaultCounted(name, f"j/worker-0/{number}", "Lost", f"boot{number}")
            state, _ = drive(state, fault)

    assert state.nodes["n1"].phase is NodePhase.EXCLUDED
    assert state.nodes["n2"].phase is NodePhase.READY
    until_ms = state.nodes["n1"].excluded_until_ms
    assert admission.deadline_ms(state) == until_ms
    state, _ = drive(state, TimePassed(), now_ms=until_ms)
    assert state.nodes["n1"].phase is NodePhase.READY


def test_one_boot_counts_once_within_a_minute() -> None:
    state, _ = drive(Admission(), *(seen(name) for name in ("n1", "n2", "n3")))

    for number in range(5):
        state, _ = drive(state, ev.NodeFaultCounted("n1", f"j/worker-{number}/1", "Lost", "b1"))

    assert state.nodes["n1"].phase is NodePhase.READY


def test_cordoned_node_gets_nothing_new_until_it_is_uncordoned() -> None:
    state, _ = drive(Admission(), seen(), ev.CordonRequested("n1"), raised("j1", 1))
    assert state.demands["j1"].phase is DemandPhase.WAITING

    _, admitted = drive(state, ev.UncordonRequested("n1"))

    assert len(admitted) == 1


def test_forgotten_job_leaves_a_tombstone_until_its_time() -> None:
    state, _ = drive(Admission(), ev.JobForgotten("j1", keep_ms=500))
    assert "j1" in state.tombstones

    state, _ = drive(state, TimePassed(), now_ms=1_500)

    assert state.tombstones == {}


def test_demand_of_a_job_that_releases_is_refused() -> None:
    state, _ = drive(Admission(), seen(), raised("j1", 1))
    state, _ = drive(state, ev.DemandWithdrawn("j1", (Span("worker", 0, 0),)))

    with pytest.raises(PhaseConflictError):
        admission.apply(state, raised("j1", 1), at())


def test_key_is_forgotten_after_a_day_and_name_with_the_end() -> None:
    state, _ = drive(Admission(), ev.JobNoted("u1", "default", "mnist", "k1", "d1"))
    assert state.names["default", "mnist"] == "u1"

    state, _ = drive(state, ev.JobEnded("u1"))
    later = replace(state)
    later, _ = drive(later, ev.JobNoted("u2", "default", "other", "k2", "d2"), now_ms=90_000_000)

    assert state.names == {}
    assert set(later.keys) == {("default", "k2")}
