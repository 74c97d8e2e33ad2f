"""The warm copy: the world of a head that stands by, kept up by the code that recovers.

Who takes over with it replays only what was written last.
"""

from collections.abc import Callable

import anyio
import anyio.to_thread
import structlog
from msgspec import Struct

from primusd.admission.usage import book_of
from primusd.core import World
from primusd.errors import NewerSchemaError
from primusd.recovery import Recovered, recover, replayed
from primusd.state.election import Election
from primusd.state.journal import Followed, Loaded, Seen, Written
from primusd.state.schema import check_schema
from primusd.state.snapshots import Snapshots

log = structlog.get_logger()

REFUSED_AGAIN_S = 10.0
"""A store that a newer version wrote is looked at again: it may be put back."""


class TakenOver(Struct, frozen=True):
    """What a leader begins with."""

    world: World
    revision: int
    term: int
    """The highest that ever wrote."""
    wedged: dict[str, str]
    """Jobs that raised, with what was raised."""
    snapshots: Snapshots
    tail: int
    """How many records were replayed after this head was elected."""


class WarmCopy:
    """Follows a journal until this head leads.

    Attributes:
        world: As of `revision`.
        revision: Of the last entry that was told.
        term: The highest that wrote.
        records: How many were replayed since the copy was loaded.
        loads: How often everything was loaded.
        refused: Why this head must not lead; None: it may.
    """

    def __init__(
        self, journal: Followed, tell_ready: Callable[[bool], None] = lambda _is_ready: None
    ) -> None:
        """Copy nothing yet.

        Args:
            journal: Followed by `run`.
            tell_ready: Told whether this head may lead, and again whenever that changes.
        """
        self.world = World()
        self.revision = self.term = self.records = self.loads = 0
        self.refused: NewerSchemaError | None = None
        self._journal = journal
        self._wedged: dict[str, str] = {}
        self._snapshots = Snapshots()
        self._is_here = False
        self._changed = anyio.Event()
        self._tell_ready = tell_ready
        tell_ready(False)  # noqa: FBT003 - its only argument.

    @property
    def may_lead(self) -> bool:
        """Whether there is a copy, of a store that this version can read."""
        return self._is_here and self.refused is None

    def seen(self) -> Seen:
        """Return how far the copy is."""
        return self._journal.seen()

    async def run(self) -> None:
        """Keep the copy until it is taken over, or cancelled."""
        while True:
            try:
                await self._journal.follow(self._load, self._take)
                return
            except NewerSchemaError as error:
                if self.refused is None:
                    log.error("leadership.refused", text=error.message)  # noqa: TRY400 - told.
                self._is_here, self.refused = False, error
                self._tell()
            await anyio.sleep(REFUSED_AGAIN_S)

    async def campaign(self, election: Election, *, wall_ms: int) -> int:
        """Wait until this head leads, and return its term; a store it cannot read, it never does.

        Args:
            election: Taken part in while there is a copy.
            wall_ms: Now.
        """
        while True:
            await self._wait(may_lead=True)
            term = 0
            async with anyio.create_task_group() as group:
                group.start_soon(self._end_unless_it_may_lead, group.cancel_scope)
                term = await election.campaign(last_term=self.term, wall_ms=wall_ms)
                group.cancel_scope.cancel()
            if term:
                return term

    async def _end_unless_it_may_lead(self, campaign: anyio.CancelScope) -> None:
        await self._wait(may_lead=False)
        campaign.cancel()

    async def _wait(self, *, may_lead: bool) -> None:
        while self.may_lead is not may_lead:
            await self._changed.wait()

    async def taken_over(self) -> TakenOver | None:
        """Return, as the leader, the world as of the last entry; None: it has to be loaded.

        Raises:
            NewerSchemaError: A newer version wrote last.
            StoreUnavailableError: The store cannot be read.
        """
        loads, before = self.loads, self.records
        is_whole = await self._journal.caught_up()
        if self.refused is not None:
            raise self.refused
        if not is_whole:
            return None
        tail = self.records - (before if self.loads == loads else 0)
        return TakenOver(self.world, self.revision, self.term, self._wedged, self._snapshots, tail)

    async def _load(self, loaded: Loaded) -> None:
        recovered = await anyio.to_thread.run_sync(_recovered, loaded)
        self.world, self.revision, self.term = recovered.world, loaded.revision, loaded.term
        self._wedged = dict(recovered.wedged)
        self._snapshots = Snapshots.of(
            loaded, uncovered=recovered.uncovered, raw_jobs=recovered.wedged
        )
        self.records = 0
        self.loads += 1
        self._is_here, self.refused = True, None
        self._tell()

    def _take(self, written: Written) -> None:
        for entry in written.entries:
            check_schema(entry.schema)
            raised = len(self._wedged)
            self.world = replayed(self.world, entry, {}, self._wedged)
            if len(self._wedged) > raised:
                self._snapshots.leave_raw(self._wedged)
            self._snapshots.appended(entry)
            self.revision, self.term = entry.revision, entry.term
            self.records += len(entry.records)
        self._snapshots.told(written)
        book_of(self.world.admission.demands)

    def _tell(self) -> None:
        self._tell_ready(self.may_lead)
        self._changed.set()
        self._changed = anyio.Event()


def _recovered(loaded: Loaded) -> Recovered:
    recovered = recover(loaded)
    # What admission decides by is worked out of all demands: it is remembered, and kept up by each
    # entry, so that the first step of a leader finds it.
    book_of(recovered.world.admission.demands)
    return recovered
