"""Why an attempt ended: decided once, from evidence, in the order of docs/state-machines.md §4.

A cause is never guessed from a number alone: first whether we stopped it, then the memory counter,
then what the back end knows, then what the executor knows, and only then signal and code.
"""

import signal as signals
from collections.abc import Callable

from msgspec import Struct

from primusd.executor.protocol import Exit
from primusd.job.model import Outcome, StopState
from primusd.job.phases import Budget, Cause, StopReason
from primusd.units import bytes_words

LINE_CHARACTERS_MAX = 240
COMMAND_CODES = frozenset({126, 127})
"""What a shell answers when a command cannot be run or is not found."""
SIGKILL = 9
GLOO_LINE = "terminate called without an active exception"
GLOO_HINT = ", as gloo does now and then when its work is done: see docs/frameworks.md, torch"
"""One process in twenty, seen with torch 2.15.0; the remedy is in how a trainer ends."""
PEAK_PERCENT = 95
"""Of the memory limit: killed after so high a peak, where nobody counts, it is taken for want of
memory."""

CHARGED_STOPS = {
    StopReason.HUNG: Budget.APPLICATION,
    StopReason.NO_REGISTRATION: Budget.INFRASTRUCTURE,
    StopReason.START_TIMEOUT: Budget.INFRASTRUCTURE,
}
LONE_STOPS = {
    StopReason.PLACEMENT: Budget.INFRASTRUCTURE,
    StopReason.PREEMPTED: Budget.INFRASTRUCTURE,
}
"""Charged unless the whole job is being stopped."""
FAULTY_STOPS = frozenset({StopReason.NO_REGISTRATION, StopReason.START_TIMEOUT})


class Evidence(Struct, frozen=True):
    """All that is known of an end."""

    exit: Exit | None = None
    """The exit record; None when there is none."""
    stop: StopState | None = None
    """The stop that was being carried out; None when the phase was not Stopping."""
    is_job_stopping: bool = False
    has_expired: bool = False
    launch_error: str = ""
    """What the launcher said when it failed."""
    is_launch_error_permanent: bool = False
    word: str = ""
    """The launcher's word: `oom`, `nodeLost`, `preempted`, `bootChanged`, `forkFailed:<text>`."""
    memory_bytes: int = 0
    """The attempt's limit; 0 none."""


def decide(evidence: Evidence, *, at_ms: int) -> Outcome:
    """Return the outcome that the evidence proves, by the first rule that applies."""
    for rule in RULES:
        found = rule(evidence)
        if found is not None:
            return _with_evidence(found, evidence, at_ms=at_ms)
    raise AssertionError("the last rule always applies")


def _stopped(evidence: Evidence) -> Outcome | None:
    stop, end = evidence.stop, evidence.exit
    if stop is None:
        return None
    if end is not None and end.code == 0 and not end.stop_seen:
        # It completed before the stop reached it.
        return None
    budget = CHARGED_STOPS.get(stop.reason, Budget.NONE)
    if not evidence.is_job_stopping:
        budget = LONE_STOPS.get(stop.reason, budget)
    return Outcome(
        Cause.STOPPED, budget, stop_reason=stop.reason, is_node_fault=stop.reason in FAULTY_STOPS
    )


def _out_of_memory(evidence: Evidence) -> Outcome | None:
    end = evidence.exit
    if evidence.word == "oom" or (
        end is not None and (end.oom_kills > 0 or _died_full(end, evidence.memory_bytes))
    ):
        return Outcome(Cause.OUT_OF_MEMORY, Budget.APPLICATION)
    return None


def _died_full(end: Exit, limit_bytes: int) -> bool:
    """Return whether a trainer that nobody counted for was killed with its memory used up."""
    if end.oom_kills >= 0 or end.signal != SIGKILL or end.stop_seen or not limit_bytes:
        return False
    return end.peak_rss_bytes * 100 >= limit_bytes * PEAK_PERCENT


def _node_lost(evidence: Evidence) -> Outcome | None:
    if evidence.word in {"nodeLost", "bootChanged", "drained"}:
        return Outcome(
            Cause.NODE_LOST, Budget.INFRASTRUCTURE, is_node_fault=evidence.word != "drained"
        )
    return None


def _preempted(evidence: Evidence) -> Outcome | None:
    if evidence.word == "preempted":
        return Outcome(Cause.PREEMPTED, Budget.INFRASTRUCTURE)
    return None


def _lost(evidence: Evidence) -> Outcome | None:
    has_word = bool(evidence.launch_error or evidence.word.startswith("forkFailed"))
    if evidence.has_expired or (evidence.exit is None and not has_word):
        return Outcome(Cause.LOST, Budget.INFRASTRUCTURE, is_node_fault=True)
    return None


def _launch_failed(evidence: Evidence) -> Outcome | None:
    if evidence.launch_error and evidence.is_launch_error_permanent:
        return Outcome(Cause.LAUNCH_FAILED, Budget.INFRASTRUCTURE, is_permanent=True)
    return None


def _executor_failed(evidence: Evidence) -> Outcome | None:
    end = evidence.exit
    if end is None:
        return Outcome(Cause.EXECUTOR_FAILED, Budget.INFRASTRUCTURE, is_node_fault=True)
    kind, _, rest = end.executor_error.partition(":")
    if kind == "portTaken":
        return Outcome(Cause.EXECUTOR_FAILED, Budget.INFRASTRUCTURE, port_taken=rest or "main")
    is_own = bool(kind or end.stop_seen) or _says_nothing(end)
    if is_own:
        return Outcome(Cause.EXECUTOR_FAILED, Budget.INFRASTRUCTURE, is_node_fault=bool(kind))
    return None


