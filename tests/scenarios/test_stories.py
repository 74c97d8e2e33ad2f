"""Scenarios told in the words of the glossary: `stories/*.txt`, each with what came of it.

A story is a comment, then one step a line, a rule, what is so after each step and what is then in
motion, a rule, and the timeline. `pytest --rewrite` writes the parts below the first rule; the
diff is the review. Steps:

    nodes 2                                        submit chief=1 worker=2:unit=role
    bring up · launch · register · hold · start    each with names, or all that can
    exit worker-0 code=1                           code, signal, oom, error, errno, seen
    gone worker-0/1 evidence=preempted             the launcher says so
    silent · back · lost worker-0                  liveness
    stop all                                       everybody obeys
    wait 10s · cancel · restart worker-0 · finish Succeeded · forget · daemon dies
    stream clicks done · stream clicks failed · stop fails worker-0/1
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from primusd import core
from primusd.job import events as ev
from primusd.job.commands import LaunchAttempt, PublishPeers, ReleaseAttempt, StopAttempt
from primusd.job.ids import Span, parse_replica, replica_name
from primusd.job.model import replicas_of
from primusd.job.spec import Budgets, JobSpec, Reading, RoleSpec, Source, StreamSpec
from primusd.units import parse_duration_ms
from tests.state.job_driver import UID, Cluster, ended, role, spec

STORIES = Path(__file__).parent / "stories"
RULE = "----"


@pytest.mark.parametrize("path", sorted(STORIES.glob("*.txt")), ids=lambda path: path.stem)
def test_story(path: Path, request: pytest.FixtureRequest) -> None:
    text = path.read_text(encoding="utf-8")
    head = text.partition(f"\n{RULE}\n")[0].rstrip("\n")

    told = tell(head)

    if request.config.getoption("--rewrite"):
        path.write_text(told, encoding="utf-8")
    assert text == told


def test_there_are_stories() -> None:
    assert len(list(STORIES.glob("*.txt"))) >= 10


def tell(head: str) -> str:
    """Return the whole story: its steps, what came of each, and the timeline."""
    cluster = Cluster()
    shown: list[str] = []
    for line in head.splitlines():
        if line and not line.startswith("#"):
            take(cluster, line)
            shown.append(show(cluster))
    cluster.check_replay()
    told = [f"{one.level:7} {one.reason}: {one.message}" for one in timeline(cluster)]
    return "\n".join((head, RULE, *shown, RULE, *told)) + "\n"


def timeline(cluster: Cluster) -> tuple[Any, ...]:  # of Moment
    return cluster.job.timeline if UID in cluster.world.jobs else ()


def take(cluster: Cluster, line: str) -> None:
    """Carry out one step."""
    for words, action in STEPS.items():
        if line == words or line.startswith(f"{words} "):
            action(cluster, line[len(words) :].split())
            return
    raise AssertionError(f"no such step: {line}")


def options(words: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return names, and the options `key=value`."""
    names = [word.rstrip(",") for word in words if "=" not in word]
    return names, dict(word.split("=", 1) for word in words if "=" in word)


def submit(cluster: Cluster, words: list[str]) -> None:
    cluster.submit(parse_job(words))


def parse_job(words: list[str]) -> JobSpec:
    """Return the job of `worker=2:unit=role`; what has no count is an option of the job."""
    roles: list[RoleSpec] = []
    fields: dict[str, Any] = {}
    streams: tuple[StreamSpec, ...] = ()
    for word in words:
        name, _, rest = word.partition("=")
        if name == "deadline":
            fields["deadline_ms"] = parse_duration_ms(rest)
        elif name == "infrastructure":
            fields["budgets"] = Budgets(infrastructure=int(rest))
        else:
            roles.append(parse_role(name, rest))
            if roles[-1].data:
                streams = (StreamSpec("clicks", (Source("/data/*"),)),)
    return spec(*roles, streams=streams, **fields)


def parse_role(name: str, text: str) -> RoleSpec:
    count, *extras = text.split(":")
    fields: dict[str, Any] = {}
    for extra in extras:
        key, _, value = extra.partition("=")
        match key:
            case "never" | "any":
                fields["success"] = key
            case "percent":
                fields.update(success="percent", percent=int(value))
            case "unit":
                fields["unit"] = value
            case "drain":
                fields["drain_ms"] = parse_duration_ms(value)
            case "budget":
                fields["budgets"] = Budgets(int(value), 20)
            case "reads":
                fields["data"] = (Reading(value),)
            case _:
                raise AssertionError(f"no such option of a role: {extra}")
    return role(name, int(count), **fields)


def exit_(cluster: Cluster, words: list[str]) -> None:
    names, told = options(words)
    record = ended(
        int(told["code"]) if "code" in told else None,
        int(told["signal"]) if "signal" in told else None,
        oom_kills=int(told.get("oom", "0")),
        error=told.get("error", ""),
        errno=int(told["errno"]) if "errno" in told else None,
        stop_seen=told.get("seen", ""),
        lines=told.get("line", "").replace("_", " "),
    )
    for name in names:
        attempt = cluster.id(name)
        cluster.say(ev.TrainerExited(attempt, record), by="executor")
        cluster.gone(name, attempt)


