"""How the timeline tells of what a job hears: of people, admission, streams and its attempts."""

from collections.abc import Mapping

from primusd.job import events as ev
from primusd.job.model import Job, find_attempt
from primusd.job.phases import JobPhase, StopReason
from primusd.job.telling import Teller, Told, attempt_words, both, ended, group_lost, told
from primusd.job.wording import (
    duration_words,
    left_out_words,
    missing_words,
    sampled_words,
    span_words,
    unit_words,
)

# Requests.


def _submitted(before: Job, after: Job, event: ev.JobSubmitted) -> Told:
    count = sum(role.size for role in after.roles.values())
    plural = "" if count == 1 else "s"
    message = f"{after.spec.name} was submitted with {count} replica{plural}"
    return told("info", "JobSubmitted", after.spec.name, message, {"replicas": count})


def _cancel_requested(before: Job, after: Job, event: ev.CancelRequested) -> Told:
    why = f": {event.reason}" if event.reason else ""
    return told("info", "CancelRequested", after.spec.name, f"cancelling was asked for{why}")


def _suspend_requested(before: Job, after: Job, event: ev.SuspendRequested) -> Told | None:
    if before.then == "Suspended":
        return None
    why = f": {event.reason}" if event.reason else ""
    return told("info", "SuspendRequested", after.spec.name, f"a pause was asked for{why}")


def _resume_requested(before: Job, after: Job, event: ev.ResumeRequested) -> Told:
    return told("info", "ResumeRequested", after.spec.name, "the pause was ended")


def _restart_requested(before: Job, after: Job, event: ev.RestartRequested) -> Told:
    why = f": {event.reason}" if event.reason else ""
    message = f"a restart of {span_words(event.spans)} was asked for{why}"
    return told("info", "RestartRequested", after.spec.name, message)


def _role_scaled(before: Job, after: Job, event: ev.RoleScaled) -> Told:
    old = before.roles[event.role].size
    message = f"{event.role} goes from {old} to {event.replicas} replicas"
    return told("info", "RoleScaled", event.role, message, {"from": old, "to": event.replicas})


def _spec_patched(before: Job, after: Job, event: ev.SpecPatched) -> Told:
    what = ", ".join(event.changed[:8]) or "the spec"
    message = f"{what} changed, version {after.spec_version}"
    return told("info", "SpecPatched", after.spec.name, message, {"version": after.spec_version})


def _verdict_requested(before: Job, after: Job, event: ev.VerdictRequested) -> Told:
    why = f": {event.reason}" if event.reason else ""
    message = f"a person decided that the job has {event.as_phase.lower()}{why}"
    return told("info", "VerdictRequested", after.spec.name, message)


def _drill_requested(before: Job, after: Job, event: ev.DrillRequested) -> Told:
    subject = span_words(event.spans) if event.spans else after.spec.name
    message = f"a drill was asked for: {event.text}"
    return told("warning", "DrillRequested", subject, message, {"fault": event.fault})


# Admission, streams.


def _admitted(before: Job, after: Job, event: ev.JobAdmitted) -> Told | None:
    if before.phase is not JobPhase.QUEUED:
        return None
    nodes = sorted({place.node for place in event.places})
    where = nodes[0] if len(nodes) == 1 else f"{len(nodes)} nodes"
    waited_ms = after.admitted_ms - after.queued_ms
    after_words = f" after {duration_words(waited_ms)}" if waited_ms >= 1000 else ""
    message = f"slots were granted on {where}{after_words}"
    return told("info", "JobAdmitted", after.spec.name, message, {"waitedMs": waited_ms})


def _refused(before: Job, after: Job, event: ev.JobRefused) -> Told:
    return told("error", "JobRefused", after.spec.name, event.message)


def _evicted(before: Job, after: Job, event: ev.JobEvicted) -> Told:
    return told("warning", "JobEvicted", after.spec.name, event.message)


def _room_made(before: Job, after: Job, event: ev.RoomMade) -> Told:
    return told("info", "RoomMade", after.spec.name, event.message)


def _node_draining(before: Job, after: Job, event: ev.NodeDraining) -> Told:
    if event.is_over:
        return told("info", "NodeDraining", event.node, f"node {event.node} is kept after all")
    at_once = ", all at once" if event.is_now else ""
    message = f"node {event.node} is being emptied{at_once}"
    return told("info", "NodeDraining", event.node, message)


def _slots_stranded(before: Job, after: Job, event: ev.SlotsStranded) -> Told | None:
    count = after.slots_lost - before.slots_lost + len(after.stranded) * event.is_away
    if not count:
        return None
    what = (
        "1 replica that had not begun there goes"
        if count == 1
        else (f"{count} replicas that had not begun there go")
    )
    why = "does not answer" if event.is_away else "is left out for a while"
    message = f"node {event.node} {why}: {what} elsewhere"
    return told("warning", "SlotsStranded", event.node, message, {"replicas": count})


def _moves_decided(before: Job, after: Job, event: ev.MovesDecided) -> Told | None:
    new = [span for span in event.spans if span not in before.moving]
    if not new:
        return None
    nodes = ", ".join(sorted(after.draining_nodes))
    message = f"{span_words(tuple(new))} is to move off {nodes} once it has a place elsewhere"
    return told("info", "MovesDecided", span_words(tuple(new)), message)


def _stream_finished(before: Job, after: Job, event: ev.StreamFinished) -> Told:
    unit = unit_words(after.spec, event.stream)
    left_out = left_out_words(event.skipped, unit, event.unsized)
    more = f", {left_out} were left out" if event.skipped else ""
    more += f", {missing_words(event.missing)}" if event.missing else ""
    more += f", {sampled_words(event.left_out, after.spec, event.stream)}" if event.left_out else ""
    message = f"stream {event.stream} is read to its end: {event.consumed} {unit}{more}"
    details = {"consumed": event.consumed, "skipped": event.skipped}
    return told("info", "StreamFinished", event.stream, message, details)


