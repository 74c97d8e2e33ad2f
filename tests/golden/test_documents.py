"""What people and programs are shown, byte by byte: documents of jobs in many a state.

The states are made by the core alone: fixed identities, fixed times. `pytest --rewrite` writes the
golden files anew; the diff is the review.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from primusd import core
from primusd.admission import events as admission
from primusd.core import Recorded, World
from primusd.datafeed.ledger.events import BeatReceived, StreamEvent, UnitsListed
from primusd.datafeed.protocol import FeedReport, Held, Unit
from primusd.executor.protocol import Exit, Progress
from primusd.job import events as ev
from primusd.job.ids import AttemptId
from primusd.jobfile import ParseContext, parse_document
from primusd.records import Proposal
from primusd.views.live import Live, LiveNode, LiveUsage
from primusd.views.rendering import Renderer
from primusd.views.tasks import task_documents, verification

FOLDER = Path(__file__).parent / "documents"
UID = "06f3k2m9q1x7abcd"
GIB = 1 << 30
START_MS = 1_767_323_045_006
CLICKS = f"{UID}/clicks"


class Stage:
    """A world that is led by hand, one second an event."""

    def __init__(self) -> None:
        self.world = World()
        self.revision = 0
        self.at_ms = START_MS
        self.live = Live()

    def tell(
        self, event: ev.JobEvent | admission.AdmissionEvent | StreamEvent, machine: str = UID
    ) -> None:
        self.at_ms += 1_000
        proposals = (Proposal(machine, event, "test"),)
        step = core.step(
            self.world, proposals, at_ms=self.at_ms, term=1, revision=self.revision + 1
        )
        assert isinstance(step.answers[0], Recorded), step.answers
        self.world, self.revision = step.world, self.revision + 1

    def submit(self, uid: str = UID, **changes: Any) -> None:
        document = {
            "name": "ctr-daily",
            "namespace": "ads",
            "labels": {"team": "ranking"},
            "roles": {
                "worker": {
                    "replicas": 2,
                    "command": ["python", "train.py"],
                    "resources": {"cpu": 1, "memory": "1Gi"},
                },
                "ps": {"replicas": 1, "command": "python ps.py", "success": "never"},
            },
            **changes,
        }
        parsed = parse_document(document, context=ParseContext(base_dir="/data"))
        caller = "uid:1000 (ann)"
        self.tell(ev.JobSubmitted(uid, parsed.spec, parsed.origins, caller), uid)

    def node(self, name: str = "node-07", *, cpu: int = 16) -> None:
        self.tell(
            admission.NodeSeen(
                name, "local", "9b2e", "0.1.0", cpu * 1000, 64 * GIB, 8, 20_000, 29_999,
                {"gpu": "h100"},
            ),
            "",
        )  # fmt: skip

    def attempts(self) -> list[AttemptId]:
        return [
            AttemptId(UID, role.name, replica.index, replica.newest.number)
            for role in self.world.jobs[UID].roles.values()
            for chunk in role.chunks
            for replica in chunk.replicas
            if replica.newest is not None
        ]

    def run(self) -> None:
        for attempt in self.attempts():
            self.tell(ev.AttemptLaunched(attempt, {"launcher": "local"}))
            self.tell(ev.ExecutorRegistered(attempt, "i1", "node-07", "9b2e", 11, "0.1.0"))
            self.tell(ev.ExecutorHolding(attempt, (("main", 20_000 + attempt.index),)))
        for attempt in self.attempts():
            self.tell(ev.TrainerStarted(attempt, 4_711, START_MS))

    def end(self, attempt: AttemptId, code: int = 0, last: str = "") -> None:
        exit_ = Exit(code, None, None, "", 0, 2 * GIB, START_MS, START_MS, "", (), last, ())
        self.tell(ev.TrainerExited(attempt, exit_))
        self.tell(ev.AttemptVanished(attempt))

    def shown(self, *keys: tuple[str, str]) -> list[Any]:
        render = Renderer(lambda: self.at_ms, lambda: self.live)
        return [msgspec.to_builtins(render(kind, key, self.world)) for kind, key in keys]


def worker(index: int, number: int = 1) -> AttemptId:
    return AttemptId(UID, "worker", index, number)


def queued_without_a_node() -> list[Any]:
    stage = Stage()
    stage.submit()
    return stage.shown(("Job", UID))


def queued_for_slots() -> list[Any]:
    stage = Stage()
    stage.node()
    taken = {"replicas": 1, "command": "x", "resources": {"gpu": 6}}
    stage.submit("06f3k2m9q1x7aaaa", name="mnist", roles={"worker": taken})
    stage.submit(roles={"worker": {"replicas": 2, "command": "x", "resources": {"gpu": 2}}})
    return stage.shown(("Job", UID), ("Node", "node-07"))


def starting() -> list[Any]:
    stage = Stage()
    stage.node()
    stage.submit()
    stage.tell(ev.AttemptLaunched(worker(0)))
    return stage.shown(("Job", UID), ("Replica", f"{UID}/worker-0"), ("Node", "node-07"))


def running_with_live_values() -> list[Any]:
    stage = Stage()
    stage.node()
    stage.submit()
    stage.run()
    stage.live = Live(
        progress={worker(0): Progress(40_960, 0, START_MS, {"loss": 0.412})},
        usage={worker(0): LiveUsage(START_MS, 2 * GIB, 3_810, 1_200, -1, (("g1", 500, GIB),))},
        nodes={"node-07": LiveNode(START_MS, 71, 9 * GIB)},
    )
    return stage.shown(("Job", UID), ("Replica", f"{UID}/worker-0"), ("Node", "node-07"))


def a_worker_crashed() -> list[Any]:
    stage = Stage()
    stage.node()
    stage.submit()
    stage.run()
    stage.end(worker(1), 1, "ValueError: label out of range")
    timeline = stage.world.jobs[UID].timeline
    events = [("Event", f"{UID}/{one.revision}.{one.position}") for one in timeline]
    return stage.shown(("Job", UID), ("Replica", f"{UID}/worker-1"), *events)


def stopping() -> list[Any]:
    stage = Stage()
    stage.node()
    stage.submit()
    stage.run()
    stage.tell(ev.CancelRequested("no more needed"))
    return stage.shown(("Job", UID), ("Replica", f"{UID}/ps-0"))


def succeeded() -> list[Any]:
    stage = Stage()
    stage.node()
    stage.submit()
    stage.run()
    for attempt in stage.attempts():
        if attempt.role == "worker":
            stage.end(attempt)
    stage.end(AttemptId(UID, "ps", 0, 1), 143)
    return stage.shown(("Job", UID))


def reading() -> list[Any]:
    stage = Stage()
    stage.node()
    stage.submit(
        roles={"worker": {"replicas": 1, "command": "x", "data": "clicks", "feed": "stdin"}},
        data={"clicks": {"sources": [{"files": "clicks/*.txt"}], "epochs": 2}},
    )
    units = tuple(
        Unit("file", f"/data/clicks/{number}.txt", 1_000, "1", {"format": "text"})
        for number in range(3)
    )
    stage.tell(UnitsListed(units, 0, is_complete=True), CLICKS)
    stage.run()
    stage.tell(BeatReceived(worker(0), "i1", FeedReport("clicks", (), 1)), CLICKS)
    lease = next(iter(stage.world.streams[CLICKS].leases.values()))
    held = Held("clicks", lease.epoch, lease.unit, lease.lo, lease.token, 400, lease.hi)
    report = FeedReport("clicks", (held,), 0, rows_per_s=10)
    stage.tell(BeatReceived(worker(0), "i1", report), CLICKS)
    stream = stage.world.streams[CLICKS]
    tasks = [msgspec.to_builtins(one) for one in task_documents(stream, "")]
    proof = msgspec.to_builtins(verification(stream))
    return [*stage.shown(("Job", UID), ("Stream", CLICKS)), *tasks, proof]


STATES: tuple[Callable[[], list[Any]], ...] = (
    queued_without_a_node,
    queued_for_slots,
    starting,
    running_with_live_values,
    a_worker_crashed,
    stopping,
    succeeded,
    reading,
)


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_documents_of_a_state(
    state: Callable[[], list[Any]], request: pytest.FixtureRequest
) -> None:
    golden = FOLDER / f"{state.__name__}.json"

    found = json.dumps(state(), indent=1, ensure_ascii=False) + "\n"

    if request.config.getoption("--rewrite"):
        golden.write_text(found, encoding="utf-8")
    assert golden.is_file(), f"{golden.name} is missing: run pytest --rewrite and look at it"
    assert found == golden.read_text(encoding="utf-8")


def test_null_is_never_sent() -> None:
    for state in STATES:
        assert "null" not in json.dumps(state())