def gone(cluster: Cluster, words: list[str]) -> None:
    names, told = options(words)
    for name in names:
        record = ended(int(told["code"])) if "code" in told else None
        word = told.get("evidence", "")
        cluster.gone(name, cluster.id(name), exit=record, evidence=word)


def each(make: Callable[[Any], Any], by: str) -> Callable[[Cluster, list[str]], None]:
    """Return a step that says an event of each named attempt."""

    def say(cluster: Cluster, words: list[str]) -> None:
        for name in options(words)[0]:
            cluster.say(make(cluster.id(name)), by=by)

    return say


def restart(cluster: Cluster, words: list[str]) -> None:
    spans = tuple(Span(name, index, index) for name, index in map(parse_replica, words))
    cluster.say(ev.RestartRequested(spans), by="uid:1 (ann)")


def stream(cluster: Cluster, words: list[str]) -> None:
    name, what = words
    done, failed = ev.StreamFinished(name, 100, 0), ev.StreamFailed(name, "bad row 7 in a.txt")
    cluster.say(done if what == "done" else failed, by="stream")


def daemon_dies(cluster: Cluster, _words: list[str]) -> None:
    cluster.world = cluster.replayed()


def nodes(cluster: Cluster, words: list[str]) -> None:
    cluster.__init__(nodes=int(words[0]))  # type: ignore[misc] # a world begun anew


def asked(make: Callable[[list[str]], ev.JobEvent]) -> Callable[[Cluster, list[str]], None]:
    """Return a step that a person asks for."""

    def say(cluster: Cluster, words: list[str]) -> None:
        cluster.say(make(words), by="uid:1 (ann)")

    return say


STEPS: dict[str, Callable[[Cluster, list[str]], None]] = {
    "nodes": nodes,
    "submit": submit,
    "bring up": lambda cluster, words: cluster.bring_up(*words),
    "launch": lambda cluster, words: cluster.launch(*words),
    "register": lambda cluster, words: cluster.register(*words),
    "hold": lambda cluster, words: cluster.hold(*words),
    "start": lambda cluster, words: cluster.start(*words),
    "exit": exit_,
    "gone": gone,
    "silent": each(ev.ExecutorFellSilent, "liveness"),
    "back": each(ev.ExecutorReturned, "liveness"),
    "lost": each(ev.ExecutorExpired, "liveness"),
    "stop fails": each(lambda one: ev.StopFailed(one, was_delivered=False), "launcher:local"),
    "stop all": lambda cluster, _: cluster.stop_all(),
    "wait": lambda cluster, words: cluster.wait(parse_duration_ms(words[0])),
    "cancel": asked(lambda _: ev.CancelRequested()),
    "restart": restart,
    "finish": asked(lambda words: ev.VerdictRequested(words[0], "a person says so")),
    "forget": asked(lambda _: ev.ForgetRequested()),
    "daemon dies": daemon_dies,
    "stream": stream,
}


def show(cluster: Cluster) -> str:
    """Return the job's phase, its replicas with their newest attempts, and what is in motion."""
    if UID not in cluster.world.jobs:
        return "no job"
    job = cluster.job
    towards = f" to {job.then}" if job.then else ""
    generation = f" g{job.generation}" if job.generation > 1 else ""
    found = []
    for of_role in job.roles.values():
        for replica in replicas_of(of_role):
            name = replica_name(of_role.name, replica.index)
            newest = replica.newest
            if replica.phase == "Active" and newest is not None:
                found.append(f"{name}/{newest.number} {newest.phase}")
            else:
                found.append(f"{name} {replica.phase.upper()}")
    motion = ", ".join(commands(cluster)) or "nothing"
    return f"{job.phase}{towards}{generation}  {'  '.join(found)}  | {motion}"


def commands(cluster: Cluster) -> list[str]:
    found = []
    for command in core.plan(cluster.world, UID):
        match command:
            case LaunchAttempt(attempt=attempt):
                found.append(f"launch {attempt.label}")
            case StopAttempt(attempt=attempt, not_before_ms=at_ms):
                found.append(f"kill {attempt.label}{after(at_ms, cluster)}")
            case ReleaseAttempt(attempt=attempt, not_before_ms=at_ms):
                found.append(f"release {attempt.label}{after(at_ms, cluster)}")
            case PublishPeers(generation=generation, revision=revision):
                found.append(f"peers {generation}.{revision}")
            case _:
                raise AssertionError(f"a job does not plan {command}")
    wake_ms = core.deadline_ms(cluster.world, UID)
    if wake_ms:
        found.append(f"wake{after(wake_ms, cluster)}")
    return found


def after(at_ms: int, cluster: Cluster) -> str:
    left_ms = at_ms - cluster.now_ms
    text = f"{left_ms / 1000:.3f}".rstrip("0").rstrip(".")
    return re.sub(r"^", " +", f"{text}s") if left_ms > 0 else " now"
