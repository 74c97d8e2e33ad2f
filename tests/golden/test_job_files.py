"""Job files beside what comes of them: the effective spec, or every error (C08, C09, C31, C34)."""

from pathlib import Path

import pytest

from primusd.errors import PrimusdError
from primusd.jobfile import ParseContext, parse, to_yaml

SPECS = Path(__file__).parent / "specs"
CONTEXT = ParseContext(base_dir="/home/ann/job")
GOOD = sorted(path for path in (SPECS / "good").iterdir() if path.suffix != ".out")
BAD = sorted(path for path in (SPECS / "bad").iterdir() if path.suffix != ".out")


def compare(path: Path, text: str, *, rewrite: bool) -> None:
    """Hold a text against the golden file beside a job file, or write that anew."""
    golden = path.with_name(f"{path.name}.out")
    if rewrite:
        golden.write_text(text, encoding="utf-8")
    assert golden.is_file(), f"{golden.name} is missing: run pytest --rewrite and look at it"
    assert text == golden.read_text(encoding="utf-8")


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--rewrite"))


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.name)
def test_a_good_job_file_gives_this_spec(path: Path, *, rewrite: bool) -> None:
    parsed = parse(path.read_bytes(), filename=path.name, context=CONTEXT)

    said = "".join(f"# {warning}\n" for warning in parsed.warnings)
    written = [where for where, origin in parsed.origins.items() if origin != "default"]
    origins = "".join(f"# {where} from {parsed.origins[where]}\n" for where in written)
    compare(path, to_yaml(parsed.spec) + said + origins, rewrite=rewrite)


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.name)
def test_what_is_shown_can_be_submitted_again_unchanged_c34(path: Path) -> None:
    spec = parse(path.read_bytes(), filename=path.name, context=CONTEXT).spec

    again = parse(to_yaml(spec).encode())

    assert again.spec == spec
    assert again.warnings == () or path.name in ("no_effect.yaml", "framework_warnings.yaml")


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.name)
def test_a_bad_job_file_is_refused_with_every_error_at_once_c34(
    path: Path, *, rewrite: bool
) -> None:
    with pytest.raises(PrimusdError) as caught:
        parse(path.read_bytes(), filename=path.name)

    error = caught.value
    lines = [problem.sentence() for problem in error.errors] or [error.message]
    compare(path, f"{error.status} {error.code}\n" + "\n".join(lines) + "\n", rewrite=rewrite)


def test_every_golden_file_has_its_job_file() -> None:
    golden = {path.with_suffix("") for path in SPECS.rglob("*.out")}

    assert golden == {*GOOD, *BAD}
