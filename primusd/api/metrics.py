"""Figures in Prometheus' text form, made from the state at the moment they are asked for."""

from collections.abc import Iterator, Mapping

from msgspec import UNSET
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from primusd.api.cluster import copy_of
from primusd.api.context import Context
from primusd.api.feed_metrics import stream_metrics
from primusd.job.phases import JobPhase, NodePhase
from primusd.views.counting import count_role

RECENT_JOBS_MAX = 100
"""Live jobs with series of their own; beyond it only the sums are told."""


class _State(Collector):
    """What is so with the daemon's machines."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def collect(self) -> Iterator[Metric]:
        """Yield every figure."""
        engine = self._context.engine
        leads = self._context.is_leader() and engine.term > 0
        yield _one("primus_leads", "Whether this head leads.", leads)
        if not leads:
            yield from self._standing_by()
            return
        yield _one("primus_term", "Of this leadership.", engine.term)
        yield _one("primus_revision", "Of the newest journal entry.", engine.revision)
        yield _one(
            "primus_wedged_machines", "Stopped on a bug.", len(engine.world.admission.wedged)
        )
        yield _one(
            "primus_store_available", "Whether entries can be written.", engine.outage is None
        )
        yield _one(
            "primus_journal_lag_ms",
            "How long it takes until what happens is durable.",
            engine.journal_lag_ms(),
        )
        yield from self._store()
        yield from self._jobs()
        yield from self._nodes()
        yield from self._streams()

    def _standing_by(self) -> Iterator[Metric]:
        """Yield what is so with a head that stands by; figures of jobs are the leader's."""
        copy = copy_of(self._context)
        yield _one("primus_term", "Of this leadership.", self._context.members().term)
        if copy is None:
            return
        yield _one("primus_revision", "Of the newest journal entry.", int(copy.revision))
        yield _one("primus_copy_behind", "Entries that the warm copy lacks.", copy.behind)
        if isinstance(copy.age_ms, int):
            text = "Since the warm copy was last known to be complete."
            yield _one("primus_copy_age_ms", text, copy.age_ms)
        text = "Whether this head must not lead: a newer version wrote the store."
        yield _one("primus_copy_refused", text, copy.refused is not UNSET)

    def _store(self) -> Iterator[Metric]:
        """Yield how full a store is that has a quota."""
        measured = self._context.measured()
        if measured is None:
            return
        yield _one("primus_store_bytes", "Of the largest file of etcd.", measured.byte_count)
        yield _one("primus_store_quota_bytes", "What etcd may take.", measured.quota_byte_count)
        yield _one(
            "primus_store_full", "Whether etcd takes nothing that needs room.", measured.is_full
        )

    def _jobs(self) -> Iterator[Metric]:
        jobs = self._context.engine.world.jobs.values()
        phases = dict.fromkeys((one.value for one in JobPhase), 0)
        for job in jobs:
            phases[job.phase.value] += 1
        yield _by("primus_jobs", "Jobs by phase.", ("phase",), phases)
        replicas = GaugeMetricFamily(
            "primus_replicas",
            "Replicas of live jobs.",
            labels=("namespace", "job", "role", "state"),
        )
        live = [job for job in jobs if not job.is_final][:RECENT_JOBS_MAX]
        for job in live:
            for name, role in job.roles.items():
                counts = count_role(role)
                for state in ("waiting", "delayed", "running", "ready", "completed", "failed"):
                    labels = (job.spec.namespace, job.spec.name, name, state)
                    replicas.add_metric(labels, getattr(counts, state))  # closed list above
        yield replicas

    def _streams(self) -> Iterator[Metric]:
        engine = self._context.engine
        live = [job for job in engine.world.jobs.values() if not job.is_final and job.streams]
        found = (
            (job, stream)
            for job in live[:RECENT_JOBS_MAX]
            for name in job.streams
            if (stream := engine.world.streams.get(f"{job.uid}/{name}")) is not None
        )
        yield from stream_metrics(found, self._context.live(), at_ms=engine.at_ms())

    def _nodes(self) -> Iterator[Metric]:
        phases = dict.fromkeys((one.value for one in NodePhase), 0)
        for node in self._context.engine.world.admission.nodes.values():
            phases[node.phase.value] += 1
        yield _by("primus_nodes", "Nodes by phase.", ("phase",), phases)


def _one(name: str, text: str, value: float) -> Metric:
    family = GaugeMetricFamily(name, text)
    family.add_metric((), value)
    return family


def _by(name: str, text: str, labels: tuple[str], values: Mapping[str, int]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for label, value in values.items():
        family.add_metric((label,), value)
    return family


def metrics_text(context: Context) -> bytes:
    """Return all figures as of now."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_State(context))
    return generate_latest(registry)
