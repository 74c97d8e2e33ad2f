"""What a trainer finds in its environment, and the document that names its peers."""

import json

from msgspec.structs import replace

from primusd.job.environment import environment
from primusd.job.ids import AttemptId
from primusd.job.peers import Member, peers_digest, peers_document
from primusd.job.spec import Checkpoints, JobSpec, Reading, RoleSpec

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
