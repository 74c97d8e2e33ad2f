"""Logs of attempts that are over go by age and by size; those of one that lives never do (C72)."""

import os
from pathlib import Path

from primusd.executor.directory import AttemptDirectory, Holder, take_lock
from primusd.node.retention import AttemptLogs, due, find_logs, prune

HOUR_MS = 3_600_000
NOW_MS = 1_900_000_000_000


def attempt(
    state: Path, name: str, *, age_hours: int, byte_count: int = 100, is_released: bool = True
) -> Path:
    """Make what an attempt leaves; `name` is `job/replica/aN`."""
    path = state / "jobs" / name
    path.mkdir(parents=True)
    files = ["stdout.log", *(() if is_released else ("place.json",))]
    written_s = (NOW_MS - age_hours * HOUR_MS) / 1000
    for file in files:
        (path / file).write_bytes(b"x" * byte_count)
        os.utime(path / file, (written_s, written_s))
    os.utime(path, (written_s, written_s))
    return path


def left(state: Path) -> list[str]:
    return sorted(str(path.relative_to(state / "jobs")) for path in state.glob("jobs/*/*/a*"))


def pruned(state: Path, *, keep_hours: int = 24, bytes_max: int = 1 << 30) -> int:
    return prune(state, now_ms=NOW_MS, keep_ms=keep_hours * HOUR_MS, bytes_max=bytes_max)


def test_C72_old_logs_go_and_young_ones_stay(tmp_path: Path) -> None:
    attempt(tmp_path, "j1/worker-0/a1", age_hours=30)
    attempt(tmp_path, "j1/worker-0/a2", age_hours=3)

    assert pruned(tmp_path) == 1

    assert left(tmp_path) == ["j1/worker-0/a2"]


def test_C72_the_oldest_go_until_the_rest_fits(tmp_path: Path) -> None:
    for number in range(1, 6):
        attempt(tmp_path, f"j1/worker-0/a{number}", age_hours=10 - number)

    assert pruned(tmp_path, bytes_max=250) == 3

    assert left(tmp_path) == ["j1/worker-0/a4", "j1/worker-0/a5"]


def test_what_lives_counts_in_the_size_and_stays(tmp_path: Path) -> None:
    attempt(tmp_path, "j1/worker-0/a1", age_hours=50, byte_count=1000, is_released=False)
    locked = attempt(tmp_path, "j1/worker-1/a1", age_hours=50, byte_count=1000)
    lock = take_lock(AttemptDirectory(locked).lock, Holder(os.getpid(), 0, "boot"))
    assert lock is not None
    attempt(tmp_path, "j1/worker-2/a1", age_hours=1)
    try:
        assert pruned(tmp_path, bytes_max=500) == 1
    finally:
        os.close(lock)

    assert left(tmp_path) == ["j1/worker-0/a1", "j1/worker-1/a1"]


def test_folders_of_a_job_go_with_its_last_logs_but_not_with_its_work(tmp_path: Path) -> None:
    attempt(tmp_path, "j1/worker-0/a1", age_hours=30)
    (tmp_path / "jobs/j1/worker-0/work").mkdir()
    attempt(tmp_path, "j2/worker-0/a1", age_hours=30)
    work = tmp_path / "jobs/j2/worker-0/work"
    work.mkdir()
    (work / "model.bin").write_bytes(b"weights")

    assert pruned(tmp_path) == 2

    assert [path.name for path in (tmp_path / "jobs").iterdir()] == ["j2"]
    assert (work / "model.bin").read_bytes() == b"weights"


def test_an_attempt_that_just_begins_is_the_last_to_go() -> None:
    begun = AttemptLogs(Path("new"), NOW_MS, 0, is_over=True)
    old = AttemptLogs(Path("old"), NOW_MS - HOUR_MS, 900, is_over=True)

    assert due([begun, old], now_ms=NOW_MS, keep_ms=HOUR_MS * 9, bytes_max=500) == (Path("old"),)


def test_nothing_is_found_where_no_job_ran(tmp_path: Path) -> None:
    assert list(find_logs(tmp_path)) == []
    assert pruned(tmp_path) == 0
