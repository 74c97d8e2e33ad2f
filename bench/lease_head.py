"""A daemon's side of executors alone, for `bench/lease_wire.py`: engine, journal, their paths.

    python -m bench.lease_head FOLDER READERS

Prints its port and the job's uid and key once a stream is there whose readers may report.
"""

import gc
import logging
import resource
import sys
import time
from pathlib import Path

import anyio
import structlog
from aiohttp import web

from primusd.admission.events import NodeSeen
from primusd.api.executor_routes import add_executor_routes
from primusd.api.executors import ExecutorRegistry
from primusd.api.launch_orders import OrderSettings
from primusd.api.live_values import LiveValues
from primusd.api.log_copies import LogCopies
from primusd.clock import SystemClock
from primusd.datafeed.ledger.events import UnitsListed
from primusd.datafeed.protocol import Unit
from primusd.engine import Engine, EngineSettings
from primusd.imports import GARBAGE_THRESHOLDS
from primusd.job.events import AttemptLaunched, JobSubmitted
from primusd.job.ids import AttemptId, make_uid
from primusd.job.spec import JobSpec, Reading, RoleSpec, Source, Split, StreamSpec
from primusd.keys import job_key
from primusd.liveness import Liveness
from primusd.records import ADMISSION, Proposal
from primusd.state.embedded import EmbeddedJournal
from primusd.sweep import Strays
from primusd.testing import SoleElection

CLUSTER = "bench"
SECRET = b"s" * 32
STREAM = "clicks"
UNIT_BYTES = 1 << 30
SPLIT_BYTES = 16 << 20
UNITS = 1_000
AT_ONCE = 200


async def main(folder: Path, readers: int) -> None:
    """Serve until killed."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    allow_connections()
    gc.freeze()
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    journal = EmbeddedJournal(folder / "journal.db")
    clock = SystemClock()
    engine = Engine(
        journal, SoleElection(), clock, settings=EngineSettings(cluster_id=CLUSTER, version="0.1.0")
    )
    registry = ExecutorRegistry(
        engine,
        Liveness(engine, clock),
        LiveValues(clock),
        cluster_id=CLUSTER,
        secret=SECRET,
        heads=lambda: (),
        settings=lambda: OrderSettings("default", "0.1.0", 1 << 20, 3),
        copies=LogCopies(folder, within_s=1.0),
        strays=Strays(),
    )
    app = web.Application()
    add_executor_routes(app, registry)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    async with anyio.create_task_group() as tasks:
        await tasks.start(engine.run)
        tasks.start_soon(registry.run)
        uid = await _submit(engine, readers)
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=4096)
        await site.start()
        print(runner.addresses[0][1], uid, job_key(SECRET, uid), flush=True)


def allow_connections() -> None:
    """Let this process have as many connections as it may."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _submit(engine: Engine, readers: int) -> str:
    node = NodeSeen("n1", "local", "boot-1", "0.1.0", 10**9, 1 << 60, 0, 20_000, 59_999)
    await engine.propose(ADMISSION, node, by="launcher:local")
    uid = make_uid(int(time.time() * 1000), 1)
    role = RoleSpec("worker", readers, readers, "true", data=(Reading(STREAM),))
    stream = StreamSpec(
        STREAM, (Source("/data"),), split=Split(byte_count=SPLIT_BYTES), epochs=1_000
    )
    spec = JobSpec("bench", {"worker": role}, data={STREAM: stream})
    await engine.propose(uid, JobSubmitted(uid, spec, {}, "bench"), by="bench")
    for first in range(0, readers, AT_ONCE):
        indices = range(first, min(first + AT_ONCE, readers))
        launched = [AttemptLaunched(AttemptId(uid, "worker", one, 1), {}) for one in indices]
        await engine.propose_all([Proposal(uid, one, "launcher:local") for one in launched])
    units = tuple(
        Unit("file", f"/data/part-{number:05d}.txt", UNIT_BYTES, "1", {"format": "text"})
        for number in range(UNITS)
    )
    await engine.propose(f"{uid}/{STREAM}", UnitsListed(units, 0, is_complete=True), by="bench")
    return uid


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]), int(sys.argv[2]))
