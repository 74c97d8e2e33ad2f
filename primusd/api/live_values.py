"""What executors and nodes last said and the journal does not keep: progress, use, feeds."""

from msgspec import Struct

from primusd.clock import Clock
from primusd.datafeed.protocol import FeedReport
from primusd.executor.protocol import Progress, Report, Usage
from primusd.job.ids import AttemptId
from primusd.node.protocol import NodeReport
from primusd.views.live import Live, LiveNode, LiveUsage


class _Seen(Struct, frozen=True):
    """A sample, and when it came."""

    usage: Usage
    at_ms: int
    """Wall clock of this daemon, as documents show it."""
    boot_ms: int


class LiveValues:
    """The newest of each, in memory only."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._progress: dict[AttemptId, Progress] = {}
        self._usage: dict[AttemptId, LiveUsage] = {}
        self._feeds: dict[AttemptId, tuple[FeedReport, ...]] = {}
        self._nodes: dict[str, LiveNode] = {}
        self._seen: dict[AttemptId | str, _Seen] = {}

    def live(self) -> Live:
        """Return all of it as of now."""
        return Live(dict(self._progress), dict(self._usage), dict(self._feeds), dict(self._nodes))

    def reported(self, attempt: AttemptId, report: Report) -> None:
        """Take in what an executor's report says."""
        if report.progress is not None:
            self._progress[attempt] = report.progress
        if report.feeds:
            self._feeds[attempt] = report.feeds
        if report.usage is None:
            return
        rates = self._rates(attempt, report.usage)
        if rates is None:
            return
        seen, cpu_milli, net_in, net_out = rates
        self._usage[attempt] = LiveUsage(
            at_ms=seen.at_ms,
            rss_bytes=report.usage.rss_bytes,
            cpu_milli=cpu_milli,
            net_in_bytes_per_s=net_in,
            net_out_bytes_per_s=net_out,
            gpus=report.usage.gpus,
        )

    def node_reported(self, node: str, report: NodeReport, *, cpu_milli: int) -> None:
        """Take in what a node's report says of its host.

        Args:
            node: Its name.
            report: As it came.
            cpu_milli: What the host has, in thousandths of a core.
        """
        if report.usage is None:
            return
        rates = self._rates(node, report.usage)
        if rates is None:
            return
        seen, used_milli, net_in, net_out = rates
        percent = -1 if used_milli < 0 else min(100, used_milli * 100 // max(1, cpu_milli))
        self._nodes[node] = LiveNode(
            at_ms=seen.at_ms,
            cpu_percent=percent,
            memory_free_bytes=report.memory_free_bytes,
            disk_free_bytes=report.disk_free_bytes,
            net_in_bytes_per_s=net_in,
            net_out_bytes_per_s=net_out,
        )

    def drop(self, key: AttemptId | str) -> None:
        """Forget an attempt, or a node."""
        self._seen.pop(key, None)
        if isinstance(key, str):
            self._nodes.pop(key, None)
            return
        for values in (self._progress, self._usage, self._feeds):
            values.pop(key, None)

    def _rates(self, key: AttemptId | str, usage: Usage) -> tuple[_Seen, int, int, int] | None:
        """Return the sample with processor and network use since the last one; None: a repeat."""
        before = self._seen.get(key)
        if before is not None and before.usage == usage:
            return None
        seen = _Seen(usage, self._clock.wall_ms(), self._clock.boot_ms())
        self._seen[key] = seen
        if before is None or seen.boot_ms <= before.boot_ms:
            return seen, -1, -1, -1
        passed_ms = seen.boot_ms - before.boot_ms
        cpu_milli = max(0, usage.cpu_ms - before.usage.cpu_ms) * 1000 // passed_ms
        return (
            seen,
            cpu_milli,
            _per_s(before.usage.net_in_bytes, usage.net_in_bytes, passed_ms),
            _per_s(before.usage.net_out_bytes, usage.net_out_bytes, passed_ms),
        )


def _per_s(before: int, after: int, passed_ms: int) -> int:
    if before < 0 or after < before:
        return -1
    return (after - before) * 1000 // passed_ms
