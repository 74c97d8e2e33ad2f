"""The page of what this build refuses is made from the table that refuses it."""

from pathlib import Path

import pytest

from primusd.errors import NotYetError
from primusd.jobfile import parse
from primusd.jobfile.notyet import TABLE, not_yet_page

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "not-yet.md"
EVERYTHING = ROOT / "tests" / "golden" / "specs" / "bad" / "not_yet.yaml"


def test_the_page_says_what_the_table_says(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--rewrite"):
        PAGE.write_text(not_yet_page(), encoding="utf-8")

    assert PAGE.read_text(encoding="utf-8") == not_yet_page()


def test_each_row_of_the_table_refuses_something_with_its_sentence() -> None:
    with pytest.raises(NotYetError) as caught:
        parse(EVERYTHING.read_bytes())

    said = {problem.hint for problem in caught.value.errors}
    assert {row.sentence for row in TABLE} <= said
    assert caught.value.code == "NotYet"
