"""What a report says: put together from the machine's state, the feed and answers to asks."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from msgspec import Struct

from primusd.datafeed.protocol import FeedReport
from primusd.executor.logs import STREAMS, read_log
from primusd.executor.machine import Executor
from primusd.executor.protocol import (
    Answer,
    Ask,
    Checkpoint,
    Exit,
    Progress,
    Report,
    Trainer,
    Usage,
)
from primusd.executor.stacks import stacks_text

ANSWER_BYTES_MAX = 256 << 10
ANSWERS_BYTES_MAX = 512 << 10
"""Of one report; the others go with the next ones, since a message has at most 1 MiB."""
EXECUTOR_LOG = "executor"


class Watched(Struct, frozen=True):
    """What makes a report urgent when it changes; progress, usage and positions do not."""

    phase: str
    trainer: Trainer | None
    exit: Exit | None
    ports: tuple[tuple[str, int], ...]
    is_preempted: bool
    is_hung: bool
    checkpoint: Checkpoint | None
    answers: tuple[int, ...]
    """Ids."""


class Facts(Struct, frozen=True):
    """What the machine does not know."""

    progress: Progress | None = None
    checkpoint: Checkpoint | None = None
    usage: Usage | None = None
    feeds: tuple[FeedReport, ...] = ()
    answers: tuple[Answer, ...] = ()
    preemption_ms: int = 0
    hang: str = ""


def compose(state: Executor, facts: Facts) -> Report:
    """Return the next report; its `seq` is the state's."""
    return Report(
        seq=state.link.seq,
        phase=state.phase,
        orders_revision=state.seen[1],
        trainer=state.trainer,
        exit=None if state.orders is not None and state.orders.exit_recorded else state.exit,
        ports=state.ports,
        preemption_ms=facts.preemption_ms,
        progress=facts.progress,
        checkpoint=facts.checkpoint,
        usage=facts.usage,
        hang=facts.hang,
        feeds=facts.feeds,
        answers=facts.answers,
    )


def watched(state: Executor, facts: Facts, answers: tuple[int, ...]) -> Watched:
    """Return what of a report is worth sending at once."""
    return Watched(
        state.phase,
        state.trainer,
        state.exit,
        state.ports,
        facts.preemption_ms > 0,
        bool(facts.hang),
        facts.checkpoint,
        answers,
    )


def that_fit(answers: Iterable[Answer]) -> tuple[Answer, ...]:
    """Return the answers that one report has room for, the oldest first and at least one."""
    fitting: list[Answer] = []
    byte_count = 0
    for one in answers:
        byte_count += len(one.data)
        if fitting and byte_count > ANSWERS_BYTES_MAX:
            break
        fitting.append(one)
    return tuple(fitting)


def answer(
    ask: Ask, directory: Path, state: Executor, pids: Callable[[], tuple[int, ...]]
) -> Answer:
    """Return what an ask brings: a piece of a log, or what every thread is doing."""
    if ask.kind == "stacks":
        return Answer(ask.id, stacks_text(pids()).encode()[:ANSWER_BYTES_MAX], end=True)
    if ask.kind != "logs":
        return Answer(ask.id, b"", end=True, error=f"unknown ask {ask.kind!r}")
    byte_count = min(ask.byte_count or ANSWER_BYTES_MAX, ANSWER_BYTES_MAX)
    try:
        return _log_answer(ask, directory, byte_count, is_over=state.exit is not None)
    except FileNotFoundError:
        return Answer(ask.id, b"", end=state.exit is not None, error=f"no log {ask.path!r}")


def _log_answer(ask: Ask, directory: Path, byte_count: int, *, is_over: bool) -> Answer:
    if ask.path not in STREAMS:
        name = {EXECUTOR_LOG: "executor.log"} | {f"{one}.index": f"{one}.index" for one in STREAMS}
        if ask.path not in name:
            raise FileNotFoundError(ask.path)
        with (directory / name[ask.path]).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            offset = max(0, size + ask.offset) if ask.offset < 0 else min(ask.offset, size)
            file.seek(offset)
            data = file.read(byte_count)
        return Answer(ask.id, data, end=is_over and offset + len(data) >= size, offset=offset)
    piece = read_log(directory, ask.path, ask.offset, byte_count)
    is_end = is_over and piece.offset + len(piece.data) >= piece.size
    return Answer(ask.id, piece.data, end=is_end, offset=piece.offset)
