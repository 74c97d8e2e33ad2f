"""What a trainer finds in its environment, and the document that names its peers."""

import json

import pytest
from msgspec.structs import replace

from primusd.job import events as ev
from primusd.job.environment import environment
from primusd.job.frameworks.members import SYNCHRONOUS
from primusd.job.gates import ELASTIC_WAIT_MS
from primusd.job.ids import AttemptId
from primusd.job.peers import Member, members_of, peers_digest, peers_document
from primusd.job.phases import AttemptPhase
from primusd.job.spec import Checkpoints, JobSpec, Reading, RoleSpec
from primusd.job.start_variables import has_variables, variables_maker
from primusd.jobfile import parse
from tests.state.job_driver import UID, Cluster, ended, role, spec

WORKER = RoleSpec(
    "worker",
    3,
    3,
    "true",
    env={"MINE": "1", "TF_CONFIG": "mine", "PRIMUS": "ok"},
    ports=("main", "metrics"),
    data=(Reading("clicks"), Reading("items", own_pass=True)),
)
SPEC = JobSpec("ctr", {"worker": WORKER, "ps": RoleSpec("ps", 2, 2, "true")}, namespace="ads")


def of(role: str, index: int, **extra: str) -> dict[str, str]:
    return environment(
        SPEC,
        AttemptId("06f3k2m9q1x7abcd", role, index, 4),
        cluster="default",
        generation=2,
        host="node-07",
        ports={"metrics": 20032, "main": 20031},
        version="0.1.0",
        extra=extra,
    )


def test_a_trainer_is_told_who_it_is_among_whom_and_where() -> None:
    assert of("worker", 2, TF_CONFIG="framework's") == {
        "MINE": "1",
        "PRIMUS": "ok",
        "TF_CONFIG": "framework's",
        "PRIMUS_JOB": "ctr",
        "PRIMUS_JOB_UID": "06f3k2m9q1x7abcd",
        "PRIMUS_NAMESPACE": "ads",
        "PRIMUS_CLUSTER": "default",
        "PRIMUS_ROLE": "worker",
        "PRIMUS_INDEX": "2",
        "PRIMUS_REPLICA": "worker-2",
        "PRIMUS_ATTEMPT": "4",
        "PRIMUS_GENERATION": "2",
        "PRIMUS_REPLICAS": "3",
        "PRIMUS_ROLES": '{"worker":3,"ps":2}',
        "PRIMUS_HOST": "node-07",
        "PRIMUS_PORT": "20031",
        "PRIMUS_PORTS": "main=20031,metrics=20032",
        "PRIMUS_STREAMS": "clicks,items",
        "PRIMUS_FEED": "socket",
        "PRIMUS_CHECKPOINT_KEEP": "3",
        "PRIMUS_VERSION": "0.1.0",
    }


def test_a_role_without_data_has_no_feed_and_ports_of_its_own_only() -> None:
    variables = of("ps", 0)

    assert variables["PRIMUS_PORTS"] == "main=20031"
    assert not {"PRIMUS_FEED", "PRIMUS_STREAMS"} & set(variables)


def test_the_peers_document_is_the_same_bytes_for_the_same_members_in_any_order() -> None:
    members = [
        Member("worker", 10, "n2", {"main": 3}),
        Member("worker", 9, "n1", {"main": 2, "aux": 4}),
        Member("ps", 0, "n1", {"main": 1}),
    ]

    document = peers_document(3, members)

    assert json.loads(document) == {
        "generation": 3,
        "roles": {
            "ps": [{"index": 0, "host": "n1", "ports": {"main": 1}}],
            "worker": [
                {"index": 9, "host": "n1", "ports": {"main": 2, "aux": 4}},
                {"index": 10, "host": "n2", "ports": {"main": 3}},
            ],
        },
    }
    assert document == peers_document(3, reversed(members))
    assert sorted(members_of(document), key=members.index) == members
    assert members_of(b"") == ()
    assert peers_digest(document).startswith("sha256:")
    assert peers_digest(document) != peers_digest(peers_document(4, members))


def test_a_trainer_is_told_where_its_checkpoints_go() -> None:
    where = Checkpoints("/data/ckpt", keep=5)

    found = environment(
        replace(SPEC, checkpoint=where),
        AttemptId("u", "worker", 0, 1), cluster="c", generation=1, host="h", ports={}, version="0",
    )  # fmt: skip

    assert found["PRIMUS_CHECKPOINT_PATH"] == "/data/ckpt"
    assert found["PRIMUS_CHECKPOINT_KEEP"] == "5"


# What hangs on the peers is made once all hold.


def variables(cluster: Cluster, name: str) -> dict[str, str]:
    role_name, _, index = name.rpartition("-")
    maker = variables_maker(cluster.job, members_of(cluster.job.peers.inline))
    return dict(maker(role_name, int(index)).env)


def test_a_role_that_restarts_whole_forms_another_cluster_with_other_ports_c14() -> None:
    """C14: generation, run id and port are new for everybody."""
    cluster = Cluster()
    cluster.run(spec(role("worker", 2, unit="role", delay_ms=0), framework="torch"))
    before = [variables(cluster, f"worker-{index}") for index in range(2)]

    cluster.exit("worker-1", code=1)
    cluster.stop_all()
    cluster.wait(20_000)
    cluster.bring_up()

    after = [variables(cluster, f"worker-{index}") for index in range(2)]
    assert [one["RANK"] for one in after] == ["0", "1"]
    assert {one["TORCHELASTIC_RUN_ID"] for one in before} == {f"{UID}.1"}
    assert {one["TORCHELASTIC_RUN_ID"] for one in after} == {f"{UID}.2"}
    assert len({one["MASTER_PORT"] for one in before}) == 1
    assert len({one["MASTER_PORT"] for one in after}) == 1
    assert before[0]["MASTER_PORT"] != after[0]["MASTER_PORT"]


