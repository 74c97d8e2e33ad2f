"""deadline, maxReplicaHours and checkpoint: their spellings, defaults and bounds."""

import pytest

from primusd.errors import ImmutableFieldError, SpecError
from primusd.job.spec import Checkpoints, JobSpec
from primusd.jobfile import ParseContext, apply_patch, parse_document
from primusd.jobfile.rendering import render

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


def read(**fields: object) -> JobSpec:
    document = {"name": "x", "roles": {"worker": {"command": "true"}}, **fields}
    return parse_document(document, context=ParseContext(base_dir="/data")).spec


def problem(**fields: object) -> tuple[str, str, str]:
    """Return path, found and allowed of the only problem."""
    with pytest.raises(SpecError) as caught:
        read(**fields)
    (one,) = caught.value.errors
    return one.path, one.found, str(one.allowed)


@pytest.mark.parametrize(
    ("written", "after_ms", "warn_ms", "signal"),
    [
        ("24h", 24 * HOUR_MS, 5 * MINUTE_MS, ""),
        ("10m", 10 * MINUTE_MS, MINUTE_MS, ""),
        ({"after": "24h", "warn": "10m"}, 24 * HOUR_MS, 10 * MINUTE_MS, ""),
        ({"after": "1h", "warn": "0s"}, HOUR_MS, 0, ""),
        ({"after": "1h", "signal": "USR1"}, HOUR_MS, 5 * MINUTE_MS, "USR1"),
        ({"after": "1h", "signal": "none"}, HOUR_MS, 5 * MINUTE_MS, ""),
    ],
)
def test_a_deadline_is_read_and_written_again(
    written: object, after_ms: int, warn_ms: int, signal: str
) -> None:
    spec = read(deadline=written)

    assert (spec.deadline_ms, spec.deadline_warn_ms, spec.warn_signal) == (
        after_ms,
        warn_ms,
        signal,
    )
    again = parse_document(render(spec), context=ParseContext(base_dir="/")).spec
    assert again == spec


@pytest.mark.parametrize(
    ("written", "path"),
    [
        ("0s", "deadline"),
        (24, "deadline"),
        ({"warn": "10m"}, "deadline"),
        ({"after": "10m", "warn": "10m"}, "deadline.warn"),
        ({"after": "10m", "signal": "KILL"}, "deadline.signal"),
        ({"after": "10m", "wan": "1m"}, "deadline.wan"),
    ],
)
def test_a_wrong_deadline_is_refused_at_its_place(written: object, path: str) -> None:
    assert problem(deadline=written)[0] == path


@pytest.mark.parametrize(("hours", "ms"), [(48, 48 * HOUR_MS), (0.5, HOUR_MS // 2), (1e-9, 1)])
def test_replica_hours_are_a_number(hours: float, ms: int) -> None:
    spec = read(maxReplicaHours=hours)

    assert spec.max_replica_ms == ms
    assert parse_document(render(spec), context=ParseContext(base_dir="/")).spec == spec


@pytest.mark.parametrize("hours", [0, -1, "48", "48h", True, 10_000_001, None])
def test_wrong_replica_hours_are_refused(hours: object) -> None:
    path, _, allowed = problem(maxReplicaHours=hours)

    assert path == "maxReplicaHours"
    assert allowed == "a number of hours over 0, at most 10000000"


def test_checkpoints_have_a_folder_and_a_number() -> None:
    assert read().checkpoint == Checkpoints("", 3)
    spec = read(checkpoint={"path": "/data/ckpt", "keep": 5})

    assert spec.checkpoint == Checkpoints("/data/ckpt", 5)
    assert parse_document(render(spec), context=ParseContext(base_dir="/")).spec == spec


@pytest.mark.parametrize(
    ("written", "path"),
    [
        ({"path": "ckpt"}, "checkpoint.path"),
        ({"keep": 0}, "checkpoint.keep"),
        ({"keep": 1_001}, "checkpoint.keep"),
        ({"folder": "/x"}, "checkpoint.folder"),
        ("/data", "checkpoint"),
    ],
)
def test_a_wrong_checkpoint_is_refused_at_its_place(written: object, path: str) -> None:
    assert problem(checkpoint=written)[0] == path


def test_limits_can_be_changed_while_the_job_lives_and_the_folder_cannot() -> None:
    before = read(deadline={"after": "1h", "warn": "10m"}, maxReplicaHours=2)

    later = apply_patch(before, {"deadline": {"after": "2h"}, "maxReplicaHours": 4}).spec
    without = apply_patch(before, {"deadline": None, "maxReplicaHours": None}).spec

    assert (later.deadline_ms, later.deadline_warn_ms) == (2 * HOUR_MS, 10 * MINUTE_MS)
    assert later.max_replica_ms == 4 * HOUR_MS
    assert (without.deadline_ms, without.max_replica_ms) == (0, 0)
    with pytest.raises(ImmutableFieldError) as caught:
        apply_patch(before, {"checkpoint": {"path": "/elsewhere"}})
    assert "checkpoint.path" in [one.path for one in caught.value.errors]
