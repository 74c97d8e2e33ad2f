"""C81: a credential that is no longer good is waited for; no row is ever bad because of it."""

import threading
from pathlib import Path

import pytest

from primusd.datafeed.protocol import BadRange, Credential, FeedOrders, Lease, Unit
from primusd.datafeed.reader import reader as reading
from primusd.datafeed.reader.reader import StreamReader
from primusd.datafeed.storage import schemes
from primusd.datafeed.storage.base import Entry, StorageError
from primusd.datafeed.storage.credentials import expired_words
from primusd.executor.protocol import FeedPlan
from tests.datafeed.ledger_driver import Driver, stream_spec, text_unit
from tests.datafeed.test_ledger import finish
from tests.datafeed.test_remote_files import Far

TOKEN = Credential("the HDFS delegation token of ann in /t", 1_000, 61_000, "write a new one")


def test_others_try_for_ever_what_one_was_refused() -> None:
    driver = Driver(stream_spec(bad_rows=0))
    readers = [driver.open(index) for index in range(3)]
    driver.list_all([text_unit(100)])

    for round_ in range(6):
        reader = readers[round_ % 3]
        reader.beat(1)
        (held,) = reader.obey()
        reader.beat(0, bad=(BadRange(held, 0, 100, "expired", "it expired"),))
        reader.obey()
    readers[0].beat(1)
    finish(driver, readers[0])

    assert driver.now.phase == "Done"
    assert (driver.now.consumed, driver.now.skipped, driver.now.bad_count) == (100, 0, 0)


def test_what_was_refused_once_is_not_tired_by_it() -> None:
    """One that is not answered after that is tried elsewhere once, as any."""
    driver = Driver()
    one, two = driver.open(0), driver.open(1)
    driver.list_all([text_unit(100)])
    one.beat(1)
    (held,) = one.obey()
    one.beat(0, bad=(BadRange(held, 0, 100, "expired", "it expired"),))
    two.beat(1)
    (held,) = two.obey()

    two.beat(0, bad=(BadRange(held, 0, 100, "transient", "timeout"),))

    assert driver.now.phase == "Serving"


class Refusing(Far):
    """A storage that knows nobody who asks."""

    def __init__(self, kind: str) -> None:
        super().__init__(b"row\n" * 10)
        self._kind = kind

    def find(self, location: str) -> Entry | None:
        said = expired_words(TOKEN, "InvalidToken", now_ms=70_000)
        raise StorageError(said, kind=self._kind)

    def credential(self) -> Credential | None:
        return TOKEN


class Clock:
    """Every look at it takes a minute."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 60.0
        return self.now


@pytest.mark.parametrize("kind", ["expired", "denied"])
def test_a_reader_waits_and_then_hands_on_what_it_was_refused(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schemes, "_clients", {("far", "x", ()): Refusing(kind)})
    monkeypatch.setattr(reading, "RETRY_MIN_S", 0.0)
    changed = threading.Condition()
    reader = StreamReader(
        FeedPlan("s", "socket", "arrow", {"format": "text"}, 1 << 20), changed, Clock()
    )
    unit = Unit("file", "far://x/a", 40, "1", {"format": "text"})
    with changed:
        reader.state.is_open = True
        lease = Lease(0, 0, 0, 40, 1, 0, body=unit)
        reader.state.obey(FeedOrders("s", (lease,), "serve", 0), sent_at=1e9, ttl_s=1e9)
    thread = threading.Thread(target=reader.read, daemon=True)

    thread.start()
    with changed:
        found = reader.state.report(buffered_bytes=0, now=0.0)
        for _ in range(1000):
            if not found.bad:
                changed.wait(0.01)
                found = reader.state.report(buffered_bytes=0, now=0.0)
        reader.close()
    thread.join(10)

    (bad,) = found.bad
    assert (bad.kind, bad.lo, bad.hi) == ("expired", 0, 40)
    assert bad.text == (
        "far://x/a cannot be read: the HDFS delegation token of ann in /t expired at "
        "1970-01-01 00:01:01Z; write a new one (InvalidToken)"
    )


def test_a_reader_tells_until_when_its_credentials_are_good(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(schemes, "_clients", {("far", "x", ()): Refusing("expired")})
    reader = StreamReader(
        FeedPlan("s", "socket", "arrow", {"format": "text"}, 1 << 20),
        threading.Condition(),
        lambda: 0.0,
    )
    local = tmp_path / "a.txt"
    local.write_bytes(b"row\n")
    reader.shown.used(Unit("file", str(local), 4, "", {}))
    assert reader.shown.told(0.0) == ()

    reader.shown.used(Unit("file", "far://x/a", 40, "1", {}))
    for second in range(1000):
        if reader.shown.told(10.0 * second):
            break
        threading.Event().wait(0.01)

    assert reader.shown.told(1e9) == (TOKEN,)


def test_words_tell_what_is_known() -> None:
    assert expired_words(None, "401") == "the credentials are no longer good: 401"
    early = expired_words(TOKEN, "no", now_ms=2_000)
    assert "was refused before its end at 1970-01-01 00:01:01Z" in early
