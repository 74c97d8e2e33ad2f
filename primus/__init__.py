"""What a trainer imports: its rows, its rank, its word to the job. Standard library at import."""

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
