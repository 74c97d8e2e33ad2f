"""explain: why a job waits, why it restarted, why it ended as it did."""

import click

from primusd.ctl.call import Call, Verb, pass_call, shared_options
from primusd.ctl.client import Json, job_path
from primusd.ctl.documents import count, mapping, mappings, text
from primusd.ctl.output import Printer, local_time, printable, short_duration

_FORMS = ("table", "wide", "json", "yaml")
TROUBLES = ("DataStarved", "CredentialExpires", "JournalBehind", "Hanging", "ClockSkewed")
"""Conditions of a job that waits for nothing and may get nowhere all the same."""


@click.command("explain", cls=Verb)
@click.argument("name")
@shared_options
@pass_call
def explain(call: Call, name: str) -> None:
    """Say why a job waits, why it restarted, and why it ended as it did."""
    printer = call.printer_of(_FORMS)
    namespace, job_name = call.job(name)
    found = call.client.get(job_path(namespace, job_name, "explain"))
    if printer.form in ("json", "yaml"):
        printer.document(found)
        return
    items = mappings(found, "items")
    for explanation in items:
        for line in explanation_lines(printer, explanation):
            printer.line(line)
    job = call.client.get(job_path(namespace, job_name))
    troubles = trouble_lines(mapping(job, "status"))
    if not items and not troubles and not call.is_quiet:
        printer.line(f"{name} waits for nothing, and began no attempt anew")
    for line in troubles:
        printer.line(line)


def trouble_lines(status: Json) -> list[str]:
    """Return what holds of a job although no question asks for it."""
    return [
        printable(f"{text(one, 'type')}: {text(one, 'message')}")
        for one in mappings(status, "conditions")
        if one.get("status") is True and text(one, "type") in TROUBLES
    ]


def explanation_lines(printer: Printer, explanation: Json) -> list[str]:
    """Return an explanation as people read it: question, answer, then what supports it."""
    about = f" ({text(explanation, 'subject')})" if text(explanation, "subject") else ""
    head = f"{text(explanation, 'question')}{about}: {text(explanation, 'reason')}"
    lines = [printer.paint("bold", printable(head)), f"  {printable(text(explanation, 'answer'))}"]
    numbers = mapping(explanation, "numbers")
    if numbers and printer.is_wide:
        lines.append("  " + ", ".join(f"{key} {value}" for key, value in numbers.items()))
    fits = explanation.get("wouldFit")
    if isinstance(fits, list) and fits:
        lines.append(f"  would fit: {printable('; '.join(map(str, fits)))}")
    lines += _estimate(mapping(explanation, "estimate"))
    since = local_time(explanation.get("since"))
    because = explanation.get("because")
    ids = ", ".join(map(str, because)) if isinstance(because, list) else ""
    if since or ids:
        event = f"event {ids}" if ids else ""
        lines.append("  " + ", ".join(filter(None, (f"since {since}" if since else "", event))))
    return lines


def _estimate(estimate: Json) -> list[str]:
    in_ms, error_ms = count(estimate, "inMs"), count(estimate, "errorMs")
    if in_ms is None:
        return []
    near = f" ± {short_duration(error_ms / 1000)}" if error_ms else ""
    return [f"  in about {short_duration(in_ms / 1000)}{near}, from {text(estimate, 'from')}"]


COMMANDS = {"explain": explain}
"""The verb of this module."""
