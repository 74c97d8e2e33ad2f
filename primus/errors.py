"""What `import primus` raises."""


class PrimusError(Exception):
    """Anything that the SDK tells a trainer."""


class FeedError(PrimusError):
    """A stream that cannot be read as it was asked for; the message says what to change."""


class NullsError(FeedError):
    """A column has nulls and numpy's type of it has no place for them; the message names it."""


class StoppingError(PrimusError):
    """The job stops this trainer, so no more rows come; the stream is *not* finished.

    Attributes:
        reason: As `preempted` or `cancelled`.
        seconds_left: Until what still runs is killed.
    """

    def __init__(self, reason: str, seconds_left: float) -> None:
        super().__init__(f"the trainer is being stopped: {reason}, {seconds_left:.0f} s left")
        self.reason = reason
        self.seconds_left = seconds_left


class CheckpointError(PrimusError):
    """A checkpoint that cannot be written as it was asked for; the message says what to change."""


class SupersededError(CheckpointError):
    """A newer attempt of this replica writes checkpoints now; what this one wrote was dropped."""
