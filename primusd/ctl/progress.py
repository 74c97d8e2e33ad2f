"""Progress of a job while somebody waits: a bar on a terminal, a line per change otherwise."""

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from primusd.ctl.client import Json
from primusd.ctl.documents import count, mapping, text
from primusd.ctl.output import grouped, short_duration
from primusd.ctl.reading import done_fraction, replicas_text

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

LINE_EVERY_S = 5.0
STEPS = 1000


class Progress:
    """Shows a job on standard error."""

    def __init__(self, *, is_quiet: bool) -> None:
        self._is_quiet = is_quiet
        self._bar: Bar | None = None
        self._task = 0
        self._last_line = ""
        self._last_s = 0.0

    def __enter__(self) -> Self:
        """Begin the bar, where there is a terminal for it."""
        if not self._is_quiet and sys.stderr.isatty():
            self._begin_bar()
        return self

    def _begin_bar(self) -> None:
        # rich costs more than the whole start of primusctl: it is loaded for a bar only.
        from rich.console import Console  # noqa: PLC0415
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415
        from rich.progress import Progress as RichProgress  # noqa: PLC0415

        self._bar = RichProgress(
            TextColumn("{task.fields[phase]}"),
            BarColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task("", total=STEPS, phase="")
        self._bar.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()

    def show(self, job: Json) -> None:
        """Show the job as it is now."""
        if self._is_quiet:
            return
        status = mapping(job, "status")
        phase, line = text(status, "phase"), progress_text(status)
        if self._bar is not None:
            self._show_bar(status, phase, line)
            return
        now_s = time.monotonic()
        is_new = phase not in self._last_line.split()[:1]
        if is_new or now_s - self._last_s >= LINE_EVERY_S:
            said = f"{phase} {line}"
            if said != self._last_line:
                sys.stderr.write(f"{said}\n")
                sys.stderr.flush()
            self._last_line, self._last_s = said, now_s

    def _show_bar(self, status: Json, phase: str, line: str) -> None:
        from rich.markup import escape  # noqa: PLC0415 - with the bar

        assert self._bar is not None
        done = fraction(status)
        self._bar.update(
            self._task,  # type: ignore[arg-type]  # rich's TaskID is an int
            description=escape(line),
            phase=escape(phase),
            total=None if done is None else STEPS,
            completed=int((done or 0) * STEPS),
            refresh=True,
        )


def fraction(status: Json) -> float | None:
    """Return which part of the job is done, as far as its data tells; None: it does not."""
    streams = mapping(status, "data")
    parts = [done_fraction(mapping(streams, name)) for name in streams]
    known = [one for one in parts if one is not None]
    return min(known) if known else None


def progress_text(status: Json) -> str:
    """Return where a job stands, in one line."""
    parts = [f"{replicas_text(status)} replicas"]
    streams = mapping(status, "data")
    for name in streams:
        stream = mapping(streams, name)
        done = done_fraction(stream)
        unit = text(stream, "unit")
        seen = f"{grouped(stream.get('done'))} {unit}".rstrip()
        shown = f"{done * 100:.0f} %" if done is not None else seen
        epochs = count(stream, "epochs") or 1
        epoch = f" epoch {(count(stream, 'epoch') or 0) + 1}/{epochs}" if epochs > 1 else ""
        parts.append(f"{name} {shown}{epoch}{_speed(stream)}")
    progress = mapping(status, "progress")
    if progress:
        metrics = mapping(progress, "metrics")
        shown = " ".join(f"{key}={value:.4g}" for key, value in metrics.items()
                         if isinstance(value, int | float))  # fmt: skip
        parts.append(f"step {grouped(progress.get('step'))} {shown}".rstrip())
    if text(status, "reason") and text(status, "phase") in ("Queued", "Starting", "Running"):
        parts.append(text(status, "message"))
    return ", ".join(parts)


def _speed(stream: Json) -> str:
    per_second, eta_ms = count(stream, "perSecond"), count(stream, "etaMs")
    speed = f" {grouped(per_second)} {text(stream, 'unit')}/s" if per_second else ""
    return speed + (f" {short_duration(eta_ms / 1000)} left" if eta_ms else "")
