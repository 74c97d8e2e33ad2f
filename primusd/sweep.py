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
    """The strays of the last sweep, for those who ask, and what a person said of them.

    An executor that has seen a later state than this store ever had is *ahead*: the store lost its
    end, or an older copy was restored. Even where an attempt of that number is known here, it is
    not that one: it is left alone until a person adopts or stops it.
    """

    def __init__(self) -> None:
        self._by_launcher: dict[str, tuple[Listed, ...]] = {}
        self._ahead: set[AttemptId] = set()
        self._adopted: set[AttemptId] = set()

    @property
    def ahead(self) -> frozenset[AttemptId]:
        """Attempts whose executors have seen what this store never had."""
        return frozenset(self._ahead)

    def turn_away(self, attempt: AttemptId) -> None:
        """Note an executor that is ahead of this store."""
        self._ahead.add(attempt)

    def take_in(self, attempt: AttemptId) -> None:
        """Leave an executor alone no longer: it was taken, or a person wants it ended."""
        self._ahead.discard(attempt)
        self._adopted.discard(attempt)

    def adopt(self, attempt: AttemptId) -> None:
        """Let an executor in at its next hello, although it is ahead."""
        self._adopted.add(attempt)

    def is_adopted(self, attempt: AttemptId) -> bool:
        """Return whether a person has vouched for an executor that is ahead."""
        return attempt in self._adopted

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


def sort_listed(
    world: World, listed: Iterable[Listed], ahead: frozenset[AttemptId] = frozenset()
) -> Found:
    """Return what is to be done with the attempts of which a back end has a trace.

    Args:
        world: What is known.
        listed: What there is.
        ahead: Attempts that have seen what the world never had: strays, whatever it knows of them.
    """
    stop: list[Listed] = []
    release: list[Listed] = []
    strays: list[Listed] = []
    for one in listed:
        match None if one.attempt in ahead else is_over(world, one.attempt):
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
