"""Durations and sizes: what is read, what is refused, and that nothing changes on the way back."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from primusd.units import (
    UnitError,
    bytes_words,
    format_bytes,
    format_duration,
    parse_bytes,
    parse_duration_ms,
)


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("0s", 0),
        ("500ms", 500),
        ("10s", 10_000),
        ("5m", 300_000),
        ("24h", 86_400_000),
        ("7d", 604_800_000),
        ("1h30m", 5_400_000),
        ("1.5h", 5_400_000),
        (" 2s ", 2_000),
    ],
)
def test_durations_are_read(text: str, duration_ms: int) -> None:
    assert parse_duration_ms(text) == duration_ms


@pytest.mark.parametrize(
    ("text", "byte_count"),
    [
        ("0B", 0),
        ("512B", 512),
        ("8Ki", 8192),
        ("64Mi", 67_108_864),
        ("16Gi", 17_179_869_184),
        ("1.5Gi", 1_610_612_736),
        ("2 G", 2_000_000_000),
    ],
)
def test_sizes_are_read(text: str, byte_count: int) -> None:
    assert parse_bytes(text) == byte_count


@pytest.mark.parametrize("value", [16, "16", 0, "1.5", 2.5, "-3"])
def test_a_bare_number_is_asked_what_it_counts(value: object) -> None:
    with pytest.raises(UnitError) as of_size:
        parse_bytes(value)
    with pytest.raises(UnitError) as of_duration:
        parse_duration_ms(value)

    assert of_size.value.hint == f"{value} what?"
    assert of_duration.value.hint == f"{value} what?"
    assert "16Gi" in of_size.value.allowed
    assert "5m" in of_duration.value.allowed


@pytest.mark.parametrize(
    "value",
    ["", "m", "ten minutes", "10x", "5m10h", "1m1m", "-5s", "0.5ms", "1e3s", "5m!", "٣s",
     None, True, [], {}, "9" * 41 + "s", "9" * 30 + "d"],
)  # fmt: skip
def test_what_is_no_duration_is_refused(value: object) -> None:
    with pytest.raises(UnitError):
        parse_duration_ms(value)


@pytest.mark.parametrize(
    "value", ["", "Gi", "0.3B", "16GiB!", "1Gi1Mi", "16XB", None, True, [1], "9" * 30 + "Pi"]
)
def test_what_is_no_size_is_refused(value: object) -> None:
    with pytest.raises(UnitError):
        parse_bytes(value)


@pytest.mark.parametrize(
    ("text", "hint"),
    [("16gb", "did you mean G?"), ("16GiB", "did you mean Gi?"), ("16gi", "did you mean Gi?")],
)
def test_the_nearest_size_unit_is_named(text: str, hint: str) -> None:
    with pytest.raises(UnitError) as caught:
        parse_bytes(text)

    assert caught.value.hint == hint


@pytest.mark.parametrize(
    ("text", "hint"),
    [("5min", "did you mean m?"), ("2 hours", ""), ("3hours", "did you mean h?")],
)
def test_the_nearest_duration_unit_is_named(text: str, hint: str) -> None:
    with pytest.raises(UnitError) as caught:
        parse_duration_ms(text)

    assert caught.value.hint == hint


@given(st.integers(min_value=0, max_value=10**15))
def test_a_formatted_duration_reads_back_to_itself(duration_ms: int) -> None:
    assert parse_duration_ms(format_duration(duration_ms)) == duration_ms


@given(st.integers(min_value=0, max_value=2**62))
def test_a_formatted_size_reads_back_to_itself(byte_count: int) -> None:
    assert parse_bytes(format_bytes(byte_count)) == byte_count


def test_spellings_are_the_shortest() -> None:
    assert format_duration(5_400_000) == "1h30m"
    assert format_duration(86_400_000) == "1d"
    assert format_bytes(64 << 20) == "64Mi"
    assert bytes_words(64 << 20) == "64Mi"
    assert bytes_words(22_748_859_187) == "21.1Gi"
    assert bytes_words(1_023) == "1023B"
    assert format_bytes(1000) == "1000B"


@given(st.text(max_size=60), st.sampled_from([parse_duration_ms, parse_bytes]))
def test_any_text_is_read_or_refused(text: str, parse: Callable[[object], int]) -> None:
    try:
        amount = parse(text)
    except UnitError:
        return

    assert amount >= 0


@pytest.mark.parametrize("form", [format_duration, format_bytes])
def test_negative_amounts_have_no_spelling(form: Callable[[int], str]) -> None:
    with pytest.raises(ValueError, match="negative"):
        form(-1)
