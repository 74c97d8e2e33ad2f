"""What a trainer imports: its rows, its rank, its word to the job. Standard library at import."""

from primus.errors import FeedError, NullsError, PrimusError, StoppingError
from primus.feed import Feed, dataset
from primus.trainer import Stop, peers, rank, ready, report, role, stopping, world_size

__all__ = [
    "Feed",
    "FeedError",
    "NullsError",
    "PrimusError",
    "Stop",
    "StoppingError",
    "dataset",
    "peers",
    "rank",
    "ready",
    "report",
    "role",
    "stopping",
    "world_size",
]
