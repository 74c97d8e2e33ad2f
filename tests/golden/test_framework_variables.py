"""What each framework's trainers find, per topology (C68, C69, M010, M011).

Each file has a line for who is where and the variables of every replica; `--rewrite` makes it.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import Struct

from primusd.compat.environment import original_maker
from primusd.job.frameworks import FRAMEWORKS
from primusd.job.frameworks.cluster import make_cluster
from primusd.job.frameworks.members import SYNCHRONOUS, TENSORFLOW, members, variable_names
from primusd.job.peers import Member
from primusd.job.spec import JobSpec
from primusd.jobfile import parse
from primusd.views.plans import sample_environments

GOLDEN = Path(__file__).parent / "frameworks"
UID = "06f3k2m9q1x7abcd"
RANKED = ("torch", "jax", "xgboost", "horovod")


class Topology(Struct, frozen=True):
    """A job's roles and where its replicas are."""

    frameworks: tuple[str, ...]
    roles: str
    present: str
    """`role-index@host:port …`, in no order."""
    generation: int = 1
    extra: str = ""
    """Further lines of the job file."""


TOPOLOGIES = {
    "one-worker": Topology(
        (*RANKED, "tensorflow-multiworker", "mpi"), "{worker: {command: t}}", "worker-0@n1:20000"
    ),
    "chief-and-workers": Topology(
        (*RANKED, "tensorflow-multiworker"),
        "{worker: {replicas: 2, command: t}, chief: {command: t}}",
        "worker-0@n2:20000 worker-1@n3:20000 chief-0@n1:20000",
    ),
    "workers-and-an-evaluator": Topology(
        (*RANKED, "tensorflow-multiworker"),
        "{evaluator: {command: t, success: never}, worker: {replicas: 2, command: t}}",
        "evaluator-0@n1:20000 worker-0@n1:20001 worker-1@n2:20000",
    ),
    "several-roles": Topology(
        RANKED,
        "{actor: {replicas: 2, command: t}, learner: {replicas: 2, command: t}, "
        "tensorboard: {command: t, success: never}}",
        "learner-0@n1:20000 learner-1@n2:20000 actor-0@n2:20001 actor-1@n1:20001 "
        "tensorboard-0@n1:20002",
    ),
    "two-hosts": Topology(
        (*RANKED, "mpi"),
        "{worker: {replicas: 5, command: t}}",
        "worker-0@n1:20000 worker-1@n1:20001 worker-2@n2:20000 worker-3@n1:20002 worker-4@n2:20001",
    ),
    "gpus": Topology(
        ("torch", "horovod"),
        "{worker: {replicas: 2, command: t, resources: {gpu: 1}}}",
        "worker-0@n1:20000 worker-1@n1:20001",
    ),
    "elastic-with-a-hole": Topology(
        (*RANKED, "tensorflow-multiworker"),
        "{worker: {replicas: 5, command: t}}",
        "worker-0@n1:20000 worker-1@n1:20001 worker-4@n2:20000",
        generation=2,
    ),
    "ps-workers-and-an-evaluator": Topology(
        ("tensorflow-ps",),
        "{chief: {command: t}, ps: {replicas: 2, command: t, success: never}, "
        "worker: {replicas: 2, command: t, success: never}, "
        "evaluator: {command: t, success: never}, board: {command: t, success: never}}",
        "chief-0@n1:20000 ps-0@n1:20001 ps-1@n2:20000 worker-0@n1:20002 worker-1@n2:20001 "
        "evaluator-0@n2:20002 board-0@n1:20003",
    ),
    "worker-that-restarted-alone": Topology(
        ("tensorflow-ps",),
        "{master: {command: t}, ps: {command: t, success: never}, "
        "worker: {replicas: 2, command: t}}",
        "master-0@n1:20000 ps-0@n1:20001 worker-0@n1:20002 worker-1@n3:20007",
    ),
    "launcher-and-workers": Topology(
        ("mpi",),
        "{worker: {replicas: 3, command: t, success: never}, launcher: {command: t}}",
        "launcher-0@n1:20000 worker-0@n1:20001 worker-1@n2:20000 worker-2@n2:20001",
    ),
    "ipv6": Topology(
        ("torch", "tensorflow-multiworker", "jax"),
        "{worker: {replicas: 2, command: t}}",
        "worker-0@fd00::1:20000 worker-1@fd00::2:20000",
    ),
    "original": Topology(
        ("none",),
        "{ps: {command: t}, worker: {command: t}, evaluator: {command: t}, "
        "mine: {command: t, env: {TF_CONFIG: '{}'}}}",
        "ps-0@n1:20000 worker-0@n2:20000 evaluator-0@n1:20001 mine-0@n1:20002",
        extra="original: true\n",
    ),
    "original-of-one": Topology(
        ("none",), "{worker: {command: t}}", "worker-0@n2:20000", extra="original: true\n"
    ),
}
CASES = [
    (framework, name) for name, topology in TOPOLOGIES.items() for framework in topology.frameworks
]


def spec_of(topology: Topology, framework: str) -> JobSpec:
    text = f"name: j\nframework: {framework}\nroles: {topology.roles}\n{topology.extra}"
    return parse(text.encode()).spec


def present_of(topology: Topology) -> Iterator[Member]:
    for one in topology.present.split():
        replica, _, address = one.partition("@")
        role, _, index = replica.rpartition("-")
        host, _, port = address.rpartition(":")
        yield Member(role, int(index), host, {"metrics": 9, "main": int(port)})


