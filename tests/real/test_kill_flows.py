"""C38, C47: a real daemon is killed in the middle of a flow, and the next one takes it up.

`tests/scenarios/test_flow_deaths.py` goes through every position of each flow in virtual time; here
are real processes, at a few positions in `make test` and at all of them in `make soak`.
"""

import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

PROGRAM = (sys.executable, str(Path(__file__).with_name("dying_primusd.py")))
SAMPLES = 2
LIFE_S = 60
FINAL = ("Succeeded", "Failed", "Cancelled")
MAY_BE_DEAD = (0, 1, 4, 5)


class Deed(Struct, frozen=True):
    """What a person does at a phase, and does again until events tell of it."""

    phase: str
    words: tuple[str, ...]
    event: str
    times: int = 1
    """How many such events there are once it is done."""
    text: str = ""
    """Standard input."""


class Flow(Struct, frozen=True):
    """A job, what people do with it, and what comes of it."""

    roles: str
    attempts: Mapping[str, int]
    """How often each replica begins, whoever dies."""
    deeds: tuple[Deed, ...] = ()
    head: str = ""
    ends: str = "Succeeded"
    charged: int = 0
    """To the budgets of the job and its roles."""
    settings: str = ""
    """Of the daemon."""
    rival: Mapping[str, int] = {}
    """How often each replica of the job `rival` begins; {} there is none."""


SLEEPS = 'command: "sleep 600"'
ENDS_ONCE_RUN_AGAIN = 'command: "test $PRIMUS_ATTEMPT != 1 || exec sleep 600"'
# The first waits until both others have run again, so nobody has to see when that is.
ENDS_ONCE_ALL_RAN_AGAIN = """command: |
      touch life-$PRIMUS_ATTEMPT
      test $PRIMUS_INDEX != 0 -a $PRIMUS_ATTEMPT = 1 && exec sleep 600
      test $PRIMUS_INDEX != 0 && exit 0
      until test -e ../../worker-1/work/life-2 -a -e ../../worker-2/work/life-2
      do sleep 0.05; done"""
RIVAL = """
name: rival
priority: 90
roles:
  worker: {command: [sleep, "0.3"], resources: {cpu: 1}}
"""
QUEUE = """
[queues.default]
quota = {cpu = 1}
preemption = "lowerPriority"
"""
FINISH = Deed(
    "Running", ("finish", "flow", "--as", "Succeeded", "--reason", "seen"), "VerdictRequested"
)
FLOWS = {
    "gang start": Flow(
        "  chief: {command: [sleep, '0.5']}\n  worker: {replicas: 3, command: [sleep, '0.5']}",
        {"chief-0": 1, "worker-0": 1, "worker-1": 1, "worker-2": 1},
        head="schedule: {policy: gang}\n",
    ),
    "ordered start": Flow(
        f"  ps: {{replicas: 2, success: never, {SLEEPS}}}\n"
        "  worker: {replicas: 2, command: [sleep, '0.5']}",
        {"ps-0": 1, "ps-1": 1, "worker-0": 1, "worker-1": 1},
        head="schedule: {policy: ordered, step: 1}\n",
    ),
    "role restart": Flow(
        "  worker: {replicas: 2, restart: {unit: role, delay: 100ms}, command: "
        '"test $PRIMUS_ATTEMPT != 1 || test $PRIMUS_INDEX = 1 && exec sleep 1; '
        'exit $((2 - PRIMUS_ATTEMPT))"}',
        {"worker-0": 2, "worker-1": 2},
        charged=1,
    ),
    "scale down and up": Flow(
        f"  worker:\n    replicas: {{min: 1, max: 3}}\n    {ENDS_ONCE_ALL_RAN_AGAIN}",
        {"worker-0": 1, "worker-1": 2, "worker-2": 2},
        (
            Deed("Running", ("scale", "flow", "worker=1"), "RoleScaled"),
            Deed("Running", ("scale", "flow", "worker=3"), "RoleScaled", times=2),
        ),
    ),
    "suspend and resume": Flow(
        f"  worker: {{replicas: 2, {ENDS_ONCE_RUN_AGAIN}}}",
        {"worker-0": 2, "worker-1": 2},
        (
            Deed("Running", ("suspend", "flow"), "SuspendRequested"),
            Deed("Suspended", ("resume", "flow"), "ResumeRequested"),
        ),
    ),
    "preemption": Flow(
        f"  worker: {{resources: {{cpu: 1}}, {ENDS_ONCE_RUN_AGAIN}}}",
        {"worker-0": 2},
        (Deed("Running", ("submit", "-", "--key", "rival"), "JobEvicted", text=RIVAL),),
        head="priority: 10\n",
        settings=QUEUE,
        rival={"worker-0": 1},
    ),
    "cancel": Flow(
        f"  worker: {{replicas: 2, {SLEEPS}}}",
        {"worker-0": 1, "worker-1": 1},
        (Deed("Running", ("cancel", "flow"), "CancelRequested"),),
        ends="Cancelled",
    ),
    "finish": Flow(
        f"  worker: {{replicas: 2, {SLEEPS}}}", {"worker-0": 1, "worker-1": 1}, (FINISH,)
    ),
}


