"""How an attempt ended, in words and as a document."""

import signal as signals

from msgspec import UNSET

from primusd.job.model import Outcome
from primusd.job.phases import Budget, Cause
from primusd.views.documents import OutcomeStatus


def outcome_words(outcome: Outcome) -> str:  # noqa: C901 - one arm per cause
    """Return what a person would say: `crashed with code 1`."""
    match outcome.cause:
        case Cause.COMPLETED:
            return "completed"
        case Cause.CRASHED if outcome.signal:
            return f"was ended by {signal_name(outcome.signal)}"
        case Cause.CRASHED:
            return f"crashed with code {outcome.exit_code}"
        case Cause.OUT_OF_MEMORY:
            return "ran out of memory"
        case Cause.NODE_LOST:
            return "lost its node"
        case Cause.PREEMPTED:
            return "was preempted"
        case Cause.LOST:
            return "was lost"
        case Cause.LAUNCH_FAILED:
            return "could not be launched"
        case Cause.EXECUTOR_FAILED if outcome.port_taken:
            return f"found its port {outcome.port_taken} taken"
        case Cause.EXECUTOR_FAILED:
            return "failed beside its trainer"
        case Cause.START_FAILED:
            return "could not start its command"
        case Cause.STOPPED:
            reason = f" ({outcome.stop_reason})" if outcome.stop_reason else ""
            return f"was stopped{reason}"


def signal_name(number: int) -> str:
    """Return SIGKILL for 9; a number without a name stays one."""
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"


def outcome_document(outcome: Outcome) -> OutcomeStatus:
    """Return the document of an outcome."""
    return OutcomeStatus(
        cause=outcome.cause.value,
        budget=outcome.budget.value if outcome.budget is not Budget.NONE else UNSET,
        exit_code=UNSET if outcome.exit_code is None else outcome.exit_code,
        signal=UNSET if outcome.signal is None else outcome.signal,
        stop_reason=UNSET if outcome.stop_reason is None else outcome.stop_reason.value,
        oom_kills=outcome.oom_kills,
        peak_rss_bytes=outcome.peak_rss_bytes,
        evidence=outcome.evidence,
        last_line=outcome.last_line,
    )
