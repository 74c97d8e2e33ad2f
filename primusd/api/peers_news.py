"""When executors that were told to start hear of newer peers: the more they are, the more seldom.

Where each replica starts as it comes, every opening of a gate is a new revision of the peers
document. Telling each to all at once would be n² orders and n² fetches for n replicas. So all hear
of the newest at most once in a while that grows with their number; nothing is lost, for each
document holds all that the ones before held.
"""

from collections import OrderedDict
from collections.abc import Iterator

from primusd.executor.protocol import Start
from primusd.job.model import Job, Peers

INTERVAL_MS_PER_REPLICA = 10
"""So at most 100 fetches of a second are due to new peers of one job, however large it is."""
REVISIONS_KEPT_MAX = 1_000
"""Documents that somebody may still be about to fetch, of one job."""


class PeersNews:
    """What the executors of one job are to know of its peers.

    Attributes:
        shown: The revision that each of them is to know at least.
        due_ms: When all are to hear of the newest; 0 they have been told.
    """

    def __init__(self) -> None:
        self.shown = 0
        self.due_ms = 0
        self._newest = 0
        self._shown_ms = 0
        self._published: OrderedDict[str, Job] = OrderedDict()

    def changed(self, before: Job, after: Job, now_ms: int) -> bool:
        """Take new peers; return whether all are to hear of them at once."""
        self._newest = after.peers.revision
        if before.peers.generation != after.peers.generation:
            self.show(now_ms)
            return True
        self._keep(before)
        if not self.due_ms:
            self.due_ms = max(now_ms, self._shown_ms + interval_ms(after))
        return self.is_due(now_ms)

    def is_due(self, now_ms: int) -> bool:
        """Return whether all are to hear of the newest now, and count them as told."""
        if not self.due_ms or now_ms < self.due_ms:
            return False
        self.show(now_ms)
        return True

    def show(self, now_ms: int) -> None:
        """Count all as told of the newest: they are woken now."""
        self.shown, self._shown_ms, self.due_ms = self._newest, now_ms, 0
        self._published.clear()

    def _keep(self, job: Job) -> None:
        self._published[job.peers.digest] = job
        if len(self._published) > REVISIONS_KEPT_MAX:
            self._published.popitem(last=False)

    def published(self, digest: str) -> Job | None:
        """Return the job as it was while a document was its newest, if that is told still."""
        return self._published.get(digest)


class Told:
    """What one executor was told of its peers."""

    def __init__(self) -> None:
        self._start: Start | None = None
        self._revision = 0

    def told(self, start: Start, peers: Peers, news: PeersNews | None) -> Start:
        """Return what it is told now: what it knows already, for as long as that may be."""
        known = self._start
        if (
            news is None
            or known is None
            or known.generation != start.generation
            or self._revision < news.shown
        ):
            self._start, self._revision = start, peers.revision
            return start
        return known

    def forget(self) -> None:
        """Let it be told the newest: the state may have become another one."""
        self._start = None


def interval_ms(job: Job) -> int:
    """Return how seldom the executors of a job hear of new peers of the same generation."""
    return INTERVAL_MS_PER_REPLICA * sum(role.size for role in job.roles.values())


def newest_due_ms(news: Iterator[PeersNews]) -> int:
    """Return when somebody is to hear something next; 0 nobody is."""
    return min((one.due_ms for one in news if one.due_ms), default=0)
