"""What a trainer does beside steps, in which none are expected."""

import contextlib
from collections.abc import Iterator

from primus.errors import PrimusError
from primus.trainer import say

PHASE_LENGTH_MAX = 128

_phases: list[str] = []
"""Those that this process is in, the innermost last."""


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """Say that this trainer does something else than steps, as long as the block lasts.

    What it does in a phase of its own is not taken for a hang (docs/jobspec.md, `hang`).

    >>> import primus
    >>> with primus.phase("evaluation"):
    ...     pass
    """
    if not name or len(name) > PHASE_LENGTH_MAX:
        raise PrimusError(f"a phase has a name of 1 to {PHASE_LENGTH_MAX} characters")
    _phases.append(name)
    say({"op": "phase", "name": name, "active": True})
    try:
        yield
    finally:
        _phases.pop()
        outer = _phases[-1] if _phases else ""
        say({"op": "phase", "name": outer or name, "active": bool(outer)})
