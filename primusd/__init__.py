"""primusd: a daemon that runs distributed training and accounts for every row it feeds."""

__version__ = "0.1.0"
