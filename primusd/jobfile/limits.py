"""What bounds a job or keeps its work: deadline, replica hours, checkpoint."""

from msgspec import Struct

from primusd.job.spec import Checkpoints, JobSpec
from primusd.jobfile.section import Section, is_mapping
from primusd.units import format_duration

HOUR_MS = 3_600_000
REPLICA_HOURS_MAX = 10_000_000
WARN_MS = 300_000
"""Unless the file says otherwise; for short deadlines a tenth."""
WARN_SHARE = 10
WARN_SIGNALS = ("HUP", "INT", "USR1", "USR2", "WINCH", "CONT", "none")
KEEP_DEFAULT = 3
KEEP_MAX = 1_000


class Deadline(Struct, frozen=True):
    """When a job is over, and how its trainers hear of it."""

    after_ms: int = 0
    """0 none."""
    warn_ms: int = 0
    signal: str = ""


def read_deadline(section: Section) -> Deadline:
    """Return the deadline of a job: `24h`, or `{after: 24h, warn: 10m, signal: USR1}`."""
    if not is_mapping(section.raw("deadline")):
        after_ms = section.duration_ms("deadline", 0, zero=False)
        return Deadline(after_ms, default_warn_ms(after_ms))
    value = section.raw("deadline")
    found = Section(section.findings, section.at("deadline"), value, ("after", "warn", "signal"))
    after_ms = found.duration_ms("after", 0, zero=False)
    if not found.has("after"):
        found.findings.add(found.path, hint="after is missing: say when, as {after: 24h}")
    warn_ms = found.duration_ms("warn", default_warn_ms(after_ms))
    if after_ms and warn_ms >= after_ms:
        found.wrong("warn", f"less than after, which is {format_duration(after_ms)}")
    signal = found.choice("signal", WARN_SIGNALS, "none")
    return Deadline(after_ms, warn_ms, "" if signal == "none" else signal)


def default_warn_ms(after_ms: int) -> int:
    """Return how long before a deadline trainers are warned where the file says nothing."""
    return min(WARN_MS, after_ms // WARN_SHARE)


def read_replica_hours(section: Section) -> int:
    """Return the milliseconds that all trainers together may take; 0 no limit."""
    value = section.raw("maxReplicaHours")
    if not section.has("maxReplicaHours"):
        return 0
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value <= REPLICA_HOURS_MAX:  # type: ignore[operator] # a number
        section.wrong("maxReplicaHours", f"a number of hours over 0, at most {REPLICA_HOURS_MAX}")
        return 0
    return max(1, round(value * HOUR_MS))  # type: ignore[operator] # a number


def read_checkpoint(section: Section) -> Checkpoints:
    """Return where trainers keep their checkpoints, and how many."""
    if not section.has("checkpoint"):
        return Checkpoints()
    value = section.raw("checkpoint")
    found = Section(section.findings, section.at("checkpoint"), value, ("path", "keep"))
    path = found.text("path")
    if path and not path.startswith("/"):
        found.wrong("path", "an absolute path", "trainers of several nodes have to find it")
    return Checkpoints(path, found.count("keep", KEEP_DEFAULT, low=1, high=KEEP_MAX))


def render_limits(spec: JobSpec) -> dict[str, object]:
    """Return these fields as a job file has them; nothing where they are the default."""
    rendered: dict[str, object] = {}
    if spec.deadline_ms:
        rendered["deadline"] = _deadline(spec)
    if spec.max_replica_ms:
        hours, rest = divmod(spec.max_replica_ms, HOUR_MS)
        rendered["maxReplicaHours"] = spec.max_replica_ms / HOUR_MS if rest else hours
    if spec.checkpoint != Checkpoints():
        path = {"path": spec.checkpoint.path} if spec.checkpoint.path else {}
        rendered["checkpoint"] = {**path, "keep": spec.checkpoint.keep}
    return rendered


def _deadline(spec: JobSpec) -> object:
    after = format_duration(spec.deadline_ms)
    if spec.deadline_warn_ms == default_warn_ms(spec.deadline_ms) and not spec.warn_signal:
        return after
    return {
        "after": after,
        "warn": format_duration(spec.deadline_warn_ms),
        **({"signal": spec.warn_signal} if spec.warn_signal else {}),
    }
