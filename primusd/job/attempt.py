"""One attempt, one event: table 4 of docs/state-machines.md."""

from typing import assert_never

from msgspec import Struct
from msgspec.structs import replace

from primusd.executor.protocol import Exit
from primusd.job import events as ev
from primusd.job.job_tables import check_attempt
from primusd.job.machine import Ignore
from primusd.job.model import Attempt, StopState
from primusd.job.outcome import Evidence, decide, shorten
from primusd.job.phases import AttemptPhase, Cause


class Surroundings(Struct, frozen=True):
    """What of its job an attempt's events are judged with."""

    label: str
    """`worker-3/2`."""
    at_ms: int
    is_ready_at_start: bool
    """The role has no probe."""
    is_job_stopping: bool
    has_moved: bool
    """The replica has moved on: the outcome cannot change any more."""
    memory_bytes: int = 0
    """The limit that the role's spec sets; 0 none."""


def apply(attempt: Attempt, event: ev.AttemptEvent, around: Surroundings) -> Attempt | Ignore:
    """Return the attempt after the event; the same object when nothing changed.

    Raises:
        PhaseConflictError: The cell of table 4 is refused.
    """
    cell = check_attempt(type(event).__name__, attempt.phase, around.label)
    if isinstance(cell, Ignore):
        return cell
    after = _apply(attempt, event, around)
    if cell in {"=", after.phase}:
        if after.phase is attempt.phase:
            return after
        return replace(after, phase_since_ms=around.at_ms)
    raise AssertionError(f"{type(event).__name__} led to {after.phase}, the table says {cell}")


def _apply(attempt: Attempt, event: ev.AttemptEvent, around: Surroundings) -> Attempt:
    """Apply what the launcher says; the executor's words come in `_apply_executor`."""
    match event:
        case ev.AttemptLaunched():
            return _launched(attempt, event, around)
        case ev.AttemptWaiting():
            return replace(attempt, waiting_for=shorten(event.reason))
        case ev.LaunchFailed():
            evidence = Evidence(
                launch_error=event.text or "the launcher failed",
                is_launch_error_permanent=event.is_permanent,
            )
            return _ended(attempt, evidence, around, AttemptPhase.ENDED)
        case ev.AttemptVanished():
            return _vanished(attempt, event, around)
        case ev.StopFailed():
            return _stop_failed(attempt, event, around)
        case ev.PreemptionNoticed():
            return replace(attempt, preemption_ms=max(1, event.left_ms))
        case _:
            return _apply_executor(attempt, event, around)


_ExecutorEvent = (
    ev.ExecutorRegistered
    | ev.ExecutorHolding
    | ev.TrainerStarted
    | ev.TrainerReady
    | ev.TrainerHung
    | ev.TrainerExited
    | ev.ExecutorFellSilent
    | ev.ExecutorReturned
    | ev.ExecutorExpired
)


def _apply_executor(attempt: Attempt, event: _ExecutorEvent, around: Surroundings) -> Attempt:
    match event:
        case ev.ExecutorRegistered():
            return _registered(attempt, event, around)
        case ev.ExecutorHolding():
            return replace(attempt, is_holding=True, ports=event.ports or attempt.ports)
        case ev.TrainerStarted() | ev.TrainerReady():
            return _started(attempt, event, around)
        case ev.TrainerHung():
            since_ms = (attempt.hung_ms or around.at_ms) if event.evidence else 0
            return replace(attempt, hang=shorten(event.evidence), hung_ms=since_ms)
        case ev.TrainerExited():
            return _ended(attempt, Evidence(exit=event.exit), around, AttemptPhase.ENDED)
        case ev.ExecutorExpired():
            return _ended(attempt, Evidence(has_expired=True), around, AttemptPhase.ENDED)
        case ev.ExecutorFellSilent():
            return replace(attempt, is_silent=True, silent_since_ms=around.at_ms)
        case ev.ExecutorReturned():
            return replace(attempt, is_silent=False, silent_since_ms=0)
        case _:
            assert_never(event)


def _launched(attempt: Attempt, event: ev.AttemptLaunched, around: Surroundings) -> Attempt:
    phase = attempt.phase
    if phase is AttemptPhase.REQUESTED:
        phase = AttemptPhase.LAUNCHED
    is_placed_now = attempt.launched_ms == 0 or bool(attempt.waiting_for)
    return replace(
        attempt,
        phase=phase,
        handle=event.handle or attempt.handle,
        launched_ms=around.at_ms if is_placed_now else attempt.launched_ms,
        waiting_for="",
    )


