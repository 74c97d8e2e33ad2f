"""What a job file says of its promises: read, refused at its place, and written again."""

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from primusd.errors import SpecError
from primusd.job.spec import JobSpec, Restore, StreamSpec
from primusd.jobfile import ParseContext, parse
from primusd.jobfile.yamlwriting import write_yaml
from primusd.views.specs import spec_document


def job(stream: str = "", worker: str = "", top: str = "", more: str = "") -> str:
    return f"""
name: job
{top}
roles:
  worker: {{command: x, data: clicks{worker}}}
{more}
data:
  clicks: {{sources: [{{files: /d/a.txt}}]{stream}}}
"""


def read(stream: str = "", **parts: str) -> JobSpec:
    return parse(job(stream, **parts).encode(), context=ParseContext(base_dir="/home/ann")).spec


def clicks(stream: str, **parts: str) -> StreamSpec:
    return read(stream, **parts).data["clicks"]


def refused(stream: str, **parts: str) -> tuple[Mapping[str, str], ...]:
    with pytest.raises(SpecError) as caught:
        read(stream, **parts)
    return tuple({"path": one.path, "sentence": one.sentence()} for one in caught.value.errors)


def test_without_a_word_every_promise_is_the_strict_default() -> None:
    found = clicks("")

    assert (found.delivery, found.on_bad, found.bad_rows, found.bad_ppm) == (
        "atLeastOnce",
        "fail",
        0,
        -1,
    )
    assert (found.savepoint_every_ms, found.savepoints_keep) == (0, 5)
    assert (found.restore, found.staging, found.on_changed) == (None, "", "fail")


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("restore: ctr-daily/daily-0102", Restore("ctr-daily", "", "daily-0102")),
        ("restore: ctr-daily", Restore("ctr-daily", "", "")),
        ("restore: {job: ads/ctr, stream: old}", Restore("ads/ctr", "old", "")),
        ("restore: {file: kept/s.json}", Restore(path="/home/ann/kept/s.json")),
        ("restore: {file: /a/savepoint/default}", Restore(path="/a/savepoint/default")),
    ],
)
def test_where_a_stream_starts(written: str, expected: Restore) -> None:
    """M121."""
    assert clicks(f", {written}").restore == expected


def test_a_staging_folder_keeps_positions_between_jobs() -> None:
    """A8."""
    assert clicks(", staging: state").staging == "/home/ann/state"
    found = clicks(", staging: {path: /keep, changed: anew}")
    assert (found.staging, found.on_changed) == ("/keep", "anew")


def test_savepoints_by_the_clock() -> None:
    found = clicks(", savepoints: {every: 10m, keep: 3}")

    assert (found.savepoint_every_ms, found.savepoints_keep) == (600_000, 3)


def test_a_fraction_alone_puts_no_bound_on_the_number() -> None:
    found = clicks(", onBad: skipRecord, badFraction: 0.001")

    assert (found.bad_ppm, found.bad_rows) == (1_000, -1)
    both = clicks(", onBad: skipRecord, badFraction: 0.001, badRows: 7")
    assert (both.bad_ppm, both.bad_rows) == (1_000, 7)


@pytest.mark.parametrize(
    ("written", "path", "says"),
    [
        ("delivery: twice", "data.clicks.delivery", "exactlyOnce"),
        ("badFraction: 1.5", "data.clicks.badFraction", "from 0 to 1"),
        ("badFraction: half", "data.clicks.badFraction", "from 0 to 1"),
        ("savepoints: {every: 1s}", "data.clicks.savepoints.every", "10s"),
        ("savepoints: {keep: 0}", "data.clicks.savepoints.keep", "1"),
        ("savepoints: {often: yes}", "data.clicks.savepoints.often", "every"),
        ("restore: a/b/c", "data.clicks.restore", "JOB/SAVEPOINT"),
        ("restore: {job: a, file: b}", "data.clicks.restore", "one of them"),
        ("restore: {}", "data.clicks.restore", "one of them"),
        ("restore: {job: a, savepoint: 'b c'}", "data.clicks.restore.savepoint", "savepoint"),
        ("restore: {file: 'hdfs://me:pw@nn/s'}", "data.clicks.restore.file", "without a password"),
        ("staging: 'hdfs:/s'", "data.clicks.staging", "with its host"),
        ("staging: ~/state", "data.clicks.staging", "without ~"),
        ("staging: s, restore: a", "data.clicks.staging", "not both"),
    ],
)
def test_a_mistake_is_told_at_its_place(written: str, path: str, says: str) -> None:
    found = refused(f", {written}")

    assert [one["path"] for one in found] == [path]
    assert says in found[0]["sentence"]


def test_who_reads_exactly_once_restarts_with_its_group() -> None:
    assert read(", delivery: exactlyOnce").roles["worker"].restart.unit == "role"
    shared = read(", delivery: exactlyOnce", more="  chief: {command: x, data: clicks}")
    assert {role.restart.unit for role in shared.roles.values()} == {"job"}
    own = read(
        ", delivery: exactlyOnce",
        more="  evaluator: {command: x, data: {clicks: all}, success: never}",
    )
    assert own.roles["worker"].restart.unit == "role"


def test_who_reads_exactly_once_cannot_restart_alone_or_read_a_pipe() -> None:
    alone = refused(", delivery: exactlyOnce", worker=", restart: {unit: replica}")
    piped = refused(", delivery: exactlyOnce", worker=", feed: stdin")

    assert [one["path"] for one in alone] == ["roles.worker.restart.unit"]
    assert "role, job" in alone[0]["sentence"]
    assert [one["path"] for one in piped] == ["roles.worker.feed"]


def test_the_members_of_a_group_start_together() -> None:
    """No step may be whole before one of them is there."""
    alone = read(", delivery: exactlyOnce")
    shared = read(", delivery: exactlyOnce", more="  chief: {command: x, data: clicks}")
    beside = read(
        ", delivery: exactlyOnce", more="  chief: {command: x, data: clicks}\n  ps: {command: x}"
    )

    assert (alone.policy, alone.roles["worker"].has_minimum) == ("dynamic", True)
    assert (shared.policy, shared.gang_roles) == ("gang", ())
    assert beside.gang_roles == ("worker", "chief")
    assert not read("").roles["worker"].has_minimum


def test_savepoints_of_all_checkpoints_that_are_kept_stay() -> None:
    kept = clicks(", delivery: exactlyOnce", top="checkpoint: {path: /c, keep: 9}")

    assert kept.savepoints_keep == 11


@pytest.mark.parametrize(
    "written",
    [
        "restore: ctr/daily",
        "restore: {file: /s.json, changed: anew}",
        "staging: {path: /keep, changed: anew}",
        "staging: /keep",
        "savepoints: {every: 10m, keep: 3}",
        "onBad: skipRecord, badFraction: 0.25",
        "delivery: atMostOnce",
    ],
)
def test_the_effective_spec_can_be_submitted_again(written: str) -> None:
    spec = read(f", {written}")

    again = parse(write_yaml(spec_document(spec)).encode(), context=ParseContext()).spec

    assert replace(again, after=()) == replace(spec, after=())