def shown(topology: Topology, framework: str) -> Iterator[str]:
    spec = spec_of(topology, framework)
    present = tuple(present_of(topology))
    cluster = make_cluster(spec, UID, generation=topology.generation, present=present)
    maker = FRAMEWORKS.get(framework, original_maker)(cluster)
    yield f"# framework: {framework}, roles: {topology.roles}"
    yield f"# {topology.present}"
    yield f"# ranks: {' '.join(f'{one.role}-{one.index}' for one in cluster.seats)}"
    for member in present:
        found = maker(member.role, member.index)
        yield f"{member.role}-{member.index}:" + ("" if found.env or found.files else " nothing")
        yield from (f"  {name}={value}" for name, value in found.env.items())
        for name, text in found.files.items():
            yield f"  {name} names a file:"
            yield from (f"    {line}" for line in text.splitlines())


@pytest.mark.parametrize(("framework", "name"), CASES, ids=str)
def test_C69_each_replica_finds_these_variables(
    framework: str, name: str, request: pytest.FixtureRequest
) -> None:
    text = "\n".join(shown(TOPOLOGIES[name], framework)) + "\n"
    golden = GOLDEN / f"{framework}-{name}.txt"
    if request.config.getoption("--rewrite"):
        golden.write_text(text, encoding="utf-8")

    assert text == golden.read_text(encoding="utf-8")


def test_every_golden_file_is_of_a_case() -> None:
    files = {f"{framework}-{name}.txt" for framework, name in CASES}

    assert {path.name for path in GOLDEN.iterdir()} == files
    assert {framework for framework, _ in CASES} == {*FRAMEWORKS, "none"}


@pytest.mark.parametrize(("framework", "name"), CASES, ids=str)
def test_ranks_have_no_holes_and_do_not_hang_on_the_order_of_the_replicas(
    framework: str, name: str
) -> None:
    topology = TOPOLOGIES[name]
    spec = spec_of(topology, framework)
    present = list(present_of(topology))

    cluster = make_cluster(spec, UID, generation=1, present=present)
    turned = make_cluster(spec, UID, generation=1, present=reversed(present))

    assert [one.rank for one in cluster.seats] == list(range(len(cluster.seats)))
    assert cluster.seats == turned.seats
    assert sum(cluster.group_sizes) == len(cluster.seats) == sum(cluster.role_sizes.values())
    assert {one.role for one in cluster.seats} <= set(members(spec))


@pytest.mark.parametrize(("framework", "name"), CASES, ids=str)
def test_what_a_job_may_not_set_is_what_it_is_given(framework: str, name: str) -> None:
    topology = TOPOLOGIES[name]
    cluster = make_cluster(
        spec_of(topology, framework), UID, generation=1, present=present_of(topology)
    )
    maker = FRAMEWORKS.get(framework, original_maker)(cluster)

    given = {
        variable
        for one in cluster.seats
        for variable in (*maker(one.role, one.index).env, *maker(one.role, one.index).files)
        if not variable.startswith("PRIMUS_")
    }

    assert given == set(variable_names(framework)) or framework == "none"


def test_a_framework_that_waits_for_all_restarts_all() -> None:
    for name, topology in TOPOLOGIES.items():
        for framework in topology.frameworks:
            spec = spec_of(topology, framework)
            units = {spec.roles[role].restart.unit for role in members(spec)}
            whole = "role" if len(members(spec)) == 1 else "job"
            assert units == {whole if framework in SYNCHRONOUS else "replica"}, name


def test_C68_a_chief_that_keeps_the_cluster_it_began_with_is_warned_of() -> None:
    text = (
        "name: j\nframework: tensorflow-ps\nroles: {{chief: {{command: t}}, "
        "ps: {{command: t, success: never}}, worker: {{command: t, replicas: {replicas}}}}}"
    )

    elastic = parse(text.format(replicas="{min: 1, max: 3}").encode()).warnings
    fixed = parse(text.format(replicas="3").encode()).warnings

    assert fixed == ()
    (warning,) = elastic
    assert "roles.worker.replicas" in warning
    assert "when the chief begins anew" in warning


def test_C68_a_cluster_of_ten_thousand_is_walked_once() -> None:
    roles = "{chief: {command: t}, worker: {replicas: 10000, command: t}}"
    topology = Topology(tuple(TENSORFLOW), roles, "")
    present = [
        Member("worker", index, f"n{index // 8}", {"main": 20_000}) for index in range(10_000)
    ]
    present.append(Member("chief", 0, "n0", {"main": 19_999}))
    cluster = make_cluster(
        spec_of(topology, "tensorflow-multiworker"), UID, generation=1, present=present
    )
    maker = FRAMEWORKS["tensorflow-multiworker"](cluster)

    texts = {maker("worker", index).env["TF_CONFIG"] for index in range(10_000)}

    assert len(texts) == 10_000
    assert all(text.startswith('{"cluster":{"chief":["n0:19999"],"worker":["n0:') for text in texts)


def test_a_plan_shows_the_variables_with_stand_ins_for_addresses() -> None:
    torch = spec_of(TOPOLOGIES["chief-and-workers"], "torch")
    mpi = spec_of(TOPOLOGIES["launcher-and-workers"], "mpi")
    many = spec_of(
        Topology((), "{worker: {replicas: 5000, command: t}}", ""), "tensorflow-multiworker"
    )

    shown = sample_environments(torch, "c")["worker"]

    assert (shown["MASTER_ADDR"], shown["MASTER_PORT"]) == ("<chief-0>", "20000")
    assert (shown["RANK"], shown["WORLD_SIZE"]) == ("1", "3")
    assert sample_environments(mpi, "c")["launcher"]["HYDRA_HOST_FILE"] == "<path of a file>"
    assert len(sample_environments(many, "c")["worker"]["TF_CONFIG"]) < 1_100
