"""Whether a trainer hangs: made progress once, and then none for too long. Pure.

Judged from samples of what the trainer shows, about one a second (docs/jobspec.md, "Hang"). Every
attempt begins with an empty watch, so nothing of an older one is held against it. What is not known
counts for the trainer: before its first progress, while it waits for rows, while it is stopped, and
for the time its host slept, nothing is judged.
"""

from msgspec import Struct
from msgspec.structs import replace

from primusd.executor.protocol import LaunchOrder, Progress
from primusd.job.wording import duration_words

SAMPLES_PER_LIMIT = 20
SAMPLE_MS_MIN = 50
SAMPLE_MS_MAX = 5_000
GAP_MS = 10_000
"""Between two samples so much later than planned: the host slept, or nobody could look."""
BUSY_PER_MILLE = 50
"""Of one processor: who uses more is given twice the time."""
BUSY_FACTOR = 2


class Signs(Struct, frozen=True):
    """What a trainer shows at one moment."""

    progress: Progress | None = None
    """Its newest report."""
    checkpoint_step: int = -1
    phase: str = ""
    taken: int = 0
    """Rows or bytes of its feeds, all together."""
    is_waiting: bool = False
    """For rows that are not there."""
    cpu_ms: int = 0
    """Used so far."""


class Watch(Struct, frozen=True):
    """What is known of a trainer's progress."""

    signs: Signs = Signs()
    is_armed: bool = False
    """It made progress once."""
    moved_ms: int = 0
    """When it last did, or could not."""
    moved_cpu_ms: int = 0
    """Of the processors, by then."""
    looked_ms: int = 0
    evidence: str = ""
    """Of a hang; "" it does not."""


def sample_ms(order: LaunchOrder) -> int:
    """Return how long to wait between two samples; 0: there is nothing to judge."""
    limits = [one for one in (order.hang_ms, order.hang_phase_ms) if one]
    if not order.hang_ms:
        return 0
    return min(SAMPLE_MS_MAX, max(SAMPLE_MS_MIN, min(limits) // SAMPLES_PER_LIMIT))


def look(watch: Watch, signs: Signs, order: LaunchOrder, now_ms: int) -> Watch:
    """Return the watch after one more sample.

    Args:
        watch: After the one before.
        signs: What the trainer shows now.
        order: Has the limits.
        now_ms: Of a clock that never goes back.
    """
    has_moved = _has_moved(watch.signs, signs)
    is_armed = watch.is_armed or _is_first(watch.signs, signs)
    looked = replace(watch, signs=signs, is_armed=is_armed, looked_ms=now_ms)
    slept_ms = now_ms - watch.looked_ms - sample_ms(order)
    if has_moved or signs.is_waiting or not watch.looked_ms:
        return replace(looked, moved_ms=now_ms, moved_cpu_ms=signs.cpu_ms, evidence="")
    if slept_ms > GAP_MS:
        looked = replace(looked, moved_ms=min(now_ms, looked.moved_ms + slept_ms))
    if not is_armed or looked.evidence:
        return looked
    return replace(looked, evidence=_evidence(looked, order, now_ms))


def _is_first(before: Signs, now: Signs) -> bool:
    """Return whether this is what arms the watch: a step was made, by its word or by its rows."""
    has_reported = now.progress is not None and before.progress is None
    return has_reported or now.taken > before.taken or now.checkpoint_step > before.checkpoint_step


def _has_moved(before: Signs, now: Signs) -> bool:
    return (
        _has_stepped(before.progress, now.progress)
        or now.taken > before.taken
        or now.checkpoint_step != before.checkpoint_step
        or now.phase != before.phase
    )


def _has_stepped(before: Progress | None, now: Progress | None) -> bool:
    """Return whether a report says more than the last; one that never names a step always does."""
    if now is None or before is None:
        return now is not before
    if (now.step, now.epoch) == (0, 0):
        return now is not before
    return (now.step, now.epoch) != (before.step, before.epoch)


def _evidence(watch: Watch, order: LaunchOrder, now_ms: int) -> str:
    """Return what proves a hang; "" when nothing does."""
    signs = watch.signs
    limit_ms = order.hang_phase_ms if signs.phase else order.hang_ms
    silent_ms = now_ms - watch.moved_ms
    if not limit_ms or silent_ms < limit_ms:
        return ""
    used_per_mille = max(0, signs.cpu_ms - watch.moved_cpu_ms) * 1000 // silent_ms
    if used_per_mille >= BUSY_PER_MILLE and silent_ms < BUSY_FACTOR * limit_ms:
        return ""
    within = f" in phase {signs.phase}" if signs.phase else ""
    return (
        f"no progress for {duration_words(silent_ms)}{within}; {_last_words(signs)}; "
        f"it used {used_per_mille / 10:g} percent of a processor meanwhile"
    )


def _last_words(signs: Signs) -> str:
    progress = signs.progress
    if progress is None or (progress.step, progress.epoch) == (0, 0):
        return "it reported no step" if progress is None else "its last report named no step"
    of_epoch = f" of epoch {progress.epoch}" if progress.epoch else ""
    return f"its last step was {progress.step}{of_epoch}"
