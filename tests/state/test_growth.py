"""Memory after ends by want of it, and nodes that a rule keeps a job off (C10, C23, A32, A33)."""

from msgspec.structs import replace

from primusd.admission.events import RoleDemand
from primusd.admission.growth import asked_bytes
from primusd.admission.usage import used_now
from primusd.job import events as ev
from primusd.job.spec import FailureRule, JobSpec, Resources, Restart
from tests.state.job_driver import UID, Cluster, budgets, ended, role, spec

GIB = 1 << 30
NODE = 64 * GIB
"""What each node of the driver has."""


def hungry(
    memory: int = 16 * GIB, replicas: int = 1, *rules: FailureRule, unit: str = "replica"
) -> JobSpec:
    worker = role(
        "worker",
        replicas,
        unit=unit,
        resources=Resources(memory_bytes=memory),
        budgets=budgets(application=10),
    )
    return spec(worker, failure=rules)


def runs_out(cluster: Cluster, name: str = "worker-0", peak: int = 0) -> None:
    """Let a replica be killed for want of memory, and run again."""
    attempt = cluster.id(name)
    record = replace(ended(None, 9, oom_kills=1), peak_rss_bytes=peak)
    cluster.say(ev.TrainerExited(attempt, record), by="executor")
    cluster.gone(name, attempt)
    cluster.stop_all()
    cluster.wait(400_000)
    cluster.bring_up()
    assert cluster.phase == "Running"


def has(cluster: Cluster, name: str = "worker-0") -> int:
    """Return the limit of a replica's newest attempt in GiB."""
    attempt = cluster.newest(name)
    of_role = cluster.job.spec.roles["worker"].resources.memory_bytes
    return (attempt.memory_bytes or of_role) // GIB


def in_use(cluster: Cluster, node: str = "n1") -> int:
    """Return the memory that admission counts as taken on a node, in GiB."""
    return used_now(cluster.world.admission)[node].memory_bytes // GIB


def test_C23_M041_memory_grows_by_half_each_time_up_to_the_ceiling() -> None:
    cluster = Cluster()
    rule = FailureRule(causes=("outOfMemory",), memory_per_mille=1500, memory_max_bytes=40 * GIB)
    cluster.run(hungry(16 * GIB, 1, rule))

    found = [has(cluster)]
    for _ in range(4):
        runs_out(cluster)
        found.append(has(cluster))

    assert found == [16, 24, 36, 40, 40]
    asked = [one.message for one in cluster.job.timeline if one.reason == "RetryDecided"]
    assert asked[0].endswith(", asking for 24Gi")
    assert "asking for" not in asked[-1]
    assert in_use(cluster) == 40
    cluster.check_replay()


def test_C23_the_next_try_with_more_memory_waits_longer_each_time() -> None:
    cluster = Cluster()
    cluster.run(hungry(16 * GIB))

    waits = []
    for _ in range(3):
        cluster.exit("worker-0", code=None, signal=9, oom_kills=1)
        assert cluster.phases() == ["Delayed"]
        waits.append(cluster.replica("worker-0").not_before_ms - cluster.now_ms)
        cluster.wait(400_000)
        cluster.bring_up()

    assert waits[0] >= 7_500
    assert waits[2] > waits[1] > waits[0]


def test_C23_without_a_rule_it_grows_up_to_what_the_node_has() -> None:
    cluster = Cluster()
    cluster.run(hungry(16 * GIB))

    found = [has(cluster)]
    for _ in range(5):
        runs_out(cluster)
        found.append(has(cluster))

    assert found == [16, 24, 36, 54, 64, 64]
    assert in_use(cluster) == NODE // GIB
    cluster.check_replay()


def test_C23_at_the_ceiling_the_budget_decides_and_the_verdict_has_the_measured_peak() -> None:
    cluster = Cluster()
    job = hungry(48 * GIB)
    worker = replace(job.roles["worker"], budgets=budgets(application=1))
    cluster.run(replace(job, roles={"worker": worker}))
    runs_out(cluster)

    record = replace(ended(None, 9, oom_kills=1), peak_rss_bytes=63 * GIB)
    cluster.say(ev.TrainerExited(cluster.id("worker-0"), record))
    cluster.gone("worker-0")

    assert cluster.phase == "Failed"
    verdict = cluster.job.verdict
    assert verdict is not None
    assert verdict.reason == "RetriesExhausted"
    assert "peak of 63" in verdict.message
    assert "application budget of 1" in verdict.message


def test_a_replica_that_restarts_alone_grows_alone() -> None:
    cluster = Cluster()
    cluster.run(hungry(8 * GIB, 3))

    runs_out(cluster, "worker-1")

    assert [has(cluster, f"worker-{index}") for index in range(3)] == [8, 12, 8]
    assert in_use(cluster) == 28
    cluster.check_replay()


