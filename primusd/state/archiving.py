"""What becomes of entries that the journal lets go: history, bounded, with bases to replay from."""

from collections.abc import Mapping, Sequence

import msgspec
import structlog
from msgspec import Struct

from primusd.records import ADMISSION, job_of
from primusd.state.archive import ArchivedEntry, History
from primusd.state.bases import ALL
from primusd.state.snapshots import live_jobs

log = structlog.get_logger()

PRUNE_EVERY_MS = 3_600_000


class ArchiveLimits(Struct, frozen=True):
    """How much of the archive is kept."""

    keep_ms: int = 30 * 86_400_000
    bytes_max: int = 10 << 30


class Archiver:
    """Keeps history for a journal. Its methods block: they run in a worker thread.

    What cannot be written is logged and lost: history is worth less than the journal, which must
    not grow for the lack of it.
    """

    def __init__(self, archive: History, limits: ArchiveLimits) -> None:
        self._archive = archive
        self._limits = limits
        self._pruned_ms = 0

    def archive(self, going: Sequence[ArchivedEntry], *, revision: int, at_ms: int) -> str:
        """Take entries in; return which base is worth keeping now, "" none.

        Args:
            going: In order.
            revision: Newest of the journal.
            at_ms: Journal time of that.
        """
        if not going:
            return ""
        now_ms = going[-1].at_ms
        try:
            self._archive.append(going)
            if now_ms > self._pruned_ms + PRUNE_EVERY_MS:
                self._pruned_ms = now_ms
                self._archive.prune(
                    now_ms=now_ms, keep_ms=self._limits.keep_ms, bytes_max=self._limits.bytes_max
                )
            return self._archive.wants_base(revision=revision, at_ms=max(now_ms, at_ms))
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("archive.write_failed", text=str(error), entries=len(going))
            return ""

    def keep_base(
        self,
        snapshots: Mapping[str, tuple[int, bytes]],
        *,
        kind: str,
        revision: int,
        at_ms: int,
    ) -> None:
        """Copy snapshots for replays: admission's, or those of all that lives.

        Args:
            snapshots: Key to revision covered and body, as the journal has them.
            kind: As `archive` said.
            revision: Newest of the journal.
            at_ms: Journal time of that.
        """
        if ADMISSION not in snapshots:
            return
        parts = {ADMISSION: snapshots[ADMISSION]}
        try:
            if kind == ALL:
                live = live_jobs(snapshots[ADMISSION][1])
                parts |= {
                    key: one
                    for key, one in snapshots.items()
                    if job_of(key.partition("#")[0]) in live
                }
            self._archive.keep_base(parts, kind=kind, revision=revision, at_ms=at_ms)
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("archive.write_failed", text=str(error), entries=0)
