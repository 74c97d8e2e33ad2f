"""C71, M043: a node is left out for its own faults, longer each time, never too many at once."""

import pytest

from primusd.admission import events as ev
from primusd.admission.model import Admission
from primusd.job.events import TimePassed
from primusd.job.phases import NodePhase
from tests.state.job_driver import Cluster, budgets, role, spec
from tests.state.test_admission import drive, seen

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


class Nodes:
    """So many nodes and a clock; faults are told of as jobs do."""

    def __init__(self, count: int = 3) -> None:
        self.now_ms = 1_000
        self.faults = 0
        self.state, _ = drive(Admission(), *(seen(f"n{one}") for one in range(1, count + 1)))

    def tell(self, *events: ev.AdmissionEvent | TimePassed) -> None:
        self.state, _ = drive(self.state, *events, now_ms=self.now_ms)

    def fault(self, node: str) -> None:
        """Let a node lose an attempt, in a boot of its own."""
        self.faults += 1
        name = f"j/worker-0/{self.faults}"
        self.tell(ev.NodeFaultCounted(node, name, "Lost", f"boot{self.faults}"))

    def wait(self, ms: int) -> None:
        self.now_ms += ms
        self.tell(TimePassed())

    @property
    def excluded(self) -> list[str]:
        nodes = self.state.nodes.values()
        return [one.name for one in nodes if one.phase is NodePhase.EXCLUDED]


def test_C71_a_bad_node_is_left_out_longer_each_time_up_to_six_hours_and_comes_back() -> None:
    nodes = Nodes()

    for minutes in (30, 60, 120, 240, 360, 360):
        nodes.fault("n1")
        assert nodes.excluded == [], "one fault may be anybody's"
        nodes.fault("n1")
        assert nodes.excluded == ["n1"]
        nodes.wait(minutes * MINUTE_MS - 1)
        assert nodes.excluded == ["n1"]
        nodes.wait(1)
        assert nodes.excluded == []


def test_C71_who_was_forgiven_begins_anew() -> None:
    nodes = Nodes()
    for _ in range(2):
        nodes.fault("n1")
        nodes.fault("n1")
        nodes.tell(ev.ForgiveRequested("n1"))
        assert nodes.excluded == []

    nodes.fault("n1")
    nodes.fault("n1")
    nodes.wait(30 * MINUTE_MS)

    assert nodes.excluded == []


def test_C71_faults_that_lie_an_hour_apart_do_not_add_up() -> None:
    nodes = Nodes()

    for _ in range(5):
        nodes.fault("n1")
        nodes.wait(HOUR_MS + 1)

    assert nodes.excluded == []


@pytest.mark.parametrize(("count", "most"), [(1, 0), (2, 0), (3, 1), (5, 1), (6, 2), (9, 3)])
def test_C71_never_more_than_a_third_of_the_nodes_is_left_out(count: int, most: int) -> None:
    nodes = Nodes(count)

    for number in range(1, count + 1):
        nodes.fault(f"n{number}")
        nodes.fault(f"n{number}")

    assert nodes.excluded == [f"n{number}" for number in range(1, most + 1)]


@pytest.mark.parametrize(
    ("goes", "comes"),
    [
        (ev.CordonRequested("n1"), ev.UncordonRequested("n1")),
        (ev.NodeWentAway("n1"), seen("n1")),
    ],
    ids=["cordoned", "away"],
)
def test_C71_nor_when_one_that_is_left_out_goes_and_comes_back(
    goes: ev.AdmissionEvent, comes: ev.AdmissionEvent
) -> None:
    nodes = Nodes()
    nodes.fault("n1")
    nodes.fault("n1")
    nodes.tell(goes)

    nodes.fault("n2")
    nodes.fault("n2")
    nodes.tell(comes)

    assert nodes.excluded == ["n1"]


def test_C71_hosts_that_are_gone_do_not_let_those_that_are_left_be_left_out() -> None:
    nodes = Nodes(9)
    nodes.tell(*(ev.NodeWentAway(f"n{one}") for one in range(4, 10)))

    for name in ("n1", "n2", "n3"):
        nodes.fault(name)
        nodes.fault(name)
        nodes.tell(ev.NodeExclusionRequested(name, HOUR_MS, "j1"))

    assert nodes.excluded == ["n1"]
    shunning = [one.name for one in nodes.state.nodes.values() if one.shunned]
    assert shunning == ["n1"], "a job's rules keep it off half of them at most"


def test_C71_crashes_of_trainers_leave_no_node_out() -> None:
    cluster = Cluster(nodes=3)
    cluster.submit(spec(role(budgets=budgets(application=10))))

    for _ in range(10):
        cluster.bring_up()
        cluster.exit("worker-0", code=1, oom_kills=1)
        cluster.wait(400_000)

    assert cluster.replica("worker-0").last_number == 11
    assert {node.phase for node in cluster.world.admission.nodes.values()} == {NodePhase.READY}
    assert [node.faults for node in cluster.world.admission.nodes.values()] == [()] * 3
