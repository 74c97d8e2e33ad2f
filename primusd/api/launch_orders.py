"""The launch order: all that an executor needs to run its trainer, made from the stored spec."""

import signal
from collections.abc import Mapping

from msgspec import Struct

from primusd.compat.environment import original_environment
from primusd.datafeed.drawing import described
from primusd.executor.protocol import FeedPlan, LaunchOrder, Probe, ShippedFile
from primusd.job.environment import environment
from primusd.job.formats import plan_of
from primusd.job.ids import AttemptId
from primusd.job.model import Attempt, Job
from primusd.job.rules import log_patterns
from primusd.job.spec import JobSpec, Reading, RoleSpec, stream_of
from primusd.keys import feed_key

SHELL = ("/bin/sh", "-c")
PROBE_EVERY_MS = 500
ORPHAN_MS = 7 * 86_400_000
DELIVERIES = {"sdk": "socket", "http": "socket", "stdin": "stdin", "fifo": "fifo"}


class OrderSettings(Struct, frozen=True):
    """What orders take from the configuration."""

    cluster: str
    """Its name."""
    version: str
    log_bytes_max: int
    log_files_max: int
    secret: bytes = b""
    """Of the cluster."""


def launch_order(
    job: Job, attempt: AttemptId, found: Attempt, host: str, settings: OrderSettings
) -> LaunchOrder:
    """Return what the executor of an attempt is to run.

    Args:
        job: As it is now.
        attempt: Whose executor asks.
        found: The attempt as it is now.
        host: As its peers call it.
        settings: See OrderSettings.
    """
    spec = job.spec
    role = spec.roles[attempt.role]
    return LaunchOrder(
        job_name=spec.name,
        namespace=spec.namespace,
        command=(*SHELL, role.command) if isinstance(role.command, str) else role.command,
        env=_environment(job, attempt, found, host, settings),
        files=tuple(
            ShippedFile(one.path, one.digest, one.byte_count, one.mode, one.unpack)
            for one in spec.files
        ),
        workdir=role.workdir,
        ports=found.ports,
        stop_signal=signal.Signals[f"SIG{role.stop.signal}"],
        grace_ms=role.stop.grace_ms,
        log_bytes_max=settings.log_bytes_max,
        log_files_max=settings.log_files_max,
        log_patterns=log_patterns(spec, attempt.role),
        ready=None
        if role.ready is None
        else Probe(role.ready.kind, role.ready.value, PROBE_EVERY_MS),
        feeds=tuple(_feed_plan(spec, role, reading) for reading in role.data),
        orphan_ms=ORPHAN_MS,
        hang_ms=spec.hang.after_ms,
        hang_phase_ms=spec.hang.phase_after_ms,
    )


def _environment(
    job: Job, attempt: AttemptId, found: Attempt, host: str, settings: OrderSettings
) -> Mapping[str, str]:
    spec = job.spec
    ports = dict(found.ports)
    extra: Mapping[str, str] = {}
    if spec.original:
        extra = original_environment(spec, attempt.role, attempt.index, ports=ports.values())
    if spec.roles[attempt.role].feed == "http":
        extra = {**extra, "PRIMUS_FEED_KEY": feed_key(settings.secret, job.uid)}
    return environment(
        spec,
        attempt,
        cluster=settings.cluster,
        generation=found.generation,
        host=host,
        ports=ports,
        version=settings.version,
        extra=extra,
        sizes={name: role.size for name, role in job.roles.items()},
    )


def _feed_plan(spec: JobSpec, role: RoleSpec, reading: Reading) -> FeedPlan:
    stream = spec.data[reading.stream]
    return FeedPlan(
        stream=stream_of(role.name, reading),
        delivery=DELIVERIES[role.feed],
        framing="arrow" if DELIVERIES[role.feed] == "socket" else role.framing,
        format={**plan_of(stream), **described(stream)},
        memory_bytes=stream.decoding.memory_bytes,
        promise=stream.delivery,
    )
