"""A traceback of every thread on a signal: how a trainer that hangs shows where it stands."""

import faulthandler

# What `signal` is made of, which takes a while to load.
from _signal import SIG_DFL, SIGRTMIN, getsignal  # type: ignore[import-not-found]  # in C

NUMBER: int = SIGRTMIN + 7
"""Of the signal. No framework uses it, and none of the usual names are taken from the user."""
STDERR = 2


class _Handler:
    """Whether it is set; a fork keeps it."""

    is_set = False


def listen() -> int:
    """Print all tracebacks on a signal from now on; return its number, 0 where that cannot be."""
    if not _Handler.is_set:
        if getsignal(NUMBER) != SIG_DFL:
            return 0
        try:
            faulthandler.register(NUMBER, file=STDERR, all_threads=True)
        except (OSError, ValueError, RuntimeError, AttributeError):
            return 0
        _Handler.is_set = True
    return NUMBER
