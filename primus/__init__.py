"""What a trainer imports: its rows, its rank, its word to the job.

Standard library at import, and little of that: many trainers start at once, often on few cores.
What reads rows and what writes checkpoints is loaded when it is first named.
"""

from typing import TYPE_CHECKING

from primus.errors import (
    CheckpointError,
    FeedError,
    NullsError,
    PrimusError,
    StoppingError,
    SupersededError,
)
from primus.trainer import (
    Stop,
    Warned,
    peers,
    phase,
    rank,
    ready,
    report,
    role,
    stopping,
    warned,
    world_size,
)

if TYPE_CHECKING:
    from primus.checkpoints import Checkpoint, checkpoint, latest_checkpoint
    from primus.feed import Feed, dataset

_LOADED_LATER = {
    "Checkpoint": "primus.checkpoints",
    "checkpoint": "primus.checkpoints",
    "latest_checkpoint": "primus.checkpoints",
    "Feed": "primus.feed",
    "dataset": "primus.feed",
}

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "Feed",
    "FeedError",
    "NullsError",
    "PrimusError",
    "Stop",
    "StoppingError",
    "SupersededError",
    "Warned",
    "checkpoint",
    "dataset",
    "latest_checkpoint",
    "peers",
    "phase",
    "rank",
    "ready",
    "report",
    "role",
    "stopping",
    "warned",
    "world_size",
]

# Hidden from type checkers, which would take any name for one that is here.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Load the module that has a name, and keep what it is."""
        module = _LOADED_LATER.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module  # noqa: PLC0415 as few imports as can be

        found = globals()[name] = getattr(import_module(module), name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