def _registered(attempt: Attempt, event: ev.ExecutorRegistered, around: Surroundings) -> Attempt:
    if attempt.registered_ms:
        return attempt
    is_stopping = attempt.phase is AttemptPhase.STOPPING
    return replace(
        attempt,
        phase=attempt.phase if is_stopping else AttemptPhase.REGISTERED,
        registered_ms=around.at_ms,
        waiting_for="",
        incarnation=event.incarnation,
        host=event.host,
        boot_id=event.boot_id,
        executor_pid=event.pid,
    )


def _started(
    attempt: Attempt, event: ev.TrainerStarted | ev.TrainerReady, around: Surroundings
) -> Attempt:
    is_starting = attempt.phase is AttemptPhase.STARTING
    pid, started_ms = attempt.trainer_pid, attempt.trainer_started_ms
    if isinstance(event, ev.TrainerStarted):
        pid, started_ms = event.pid, event.started_ms
        is_ready = attempt.is_ready or around.is_ready_at_start
    else:
        is_ready = True
    return replace(
        attempt,
        phase=AttemptPhase.RUNNING if is_starting else attempt.phase,
        started_ms=attempt.started_ms or around.at_ms,
        trainer_pid=pid,
        trainer_started_ms=started_ms,
        is_ready=is_ready,
    )


def _ended(
    attempt: Attempt, evidence: Evidence, around: Surroundings, phase: AttemptPhase
) -> Attempt:
    """Return the attempt with its outcome, in Ended or Gone."""
    if attempt.phase is AttemptPhase.STOPPING:
        evidence = replace(evidence, stop=attempt.stop, is_job_stopping=around.is_job_stopping)
    evidence = replace(evidence, memory_bytes=attempt.memory_bytes or around.memory_bytes)
    return replace(
        attempt,
        phase=phase,
        ended_ms=around.at_ms,
        gone_ms=around.at_ms if phase is AttemptPhase.GONE else 0,
        outcome=decide(evidence, at_ms=around.at_ms),
        is_silent=False,
        waiting_for="",
    )


def _vanished(attempt: Attempt, event: ev.AttemptVanished, around: Surroundings) -> Attempt:
    """Nothing of it is left: Gone, with the exit record as the best evidence."""
    memory_bytes = attempt.memory_bytes or around.memory_bytes
    evidence = Evidence(exit=event.exit, word=event.evidence, memory_bytes=memory_bytes)
    if attempt.outcome is None:
        return _ended(attempt, evidence, around, AttemptPhase.GONE)
    outcome = attempt.outcome
    if _decides_after_all(outcome.cause, event.exit, around):
        outcome = decide(evidence, at_ms=outcome.at_ms)
    return replace(
        attempt,
        phase=AttemptPhase.GONE,
        gone_ms=attempt.gone_ms or around.at_ms,
        is_quarantined=False,
        outcome=outcome,
    )


def _decides_after_all(cause: Cause, end: Exit | None, around: Surroundings) -> bool:
    """Return whether a Lost attempt turned out to have ended otherwise.

    A trainer that was stopped because it had been given up did not: why it was lost stays so.
    """
    is_news = end is not None and not end.stop_seen
    return cause is Cause.LOST and is_news and not around.has_moved


def _stop_failed(attempt: Attempt, event: ev.StopFailed, around: Surroundings) -> Attempt:
    """The launcher gave up: Gone, and quarantined until it vanishes after all."""
    if attempt.outcome is None:
        attempt = _ended(attempt, Evidence(), around, AttemptPhase.GONE)
    return replace(
        attempt,
        phase=AttemptPhase.GONE,
        gone_ms=around.at_ms,
        is_quarantined=True,
        was_kill_delivered=event.was_delivered,
    )


def stop(attempt: Attempt, event: ev.StopDecided, around: Surroundings, grace_ms: int) -> Attempt:
    """Return the attempt after StopDecided; one that never was told to start gets no grace.

    Raises:
        PhaseConflictError: It has ended.
    """
    check_attempt("StopDecided", attempt.phase, around.label)
    if attempt.phase is AttemptPhase.STOPPING:
        return attempt
    has_trainer = attempt.phase in (AttemptPhase.STARTING, AttemptPhase.RUNNING)
    return replace(
        attempt,
        phase=AttemptPhase.STOPPING,
        phase_since_ms=around.at_ms,
        stop=StopState(
            event.reason, shorten(event.text), grace_ms if has_trainer else 0, around.at_ms
        ),
    )


def open_gate(attempt: Attempt, around: Surroundings) -> Attempt:
    """Return the attempt after GateOpened.

    Raises:
        PhaseConflictError: It is not Registered.
    """
    check_attempt("GateOpened", attempt.phase, around.label)
    return replace(
        attempt,
        phase=AttemptPhase.STARTING,
        phase_since_ms=around.at_ms,
        opened_ms=around.at_ms,
    )
