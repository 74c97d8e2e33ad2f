"""What a job file says of late files: read, rendered, refused with the place."""

import pytest

from primusd.errors import SpecError
from primusd.job.spec import is_endless
from primusd.jobfile import parse
from primusd.jobfile.rendering import to_yaml

FILE = """
name: late
roles:
  worker: {{command: x, data: clicks, {role}}}
data:
  clicks:
    sources:
      - {{{source}}}
    {stream}
"""
FOLDER = "files: /data/*.parquet"
HOURS = "files: '/data/{{YYYY}}-{{MM}}-{{DD}}/{{HH}}/*', from: 2026-01-01, to: 2026-01-31"
MINUTE_MS = 60_000
DAY_MS = 1_440 * MINUTE_MS


def job(source: str, stream: str = "", role: str = "") -> bytes:
    return FILE.format(source=source, stream=stream, role=role).encode()


@pytest.mark.parametrize(
    ("place", "said", "every_ms", "for_ms"),
    [
        (FOLDER, "10m", 10 * MINUTE_MS, 0),
        (FOLDER, "{every: 1m, for: 6h}", MINUTE_MS, 360 * MINUTE_MS),
        (HOURS, "10m", 10 * MINUTE_MS, DAY_MS),
        (HOURS, "{every: 1h}", 60 * MINUTE_MS, DAY_MS),
        (HOURS, "{every: 1h, for: 2d}", 60 * MINUTE_MS, 2 * DAY_MS),
        (HOURS, "{every: 10s, for: 10s}", 10_000, 10_000),
    ],
)
def test_m077_how_often_and_how_long_comes_back_as_it_was(
    place: str, said: str, every_ms: int, for_ms: int
) -> None:
    spec = parse(job(f"{place}, rescan: {said}")).spec

    source = spec.data["clicks"].sources[0]
    assert (source.rescan_ms, source.rescan_for_ms) == (every_ms, for_ms)
    assert parse(to_yaml(spec).encode()).spec == spec
    assert is_endless(spec.data["clicks"]) == (not for_ms)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (job(f"{FOLDER}, rescan: 1s"), "a duration from 10s to 1d"),
        (job(f"{FOLDER}, rescan: 2d"), "a duration from 10s to 1d"),
        (job(f"{FOLDER}, rescan: often"), "rescan"),
        (job(f"{FOLDER}, rescan: {{for: 6h}}"), "every is missing"),
        (job(f"{FOLDER}, rescan: {{every: 1h, for: 30m}}"), r"1h \(every\) to 3660d"),
        (job(f"{FOLDER}, rescan: {{every: 1h, until: now}}"), "there is no such field"),
        (job(f"{FOLDER}, rescan: 10m", "order: strict", "feed: sdk"), "order: strict deals"),
        (job(f"{FOLDER}, rescan: 10m", "epochs: 2"), "the next pass begins when all is listed"),
        (job(f"{FOLDER}, weight: 2", "rescan: 10m"), "it belongs in an entry of sources"),
        (job("kafka: {bootstrap: [k:9092], topic: t}, rescan: 10m"), "it is of files"),
        (
            job(
                "files: /data/*.txt, rescan: 10m}\n      - {kafka: {bootstrap: [k:9092], topic: t}",
                "format: text",
            ),
            "topics are read behind all files",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(text: bytes, wanted: str) -> None:
    with pytest.raises(SpecError, match=wanted):
        parse(text)


def test_passes_of_late_files_that_have_an_end_are_taken() -> None:
    spec = parse(job(f"{FOLDER}, rescan: {{every: 1h, for: 6h}}", "epochs: 3")).spec

    assert spec.data["clicks"].epochs == 3