def _stream_failed(before: Job, after: Job, event: ev.StreamFailed) -> Told:
    message = f"stream {event.stream} failed: {event.message}"
    return told("error", "StreamFailed", event.stream, message)


def _stream_reopened(before: Job, after: Job, event: ev.StreamReopened) -> Told:
    return told("info", "StreamReopened", event.stream, f"stream {event.stream} has work again")


def _savepoint_sealed(before: Job, after: Job, event: ev.SavepointSealed) -> Told:
    message = f"savepoint {event.name} of stream {event.stream} is sealed"
    return told("info", "SavepointSealed", event.stream, message)


# Attempts.


def _launch_failed(before: Job, after: Job, event: ev.LaunchFailed) -> Told | None:
    return ended(before, after, event.attempt)


def _vanished(before: Job, after: Job, event: ev.AttemptVanished) -> Told | None:
    old, new = both(before, after, event.attempt)
    if old is not None and new is not None and old.is_quarantined and not new.is_quarantined:
        message = f"{attempt_words(event.attempt)} is gone after all; its slot is free"
        return told("info", "QuarantineLifted", event.attempt.label, message)
    return ended(before, after, event.attempt)


def _by_end(before: Job, after: Job, event: ev.TrainerExited | ev.ExecutorExpired) -> Told | None:
    return ended(before, after, event.attempt)


def _stop_failed(before: Job, after: Job, event: ev.StopFailed) -> Told:
    old = find_attempt(before, event.attempt)
    if old is not None and old.stop is not None and old.stop.reason is StopReason.NODE_GIVEN_UP:
        message = (
            f"{attempt_words(event.attempt)} is given up; its slot stays taken until {old.node}"
        )
        return told("warning", "StopFailed", event.attempt.label, f"{message} answers")
    what = "took its kill but did not go" if event.was_delivered else "could not be ended"
    message = f"{attempt_words(event.attempt)} {what}; its slot stays taken"
    return told("error", "StopFailed", event.attempt.label, message)


def _preemption_noticed(before: Job, after: Job, event: ev.PreemptionNoticed) -> Told:
    message = f"{attempt_words(event.attempt)} will be taken away in {event.left_ms} ms"
    return told("warning", "PreemptionNoticed", event.attempt.label, message)


def _started(before: Job, after: Job, event: ev.TrainerStarted) -> Told | None:
    """Return that a replica runs again; first starts are told by the gate."""
    if event.attempt.attempt == 1:
        return None
    old, new = both(before, after, event.attempt)
    if new is None or (old is not None and old.started_ms):
        return None
    return told(
        "info", "TrainerStarted", event.attempt.label, f"{attempt_words(event.attempt)} runs"
    )


def _hung(before: Job, after: Job, event: ev.TrainerHung) -> Told:
    if not event.evidence:
        message = f"{attempt_words(event.attempt)} makes progress again"
        return told("info", "TrainerWentOn", event.attempt.label, message)
    message = f"{attempt_words(event.attempt)} seems to hang: {event.evidence}"
    return told("warning", "TrainerHung", event.attempt.label, message)


def _fell_silent(before: Job, after: Job, event: ev.ExecutorFellSilent) -> Told | None:
    old = find_attempt(before, event.attempt)
    if old is not None and old.is_silent:
        return None
    message = f"{attempt_words(event.attempt)} is silent"
    return told("warning", "ExecutorFellSilent", event.attempt.label, message)


def _returned(before: Job, after: Job, event: ev.ExecutorReturned) -> Told | None:
    old = find_attempt(before, event.attempt)
    if old is None or not old.is_silent:
        return None
    message = f"{attempt_words(event.attempt)} is back"
    return told("info", "ExecutorReturned", event.attempt.label, message)


def _checkpoint_noted(before: Job, after: Job, event: ev.CheckpointNoted) -> Told:
    message = f"checkpoint of step {event.step} at {event.path}"
    return told("info", "CheckpointNoted", event.attempt.label, message, {"step": event.step})


HEARD: Mapping[type, Teller] = {
    ev.JobSubmitted: _submitted,
    ev.CancelRequested: _cancel_requested,
    ev.SuspendRequested: _suspend_requested,
    ev.ResumeRequested: _resume_requested,
    ev.RestartRequested: _restart_requested,
    ev.RoleScaled: _role_scaled,
    ev.SpecPatched: _spec_patched,
    ev.VerdictRequested: _verdict_requested,
    ev.DrillRequested: _drill_requested,
    ev.JobAdmitted: _admitted,
    ev.JobRefused: _refused,
    ev.JobEvicted: _evicted,
    ev.RoomMade: _room_made,
    ev.NodeDraining: _node_draining,
    ev.SlotsStranded: _slots_stranded,
    ev.MovesDecided: _moves_decided,
    ev.StreamFinished: _stream_finished,
    ev.StreamFailed: _stream_failed,
    ev.StreamReopened: _stream_reopened,
    ev.SavepointSealed: _savepoint_sealed,
    ev.GroupLeaseLost: group_lost,
    ev.LaunchFailed: _launch_failed,
    ev.AttemptVanished: _vanished,
    ev.StopFailed: _stop_failed,
    ev.PreemptionNoticed: _preemption_noticed,
    ev.TrainerStarted: _started,
    ev.TrainerHung: _hung,
    ev.TrainerExited: _by_end,
    ev.ExecutorExpired: _by_end,
    ev.ExecutorFellSilent: _fell_silent,
    ev.ExecutorReturned: _returned,
    ev.CheckpointNoted: _checkpoint_noted,
}
