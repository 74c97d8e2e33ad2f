"""What belongs to a start and is fetched, made for a cluster once and kept while trainers start."""

from collections import OrderedDict

from primusd.compat.environment import original_maker
from primusd.job.frameworks.cluster import Maker
from primusd.job.model import Job
from primusd.job.peers import members_of
from primusd.job.run_order import peers_of
from primusd.job.start_variables import variables_maker

KEPT_MAX = 8
"""Jobs that start at the same time; a maker of 10,000 replicas holds some megabytes."""


class Documents:
    """Peers documents, those that were asked for last."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], bytes] = OrderedDict()

    def of(self, job: Job) -> bytes:
        """Return the newest peers document of a job as it is given."""
        if job.peers.inline:
            return job.peers.inline
        key = (job.uid, job.peers.digest)
        found = self._kept.pop(key, None)
        # What its digest names, whatever has come and gone since it was made.
        self._kept[key] = found = peers_of(job) if found is None else found
        if len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)
        return found


class Makers:
    """What makes the variables of jobs, those that were asked for last."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self._kept: OrderedDict[tuple[str, str], Maker] = OrderedDict()

    def of(self, job: Job) -> Maker:
        """Return what makes the variables of a job's replicas, by its newest peers document."""
        key = (job.uid, job.peers.digest)
        maker = self._kept.pop(key, None)
        if maker is None:
            original = original_maker if job.spec.original else None
            found = members_of(self._documents.of(job))
            maker = variables_maker(job, found, without_framework=original)
        self._kept[key] = maker
        if len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)
        return maker
