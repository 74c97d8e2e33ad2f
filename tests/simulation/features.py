"""What a job may be: a table of features, each of which changes a small job in one way.

A feature that the job file has not learned yet is left out here, and comes as one more row.
"""

import random
from collections.abc import Callable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from primusd.job.groups import group_unit, larger_unit
from primusd.job.spec import (
    Budgets,
    FailureRule,
    Hang,
    JobSpec,
    Placement,
    Reading,
    Ready,
    Resources,
    Restart,
    Restore,
    RoleSpec,
    Source,
    Split,
    Stop,
    StreamSpec,
    Success,
)

GIB = 1 << 30
Change = Callable[[random.Random, JobSpec], JobSpec]


class Feature(Struct, frozen=True):
    """One way to be different."""

    share: float
    """Of jobs that have it."""
    change: Change


def spec_of(seed: int, number: int, features: tuple[str, ...]) -> JobSpec:
    """Return the job with these features, in the order of the table."""
    spec = JobSpec(f"job{number}", {"worker": RoleSpec("worker", 1, 1, "train")})
    for name, feature in FEATURES.items():
        if name in features:
            spec = feature.change(random.Random(f"{seed}/{number}/{name}"), spec)
    return spec


def _of_role(spec: JobSpec, name: str, **fields: Any) -> JobSpec:  # of RoleSpec
    return replace(spec, roles={**spec.roles, name: replace(spec.roles[name], **fields)})


def _pick(rnd: random.Random, spec: JobSpec) -> str:
    return rnd.choice(tuple(spec.roles))


def _more_workers(rnd: random.Random, spec: JobSpec) -> JobSpec:
    count = rnd.choice((2, 3, 4))
    return _of_role(spec, "worker", replicas=count, minimum=count)


def _elastic(rnd: random.Random, spec: JobSpec) -> JobSpec:
    return _of_role(spec, "worker", minimum=1, replicas=max(2, spec.roles["worker"].replicas))


def _server(rnd: random.Random, spec: JobSpec) -> JobSpec:
    role = RoleSpec("ps", rnd.choice((1, 2)), 1, "serve", success=Success("never"))
    role = replace(role, minimum=role.replicas)
    return replace(spec, roles={"ps": role, **spec.roles})


def _drain(rnd: random.Random, spec: JobSpec) -> JobSpec:
    role = RoleSpec("eval", 1, 1, "evaluate", success=Success("never"), drain_ms=20_000)
    return replace(spec, roles={**spec.roles, "eval": role})


def _chief(rnd: random.Random, spec: JobSpec) -> JobSpec:
    return replace(spec, roles={"chief": RoleSpec("chief", 1, 1, "lead"), **spec.roles})


def _success(rnd: random.Random, spec: JobSpec) -> JobSpec:
    kind = Success(rnd.choice(("any", "percent")), rnd.choice((40, 50, 100)))
    return _of_role(spec, "worker", success=kind)


def _unit(rnd: random.Random, spec: JobSpec) -> JobSpec:
    restart = Restart(rnd.choice(("role", "role", "job")), rnd.choice((1_000, 10_000)))
    return _of_role(spec, _pick(rnd, spec), restart=restart)


def _quick(rnd: random.Random, spec: JobSpec) -> JobSpec:
    for name, role in spec.roles.items():
        spec = _of_role(spec, name, restart=replace(role.restart, delay_ms=1_000))
    return spec


def _budgets(rnd: random.Random, spec: JobSpec) -> JobSpec:
    return replace(spec, budgets=Budgets(rnd.choice((0, 1, 2)), rnd.choice((0, 1, 3))))


def _own_budgets(rnd: random.Random, spec: JobSpec) -> JobSpec:
    return _of_role(spec, _pick(rnd, spec), budgets=Budgets(1, 2))


def _dynamic(rnd: random.Random, spec: JobSpec) -> JobSpec:
    return replace(spec, policy="dynamic")


def _ordered(rnd: random.Random, spec: JobSpec) -> JobSpec:
    return replace(
        spec,
        policy="ordered",
        gate=rnd.choice(("started", "ready", "ready")),
        step=rnd.choice((0, 0, 1)),
    )


def _depends(_rnd: random.Random, spec: JobSpec) -> JobSpec:
    others = [name for name in spec.roles if name != "worker"]
    if not others:
        return spec
    return _of_role(spec, "worker", depends_on={others[0]: "ready"})


def _named_gang(rnd: random.Random, spec: JobSpec) -> JobSpec:
    return replace(spec, gang_roles=(next(iter(spec.roles)),))


def _synchronous(rnd: random.Random, spec: JobSpec) -> JobSpec:
    return replace(spec, framework="torch")


def _ready(rnd: random.Random, spec: JobSpec) -> JobSpec:
    return _of_role(spec, _pick(rnd, spec), ready=Ready(rnd.choice(("port", "file")), "main"))


def _no_ports(rnd: random.Random, spec: JobSpec) -> JobSpec:
    return _of_role(spec, _pick(rnd, spec), ports=())


