"""The executor's own log: written at once, and silent where the disk is full."""

import io
import os

from primusd import logs

STANDARD_ERROR = 2


class ForgivingStream(io.TextIOBase):
    """Standard error without a buffer; a line that finds no room is dropped.

    An executor that died of its own log would take its trainer along.
    """

    def write(self, text: str) -> int:
        """Write text as far as there is room for it."""
        try:
            os.write(STANDARD_ERROR, text.encode(errors="backslashreplace"))
        except OSError:
            return len(text)
        return len(text)


def configure() -> None:
    """Let this process log as an executor does."""
    logs.configure("info", "json", stream=ForgivingStream())  # type: ignore[arg-type]  # as a TextIO
