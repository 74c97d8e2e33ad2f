"""What a person would tell of a stream, kept with it: the newest moments."""

from msgspec.structs import replace

from primusd.datafeed.ledger import events as ev
from primusd.datafeed.ledger.model import Stream, StreamMoment
from primusd.job.events import TimePassed
from primusd.job.machine import At

MOMENTS_MAX = 200
CHANGED_TOLD = 8
BY_ITSELF = "SavepointMade"
"""By the clock or by marks; only the newest is told."""


def with_moments(
    before: Stream, after: Stream, event: ev.StreamEvent | TimePassed, at: At
) -> Stream:
    """Return the stream with what the event was, where somebody would tell it."""
    told = [*_of_event(before, event), *_of_scan(before, event), *_of_change(before, after)]
    if not told:
        return after
    made = [StreamMoment(at.at_ms, at.revision, why, at.by, text) for why, text in told]
    kept = after.moments
    if any(why == BY_ITSELF for why, _ in told):
        # One a minute would push out all else.
        kept = tuple(one for one in kept if one.reason != BY_ITSELF)
    return replace(after, moments=(*kept, *made)[-MOMENTS_MAX:])


def _of_event(before: Stream, event: ev.StreamEvent | TimePassed) -> list[tuple[str, str]]:
    name = type(event).__name__
    match event:
        case ev.TaskSkipRequested():
            return [(name, f"{_place(before, event)} is left out: {event.reason}")]
        case ev.TaskRetryRequested():
            return [(name, f"{_place(before, event)} is to be read again")]
        case ev.PauseRequested():
            return [(name, "paused with its job" if event.for_suspension else "paused")]
        case ev.ResumeRequested():
            return [(name, "goes on with its job" if event.for_suspension else "goes on")]
        case ev.EpochEnded():
            return [(name, f"pass {event.epoch + 1} ended, {event.consumed} taken")]
        case ev.StruckOut():
            where = f"{_place(before, event)} to {event.hi}"
            return [(name, f"{where} is left out: {event.text}")]
        case ev.StreamBroken():
            return [(name, event.text)]
        case ev.StreamEnded():
            return [(name, "read to its end")]
        case ev.PositionsKept():
            return [(name, event.text or "positions are kept for the next job")]
        case _:
            return []


def _of_scan(before: Stream, event: ev.StreamEvent | TimePassed) -> list[tuple[str, str]]:
    """Tell what a look at folders that were listed before has found."""
    scan = event.scan if isinstance(event, ev.UnitsListed) else None
    if scan is None or not isinstance(event, ev.UnitsListed):
        return []
    found = []
    if event.units:
        rest = f" and {len(event.units) - 1} more" if len(event.units) > 1 else ""
        found.append(("FilesCameLate", f"{event.units[0].location}{rest} came late"))
    for one in scan.changed[:CHANGED_TOLD]:
        location = before.units[one.unit].unit.location
        found.append(("FileChanged", f"{location} was changed since it was listed"))
    if (more := len(scan.changed) - CHANGED_TOLD) > 0:
        found.append(("FileChanged", f"{more} more files were changed since they were listed"))
    return found


def _place(
    stream: Stream, event: ev.TaskSkipRequested | ev.TaskRetryRequested | ev.StruckOut
) -> str:
    """Return where a task begins, as people read it."""
    again = f" of pass {event.epoch + 1}" if stream.spec.epochs > 1 else ""
    return f"{stream.units[event.unit].unit.location} from {event.lo}{again}"


def _of_change(before: Stream, after: Stream) -> list[tuple[str, str]]:
    found = []
    if after.savepoints is not before.savepoints:
        known = {one.name for one in before.savepoints}
        found = [
            (
                BY_ITSELF if one.origin in ("mark", "timer") else "SavepointSealed",
                f"savepoint {one.name} at {one.done} taken",
            )
            for one in after.savepoints
            if one.name not in known
        ]
    if after.unsealed != before.unsealed and after.unsealed[1]:
        found.append(("SavepointFailed", f"step {after.unsealed[0]}: {after.unsealed[1]}"))
    if after.awaited_count < before.awaited_count and after.generation == before.generation:
        found += _gone_on_without(before, after)
    if after.must_restore and not before.must_restore:
        lost = "lost a reader" if before.opened_count else "begins anew"
        found.append(("GroupLost", f"the group {lost}, and goes back to a savepoint"))
    if after.generation != before.generation:
        where = after.restored or "its start"
        found.append(("Restored", f"went back to {where}, {after.consumed} taken there"))
    if before.is_carrying and not after.is_carrying:
        count = len(after.carried)
        found.append(("PositionsCarried", f"positions in {count} units came from before"))
    if after.bad_positions > before.bad_positions:
        found.append(("LeftOut", f"{after.bad_positions - before.bad_positions} could not be read"))
    return found


def _gone_on_without(before: Stream, after: Stream) -> list[tuple[str, str]]:
    """Tell whose trainers did not open the stream; steps are whole without them."""
    known = after.readers
    names = sorted(
        one.attempt.label
        for one in before.readers.values()
        if one.is_missed
        and one.attempt in known
        and not known[one.attempt].is_awaited
        and not after.must_restore
    )
    if not names:
        return []
    rest = f" and {len(names) - 8} more" if len(names) > 8 else ""
    who = ", ".join(names[:8]) + rest
    return [("WentOnWithout", f"savepoints are made without {who}: it did not open the stream")]
