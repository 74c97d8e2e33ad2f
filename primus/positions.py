"""Positions of a stream and the daemon that keeps them: marks, savepoints, going back.

Over a connection of its own: what it says and hears never stands between rows.
"""

import os
import time

from primus.errors import FeedError, StoppingError
from primus.link import Link

LOOK_EVERY_S = 1.0
WORDS_MAX = 1_000


class Positions:
    """Speaks about one stream's positions."""

    def __init__(self, path: str, stream: str) -> None:
        self._path = path
        self._stream = stream
        self._link: Link | None = None
        self._stop: tuple[str, float] | None = None
        self._words: dict[int, tuple[str, str] | None] = {}
        self._ask = int.from_bytes(os.urandom(3)) << 7

    def mark(self, step: int, receipt: int) -> None:
        """Say that this trainer is at a step, and used all rows up to a receipt."""
        self._note(step, None)
        self._say({"op": "mark", "stream": self._stream, "step": step, "receipt": receipt})

    def sealed(self, step: int) -> str:
        """Return the savepoint of a step that was marked, once all trainers have marked it.

        Raises:
            FeedError: One of them did not, the group was lost, or this trainer never marked it.
            StoppingError: This trainer is being stopped, and its time is over.
        """
        if step not in self._words:
            raise FeedError(f"there is no savepoint of step {step}: it was not marked")
        while (word := self._words[step]) is None:
            self._hear()
        name, text = word
        if not name:
            raise FeedError(f"there is no savepoint of step {step}: {text}")
        return name

    def keep(self, name: str) -> None:
        """Keep where the stream is under a name.

        Raises:
            FeedError: The daemon refuses it.
        """
        self._do("savepoint", name)

    def go_to(self, name: str) -> None:
        """Go back to a savepoint; "" where the stream began.

        Raises:
            FeedError: There is none of that name, or another trainer has begun elsewhere.
        """
        self._do("restore", name)

    def _do(self, kind: str, name: str) -> None:
        self._ask += 1
        self._say({"op": kind, "stream": self._stream, "id": self._ask, "name": name})
        while True:
            match self._hear():
                case {"op": "answered", "id": int(number), "error": str(error)}:
                    if number == self._ask and error:
                        raise FeedError(error)
                    if number == self._ask:
                        return
                case _:
                    pass

    def _say(self, message: dict[str, object]) -> None:
        try:
            if self._link is None:
                self._link = Link(self._path)
            self._link.say(message)
        except OSError as error:
            raise FeedError(f"the executor is gone: {error}") from error

    def _hear(self) -> dict[str, object]:
        """Return the next message; an empty one when none came for a while."""
        if self._stop is not None and time.monotonic() >= self._stop[1]:
            raise StoppingError(self._stop[0], 0.0)
        assert self._link is not None
        try:
            if not self._link.wait(LOOK_EVERY_S):
                return {}
            found = self._link.receive(lambda count: memoryview(bytearray(count)))
        except OSError as error:
            raise FeedError(f"the executor is gone: {error}") from error
        message = found if isinstance(found, dict) else {}
        match message:
            case {"op": "error", "text": str(text)}:
                raise FeedError(text)
            case {"op": "sealed", "step": int(step), "name": str(name)}:
                self._note(step, (name, ""))
            case {"op": "unsealed", "step": int(step), "text": str(text)}:
                self._note(step, ("", text))
            case {"op": "stopping", "reason": str(reason), "graceMs": int(grace_ms)}:
                self._stop = (reason, time.monotonic() + grace_ms / 1000)
            case _:
                pass
        return message

    def _note(self, step: int, word: tuple[str, str] | None) -> None:
        """Keep what was said of a step, None nothing yet: it may be asked for after later ones."""
        self._words[step] = word
        while len(self._words) > WORDS_MAX:
            del self._words[min(self._words)]

    def close(self) -> None:
        """Hang up."""
        link, self._link = self._link, None
        if link is not None:
            link.close()
