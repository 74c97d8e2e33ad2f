"""What a trainer imports: its rows, its rank, its word to the job.

Many trainers start at once, often on few cores: each module is loaded when a name of it is first
used, and of the standard library only what it needs.
"""

TYPE_CHECKING = False
"""Not from `typing`, which takes longer to load than what most trainers use of this package."""
if TYPE_CHECKING:
    from primus.checkpoints import Checkpoint, checkpoint, latest_checkpoint
    from primus.errors import (
        CheckpointError,
        FeedError,
        NullsError,
        PrimusError,
        StoppingError,
        SupersededError,
    )
    from primus.feed import Feed, dataset
    from primus.phases import phase
    from primus.told import Stop, Warned, peers, stopping, warned
    from primus.trainer import rank, ready, report, role, world_size

_HOMES = {
    "checkpoints": ("Checkpoint", "checkpoint", "latest_checkpoint"),
    "errors": (
        "CheckpointError",
        "FeedError",
        "NullsError",
        "PrimusError",
        "StoppingError",
        "SupersededError",
    ),
    "feed": ("Feed", "dataset"),
    "phases": ("phase",),
    "told": ("Stop", "Warned", "peers", "stopping", "warned"),
    "trainer": ("rank", "ready", "report", "role", "world_size"),
}
_MODULES = {name: f"primus.{module}" for module, names in _HOMES.items() for name in names}

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
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = __import__(_MODULES[name], fromlist=(name,))
        found = globals()[name] = getattr(module, name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