def test_a_replica_that_grows_keeps_its_ports() -> None:
    cluster = Cluster()
    cluster.run(hungry(8 * GIB, 2))
    before = cluster.newest("worker-0").ports

    runs_out(cluster, "worker-0")

    assert cluster.newest("worker-0").ports == before
    assert cluster.newest("worker-0").number == 2


def test_a_role_that_restarts_whole_grows_whole() -> None:
    cluster = Cluster()
    cluster.run(hungry(8 * GIB, 3, unit="role"))

    runs_out(cluster, "worker-1")

    assert [has(cluster, f"worker-{index}") for index in range(3)] == [12, 12, 12]
    assert cluster.job.generation == 2
    cluster.check_replay()


def test_growth_never_waits_where_others_have_the_rest() -> None:
    cluster = Cluster()
    cluster.run(hungry(30 * GIB, 2))

    runs_out(cluster, "worker-0")
    assert has(cluster, "worker-0") == 34
    runs_out(cluster, "worker-1")
    assert has(cluster, "worker-1") == 30

    assert in_use(cluster) == 64
    cluster.check_replay()


def test_growth_goes_where_there_is_enough() -> None:
    cluster = Cluster(nodes=2)
    cluster.run(hungry(30 * GIB, 3))
    nodes = [cluster.newest(f"worker-{index}").node for index in range(3)]
    lone = next(node for node in nodes if nodes.count(node) == 1)
    crowded = next(f"worker-{i}" for i, node in enumerate(nodes) if node != lone)

    runs_out(cluster, crowded)

    assert cluster.newest(crowded).node != lone
    assert has(cluster, crowded) == 34
    alone = f"worker-{nodes.index(lone)}"
    runs_out(cluster, alone)
    assert (cluster.newest(alone).node, has(cluster, alone)) == (lone, 45)
    cluster.check_replay()


def test_what_it_grew_to_is_kept_over_a_crash_and_a_pause() -> None:
    cluster = Cluster()
    cluster.run(hungry(16 * GIB))
    runs_out(cluster)
    assert has(cluster) == 24

    cluster.exit("worker-0", code=1)
    cluster.wait(400_000)
    cluster.bring_up()
    assert has(cluster) == 24

    cluster.say(ev.SuspendRequested())
    cluster.stop_all()
    assert cluster.phase == "Suspended"
    cluster.say(ev.ResumeRequested())
    cluster.bring_up()
    assert (cluster.phase, has(cluster)) == ("Running", 24)
    cluster.check_replay()


def test_a_rule_without_memory_and_a_role_without_a_limit_grow_nothing() -> None:
    ruled, unlimited = Cluster(), Cluster()
    ruled.run(hungry(16 * GIB, 1, FailureRule(causes=("outOfMemory",))))
    unlimited.run(hungry(0))

    runs_out(ruled)
    runs_out(unlimited)

    assert (has(ruled), has(unlimited)) == (16, 0)


def test_a_quarantined_attempt_keeps_all_that_it_grew_to() -> None:
    cluster = Cluster()
    cluster.run(hungry(16 * GIB))
    runs_out(cluster)

    attempt = cluster.id("worker-0")
    cluster.say(ev.TrainerExited(attempt, ended(1)))
    cluster.say(ev.StopFailed(attempt, was_delivered=True))
    cluster.wait(400_000)
    cluster.bring_up()

    assert [one.memory_bytes for one in cluster.world.admission.quarantined] == [24 * GIB]
    assert has(cluster) == 24
    assert in_use(cluster) == 48


# Nodes.


def test_a_rule_keeps_the_job_off_a_node_for_a_time() -> None:
    cluster = Cluster(nodes=2)
    rule = FailureRule(log_match="Xid", exclude_node_ms=3_600_000, delay_ms=0)
    cluster.run(spec(role("worker", 2), failure=(rule,)))
    bad = cluster.newest("worker-0").node

    record = replace(ended(1), matched=(0,))
    attempt = cluster.id("worker-0")
    cluster.say(ev.TrainerExited(attempt, record), by="executor")
    cluster.gone("worker-0", attempt)
    cluster.bring_up()

    assert cluster.newest("worker-0").number == 2
    assert cluster.newest("worker-0").node != bad
    assert UID in cluster.world.admission.nodes[bad].shunned
    cluster.wait(3_600_000)
    assert UID not in cluster.world.admission.nodes[bad].shunned
    cluster.check_replay()


def test_a_node_is_left_also_when_the_end_and_its_trace_come_as_one() -> None:
    cluster = Cluster(nodes=2)
    rule = FailureRule(exclude_node_ms=3_600_000, delay_ms=0)
    cluster.run(spec(role("worker", 2), failure=(rule,)))
    bad = cluster.newest("worker-0").node

    cluster.gone("worker-0", exit=ended(1))
    cluster.bring_up()

    assert cluster.newest("worker-0").node != bad
    assert cluster.newest("worker-0").number == 2