def job_file(flow: Flow) -> str:
    return f"name: flow\n{flow.head}roles:\n{flow.roles}\n"


def live(head: Any, flow: Flow) -> None:
    """Drive the job to its end, whatever becomes of the daemon."""
    end = time.monotonic() + LIFE_S
    job: Any = {}
    while time.monotonic() < end:
        if head.daemon.poll() is not None:
            head.start()
        assert not doubled(head), (doubled(head), head.story())
        job = said(head, "get", "flow")
        if not job:
            head.ctl("submit", "-", "--key", "once", stdin=job_file(flow), allowed=MAY_BE_DEAD)
            continue
        if job["status"]["phase"] in FINAL:
            return
        deed = next_deed(head, flow)
        if deed is not None and job["status"]["phase"] == deed.phase:
            head.ctl(*deed.words, stdin=deed.text or None, allowed=MAY_BE_DEAD)
        time.sleep(0.05)
    pytest.fail(f"not over within {LIFE_S} s: {job}\n{head.story()}")


def doubled(head: Any) -> list[str]:
    """Return the replicas of which trainers of two attempts live."""
    living: set[tuple[bytes, ...]] = set()
    for pid in head.processes():
        try:
            values = dict(
                one.partition(b"=")[::2]
                for one in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            )
        except OSError:
            continue
        if b"PRIMUS_REPLICA" in values:
            names = (b"PRIMUS_JOB", b"PRIMUS_REPLICA", b"PRIMUS_ATTEMPT")
            living.add(tuple(values[name] for name in names))
    replicas = Counter((job, replica) for job, replica, _ in living)
    return [f"{job!r} {replica!r}" for (job, replica), count in replicas.items() if count > 1]


def said(head: Any, *words: str) -> Any:
    """Return the document, {} where the daemon is dead or has no such job."""
    done = head.ctl(*words, "-o", "json", allowed=(0, 1, 3, 5))
    return json.loads(done.stdout) if done.returncode == 0 else {}


def next_deed(head: Any, flow: Flow) -> Deed | None:
    """Return the first deed that events do not tell of yet."""
    told = Counter(one["reason"] for one in said(head, "events", "flow").get("items", []))
    return next((one for one in flow.deeds if told[one.event] < one.times), None)


def life(
    make_head: Any, flow: Flow, place: str = "after", revision: int = 0, *, must_die: bool = False
) -> int:
    """Play the flow with a death there; return the job's last revision.

    The last entries of one life may not exist in the next: without `must_die` it may survive.

    What must hold after any life is asserted here: the verdict, no process, no slot, no attempt
    and no charge more than in a life without a death, and never two attempts of a replica at once.
    """
    with make_head() as head:
        settings = Path(head.environment["PRIMUSD_CONFIG"])
        settings.write_text(settings.read_text() + flow.settings)
        head.start(program=(*PROGRAM, place, str(revision)), is_awaited=False)
        first = head.daemon
        head.until(
            "it listens, or is dead",
            lambda: head.daemon.poll() is not None or head.socket.exists(),
        )
        live(head, flow)
        if must_die:
            assert first.poll() == -signal.SIGKILL, (place, revision, head.story())
        if head.daemon.poll() is not None:
            head.start()
        job = said(head, "get", "flow")
        assert job["status"]["phase"] == flow.ends, (place, revision, job, head.story())
        if flow.rival:
            assert head.ended("rival")["phase"] == "Succeeded", (place, revision, head.story())
            assert head.attempts("rival") == flow.rival, (place, revision, head.story())
        head.until("every process is gone", lambda: not head.processes("sleep"))
        nodes = head.document("nodes", "list")["items"]
        assert [one["used"]["ports"] for one in nodes] == [0], (place, revision)
        assert head.attempts("flow") == flow.attempts, (place, revision, head.story())
        assert charged(job) == flow.charged, (place, revision, job["status"], head.story())
        return int(job["resourceVersion"])


def charged(job: Any) -> int:
    """Return what the budgets of a job and of its roles were charged."""
    status = job["status"]
    budgets = [status["budgets"], *(one.get("budgets", {}) for one in status["roles"].values())]
    return sum(one["used"] for some in budgets for one in some.values())


def samples(last: int) -> Iterator[tuple[int, str]]:
    """Yield a few positions of a life, between its first entries and its last."""
    for number in range(1, SAMPLES + 1):
        yield 2 + (last - 2) * number // (SAMPLES + 1), "before" if number % 2 else "after"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", FLOWS)
def test_c38_a_flow_goes_on_where_a_killed_daemon_left_it(name: str, make_head: Any) -> None:
    flow = FLOWS[name]
    last = life(make_head, flow)
    assert last > 10
    for revision, place in samples(last):
        life(make_head, flow, place, revision, must_die=True)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("name", FLOWS)
def test_c38_a_flow_goes_on_from_every_position(name: str, place: str, make_head: Any) -> None:
    flow = FLOWS[name]
    last = life(make_head, flow)
    assert last > 10
    for revision in range(2, last + 1):
        life(make_head, flow, place, revision, must_die=revision <= last // 2)
