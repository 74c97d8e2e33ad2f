"""What launchers have that no plan speaks of: what is over is ended, what is unknown is shown.

Only knowledge kills: an attempt that the store never heard of is a stray, for a person to judge.
"""

from collections.abc import Iterable

from msgspec import Struct

from primusd.core import World
from primusd.job.ids import AttemptId
from primusd.job.model import find_attempt, find_replica
from primusd.job.phases import AttemptPhase
from primusd.launchers.base import Listed

OVER = frozenset({AttemptPhase.ENDED, AttemptPhase.GONE})


class Found(Struct, frozen=True):
    """What one launcher's list comes to."""

    stop: tuple[Listed, ...]
    """Alive, and known to be over."""
    release: tuple[Listed, ...]
    """Dead, and known to be over."""
    strays: tuple[Listed, ...]
    """Of jobs that the store does not know."""


class Stray(Struct, frozen=True):
    """Something that a launcher has and the store does not know."""

    launcher: str
    listed: Listed


class Strays:
    """The strays of the last sweep, for those who ask."""

    def __init__(self) -> None:
        self._by_launcher: dict[str, tuple[Listed, ...]] = {}

    def put(self, launcher: str, listed: tuple[Listed, ...]) -> None:
        """Replace what a launcher's sweep found."""
        self._by_launcher[launcher] = listed

    def all(self) -> tuple[Stray, ...]:
        """Return every stray, by launcher and attempt."""
        return tuple(
            Stray(launcher, one)
            for launcher, some in sorted(self._by_launcher.items())
            for one in sorted(some, key=lambda listed: listed.attempt)
        )


def sort_listed(world: World, listed: Iterable[Listed]) -> Found:
    """Return what is to be done with the attempts of which a back end has a trace."""
    stop: list[Listed] = []
    release: list[Listed] = []
    strays: list[Listed] = []
    for one in listed:
        match is_over(world, one.attempt):
            case None:
                strays.append(one)
            case True:
                (stop if one.is_alive else release).append(one)
            case False:
                pass
    return Found(tuple(stop), tuple(release), tuple(strays))


def is_over(world: World, attempt: AttemptId) -> bool | None:
    """Return whether an attempt is known to be over; None when the store does not know it."""
    job = world.jobs.get(attempt.job)
    if job is None:
        is_buried = attempt.job in world.admission.tombstones
        return True if is_buried else None
    replica = find_replica(job, attempt.role, attempt.index)
    if replica is None or attempt.attempt > replica.last_number:
        return True if job.is_final else None
    if attempt.attempt < replica.last_number:
        return True
    newest = find_attempt(job, attempt)
    return newest is None or newest.phase in OVER or job.is_final
