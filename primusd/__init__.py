"""primusd: one daemon that schedules distributed training and accounts for every row of its data."""

__version__ = "0.1.0"
