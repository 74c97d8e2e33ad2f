"""How primusd writes its own log: text on a terminal, else one JSON object a line.

Every event name that the source uses stands in `EVENTS`; a test compares. A name is
`noun.verb_past` and never changes once released, since people search for it.
"""

import logging
import os
from typing import TextIO

import structlog

EVENTS: frozenset[str] = frozenset(
    {
        "archive.segment_lost",
        "archive.segment_unreadable",
        "archive.write_failed",
        "attempt.ended",
        "attempt.failed",
        "attempt.fork_failed",
        "attempt.forked",
        "attempt.killed",
        "ballast.taken",
        "blobs.dropped",
        "blobs.not_swept",
        "bootstrap.unreadable",
        "config.refused",
        "config.reloaded",
        "credential.nearly_expired",
        "daemon.dumped",
        "drill.injected",
        "election.failed",
        "engine.fact_dropped",
        "etcd.alarm_disarmed",
        "etcd.alarm_kept",
        "etcd.awaited",
        "etcd.defragmented",
        "etcd.not_compacted",
        "etcd.not_defragmented",
        "etcd.not_measured",
        "etcd.quota_filling",
        "etcd.quota_fine",
        "etcd.quota_nearly_used_up",
        "etcd.quota_used_up",
        "etcd.stays_full",
        "etcd.version_doubtful",
        "etcd.version_unknown",
        "engine.follower_raised",
        "engine.led",
        "engine.machine_wedged",
        "engine.proposal_raised",
        "engine.reloaded",
        "engine.replay_raised",
        "engine.step_raised",
        "engine.stood_still",
        "engine.store_failed",
        "engine.told_refused",
        "engine.took_over",
        "executor.not_registered",
        "executor.raised",
        "executor.refused",
        "executor.undecodable",
        "exit.allocate_failed",
        "exit.write_failed",
        "file.not_written",
        "files.fetch_failed",
        "head.lost",
        "head.silent",
        "hello.refused",
        "invariant.broken",
        "journal.close_failed",
        "job.dropped",
        "lane.moved",
        "launch.failed",
        "leadership.ended",
        "leadership.refused",
        "leadership.resigned",
        "listener.port_taken",
        "listing.failed",
        "positions.not_carried",
        "positions.not_kept",
        "logs.not_copied",
        "logs.removed",
        "members.unknown",
        "message.undecodable",
        "mirror.failed",
        "node.adopted",
        "node.connected",
        "node.disconnected",
        "node.fork_server_ended",
        "node.refused",
        "node.replaced",
        "node.runs_already",
        "node.start_failed",
        "node.started",
        "node.trainers_run_as_root",
        "node.undecodable",
        "node.waits_for_bootstrap",
        "peers.fetch_failed",
        "report.not_recorded",
        "report.refused",
        "request.failed",
        "stop.failed",
        "store.followed_anew",
        "store.not_followed",
        "store.watch_stood",
        "store.went_back",
        "sweep.failed",
        "trainer.hung",
        "trainer.misspoke",
        "trainer.op_ignored",
        "trainer.started",
        "trainer.went_on",
    }
)

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def configure(level: str, form: str, *, stream: TextIO) -> None:
    """Set up the log of this process; a second call replaces the first, as SIGHUP wants it.

    Args:
        level: debug, info, warning or error.
        form: text or json; "" takes text when the stream is a terminal.
        stream: Where to; standard error for the daemon.
    """
    is_terminal = stream.isatty()
    is_text = form == "text" or (form == "" and is_terminal)
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
        structlog.processors.StackInfoRenderer(),
    ]
    renderer: structlog.typing.Processor
    if is_text:
        colors = is_terminal and not os.environ.get("NO_COLOR")
        renderer = structlog.dev.ConsoleRenderer(colors=colors, timestamp_key="at")
    else:
        shared.append(structlog.processors.format_exc_info)
        renderer = structlog.processors.JSONRenderer(ensure_ascii=False)
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(stream),
        cache_logger_on_first_use=False,
    )
    _configure_libraries(level, stream, shared, renderer)


def _configure_libraries(
    level: str,
    stream: TextIO,
    shared: list[structlog.typing.Processor],
    renderer: structlog.typing.Processor,
) -> None:
    """Give what libraries log through `logging` the same form; below warning only when asked."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(_LEVELS[level] if level in ("debug", "error") else logging.WARNING)
