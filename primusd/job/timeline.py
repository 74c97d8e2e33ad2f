"""The timeline: one entry per fact that a person would tell a colleague, made from records.

Entries are made when a record is applied, so a replay makes the same ones.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from primusd.job import events as ev
from primusd.job.machine import At
from primusd.job.model import TIMELINE_KEPT, Job, Moment
from primusd.job.telling import Teller, Told
from primusd.job.telling_decided import DECIDED
from primusd.job.telling_heard import HEARD

_TELLERS: Mapping[type, Teller] = {**HEARD, **DECIDED}

TOLD_REASONS = tuple(
    sorted(
        {kind.__name__ for kind in _TELLERS}
        - {"LaunchFailed", "AttemptVanished", "TrainerExited", "ExecutorExpired"}
        | {"AttemptEnded", "QuarantineLifted", "TrainerWentOn"}
    )
)
"""The closed list of `reason` in events."""


def moments(
    before: Job | None, after: Job | None, event: ev.JobEvent, at: At
) -> tuple[Moment, ...]:
    """Return the timeline entries of a record; none when it is no news to a person."""
    teller = _TELLERS.get(type(event))
    if teller is None or after is None:
        return ()
    found: Told | None = teller(before if before is not None else after, after, event)
    if found is None:
        return ()
    level, reason, subject, message, details = found
    return (
        Moment(
            at.revision,
            at.position,
            at.at_ms,
            level,
            reason,
            subject,
            at.by,
            message,
            details,
            f"{at.revision}.{at.cause}" if at.cause >= 0 else "",
        ),
    )


def with_moments(before: Job | None, after: Job, event: ev.JobEvent, at: At) -> Job:
    """Return the job with the record told in its timeline: the newest 200 are kept.

    Of the checkpoints of an attempt, and of the savepoints of a stream, only the newest is: one a
    second would push out all else.
    """
    found = moments(before, after, event, at)
    if not found:
        return after
    kept = after.timeline
    if isinstance(event, ev.CheckpointNoted | ev.SavepointSealed):
        kept = tuple(
            one for one in kept if one.reason != found[0].reason or one.subject != found[0].subject
        )
    return replace(after, timeline=(*kept, *found)[-TIMELINE_KEPT:])
