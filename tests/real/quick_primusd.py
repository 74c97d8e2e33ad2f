"""primusd whose lease is shorter than the configuration allows, and whose wall clock can be moved.

Usage: python quick_primusd.py CLOCK [flags of primusd]

CLOCK: a file with the milliseconds to be added to the wall clock; 0 where there is none.
"""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from primusd import daemon
from primusd.clock import SystemClock
from primusd.config import Loaded
from primusd.startup import load_configuration

LEADER_TTL_MS = 3_000


class MovedClock(SystemClock):
    """The clock of this host, and what a test says it is off by."""

    def wall_ms(self) -> int:
        """Return milliseconds since the Unix epoch, as this daemon is to believe."""
        file = Path(sys.argv[1])
        text = file.read_text() if file.exists() else ""
        return super().wall_ms() + int(text or 0)


def with_short_lease(flags: argparse.Namespace, environ: Mapping[str, str]) -> Loaded:
    """Return the configuration in force, but for the lease."""
    loaded = load_configuration(flags, environ)
    etcd = replace(loaded.config.store.etcd, leader_ttl_ms=LEADER_TTL_MS)
    store = replace(loaded.config.store, etcd=etcd)
    return replace(loaded, config=replace(loaded.config, store=store))


if __name__ == "__main__":
    daemon.SystemClock = MovedClock  # type: ignore[attr-defined]  # read at each start
    daemon.load_configuration = with_short_lease  # type: ignore[attr-defined]  # likewise
    sys.exit(daemon.main(sys.argv[2:]))
