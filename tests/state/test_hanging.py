"""When a trainer counts as hung: armed by a first step, judged by signs (C24, C25, C26)."""

from collections.abc import Iterator

from msgspec.structs import replace

from primusd.api.reports import proposals
from primusd.executor.hanging import GAP_MS, Signs, Watch, look, sample_ms
from primusd.executor.protocol import LaunchOrder, Progress, Report
from primusd.executor.protocol import Trainer as TrainerFact
from primusd.job import events as ev
from primusd.job.spec import Hang
from primusd.views.documents import Condition
from primusd.views.jobs import job_document
from tests.state.job_driver import Cluster, role, spec

AFTER_MS = 60_000
EVERY_MS = 3_000


def order(hang_ms: int = AFTER_MS, hang_phase_ms: int = 0) -> LaunchOrder:
    return LaunchOrder(
        job_name="train",
        namespace="default",
        command=("train",),
        env={},
        files=(),
        workdir="",
        ports=(),
        stop_signal=15,
        grace_ms=0,
        log_bytes_max=0,
        log_files_max=0,
        log_patterns=(),
        ready=None,
        feeds=(),
        orphan_ms=0,
        hang_ms=hang_ms,
        hang_phase_ms=hang_phase_ms,
    )


def step(number: int, epoch: int = 0) -> Progress:
    return Progress(number, epoch, 0, {})


class Trainer:
    """What a trainer shows, sampled until a time."""

    def __init__(self, of: LaunchOrder | None = None) -> None:
        self.order = of or order()
        self.watch = Watch()
        self.now_ms = 1_000_000
        self.signs = Signs()

    def show(self, **signs: object) -> None:
        """Change what it shows; the next sample sees it."""
        self.signs = replace(self.signs, **signs)

    def for_ms(self, duration_ms: int, *, cpu_per_mille: int = 0) -> str:
        """Let time pass in samples; return the evidence at its end."""
        for passed_ms in self._samples(duration_ms):
            cpu_ms = self.signs.cpu_ms + passed_ms * cpu_per_mille // 1000
            self.show(cpu_ms=cpu_ms)
            self.watch = look(self.watch, self.signs, self.order, self.now_ms)
        return self.watch.evidence

    def _samples(self, duration_ms: int) -> Iterator[int]:
        every_ms = sample_ms(self.order)
        while duration_ms > 0:
            passed_ms = min(every_ms, duration_ms)
            self.now_ms += passed_ms
            duration_ms -= passed_ms
            yield passed_ms


def test_C26_a_trainer_that_stops_stepping_hangs_and_the_evidence_says_where() -> None:
    trainer = Trainer()
    trainer.show(progress=step(119))
    trainer.for_ms(10_000)
    trainer.show(progress=step(120, epoch=2))

    assert trainer.for_ms(AFTER_MS) == ""
    evidence = trainer.for_ms(EVERY_MS)

    assert "its last step was 120 of epoch 2" in evidence
    assert "no progress for 60 s" in evidence
    assert "0 percent of a processor" in evidence


def test_C25_nothing_is_judged_before_the_first_step() -> None:
    trainer = Trainer()

    assert trainer.for_ms(100 * AFTER_MS) == ""
    trainer.show(progress=step(1))
    assert trainer.for_ms(AFTER_MS) == ""
    assert trainer.for_ms(EVERY_MS)


def test_progress_lifts_a_hang_and_the_evidence_stays_the_same_until_then() -> None:
    trainer = Trainer()
    trainer.show(progress=step(1))
    first = trainer.for_ms(AFTER_MS + EVERY_MS)

    assert first
    assert trainer.for_ms(AFTER_MS) == first
    trainer.show(progress=step(2))
    assert trainer.for_ms(EVERY_MS) == ""
    assert trainer.for_ms(AFTER_MS + EVERY_MS) != first