def _two_ports(rnd: random.Random, spec: JobSpec) -> JobSpec:
    return _of_role(spec, _pick(rnd, spec), ports=("main", "aux"))


def _large(rnd: random.Random, spec: JobSpec) -> JobSpec:
    wish = rnd.choice((Resources(memory_bytes=7 * GIB), Resources(gpu=1), Resources(2_000, GIB, 1)))
    return _of_role(spec, _pick(rnd, spec), resources=wish)


def _all_gpus(_rnd: random.Random, spec: JobSpec) -> JobSpec:
    return _of_role(spec, "worker", resources=Resources(gpu=2))


def _slow_files(_rnd: random.Random, spec: JobSpec) -> JobSpec:
    return _reading(spec, StreamSpec("slow", (Source("/2-2000-slow"),)))


def _too_large(rnd: random.Random, spec: JobSpec) -> JobSpec:
    return _of_role(spec, "worker", resources=Resources(gpu=9))


def _priority(rnd: random.Random, spec: JobSpec) -> JobSpec:
    return replace(spec, priority=rnd.choice((10, 90)))


def _deadline(rnd: random.Random, spec: JobSpec) -> JobSpec:
    return replace(spec, deadline_ms=rnd.choice((20_000, 200_000, 1_200_000)))


def _short_grace(rnd: random.Random, spec: JobSpec) -> JobSpec:
    return _of_role(spec, _pick(rnd, spec), stop=Stop(grace_ms=rnd.choice((0, 2_000))))


def _short_start(rnd: random.Random, spec: JobSpec) -> JobSpec:
    return replace(spec, place_timeout_ms=30_000, ready_timeout_ms=20_000)


def _replace_after(rnd: random.Random, spec: JobSpec) -> JobSpec:
    return replace(spec, replace_after_ms=rnd.choice((65_000, 65_000, -1)))


def _stream(rnd: random.Random, spec: JobSpec) -> JobSpec:
    folder = rnd.choice(
        ("/1-900-text", "/2-3000-rows", "/3-2000-text", "/1-0-text", "/2-6000-slow")
    )
    return _reading(spec, StreamSpec("clicks", (Source(folder),)))


def _reading(spec: JobSpec, stream: StreamSpec, role: str = "worker", **fields: Any) -> JobSpec:
    reading = Reading(stream.name, **fields)
    spec = replace(spec, data={**spec.data, stream.name: stream})
    return _of_role(spec, role, data=(*spec.roles[role].data, reading))


def _change_streams(spec: JobSpec, **fields: Any) -> JobSpec:  # of StreamSpec
    return replace(spec, data={name: replace(one, **fields) for name, one in spec.data.items()})


def _bad_stream(rnd: random.Random, spec: JobSpec) -> JobSpec:
    on_bad = rnd.choice(("fail", "skipRecord", "deadLetter"))
    folder = rnd.choice(
        ("/1-1000-bad", "/2-2000-bad", "/1-1000-flaky", "/1-1-missing", "/2-40-poison")
    )
    bad_rows = rnd.choice((0, 1_000)) if on_bad == "skipRecord" else 1_000
    stream = StreamSpec("bad", (Source(folder),), on_bad=on_bad, bad_rows=bad_rows)
    return _reading(spec, stream)


def _poison(_rnd: random.Random, spec: JobSpec) -> JobSpec:
    """Rows that kill whoever reads them, to be struck out."""
    stream = StreamSpec("poison", (Source("/1-8-poison"),), on_bad="skipRecord", bad_rows=5)
    spec = replace(spec, budgets=Budgets(30, 20))
    return _reading(spec, stream)


def _epochs(rnd: random.Random, spec: JobSpec) -> JobSpec:
    return _change_streams(spec, epochs=rnd.choice((2, 3)))


def _split(rnd: random.Random, spec: JobSpec) -> JobSpec:
    return _change_streams(spec, split=Split(rows=300, byte_count=300))


def _leftover(rnd: random.Random, spec: JobSpec) -> JobSpec:
    return _change_streams(spec, leftover="allow")


def _staging(_rnd: random.Random, spec: JobSpec) -> JobSpec:
    return _change_streams(spec, staging="/staged")


def _restore(_rnd: random.Random, spec: JobSpec) -> JobSpec:
    """Begin at a savepoint of the first job, which it seldom has."""
    is_first = spec.name == "job0"
    return spec if is_first else _change_streams(spec, restore=Restore(job="job0"))


def _exactly_once(_rnd: random.Random, spec: JobSpec) -> JobSpec:
    spec = _change_streams(spec, delivery="exactlyOnce")
    for name, role in spec.roles.items():
        unit = larger_unit(role.restart.unit, group_unit(spec, role))
        spec = _of_role(spec, name, restart=replace(role.restart, unit=unit))
    return spec


def _own_pass(rnd: random.Random, spec: JobSpec) -> JobSpec:
    if "chief" not in spec.roles or not spec.data:
        return spec
    return _reading(spec, next(iter(spec.data.values())), "chief", own_pass=True)


