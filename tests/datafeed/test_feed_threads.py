"""A feed and the threads of its trainer."""

import threading

import pytest

from primus import remote
from primus.batches import Frame
from primus.errors import FeedError
from primus.feed import Feed, Wanted
from primus.remote import RemoteSource


class SlowSource:
    """Has no row until it is told to end."""

    stream = "rows"
    is_exactly_once = False

    def __init__(self) -> None:
        self.is_asked = threading.Event()
        self.may_end = threading.Event()

    def next_frame(self) -> Frame | None:
        self.is_asked.set()
        assert self.may_end.wait(20)
        raise EOFError

    def tail(self) -> int:
        return 0

    def commit(self, receipt: int) -> None:
        raise AssertionError("nothing was used")

    def hand(self, receipt: int) -> None:
        raise AssertionError("nothing was handed out")

    def mark(self, step: int) -> None:
        raise AssertionError("no step was marked")

    def kept(self, step: int) -> str:
        raise AssertionError("no step was marked")

    def go_to(self, name: str) -> None:
        raise AssertionError("nothing was kept")

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


class BusyLink:
    """A link on which, while the first receipt is sent, another thread says its own."""

    def __init__(self) -> None:
        self.receipts: list[object] = []
        self.meanwhile: threading.Thread | None = None

    def say(self, *messages: dict[str, object]) -> None:
        if self.meanwhile is not None and not self.receipts:
            self.meanwhile.start()
            self.meanwhile.join(0.2)
        self.receipts += [one["receipt"] for one in messages if one["op"] == "commit"]

    def close(self) -> None:
        """Nothing is open."""


def test_a_receipt_that_comes_while_another_is_sent_is_sent_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the last rows of a stream never count, and whoever waits for its end never ends."""
    link = BusyLink()
    monkeypatch.setattr(remote, "Link", lambda _path: link)
    source = RemoteSource("/nowhere", "rows", Wanted("numpy", 10, (), "error", {}))
    link.meanwhile = threading.Thread(target=source.commit, args=(20,), daemon=True)

    source.commit(10)
    link.meanwhile.join(20)

    assert link.receipts == [10, 20]
