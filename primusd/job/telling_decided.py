"""How the timeline tells of what a job decides by itself: starts, stops, retries, its verdict."""

from collections.abc import Mapping

from primusd.job import events as ev
from primusd.job.budgets import limit_of
from primusd.job.chunks import span_length
from primusd.job.gates import minimum_of
from primusd.job.ids import replica_name, spans
from primusd.job.model import Job, find_replica
from primusd.job.phases import Budget, JobPhase, ReplicaPhase
from primusd.job.telling import Details, Teller, Told, told
from primusd.job.wording import duration_words, span_words
from primusd.units import bytes_words


def _gate_opened(before: Job, after: Job, event: ev.GateOpened) -> Told:
    why = f": {event.why}" if event.why else ""
    message = f"{span_words(event.spans)} may start, generation {after.generation}{why}"
    details = {"replicas": span_length(event.spans), "generation": after.generation}
    return told("info", "GateOpened", after.spec.name, message, details)


def _stop_decided(before: Job, after: Job, event: ev.StopDecided) -> Told:
    why = f": {event.text}" if event.text else ""
    message = f"{span_words(event.spans)} stop ({event.reason}){why}"
    details: Details = {"reason": str(event.reason), "replicas": span_length(event.spans)}
    return told("info", "StopDecided", after.spec.name, message, details)


def _retry_decided(before: Job, after: Job, event: ev.RetryDecided) -> Told:
    replica = find_replica(after, event.role, event.index)
    assert replica is not None, "a retry is decided for a replica there is"
    delay_ms = event.not_before_ms - replica.attempts[-1].ended_ms
    name = replica_name(event.role, event.index)
    when = f"{duration_words(delay_ms)} after its end" if delay_ms > 0 else "at once"
    details = {"delayMs": max(0, delay_ms), "failures": event.failures, **_memory(event)}
    message = f"{name} begins again {when}{_memory_words(event)}"
    return told("info", "RetryDecided", name, message, details)


def _memory(event: ev.RetryDecided | ev.RoleRestarted) -> dict[str, int]:
    return {"memoryBytes": event.memory_bytes} if event.memory_bytes else {}


def _memory_words(event: ev.RetryDecided | ev.RoleRestarted) -> str:
    return f", asking for {bytes_words(event.memory_bytes)}" if event.memory_bytes else ""


def _retries_exhausted(before: Job, after: Job, event: ev.RetriesExhausted) -> Told | None:
    if after.phase is JobPhase.STOPPING:
        # Its end said so, and the verdict after it.
        return None
    name = replica_name(event.role, event.index)
    if event.budget is Budget.NONE:
        message = f"{name} has failed ({event.cause})"
    else:
        limit = limit_of(after, event.role, event.budget)
        message = (
            f"{name} has failed ({event.cause}): the {event.budget} budget of {limit} is used up"
        )
    return told("error", "RetriesExhausted", name, message, {"cause": str(event.cause)})


def _recalled(before: Job, after: Job, event: ev.ReplicaRecalled) -> Told | None:
    """Return that replicas run again which had a result; others are told by what stopped them."""
    back = [
        (span.role, index)
        for span in event.spans
        for index in range(span.low, span.high + 1)
        if _had_result(before, span.role, index)
    ]
    if not back:
        return None
    message = f"{span_words(spans(back))} will run again though it had ended"
    return told("info", "ReplicaRecalled", after.spec.name, message)


def _had_result(job: Job, role: str, index: int) -> bool:
    replica = find_replica(job, role, index)
    return replica is not None and replica.phase in (ReplicaPhase.COMPLETED, ReplicaPhase.FAILED)


def _role_restarted(before: Job, after: Job, event: ev.RoleRestarted) -> Told:
    because = event.why or (f"because of {event.cause.label}" if event.cause else "")
    message = f"{event.role} restarts whole, generation {after.generation}, {because}"
    level = "info" if event.why else "warning"
    details = {"generation": after.generation, **_memory(event)}
    message += _memory_words(event)
    return told(level, "RoleRestarted", event.role, message, details)


