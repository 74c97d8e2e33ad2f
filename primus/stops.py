"""The stop signal wakes a trainer that asks for stops; it ends one that never does."""

import os
import signal
import threading
from types import FrameType


class _Handler:
    """The process that set it; a fork inherits the handler and is another one."""

    pid = 0
    stop_file = ""


def expect() -> None:
    """Outlive SIGTERM from now on when it comes with a stop, to see `$PRIMUS_STOP_FILE`.

    Without it Python ends at the signal, before the program can ask why. A handler of the
    program's own stays, as does what the signal does to processes that it forks.
    """
    path = os.environ.get("PRIMUS_STOP_FILE", "")
    if _Handler.pid or not path:
        return
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        _Handler.pid, _Handler.stop_file = os.getpid(), path
        signal.signal(signal.SIGTERM, _wake)


def _wake(number: int, _frame: FrameType | None) -> None:
    is_ours = os.getpid() == _Handler.pid
    if is_ours and os.path.exists(_Handler.stop_file):  # noqa: PTH110 pathlib takes long to import
        return
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
