"""What executors and nodes last said and the journal does not keep: progress, use, feeds."""

from collections.abc import Mapping
from typing import TypeVar

import structlog
from msgspec import Struct

from primusd.clock import Clock
from primusd.datafeed.protocol import Credential, FeedReport
from primusd.executor.protocol import Progress, Report, Usage
from primusd.job.ids import AttemptId
from primusd.node.protocol import NodeReport
from primusd.views.credentials import ends_soon
from primusd.views.live import Live, LiveNode, LivePartition, LiveUsage, LiveWait

log = structlog.get_logger()

ATTEMPTS_MAX = 20_000
"""Of those that are over the newest are kept: a person still looks at them."""

WAITS_OVER_MS = 30_000
"""Over so long it is said how much of the time a trainer waits for data."""

Key = TypeVar("Key")
Value = TypeVar("Value")


class _Seen(Struct, frozen=True):
    """A sample, and when it came."""

    usage: Usage
    at_ms: int
    """Wall clock of this daemon, as documents show it."""
    boot_ms: int


class _Waits(Struct, frozen=True):
    """Sums over about WAITS_OVER_MS: all of them are halved when they are over more."""

    boot_ms: int
    passed_ms: int = 0
    waited_ms: int = 0
    blocked_ms: int = 0
    rows: int = 0
    bytes_read: int = 0
    before: FeedReport | None = None
    """The newest one, whose sums are those of its reader's whole life."""

    def plus(self, feed: FeedReport, now_ms: int) -> "_Waits":
        """Return the sums with a report that came now."""
        before = self.before or feed
        parts = 2 if self.passed_ms + max(0, now_ms - self.boot_ms) > WAITS_OVER_MS else 1
        return _Waits(
            now_ms,
            (self.passed_ms + max(0, now_ms - self.boot_ms)) // parts,
            (self.waited_ms + feed.waited_ms) // parts,
            (self.blocked_ms + feed.blocked_ms) // parts,
            (self.rows + max(0, feed.rows - before.rows)) // parts,
            (self.bytes_read + max(0, feed.bytes_read - before.bytes_read)) // parts,
            feed,
        )

    def shown(self) -> LiveWait:
        """Return them in percent."""
        return LiveWait(
            self.passed_ms,
            min(100, self.waited_ms * 100 // self.passed_ms),
            min(100, self.blocked_ms * 100 // self.passed_ms),
            self.rows * 1000 // self.passed_ms,
            self.bytes_read * 1000 // self.passed_ms,
        )


class LiveValues:
    """The newest of each, in memory only."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._progress: dict[AttemptId, Progress] = {}
        self._usage: dict[AttemptId, LiveUsage] = {}
        self._feeds: dict[AttemptId, tuple[FeedReport, ...]] = {}
        self._nodes: dict[str, LiveNode] = {}
        self._waits: dict[tuple[AttemptId, str], _Waits] = {}
        self._samples: dict[AttemptId, _Seen] = {}
        self._node_samples: dict[str, _Seen] = {}
        self._partitions: Mapping[tuple[str, int], LivePartition] = {}
        self._warned: dict[Credential, None] = {}

    def live(self) -> Live:
        """Return all of it as of now."""
        return Live(
            dict(self._progress),
            dict(self._usage),
            dict(self._feeds),
            dict(self._nodes),
            {key: one.shown() for key, one in self._waits.items() if one.passed_ms},
            partitions=self._partitions,
        )

    def partitions_measured(self, rates: Mapping[tuple[str, int], LivePartition]) -> None:
        """Take in how fast all partitions grow and are read."""
        self._partitions = rates

    def reported(self, attempt: AttemptId, report: Report) -> None:
        """Take in what an executor's report says."""
        if report.progress is not None:
            _keep(self._progress, attempt, report.progress)
        if report.feeds:
            _keep(self._feeds, attempt, report.feeds)
            self._count_waits(attempt, report.feeds)
            self._warn_of_credentials(attempt, report.feeds)
        if report.usage is None:
            return
        rates = self._rates(self._samples.get(attempt), report.usage)
        if rates is None:
            return
        seen, cpu_milli, net_in, net_out = rates
        _keep(self._samples, attempt, seen)
        usage = LiveUsage(
            at_ms=seen.at_ms,
            rss_bytes=report.usage.rss_bytes,
            cpu_milli=cpu_milli,
            net_in_bytes_per_s=net_in,
            net_out_bytes_per_s=net_out,
            gpus=report.usage.gpus,
        )
        _keep(self._usage, attempt, usage)

    def _count_waits(self, attempt: AttemptId, feeds: tuple[FeedReport, ...]) -> None:
        """Add up what each reader and its trainer waited since the report before."""
        now_ms = self._clock.boot_ms()
        for feed in feeds:
            key = (attempt, feed.stream)
            before = self._waits.get(key)
            began = _Waits(now_ms, before=feed)
            _keep(self._waits, key, began if before is None else before.plus(feed, now_ms))

    def _warn_of_credentials(self, attempt: AttemptId, feeds: tuple[FeedReport, ...]) -> None:
        """Log, once, that what readers show a storage ends soon."""
        now_ms = self._clock.wall_ms()
        for credential in (one for feed in feeds for one in feed.credentials):
            if credential not in self._warned and ends_soon(credential, now_ms):
                _keep(self._warned, credential, None)
                log.warning(
                    "credential.nearly_expired",
                    job=attempt.job,
                    replica=attempt.replica,
                    credential=credential.name,
                    left_ms=credential.expires_ms - now_ms,
                    text=credential.remedy,
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
        rates = self._rates(self._node_samples.get(node), report.usage)
        if rates is None:
            return
        seen, used_milli, net_in, net_out = rates
        self._node_samples[node] = seen
        percent = -1 if used_milli < 0 else min(100, used_milli * 100 // max(1, cpu_milli))
        self._nodes[node] = LiveNode(
            at_ms=seen.at_ms,
            cpu_percent=percent,
            memory_free_bytes=report.memory_free_bytes,
            disk_free_bytes=report.disk_free_bytes,
            net_in_bytes_per_s=net_in,
            net_out_bytes_per_s=net_out,
        )

    def drop_node(self, node: str) -> None:
        """Forget a node that is gone."""
        self._nodes.pop(node, None)
        self._node_samples.pop(node, None)

    def _rates(self, before: _Seen | None, usage: Usage) -> tuple[_Seen, int, int, int] | None:
        """Return the sample with processor and network use since the last one; None: a repeat."""
        if before is not None and before.usage == usage:
            return None
        seen = _Seen(usage, self._clock.wall_ms(), self._clock.boot_ms())
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


def _keep(values: dict[Key, Value], key: Key, value: Value) -> None:
    """Keep a value as the newest, and drop the oldest where there are too many."""
    values.pop(key, None)
    values[key] = value
    if len(values) > ATTEMPTS_MAX:
        del values[next(iter(values))]


def _per_s(before: int, after: int, passed_ms: int) -> int:
    if before < 0 or after < before:
        return -1
    return (after - before) * 1000 // passed_ms
