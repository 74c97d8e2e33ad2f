"""The closed lists on docs/explain.md are those of the code; no other page has more."""

import re
from pathlib import Path

import pytest

from primusd.job.reasons import QUESTIONS, VERDICTS, WAITING

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "explain.md"
MARK = "<!-- the tables are made from primusd/job/reasons.py: pytest tests/docs --rewrite -->\n"


def tables() -> str:
    """Return the lists as the page has them."""
    parts = []
    for question, reasons in QUESTIONS.items():
        rows = "".join(f"| `{reason}` | {meaning} |\n" for reason, meaning in reasons.items())
        heading = f"{question[0].upper()}{question[1:]}?"
        parts.append(f"\n### {heading}\n| reason | means |\n| --- | --- |\n{rows}")
    return "".join(parts)


def test_the_lists_of_the_page_are_those_of_the_code(request: pytest.FixtureRequest) -> None:
    text, mark, made = PAGE.read_text(encoding="utf-8").partition(MARK)
    assert mark

    if request.config.getoption("--rewrite"):
        PAGE.write_text(text + mark + tables(), encoding="utf-8")
        made = tables()
    assert made == tables(), "mend it with: make docs"


def reasons_of(row: str) -> set[str]:
    page = (DOCS / "api-documents.md").read_text(encoding="utf-8")
    (line,) = [line for line in page.splitlines() if line.startswith(f"| {row} |")]
    return set(re.findall(r"\b[A-Z][a-z]+[A-Za-z]+\b", line.partition("|")[2].partition("|")[2]))


def test_the_page_of_documents_names_every_reason_to_wait() -> None:
    assert reasons_of("`reason` while Queued or Starting") >= set(WAITING)


def test_the_page_of_documents_names_every_reason_of_a_verdict() -> None:
    assert reasons_of("`verdict.reason`") == set(VERDICTS)