def _placed(rnd: random.Random, spec: JobSpec) -> JobSpec:
    wish = rnd.choice(
        (
            Placement(max_per_node=1),
            Placement(near=("worker",)),
            Placement(apart=("worker",)),
            Placement(nodes={"zone": "a"}),
        )
    )
    return _of_role(spec, "worker", placement=wish)


def _near_chief(_rnd: random.Random, spec: JobSpec) -> JobSpec:
    if "chief" not in spec.roles:
        return spec
    return _of_role(spec, "chief", placement=Placement(near=("worker",)))


def _after(_rnd: random.Random, spec: JobSpec) -> JobSpec:
    number = int(spec.name.removeprefix("job"))
    return replace(spec, after=(f"job{number - 1}",)) if number else spec


def _queue(_rnd: random.Random, spec: JobSpec) -> JobSpec:
    return replace(spec, queue="prod")


def _not_preemptible(_rnd: random.Random, spec: JobSpec) -> JobSpec:
    return replace(spec, preemptible=False)


def _warned(rnd: random.Random, spec: JobSpec) -> JobSpec:
    return replace(spec, deadline_ms=rnd.choice((4_000, 20_000)), deadline_warn_ms=3_000)


def _hours(rnd: random.Random, spec: JobSpec) -> JobSpec:
    return replace(spec, max_replica_ms=rnd.choice((4_000, 60_000)))


def _hang(rnd: random.Random, spec: JobSpec) -> JobSpec:
    return replace(spec, hang=Hang(60_000, rnd.choice(("report", "restart"))))


RULES = (
    FailureRule("fail", exit_codes=(1, 3)),
    FailureRule("giveUp", exit_codes=(1, 3)),
    FailureRule("complete", exit_codes=(1, 7)),
    FailureRule("restart", signals=(11, 9), unit="role", delay_ms=2_000),
    FailureRule("restart", causes=("Crashed",), budget="none"),
    FailureRule("restart", causes=("OutOfMemory",), memory_per_mille=2_000),
    FailureRule("restart", budget="infrastructure", exclude_node_ms=60_000),
    FailureRule("restart", roles=("worker",), unit="job"),
)


def _rules(rnd: random.Random, spec: JobSpec) -> JobSpec:
    return replace(spec, failure=tuple(rnd.sample(RULES, rnd.choice((1, 2)))))


def _long_work(_rnd: random.Random, spec: JobSpec) -> JobSpec:
    return replace(spec, labels={"work": "long"})


def _two_workers(_rnd: random.Random, spec: JobSpec) -> JobSpec:
    return _of_role(spec, "worker", replicas=2, minimum=2)


FEATURES: dict[str, Feature] = {
    "two workers": Feature(0.1, _two_workers),
    "more workers": Feature(0.6, _more_workers),
    "elastic": Feature(0.2, _elastic),
    "servers": Feature(0.25, _server),
    "drain": Feature(0.2, _drain),
    "chief": Feature(0.25, _chief),
    "success": Feature(0.2, _success),
    "dynamic": Feature(0.25, _dynamic),
    "named gang": Feature(0.1, _named_gang),
    "ordered": Feature(0.15, _ordered),
    "depends": Feature(0.1, _depends),
    "synchronous": Feature(0.2, _synchronous),
    "restart unit": Feature(0.4, _unit),
    "quick restarts": Feature(0.5, _quick),
    "budgets": Feature(0.4, _budgets),
    "own budgets": Feature(0.1, _own_budgets),
    "ready probe": Feature(0.2, _ready),
    "no ports": Feature(0.1, _no_ports),
    "two ports": Feature(0.1, _two_ports),
    "resources": Feature(0.3, _large),
    "all GPUs": Feature(0.05, _all_gpus),
    "too large": Feature(0.02, _too_large),
    "priority": Feature(0.2, _priority),
    "deadline": Feature(0.15, _deadline),
    "short grace": Feature(0.3, _short_grace),
    "short start": Feature(0.3, _short_start),
    "replace after": Feature(0.4, _replace_after),
    "stream": Feature(0.3, _stream),
    "bad stream": Feature(0.08, _bad_stream),
    "slow files": Feature(0.03, _slow_files),
    "poison": Feature(0.03, _poison),
    "epochs": Feature(0.2, _epochs),
    "split": Feature(0.3, _split),
    "leftover": Feature(0.2, _leftover),
    "staging": Feature(0.2, _staging),
    "restore": Feature(0.1, _restore),
    "own pass": Feature(0.2, _own_pass),
    "exactly once": Feature(0.2, _exactly_once),
    "placed": Feature(0.15, _placed),
    "near chief": Feature(0.1, _near_chief),
    "after": Feature(0.2, _after),
    "queue": Feature(0.3, _queue),
    "not preemptible": Feature(0.1, _not_preemptible),
    "warned": Feature(0.08, _warned),
    "replica hours": Feature(0.05, _hours),
    "hang": Feature(0.15, _hang),
    "failure rules": Feature(0.2, _rules),
    "long work": Feature(0.15, _long_work),
}
