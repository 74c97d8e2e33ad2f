"""What the edges know and the journal does not: progress, use of resources, rates.

Gone after a restart until the next report; alone it never makes a watch event.
"""

from collections.abc import Mapping

from msgspec import Struct

from primusd.datafeed.protocol import FeedReport
from primusd.executor.protocol import Progress
from primusd.job.ids import AttemptId


class LiveUsage(Struct, frozen=True):
    """What an attempt uses, from its last two reports; -1 not known."""

    at_ms: int
    rss_bytes: int
    cpu_milli: int = -1
    net_in_bytes_per_s: int = -1
    net_out_bytes_per_s: int = -1
    gpus: tuple[tuple[str, int, int], ...] = ()
    """Uuid, busy per mille, memory bytes."""


class LiveNode(Struct, frozen=True):
    """What a host reports; -1 not known."""

    at_ms: int
    cpu_percent: int = -1
    memory_free_bytes: int = -1
    disk_free_bytes: int = -1
    net_in_bytes_per_s: int = -1
    net_out_bytes_per_s: int = -1


class LiveWait(Struct, frozen=True):
    """How a trainer and its reader wait for each other, over the last half minute."""

    passed_ms: int
    waited_percent: int
    """The trainer for data."""
    blocked_percent: int
    """The reader for the trainer."""
    rows_per_s: int = 0
    """Taken, waits and all."""
    bytes_per_s: int = 0
    """Read, as rows take them of memory."""


class LivePartition(Struct, frozen=True):
    """How fast a partition grows and is read, in offsets a second; -1 not known yet."""

    produced_per_s: int = -1
    read_per_s: int = -1


class Live(Struct, frozen=True):
    """All live values at one moment."""

    progress: Mapping[AttemptId, Progress] = {}
    usage: Mapping[AttemptId, LiveUsage] = {}
    feeds: Mapping[AttemptId, tuple[FeedReport, ...]] = {}
    nodes: Mapping[str, LiveNode] = {}
    waits: Mapping[tuple[AttemptId, str], LiveWait] = {}
    """By attempt and stream."""
    journal_lag_ms: int = 0
    clock_skew_ms: int = 0
    """By how much the wall clock is ahead of journal time."""
    partitions: Mapping[tuple[str, int], LivePartition] = {}
    """By machine of the stream and number of the unit."""


NOTHING_LIVE = Live()
