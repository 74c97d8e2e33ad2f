"""What waits for the next step: groups of proposals, each with someone to answer, or nobody."""

import asyncio
from collections import deque
from collections.abc import Sequence

import anyio

from primusd.core import Answer, Rejected
from primusd.datafeed.ledger.events import BeatReceived
from primusd.errors import PrimusdError, TooManyRequestsError
from primusd.records import Proposal

PROPOSALS_PER_STEP_MAX = 256
PROPOSALS_WAITING_MAX = 50_000
"""10,000 executors that all report at once, five times over; beyond it the proposer hears 429."""
TOLD_WAITING_MAX = 4 * PROPOSALS_WAITING_MAX
"""What edges tell is bounded by what there is to tell; this is for a loop that hangs."""


class Waiting:
    """Proposals that go into one step together, and the place of their answers."""

    def __init__(self, proposals: Sequence[Proposal]) -> None:
        self.proposals = tuple(proposals)
        self.answers: tuple[Answer, ...] = ()
        self._answered: asyncio.Future[None] | None = None

    @property
    def is_beat(self) -> bool:
        """Whether it holds nothing but data beats, which may linger."""
        return all(isinstance(one.event, BeatReceived) for one in self.proposals)

    def answer(self, answers: tuple[Answer, ...]) -> None:
        """Let the proposer go on; the first answer counts."""
        if not self.answers:
            self.answers = answers
            if self._answered is not None and not self._answered.done():
                self._answered.set_result(None)

    def fail(self, error: PrimusdError) -> None:
        """Answer each proposal with the error."""
        self.answer(tuple(Rejected(error) for _ in self.proposals))

    async def wait(self) -> tuple[Answer, ...]:
        """Return the answers once they are there; one coroutine asks."""
        if not self.answers:
            # Of 10,000 that wait each: an event would cost three times as much.
            self._answered = asyncio.get_running_loop().create_future()
            await self._answered
        return self.answers


class Inbox:
    """A bounded queue of what waits."""

    def __init__(self) -> None:
        self._queue: deque[Waiting] = deque()
        self._count = 0
        self._arrived = anyio.Event()

    def put(self, waiting: Waiting, *, count_max: int = PROPOSALS_WAITING_MAX) -> None:
        """Add a group at the end.

        Raises:
            TooManyRequestsError: So much waits already.
        """
        count = len(waiting.proposals)
        assert 0 < count <= PROPOSALS_PER_STEP_MAX
        if self._count + count > count_max:
            raise TooManyRequestsError(
                f"{self._count} proposals wait for the journal already", hint="try again in 1 s"
            )
        self._queue.append(waiting)
        self._count += count
        self._arrived.set()

    def put_back(self, groups: Sequence[Waiting]) -> None:
        """Put groups that were taken in front again, in their order."""
        self._queue.extendleft(reversed(groups))
        self._count += sum(len(group.proposals) for group in groups)
        if groups:
            self._arrived.set()

    def take(self) -> list[Waiting]:
        """Return the next groups, at most PROPOSALS_PER_STEP_MAX proposals; empty: none waits."""
        taken: list[Waiting] = []
        room = PROPOSALS_PER_STEP_MAX
        while self._queue and len(self._queue[0].proposals) <= room:
            group = self._queue.popleft()
            room -= len(group.proposals)
            taken.append(group)
        self._count -= PROPOSALS_PER_STEP_MAX - room
        if not self._queue:
            self._arrived = anyio.Event()
        return taken

    def only_beats(self) -> bool:
        """Whether all that waits may linger."""
        return all(group.is_beat for group in self._queue)

    def fail_all(self, error: PrimusdError) -> None:
        """Answer everything that waits with the error."""
        while self._queue:
            self._queue.popleft().fail(error)
        self._count = 0
        self._arrived = anyio.Event()

    async def wait(self) -> None:
        """Return when something waits."""
        await self._arrived.wait()

    def __len__(self) -> int:
        return self._count
