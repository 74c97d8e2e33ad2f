"""primusd that kills itself with SIGKILL at a journal position.

Usage: python dying_primusd.py before|after REVISION [flags of primusd]

`before`: when it is about to commit the entry; `after`: right after the commit, before anybody is
told.
"""

import os
import signal
import sys

from primusd import daemon, stores
from primusd.records import Entry
from primusd.state.embedded import EmbeddedJournal
from primusd.state.journal import Snapshot

PLACE, REVISION = sys.argv[1], int(sys.argv[2])


class DyingJournal(EmbeddedJournal):
    """The real journal, and a death in it."""

    async def append(
        self, entry: Entry | None, snapshots: tuple[Snapshot, ...] = (), keep_from: int = 0
    ) -> None:
        """Append as the real one does; die at the position."""
        is_it = entry is not None and entry.revision == REVISION
        if is_it and PLACE == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        await super().append(entry, snapshots, keep_from)
        if is_it:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    stores.EmbeddedJournal = DyingJournal  # type: ignore[attr-defined]  # a fault, put where it hurts
    sys.exit(daemon.main(sys.argv[3:]))