def test_the_same_step_said_again_is_no_progress_and_reports_without_steps_are() -> None:
    stuck, stepless = Trainer(), Trainer()
    for _ in range(20):
        stuck.show(progress=step(7))
        stepless.show(progress=Progress(0, 0, stepless.now_ms, {"loss": 1.0}))
        stuck.for_ms(AFTER_MS // 10)
        stepless.for_ms(AFTER_MS // 10)

    assert stuck.watch.evidence
    assert not stepless.watch.evidence
    assert "its last report named no step" in stepless.for_ms(AFTER_MS + EVERY_MS)


def test_C25_within_a_declared_phase_nothing_is_judged() -> None:
    trainer = Trainer()
    trainer.show(progress=step(1), phase="evaluation")

    assert trainer.for_ms(10 * AFTER_MS) == ""
    trainer.show(phase="")
    assert trainer.for_ms(AFTER_MS) == ""
    assert trainer.for_ms(EVERY_MS)


def test_C25_a_phase_may_have_a_limit_of_its_own() -> None:
    trainer = Trainer(order(hang_phase_ms=5 * AFTER_MS))
    trainer.show(progress=step(1), phase="evaluation")

    assert trainer.for_ms(5 * AFTER_MS) == ""
    assert "in phase evaluation" in trainer.for_ms(EVERY_MS)


def test_C25_a_busy_processor_is_given_twice_the_time() -> None:
    trainer = Trainer()
    trainer.show(progress=step(1))
    trainer.for_ms(EVERY_MS)

    assert trainer.for_ms(2 * AFTER_MS - EVERY_MS, cpu_per_mille=900) == ""
    assert "90 percent of a processor" in trainer.for_ms(EVERY_MS, cpu_per_mille=900)


def test_rows_taken_are_progress_where_nothing_is_reported() -> None:
    trainer = Trainer()
    for rows in range(1, 50):
        trainer.show(taken=rows)
        assert trainer.for_ms(AFTER_MS // 2) == ""

    assert "it reported no step" in trainer.for_ms(AFTER_MS)


def test_who_waits_for_rows_does_not_hang() -> None:
    trainer = Trainer()
    trainer.show(taken=5, is_waiting=True)

    assert trainer.for_ms(10 * AFTER_MS) == ""
    trainer.show(is_waiting=False)
    assert trainer.for_ms(AFTER_MS + EVERY_MS)


def test_a_checkpoint_is_progress() -> None:
    trainer = Trainer()
    trainer.show(progress=step(1))
    trainer.for_ms(AFTER_MS - EVERY_MS)
    trainer.show(checkpoint_step=1)

    assert trainer.for_ms(AFTER_MS) == ""


def test_time_in_which_the_host_slept_does_not_count() -> None:
    trainer = Trainer()
    trainer.show(progress=step(1))
    trainer.for_ms(EVERY_MS)

    trainer.now_ms += 10 * AFTER_MS + GAP_MS
    assert trainer.for_ms(EVERY_MS) == ""
    assert trainer.for_ms(AFTER_MS - 2 * EVERY_MS) == ""
    assert trainer.for_ms(2 * EVERY_MS)


def test_C24_a_watch_of_a_new_attempt_knows_nothing_of_the_old_one() -> None:
    trainer = Trainer()
    trainer.show(progress=step(9_000))
    assert trainer.for_ms(AFTER_MS + EVERY_MS)

    successor = Trainer()
    assert successor.for_ms(100 * AFTER_MS) == ""


def test_samples_are_a_twentieth_of_the_limit_within_bounds() -> None:
    assert sample_ms(order(0)) == 0
    assert sample_ms(order(60_000)) == 3_000
    assert sample_ms(order(86_400_000)) == 5_000
    assert sample_ms(order(1_000)) == 50
    assert sample_ms(order(86_400_000, 20_000)) == 1_000


# What follows in the daemon.


def hangs(cluster: Cluster, name: str, evidence: str = "no progress for 30 min") -> None:
    cluster.say(ev.TrainerHung(cluster.id(name), evidence), by="executor")


def test_C25_by_default_a_hang_is_told_and_nothing_is_done() -> None:
    cluster = Cluster()
    cluster.run(spec(role("worker", 2), hang=Hang(1_800_000)))

    hangs(cluster, "worker-1")
    cluster.wait(86_400_000)

    assert cluster.newest("worker-1").phase == "Running"
    assert "worker-1 attempt 1 seems to hang: no progress" in cluster.told("TrainerHung")
    assert condition(cluster).status
    assert condition(cluster).message == "worker-1: no progress for 30 min"
    hangs(cluster, "worker-1", "")
    assert not condition(cluster).status
    assert "makes progress again" in cluster.told("TrainerWentOn")
    cluster.check_replay()


def condition(cluster: Cluster) -> Condition:
    document = job_document(cluster.job, cluster.world, at_ms=cluster.now_ms)
    return next(one for one in document.status.conditions if one.type == "Hanging")


def test_C26_a_rule_that_restarts_stops_the_trainer_and_charges_the_application() -> None:
    cluster = Cluster()
    cluster.run(spec(role("worker", 2), hang=Hang(1_800_000, "restart")))

    hangs(cluster, "worker-1")

    stop = cluster.newest("worker-1").stop
    assert stop is not None
    assert (str(stop.reason), stop.text) == ("hung", "no progress for 30 min")
    assert cluster.newest("worker-0").phase == "Running"
    cluster.stop_all()
    assert [str(one.budget) for one in cluster.role().charges] == ["application"]
    cluster.wait(20_000)
    cluster.bring_up()
    assert cluster.newest("worker-1").number == 2
    assert not cluster.newest("worker-1").hang
    assert not condition(cluster).status
    cluster.check_replay()


def test_C26_a_collective_that_hangs_is_one_failure() -> None:
    cluster = Cluster()
    cluster.run(spec(role("worker", 4, unit="role"), hang=Hang(1_800_000, "restart")))

    cluster.say(*(ev.TrainerHung(cluster.id(f"worker-{index}"), "stuck") for index in range(4)))
    cluster.stop_all()

    assert len(cluster.role().charges) == 1
    assert cluster.job.generation == 2
    cluster.wait(20_000)
    cluster.bring_up()
    assert cluster.phase == "Running"


def test_C24_a_hang_of_an_attempt_that_is_over_stops_nobody() -> None:
    cluster = Cluster()
    cluster.run(spec(role(), hang=Hang(1_800_000, "restart")))
    old = cluster.id("worker-0")
    cluster.exit("worker-0", code=1)
    cluster.wait(20_000)
    cluster.bring_up()

    reason = cluster.say(ev.TrainerHung(old, "stuck for 30 min"), by="executor")

    assert reason
    assert cluster.newest("worker-0").phase == "Running"
    assert not cluster.newest("worker-0").hang


def test_C24_what_was_said_before_a_restart_of_the_daemon_is_about_that_attempt_alone() -> None:
    cluster = Cluster()
    cluster.run(spec(role(), hang=Hang(1_800_000, "restart")))
    hangs(cluster, "worker-0")

    cluster.world = cluster.replayed()
    cluster.stop_all()
    cluster.wait(20_000)
    cluster.bring_up()
    cluster.world = cluster.replayed()
    cluster.wait(86_400_000)

    assert cluster.newest("worker-0").phase == "Running"
    assert cluster.newest("worker-0").number == 2
    assert [str(one.budget) for one in cluster.role().charges] == ["application"]


def test_C10_a_trainer_that_hangs_each_time_uses_up_its_budget() -> None:
    cluster = Cluster()
    cluster.submit(spec(role(), hang=Hang(60_000, "restart")))

    while not cluster.job.is_final:
        cluster.bring_up()
        hangs(cluster, "worker-0")
        cluster.stop_all()
        cluster.wait(400_000)

    assert cluster.replica("worker-0").last_number == 4
    assert cluster.job.verdict is not None
    assert "stopped: hung" in cluster.job.verdict.message


def test_a_report_tells_of_a_hang_once_and_once_of_its_end() -> None:
    cluster = Cluster()
    cluster.run()
    trainer = TrainerFact(8, 0, ready=True)

    def said(hang: str) -> list[str]:
        report = Report(1, "running", 1, trainer, None, hang=hang)
        found = proposals(cluster.job, cluster.id("worker-0"), cluster.newest("worker-0"), report)
        for one in found:
            cluster.say(one.event, by=one.by)
        return [one.event.evidence for one in found if isinstance(one.event, ev.TrainerHung)]

    assert said("") == []
    assert said("no progress for 60 s") == ["no progress for 60 s"]
    assert said("no progress for 60 s") == []
    assert said("") == [""]
    assert said("") == []