def _says_nothing(end: Exit) -> bool:
    return end.code is None and end.signal is None and end.start_errno is None


def _start_failed(evidence: Evidence) -> Outcome | None:
    end = evidence.exit
    if end is not None and (end.start_errno is not None or end.code in COMMAND_CODES):
        return Outcome(Cause.START_FAILED, Budget.NONE, is_permanent=True)
    return None


def _crashed(evidence: Evidence) -> Outcome | None:
    end = evidence.exit
    if end is not None and (end.signal is not None or end.code != 0):
        return Outcome(Cause.CRASHED, Budget.APPLICATION)
    return None


def _completed(_evidence: Evidence) -> Outcome | None:
    return Outcome(Cause.COMPLETED, Budget.NONE)


RULES: tuple[Callable[[Evidence], Outcome | None], ...] = (
    _stopped,
    _out_of_memory,
    _node_lost,
    _preempted,
    _lost,
    _launch_failed,
    _executor_failed,
    _start_failed,
    _crashed,
    _completed,
)
"""In the order of the page: the first that applies decides."""


def _with_evidence(found: Outcome, evidence: Evidence, *, at_ms: int) -> Outcome:
    """Return the outcome with what it was decided from, as people read it."""
    end = evidence.exit
    if end is None:
        text = evidence.launch_error or evidence.word or "no exit record"
        told = ("its executor fell silent",) if evidence.has_expired else (shorten(text),)
        return Outcome(
            found.cause,
            found.budget,
            stop_reason=found.stop_reason,
            is_permanent=found.is_permanent,
            evidence=(*told, _stop_words(evidence)),
            at_ms=at_ms,
            is_node_fault=found.is_node_fault,
        )
    return Outcome(
        found.cause,
        found.budget,
        exit_code=end.code,
        signal=end.signal,
        stop_reason=found.stop_reason,
        is_permanent=found.is_permanent,
        oom_kills=max(0, end.oom_kills),
        peak_rss_bytes=end.peak_rss_bytes,
        evidence=(
            *_end_words(end, evidence.word),
            *_memory_words(end, evidence.memory_bytes),
            _stop_words(evidence),
        ),
        last_line=last_line(end.last_lines),
        port_taken=found.port_taken,
        at_ms=at_ms,
        is_node_fault=found.is_node_fault,
        matched=end.matched,
    )


def _memory_words(end: Exit, limit_bytes: int) -> tuple[str, ...]:
    if end.oom_kills >= 0:
        return (f"oom_kills {end.oom_kills}",)
    of = f" of {bytes_words(limit_bytes)}" if limit_bytes else ""
    return ("nobody counts oom_kills here", f"peak memory {bytes_words(end.peak_rss_bytes)}{of}")


def _end_words(end: Exit, word: str) -> tuple[str, ...]:
    found: list[str] = []
    if word:
        found.append(shorten(word))
    if end.executor_error:
        found.append(shorten(end.executor_error))
    if end.start_errno is not None:
        found.append(f"errno {end.start_errno}")
    if end.signal is not None:
        found.append(signal_name(end.signal))
    elif end.code is not None:
        found.append(f"exit code {end.code}")
    return tuple(found)


def _stop_words(evidence: Evidence) -> str:
    return f"a stop was asked: {evidence.stop.reason}" if evidence.stop else "no stop was asked"


def signal_name(number: int) -> str:
    """Return `signal 9 (SIGKILL)`."""
    try:
        return f"signal {number} ({signals.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


def shorten(text: str) -> str:
    """Return the text bounded, so that no state grows with what a trainer prints."""
    if len(text) <= LINE_CHARACTERS_MAX:
        return text
    return text[: LINE_CHARACTERS_MAX - 1] + "…"


def last_line(text: str) -> str:
    """Return the last line that is not blank, bounded."""
    lines = [line.strip() for line in text.splitlines()]
    return shorten(next((line for line in reversed(lines) if line), ""))


_WORDS = {
    Cause.OUT_OF_MEMORY: "ran out of memory",
    Cause.NODE_LOST: "was lost with its node",
    Cause.PREEMPTED: "was preempted",
    Cause.LOST: "was lost",
    Cause.LAUNCH_FAILED: "was refused by the launcher: {first}",
    Cause.EXECUTOR_FAILED: "failed before its trainer could run to an end: {first}",
    Cause.START_FAILED: "could not be started: {first}",
    Cause.STOPPED: "was stopped: {reason}",
    Cause.COMPLETED: "completed",
}


def how_it_ended(outcome: Outcome) -> str:
    """Return how an attempt ended, as a part of a sentence: `crashed with code 1`."""
    if outcome.port_taken:
        return f"found its port {outcome.port_taken} taken by a stranger"
    if outcome.cause is Cause.OUT_OF_MEMORY and outcome.peak_rss_bytes:
        return f"ran out of memory at a peak of {bytes_words(outcome.peak_rss_bytes)}"
    if outcome.cause is not Cause.CRASHED:
        first = outcome.evidence[0] if outcome.evidence else "no evidence"
        if outcome.cause is Cause.START_FAILED and outcome.last_line:
            return f"could not be started: {outcome.last_line} ({first})"
        return _WORDS[outcome.cause].format(first=first, reason=outcome.stop_reason)
    if outcome.signal is not None:
        is_gloo = outcome.signal == signals.SIGABRT and outcome.last_line.startswith(GLOO_LINE)
        hint = GLOO_HINT if is_gloo else ""
        return f"crashed by {signal_name(outcome.signal)}{hint}"
    return f"crashed with code {outcome.exit_code}"