def _job_restarted(before: Job, after: Job, event: ev.JobRestarted) -> Told:
    why = f", because of {event.cause.label}" if event.cause else ""
    why = f", {event.why}" if event.why else why
    message = f"all roles restart, generation {after.generation}{why}"
    if event.is_rerun:
        count = f"rerun {after.reruns} of {after.spec.reruns}"
        message = f"a budget is used up{why}; {count}: all roles begin anew with new budgets"
    return told(
        "info" if event.why else "warning",
        "JobRestarted",
        after.spec.name,
        message,
        {"generation": after.generation},
    )


def _gate_reached(before: Job, after: Job, event: ev.GateReached) -> Told:
    waited_ms = after.phase_since_ms - before.phase_since_ms
    there = event.why or "all are there"
    message = f"{there} after {duration_words(waited_ms)}: the job runs"
    return told("info", "GateReached", after.spec.name, message, {"waitedMs": waited_ms})


def _start_timed_out(before: Job, after: Job, event: ev.StartTimedOut) -> Told:
    again = "no try is left"
    if not event.is_exhausted:
        again = f"again in {duration_words(event.not_before_ms - after.phase_since_ms)}"
    message = f"the start did not come about: {event.message}; {again}"
    return told("warning", "StartTimedOut", after.spec.name, message)


def _fell_below(before: Job, after: Job, event: ev.FellBelowMinimum) -> Told:
    need = minimum_of(before, before.roles[event.role])
    message = f"{event.role} has {event.present} of the {need} replicas it needs"
    details = {"present": event.present, "minimum": need}
    return told("warning", "FellBelowMinimum", event.role, message, details)


def _limit_neared(before: Job, after: Job, event: ev.LimitNeared) -> Told:
    what = "the deadline" if event.limit == "deadline" else "the end of the replica hours"
    message = f"{what} is {duration_words(event.left_ms)} away; the trainers are warned"
    return told("warning", "LimitNeared", after.spec.name, message, {"leftMs": event.left_ms})


def _verdict_reached(before: Job, after: Job, event: ev.VerdictReached) -> Told:
    level = "info" if event.as_phase == "Succeeded" else "error"
    message = f"{event.as_phase} ({event.reason}): {event.message}"
    details = {"reason": event.reason, "rule": event.rule}
    return told(level, "VerdictReached", after.spec.name, message, details)


def _drain_ended(before: Job, after: Job, event: ev.DrainEnded) -> Told:
    if event.cut_off:
        message = f"the drain is over; {span_words(event.cut_off)} did not end in time: cut off"
        return told("warning", "DrainEnded", after.spec.name, message)
    return told("info", "DrainEnded", after.spec.name, "all helpers ended by themselves")


def _all_gone(before: Job, after: Job, event: ev.AllGone) -> Told:
    if not after.is_final:
        then = "it is suspended" if after.phase is JobPhase.SUSPENDED else "it waits in the queue"
        message = f"nothing of {after.spec.name} runs any more; {then}"
        return told("info", "AllGone", after.spec.name, message)
    took = duration_words(after.ended_ms - after.created_ms)
    message = f"{after.spec.name} ended after {took}: {after.phase}"
    return told("info", "AllGone", after.spec.name, message, {"phase": str(after.phase)})


DECIDED: Mapping[type, Teller] = {
    ev.GateOpened: _gate_opened,
    ev.StopDecided: _stop_decided,
    ev.RetryDecided: _retry_decided,
    ev.RetriesExhausted: _retries_exhausted,
    ev.ReplicaRecalled: _recalled,
    ev.RoleRestarted: _role_restarted,
    ev.JobRestarted: _job_restarted,
    ev.GateReached: _gate_reached,
    ev.StartTimedOut: _start_timed_out,
    ev.FellBelowMinimum: _fell_below,
    ev.LimitNeared: _limit_neared,
    ev.VerdictReached: _verdict_reached,
    ev.DrainEnded: _drain_ended,
    ev.AllGone: _all_gone,
}
