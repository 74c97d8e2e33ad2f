"""How an attempt ended, as a document."""

from msgspec import UNSET

from primusd.job.model import Outcome
from primusd.job.phases import Budget
from primusd.job.rules import rule_label
from primusd.views.documents import OutcomeStatus


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
        rule=rule_label(outcome.rule) if outcome.rule else UNSET,
    )
