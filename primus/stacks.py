"""A traceback of every thread on a signal: how a trainer that hangs shows where it stands."""

import faulthandler
import os
import signal

NUMBER = int(signal.SIGRTMIN) + 7
"""Of the signal. No framework uses it, and none of the usual names are taken from the user."""
STDERR = 2

_registered: set[int] = set()
"""Processes: a fork keeps the handler, but says anew that it has it."""


def listen() -> int:
    """Print all tracebacks on a signal from now on; return its number, 0 where that cannot be."""
    pid = os.getpid()
    if pid not in _registered:
        if signal.getsignal(NUMBER) is not signal.SIG_DFL:
            return 0
        try:
            faulthandler.register(NUMBER, file=STDERR, all_threads=True)
        except (OSError, ValueError, RuntimeError, AttributeError):
            return 0
        _registered.add(pid)
    return NUMBER