@pytest.mark.parametrize("framework", sorted(SYNCHRONOUS))
def test_C13_C14_who_fails_because_a_peer_of_its_collective_died_is_no_failure_of_its_own(
    framework: str,
) -> None:
    """C13, C14: what each framework's trainers do when one is killed, at once and by themselves."""
    cluster = Cluster()
    workers = f"name: x\nframework: {framework}\nroles: {{worker: {{replicas: 4, command: t}}}}"
    cluster.run(parse(workers.encode()).spec)

    cluster.say(ev.TrainerExited(cluster.id("worker-2"), ended(None, 9)))
    for index in (0, 1, 3):
        cluster.say(ev.TrainerExited(cluster.id(f"worker-{index}"), ended(1)))
    for index in range(4):
        cluster.gone(f"worker-{index}")
    cluster.wait(20_000)
    cluster.bring_up()

    assert [one.attempt for one in cluster.role().charges] == ["worker-2/1"]
    assert (cluster.phase, cluster.job.generation) == ("Running", 2)
    assert {cluster.newest(f"worker-{index}").number for index in range(4)} == {2}
    cluster.check_replay()


def test_a_replica_that_restarts_alone_finds_the_same_cluster_and_rank() -> None:
    cluster = Cluster()
    cluster.run(
        spec(
            role("chief"),
            role("ps", success="never"),
            role("worker", 2, delay_ms=0),
            framework="tensorflow-ps",
        )
    )
    before = {name: variables(cluster, name) for name in ("chief-0", "worker-1")}

    cluster.exit("worker-1", code=1)
    cluster.wait(20_000)
    cluster.bring_up("worker-1")

    assert {name: variables(cluster, name) for name in before} == before
    assert json.loads(before["worker-1"]["TF_CONFIG"])["task"] == {"type": "worker", "index": 1}


@pytest.mark.parametrize("framework", ["none", "torch"])
def test_an_elastic_gang_is_told_how_many_it_began_with(framework: str) -> None:
    cluster = Cluster()
    cluster.submit(spec(role("worker", 5, minimum=2, unit="role"), framework=framework))
    there = ("worker-0", "worker-1", "worker-2")
    cluster.launch(*there)
    cluster.register(*there)
    cluster.hold(*there)
    cluster.wait(ELASTIC_WAIT_MS)

    assert has_variables(cluster.job)
    found = variables(cluster, "worker-2")
    assert (found["PRIMUS_REPLICAS"], found["PRIMUS_ROLES"]) == ("3", '{"worker":3}')
    if framework == "torch":
        assert (found["RANK"], found["WORLD_SIZE"]) == ("2", "3")


def test_C69_who_does_not_take_part_finds_sizes_only() -> None:
    cluster = Cluster()
    cluster.run(spec(role("worker", 2), role("evaluator", success="never"), framework="jax"))

    assert variables(cluster, "evaluator-0") == {
        "PRIMUS_REPLICAS": "1",
        "PRIMUS_ROLES": '{"worker":2,"evaluator":1}',
    }
    assert variables(cluster, "worker-1")["JAX_NUM_PROCESSES"] == "2"


def test_C68_after_scaling_every_live_replica_sees_the_same_generation_and_list() -> None:
    """C68: nobody keeps what it was told of a cluster that is no more."""
    cluster = Cluster()
    worker = role("worker", 3, minimum=1, unit="role", delay_ms=0)
    cluster.submit(spec(worker, framework="torch", policy="gang"))
    cluster.say(ev.RoleScaled("worker", 2))
    cluster.stop_all()
    cluster.bring_up()
    assert variables(cluster, "worker-1")["WORLD_SIZE"] == "2"

    cluster.say(ev.RoleScaled("worker", 3))
    cluster.launch()
    cluster.register()
    cluster.hold()
    cluster.stop_all()
    cluster.bring_up()

    found = [variables(cluster, f"worker-{index}") for index in range(3)]
    assert [one["RANK"] for one in found] == ["0", "1", "2"]
    assert {one["WORLD_SIZE"] for one in found} == {one["PRIMUS_REPLICAS"] for one in found}
    assert {one["WORLD_SIZE"] for one in found} == {"3"}
    assert {one["TORCHELASTIC_RUN_ID"] for one in found} == {f"{UID}.2"}
    assert {cluster.newest(f"worker-{index}").phase for index in range(3)} == {"Running"}


def test_in_order_the_first_role_knows_where_the_last_one_will_be() -> None:
    cluster = Cluster()
    ordered = spec(
        role("ps", success="never"),
        role("worker", 2),
        role("chief"),
        framework="tensorflow-ps",
        policy="ordered",
        gate="started",
    )
    cluster.submit(ordered)
    cluster.launch()
    cluster.register()
    cluster.hold()
    assert cluster.names(AttemptPhase.STARTING) == ["ps-0"]
    first = json.loads(variables(cluster, "ps-0")["TF_CONFIG"])

    cluster.start()
    cluster.start()

    last = json.loads(variables(cluster, "chief-0")["TF_CONFIG"])
    assert first["cluster"] == last["cluster"]
    assert {task: len(addresses) for task, addresses in last["cluster"].items()} == {
        "chief": 1,
        "ps": 1,
        "worker": 2,
    }
