"""A feed and the threads of its trainer."""

import threading

import pytest

from primus.batches import Frame
from primus.errors import FeedError
from primus.feed import Feed


class SlowSource:
    """Has no row until it is told to end."""

    def __init__(self) -> None:
        self.is_asked = threading.Event()
        self.may_end = threading.Event()

    def next_frame(self) -> Frame | None:
        self.is_asked.set()
        assert self.may_end.wait(20)
        raise EOFError

    def commit(self, receipt: int) -> None:
        raise AssertionError("nothing was used")

    def close(self) -> None:
        """Nothing is open."""


def test_two_threads_that_ask_at_once_are_refused_and_the_first_goes_on() -> None:
    source = SlowSource()
    feed = Feed(source, batch_rows=10, layout="numpy", manual=False)
    found: list[object] = []
    first = threading.Thread(target=lambda: found.append(list(feed)))
    first.start()
    assert source.is_asked.wait(20)

    with pytest.raises(FeedError, match="one thread at a time"):
        next(feed)
    source.may_end.set()
    first.join(20)

    assert found == [[]]
