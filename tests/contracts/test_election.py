"""What every election promises; here the one of a store with one head."""

import fcntl
import os
from pathlib import Path

import anyio
import pytest

from primusd.errors import StateDirectoryInUseError
from primusd.state.directory import EmbeddedElection, take_state_directory
from primusd.state.election import embedded_term


@pytest.mark.parametrize(
    ("last_term", "wall_ms", "term"),
    [(0, 1_700_000_000_999, 1_700_000_000_999), (1_700_000_000, 5_000, 1_700_000_001), (6, 6, 7)],
)
def test_a_term_is_higher_than_any_before_also_when_the_clock_went_back(
    last_term: int, wall_ms: int, term: int
) -> None:
    assert embedded_term(last_term=last_term, wall_ms=wall_ms) == term


def test_who_holds_the_directory_leads_until_it_resigns(tmp_path: Path) -> None:
    async def play() -> None:
        directory = take_state_directory(tmp_path / "state", cluster="default")
        election = EmbeddedElection(directory)

        term = await election.campaign(last_term=41, wall_ms=0)

        assert term == 42
        async with election.held():
            with pytest.raises(StateDirectoryInUseError):
                take_state_directory(tmp_path / "state", cluster="default")
        await election.resign()
        take_state_directory(tmp_path / "state", cluster="default").close()

    anyio.run(play)


def test_the_lock_is_not_inherited_by_what_the_daemon_starts(tmp_path: Path) -> None:
    directory = take_state_directory(tmp_path, cluster="default")
    with (tmp_path / "lock").open() as file:
        inode = os.fstat(file.fileno()).st_ino

    held = [
        int(name)
        for name in os.listdir("/proc/self/fd")  # noqa: PTH208
        if os.path.exists(f"/proc/self/fd/{name}") and os.stat(int(name)).st_ino == inode  # noqa: PTH110,PTH116
    ]

    assert held
    assert all(fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC for fd in held)
    directory.close()