def test_a_role_that_restarts_whole_leaves_the_node_too() -> None:
    cluster = Cluster(nodes=2)
    rule = FailureRule(exclude_node_ms=3_600_000)
    worker = role("worker", 4, unit="role", ports=())
    cluster.run(spec(worker, failure=(rule,)))
    bad = cluster.newest("worker-0").node

    cluster.exit("worker-0", code=1)
    cluster.stop_all()
    cluster.wait(400_000)
    cluster.bring_up()

    assert cluster.phase == "Running"
    assert {cluster.newest(f"worker-{index}").node for index in range(4)} == {"n1", "n2"} - {bad}
    cluster.check_replay()


def test_a_node_that_is_all_there_is_is_used_all_the_same() -> None:
    cluster = Cluster()
    rule = FailureRule(exclude_node_ms=3_600_000, delay_ms=0)
    cluster.run(spec(role(), failure=(rule,)))

    cluster.exit("worker-0", code=1)
    cluster.bring_up()

    assert cluster.newest("worker-0").number == 2
    assert cluster.phase == "Running"


# Ports.


def test_A32_M056_a_replacement_has_the_address_of_its_predecessor() -> None:
    cluster = Cluster(nodes=2)
    cluster.run(spec(role("worker", 4)))
    before = cluster.newest("worker-2")

    cluster.exit("worker-2", code=1)
    cluster.wait(400_000)
    cluster.bring_up()

    after = cluster.newest("worker-2")
    assert after.number == 2
    assert (after.node, after.ports) == (before.node, before.ports)


def test_A32_keep_ports_keeps_them_when_the_role_restarts_whole() -> None:
    addresses = {}
    for keeps in (True, False):
        cluster = Cluster(nodes=2)
        worker = role("worker", 4)
        restart = Restart("role", keep_ports=keeps)
        cluster.run(spec(replace(worker, restart=restart)))
        before = [cluster.newest(f"worker-{index}").ports for index in range(4)]

        cluster.exit("worker-2", code=1)
        cluster.stop_all()
        cluster.wait(400_000)
        cluster.bring_up()

        assert cluster.job.generation == 2
        assert cluster.phase == "Running"
        after = [cluster.newest(f"worker-{index}").ports for index in range(4)]
        addresses[keeps] = [one == two for one, two in zip(before, after, strict=True)]
        cluster.check_replay()

    assert addresses == {True: [True] * 4, False: [False] * 4}


def test_keep_ports_gives_way_to_a_stranger_on_a_port() -> None:
    cluster = Cluster()
    worker = replace(role("worker", 2), restart=Restart("role", keep_ports=True))
    cluster.run(spec(worker))
    before = [dict(cluster.newest(f"worker-{index}").ports)["main"] for index in range(2)]

    cluster.exit("worker-1", code=None, error="portTaken:main")
    cluster.stop_all()
    cluster.wait(400_000)
    cluster.bring_up()

    after = [dict(cluster.newest(f"worker-{index}").ports)["main"] for index in range(2)]
    assert cluster.phase == "Running"
    assert after[0] == before[0]
    assert after[1] not in before


def test_A33_a_port_that_is_taken_each_time_fails_the_job_with_the_count() -> None:
    cluster = Cluster()
    cluster.submit(spec(role(budgets=budgets(infrastructure=3))))

    attempts = 0
    while not cluster.job.is_final:
        cluster.launch()
        cluster.register()
        attempts += 1
        cluster.exit("worker-0", code=None, error="portTaken:main")
        if not cluster.job.is_final:
            cluster.wait(400_000)

    assert attempts == 4
    assert cluster.job.verdict is not None
    assert "infrastructure budget of 3" in cluster.job.verdict.message
    assert "port main" in cluster.job.verdict.message


def test_what_a_replica_asks_for_is_found_among_many_runs() -> None:
    runs = tuple((index, index + 1, index + 7) for index in range(3, 3000, 4))
    want = RoleDemand("worker", (), 0, GIB, 0, 0, memory=runs)

    for index in range(3010):
        found = [size for low, high, size in runs if low <= index <= high]
        assert asked_bytes(want, index) == (found[0] if found else 0)


def test_the_demand_names_what_each_replica_asks_for_as_runs() -> None:
    cluster = Cluster(nodes=2)
    cluster.run(hungry(8 * GIB, 4))
    for name in ("worker-1", "worker-2"):
        runs_out(cluster, name)

    demand = cluster.world.admission.demands[UID]
    assert demand.roles["worker"].memory == ((1, 2, 12 * GIB),)
