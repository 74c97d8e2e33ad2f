"""Watches one trainer's progress, and once it hangs, writes down what its threads are doing."""

import anyio
import structlog
from msgspec.structs import replace

from primusd.executor.dumping import dump_stacks
from primusd.executor.hanging import Signs, Watch, look, sample_ms
from primusd.executor.life import Life

log = structlog.get_logger()


async def watch_progress(life: Life) -> None:
    """Tell of a hang, and of its end, for as long as the trainer runs."""
    while life.state.trainer is None:
        if life.state.exit is not None:
            return
        await life.woken()
    order = life.state.order
    assert order is not None, "a trainer that runs was ordered"
    every_ms = sample_ms(order)
    watch = Watch()
    while every_ms and life.state.exit is None and life.state.stop is None:
        watch = look(watch, _signs(life, watch), order, life.now_ms())
        if bool(watch.evidence) != bool(life.hang):
            await _tell(life, watch.evidence)
        await anyio.sleep(every_ms / 1000)


def _signs(life: Life, watch: Watch) -> Signs:
    feed = life.feed
    if feed is None:
        return Signs()
    found = Signs(
        progress=feed.progress,
        checkpoint_step=feed.checkpoint.step if feed.checkpoint is not None else -1,
        phase=feed.phase,
        taken=feed.taken,
        is_waiting=feed.is_waited_for,
    )
    # It costs a look at every process, for nothing as long as nothing is judged.
    return replace(found, cpu_ms=life.cpu_ms()) if watch.is_armed or found != Signs() else found


async def _tell(life: Life, evidence: str) -> None:
    if evidence:
        log.warning("trainer.hung", text=evidence)
        # First into the log: who hears of the hang finds it there.
        await dump_stacks(life, evidence)
    else:
        log.info("trainer.went_on")
    life.hang = evidence
    life.wake()
