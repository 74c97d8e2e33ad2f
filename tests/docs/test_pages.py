"""The docs hold together: links lead somewhere, pages say what is built, cases name their tests."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from primusd.errors import NotYetError
from primusd.jobfile import ParseContext, parse

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
CASES = DOCS / "cases.md"
PAGES = sorted([*DOCS.glob("*.md"), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md"))])
DESIGN = (
    "architecture", "state-machines", "protocol", "jobspec", "api-cli", "api-documents",
    "config", "state", "datafeed", "launchers", "sdk", "tuning",
)  # fmt: skip

LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
MENTION = re.compile(r"`((?:docs/)?[a-z-]+\.md)`")
CASE_ROW = re.compile(r"^\| ([AC][0-9]+|M[0-9]{3}) \| (.*) \| ?(.*?) ?\|$")
CASE = re.compile(r"(?<![A-Za-z0-9])([AC][0-9]{1,2}|M[0-9]{3})(?![A-Za-z0-9])")
NAME = re.compile(r"\bdef test_(\w+)")
RANGE = re.compile(r"\b([ACM])([0-9]{1,3}) to \1([0-9]{1,3})\b")
DIGITS = {"A": 1, "C": 2, "M": 3}
# What the feed of data promised to hold. M087 is not: the streams of a job are set at submit.
OF_THE_FEED = (
    "A5 to A11, A20 to A28, A37, C48 to C54, C56, C75 to C77, C81, M070 to M086, M088 to M104, "
    "M110 to M125"
)
UNSTYLED = re.compile(r"[^\w\- ]")


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {UNSTYLED.sub("", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    broken = []
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name) if name else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)

    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_page_that_is_named_is_there(page: Path) -> None:
    named = MENTION.findall(page.read_text(encoding="utf-8"))

    missing = [name for name in named if not (DOCS / name).exists() and not (ROOT / name).exists()]
    assert missing == []


@pytest.mark.parametrize("name", DESIGN)
def test_design_pages_say_at_the_top_what_is_built(name: str) -> None:
    top = (DOCS / f"{name}.md").read_text(encoding="utf-8").splitlines()[:25]

    assert any(line.startswith("> **Built so far**") for line in top)


def yaml_blocks(page: Path) -> list[bytes]:
    text = page.read_text(encoding="utf-8")
    return [block.encode() for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", DOCS / "getting-started.md"], ids=lambda page: page.stem
)
def test_the_job_file_of_a_first_page_is_right(page: Path) -> None:
    (block,) = yaml_blocks(page)

    parsed = parse(block, context=ParseContext(base_dir="/home/ann"))

    assert parsed.warnings == ()


def test_the_trainer_of_the_readme_is_the_example() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)

    example = (ROOT / "examples" / "loop" / "train.py").read_text(encoding="utf-8")

    assert example.endswith('"""\n\n' + block)


def test_the_job_file_that_shows_every_field_is_right_but_for_what_has_to_come() -> None:
    (block,) = yaml_blocks(DOCS / "jobspec.md")

    with pytest.raises(NotYetError) as caught:
        parse(block)

    assert {error.path for error in caught.value.errors} >= {"launcher"}


def test_a_readme_fits_on_a_screen() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 80


def numbers(text: str) -> Iterator[str]:
    """Yield the case numbers in a text, ranges written out; C4 and C04 are the same."""
    for letter, first, last in RANGE.findall(text):
        for number in range(int(first), int(last) + 1):
            yield spelled(letter, number)
    words = "_".join(NAME.findall(text)).upper().split("_")
    for found in (*CASE.findall(text), *filter(CASE.fullmatch, words)):
        yield spelled(found[0], int(found[1:]))


def spelled(letter: str, number: int) -> str:
    return f"{letter}{number:0{DIGITS[letter]}}"


def named_by_tests() -> Mapping[str, tuple[str, ...]]:
    """Return the test files that name each case."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if path == Path(__file__):
            continue
        for case in numbers(path.read_text(encoding="utf-8")):
            found[case].add(str(path.relative_to(ROOT / "tests")))
    return {case: tuple(sorted(files)) for case, files in found.items()}


def with_tests(page: str) -> str:
    """Return the page of cases with its last column made from the tests."""
    tests = named_by_tests()
    lines = []
    for line in page.splitlines():
        if row := CASE_ROW.match(line):
            files = ", ".join(f"`{file}`" for file in tests.get(row[1], ()))
            lines.append(f"| {row[1]} | {row[2]} | {files} |")
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def test_each_case_names_the_tests_that_name_it(request: pytest.FixtureRequest) -> None:
    page = CASES.read_text(encoding="utf-8")
    made = with_tests(page)

    if request.config.getoption("--rewrite"):
        CASES.write_text(made, encoding="utf-8")
        page = made
    assert page == made, "mend it with: make docs"


def test_every_listed_case_is_shown_by_a_test() -> None:
    listed = [row[1] for row in map(CASE_ROW.match, CASES.read_text().splitlines()) if row]
    tests = named_by_tests()

    assert len(listed) == len(set(listed))
    assert [case for case in listed if case not in tests] == []


def test_every_case_of_the_feed_is_listed() -> None:
    listed = {row[1] for row in map(CASE_ROW.match, CASES.read_text().splitlines()) if row}

    assert sorted(set(numbers(OF_THE_FEED)) - listed) == []


def test_every_case_that_a_test_names_is_listed() -> None:
    listed = {row[1] for row in map(CASE_ROW.match, CASES.read_text().splitlines()) if row}

    assert sorted(set(named_by_tests()) - listed) == []
