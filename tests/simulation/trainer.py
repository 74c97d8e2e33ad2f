"""Trainers: what a run does between its start and its end, drawn from the run's own name."""

import random

from msgspec import Struct

from primusd.job.ids import AttemptId


class Act(Struct, frozen=True):
    """What one run of a trainer does, and what goes wrong around it."""

    run_ms: int = 1_000
    """Of work, where it reads no data."""
    code: int | None = 0
    signal: int | None = None
    oom_kills: int = 0
    is_endless: bool = False
    """It works until it is stopped."""
    stop_ms: int = 20
    """From the stop signal to its end; -1 it ends only by the kill."""
    stop_code: int = 0
    """How it ends when it is told to stop."""
    unkillable_ms: int = 0
    """It sits in an uninterruptible call for so long after the kill."""
    prepare_ms: int = 10
    prepare_error: str = ""
    """`portTaken:main`, `files:gone`: the executor's own failure."""
    start_ms: int = 2
    """From the order to the trainer's process."""
    start_errno: int = 0
    ready_ms: int = 0
    """From the start until its probe answers, where it has one; -1 never."""
    dies_with_executor: bool = False
    """The executor is killed by somebody after `run_ms`, and with it all of the attempt."""
    hangs: bool = False
    """It stands still after `run_ms` and says so only through the hang rule."""
    preempted_after_ms: int = 0
    """The host announces that it takes the attempt; 0 never."""
    checkpoint_after_ms: int = 0
    lines: str = ""


TROUBLES: dict[str, Act] = {
    "crash": Act(code=1),
    "late crash": Act(run_ms=90_000, code=3),
    "signal": Act(code=None, signal=11),
    "out of memory": Act(code=None, signal=9, oom_kills=1),
    "not found": Act(start_errno=2),
    "slow to start": Act(start_ms=5_000),
    "never starts": Act(start_ms=90_000),
    "port taken": Act(prepare_error="portTaken:main"),
    "files gone": Act(prepare_error="files:no such blob"),
    "disk full": Act(prepare_error="disk:no space"),
    "slow files": Act(prepare_ms=400_000),
    "deaf": Act(is_endless=True, stop_ms=-1),
    "stuck": Act(is_endless=True, stop_ms=-1, unkillable_ms=200_000),
    "slow to stop": Act(run_ms=20_000, stop_ms=25_000, stop_code=1),
    "executor killed": Act(dies_with_executor=True),
    "hangs": Act(hangs=True),
    "preempted": Act(run_ms=60_000, preempted_after_ms=2_000),
    "never ready": Act(run_ms=600_000, ready_ms=-1),
    "fails when stopped": Act(run_ms=40_000, stop_code=7),
}


def act_of(attempt: AttemptId, seed: int, trouble_share: float, *, is_endless: bool) -> Act:
    """Return what an attempt's run does: the same one in every replay.

    Args:
        attempt: Whose run.
        seed: Of the script.
        trouble_share: How often it does something else than its work.
        is_endless: Its work has no end of its own: it is a helper.
    """
    rnd = random.Random(f"{seed}/{attempt.job}/{attempt.label}")
    if trouble_share and rnd.random() < trouble_share / attempt.attempt:
        return TROUBLES[rnd.choice(tuple(TROUBLES))]
    run_ms = rnd.choice((300, 1_000, 3_000, 8_000))
    return Act(
        run_ms=run_ms,
        is_endless=is_endless,
        ready_ms=rnd.choice((0, 500)),
        checkpoint_after_ms=run_ms // 2 if run_ms > 2_000 else 0,
    )
