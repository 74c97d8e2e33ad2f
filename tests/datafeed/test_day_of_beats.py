"""What a day of beats leaves in the journal: nothing of those that change nothing."""

import msgspec

from tests.datafeed.ledger_driver import Driver, stream_spec, text_unit

DAY_MS = 86_400_000
BEAT_MS = 10_000
"""By which readers that have nothing new to say show that they live."""
BYTES_MAX = 50 << 20


def written(driver: Driver) -> int:
    return sum(len(msgspec.msgpack.encode(event)) for _, _, event in driver.records)


def test_c45_a_day_of_beats_of_readers_at_rest_writes_nothing() -> None:
    driver = Driver(stream_spec(split={"bytes": 1_000}), checks=False)
    # More may come: all of them wait for it.
    driver.list_all([], is_complete=False)
    readers = [driver.open(index) for index in range(4)]
    for reader in readers:
        reader.beat(want=1)
    before = len(driver.records)

    for _ in range(DAY_MS // BEAT_MS):
        driver.wait(BEAT_MS)
        reasons = {reader.beat(want=1) for reader in readers}
        assert reasons == {"already so"}

    assert len(driver.records) == before


def test_c45_a_day_of_beats_that_move_on_each_time_stays_below_its_bound() -> None:
    driver = Driver(stream_spec(split={"bytes": 1_000_000}), checks=False)
    driver.list_all([text_unit(100_000_000)])
    reader = driver.open(0)
    reader.beat(want=1)
    reader.obey()
    bytes_before = written(driver)
    beats = 2_000

    for _ in range(beats):
        driver.wait(1_000)
        reader.take(10)
        reader.beat(want=1)

    a_day = (written(driver) - bytes_before) * (DAY_MS // 1_000) // beats
    assert 0 < a_day < BYTES_MAX
