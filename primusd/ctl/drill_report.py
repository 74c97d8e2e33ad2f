"""What a drill came to: built from documents, one look after the other."""

from datetime import datetime

from primusd.ctl.client import Json
from primusd.ctl.documents import count, mapping, mappings, text

RESUMED, RECOVERED, STARTED_OVER = "Resumed", "Recovered", "StartedOver"
NOT_RECOVERED, JOB_ENDED = "NotRecovered", "JobEnded"
FINAL_PHASES = frozenset({"Succeeded", "Failed", "Cancelled"})


class DrillWatch:
    """Follows a job after a fault until it is known what became of it.

    Attributes:
        is_over: Nothing more is to be learnt.
    """

    def __init__(self, drill: Json) -> None:
        self.is_over = False
        self._drill = drill
        self._targets = {text(one, "replica"): one for one in mappings(drill, "targets")}
        steps = [step for one in self._targets.values() if (step := count(one, "step")) is not None]
        self._step_before = max(steps, default=None)
        self._fault_ms = _ms(drill.get("at"))
        self._back_ms: dict[str, int] = {}
        self._first_steps: dict[str, int] = {}
        self._caught_up_ms = 0
        self._has_restarted = False
        self._repeated: dict[str, int] = {}
        self.units: dict[str, str] = {}
        """Stream to what its positions are: rows or bytes."""
        self._ended = ""
        self._is_running = False

    @property
    def replicas(self) -> tuple[str, ...]:
        """The replicas to look at."""
        return tuple(self._targets)

    def look(self, job: Json, replicas: list[Json]) -> None:
        """Take in how the job and the replicas of the drill are now."""
        status = mapping(job, "status")
        phase = text(status, "phase")
        self._is_running = phase == "Running"
        self._ended = phase if phase in FINAL_PHASES else ""
        self._count_repeats(status)
        for replica in replicas:
            self._look_at(replica)
        has_all = len(self._back_ms) == len(self._targets)
        if self._ended or (has_all and self._is_running and self._knows_steps()):
            self.is_over = True

    def _count_repeats(self, status: Json) -> None:
        before = mapping(self._drill, "repeated")
        for stream, data in mapping(status, "data").items():
            if isinstance(data, dict):
                self.units[stream] = text(data, "unit")
                now = count(data, "repeatedMax") or 0
                self._repeated[stream] = max(0, now - (count(before, stream) or 0))

    def _look_at(self, replica: Json) -> None:
        name = text(replica, "name")
        target, attempts = self._targets.get(name), mappings(replica, "attempts")
        if target is None or not attempts:
            return
        newest = attempts[-1]
        step = count(mapping(replica, "progress"), "step")
        is_newer = (count(newest, "attempt") or 0) > (count(target, "attempt") or 0)
        if is_newer:
            self._has_restarted = True
            self._look_at_next(name, newest, step, mapping(replica, "progress"))
        elif text(self._drill, "fault") == "pause" and not text(replica, "silentSince"):
            self._look_at_paused(name, target, step, mapping(replica, "progress"))

    def _look_at_next(self, name: str, newest: Json, step: int | None, progress: Json) -> None:
        """Take in the attempt after the one that the fault met."""
        is_there = text(newest, "phase") == "Running" and newest.get("ready") is True
        if is_there or text(mapping(newest, "outcome"), "cause") == "Completed":
            self._back_ms.setdefault(name, _ms(newest.get("startedAt")))
        if step is None:
            return
        self._first_steps.setdefault(name, step)
        self._catch_up(step, progress)

    def _look_at_paused(self, name: str, target: Json, step: int | None, progress: Json) -> None:
        """Take in an attempt that was paused: it goes on once it says a further step.

        One that says no steps is taken for going on when its pause is over.
        """
        before, at_ms = count(target, "step"), _ms(progress.get("at"))
        over_ms = self._fault_ms + (count(self._drill, "pauseMs") or 0)
        if before is None or step is None:
            self._back_ms.setdefault(name, over_ms)
        elif step > before and at_ms >= over_ms:
            self._back_ms.setdefault(name, at_ms)
            self._catch_up(step, progress)

    def _catch_up(self, step: int, progress: Json) -> None:
        if self._step_before is not None and step >= self._step_before and not self._caught_up_ms:
            self._caught_up_ms = _ms(progress.get("at"))

    def _knows_steps(self) -> bool:
        """Return whether steps were said again, where they were said before."""
        if self._step_before is None:
            return True
        return bool(self._caught_up_ms) or self.verdict == STARTED_OVER

    @property
    def verdict(self) -> str:
        """What the drill came to, as far as it is known."""
        if self._ended and self._ended != "Succeeded":
            return JOB_ENDED
        if len(self._back_ms) < len(self._targets) and not self._ended:
            return NOT_RECOVERED
        judged = [
            step >= checkpoint
            for name, step in self._first_steps.items()
            if (checkpoint := count(self._targets[name], "checkpointStep")) is not None
        ]
        if not judged:
            return RECOVERED
        return RESUMED if all(judged) else STARTED_OVER

    def report(self) -> Json:
        """Return what is known as a document; what is not is absent."""
        found: Json = {
            "kind": "DrillReport",
            "job": self._drill.get("job"),
            "fault": self._drill.get("fault"),
            "event": self._drill.get("event"),
            "at": self._drill.get("at"),
            "replicas": list(self._targets),
            "verdict": self.verdict,
            "restarted": self._has_restarted,
            "repeated": dict(self._repeated),
        }
        back_ms = max(self._back_ms.values(), default=0)
        if len(self._back_ms) == len(self._targets):
            out_ms = max(0, back_ms - self._fault_ms)
            found["outMs"] = out_ms
            found["lostMs"] = max(out_ms, self._caught_up_ms - self._fault_ms)
        return found | self._steps()

    def _steps(self) -> Json:
        """Return the steps of the replica that lost most of them."""
        known = [
            (before - first, name)
            for name, first in self._first_steps.items()
            if (before := count(self._targets[name], "step")) is not None
        ]
        name = max(known)[1] if known else next(iter(self._targets), "")
        target = self._targets.get(name, {})
        steps = {
            "stepBefore": count(target, "step"),
            "checkpointStep": count(target, "checkpointStep"),
            "firstStep": self._first_steps.get(name),
            "stepsAgain": max(0, max(known)[0]) if known else None,
        }
        return {key: step for key, step in steps.items() if step is not None}


def _ms(at: object) -> int:
    if not isinstance(at, str) or not at:
        return 0
    return int(datetime.fromisoformat(at.replace("Z", "+00:00")).timestamp() * 1000)
