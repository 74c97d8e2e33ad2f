"""A traceback of every thread on a signal: how a trainer that hangs shows where it stands."""

import faulthandler
import signal

NUMBER = int(signal.SIGRTMIN) + 7
"""Of the signal. No framework uses it, and none of the usual names are taken from the user."""
STDERR = 2


class _Handler:
    """Whether it is set; a fork keeps it."""

    is_set = False


def listen() -> int:
    """Print all tracebacks on a signal from now on; return its number, 0 where that cannot be."""
    if not _Handler.is_set:
        if signal.getsignal(NUMBER) is not signal.SIG_DFL:
            return 0
        try:
            faulthandler.register(NUMBER, file=STDERR, all_threads=True)
        except (OSError, ValueError, RuntimeError, AttributeError):
            return 0
        _Handler.is_set = True
    return NUMBER
