"""C81: delegation tokens are read as Hadoop writes them; the one that lives longest is shown."""

import time
from pathlib import Path

import pytest

from primusd.datafeed.storage.hadoop_tokens import (
    Token,
    TokenError,
    identity_of,
    token_of,
    tokens_in,
)
from primusd.datafeed.storage.token_store import TokenStore
from tests.services.tokens import made_token, token_file, token_file_of_protocol_buffers

# A NameNode of Hadoop 3.5.0 gave this one out.
REAL = (
    "HAAEcm9vdARyb290AIoBoivuUK2KAaIr72IdAQIUBwQUbO7HQxjr30wRjwRUrf4Ok_YSV0VCSERGUyBkZWxlZ2F0aW9u"
    "DzEyNy4wLjAuMTozNjY1Nw"
)
HOUR_MS = 3_600_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture(autouse=True)
def no_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HADOOP_TOKEN", raising=False)
    monkeypatch.delenv("HADOOP_TOKEN_FILE_LOCATION", raising=False)


def test_a_token_says_whose_it_is_and_how_long_it_may_live() -> None:
    token = token_of(REAL)
    who = identity_of(token)

    assert (token.kind, token.service) == ("WEBHDFS delegation", "127.0.0.1:36657")
    assert (who.owner, who.renewer, who.real_user) == ("root", "root", "")
    assert (who.issued_ms, who.expires_ms) == (1_796_033_368_237, 1_796_033_438_237)
    assert token.url_string() == REAL


@pytest.mark.parametrize("written", [token_file, token_file_of_protocol_buffers])
def test_both_forms_of_a_file_are_read(written: object) -> None:
    tokens = (made_token(7, service="a:8020"), token_of(REAL))
    assert callable(written)

    assert tokens_in(written(*tokens)) == tokens


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"HDTS",
        b"HDTS\x07x",
        b"PK\3\4xxxx",
        b"HDTS\0\x05",
        b"HDTS\1\xff\xff",
        b"HDTS\0\x01\x8f\xff",
    ],
)
def test_what_is_no_file_of_tokens_is_refused(data: bytes) -> None:
    with pytest.raises(TokenError):
        assert not tokens_in(data)


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_token_that_is_cut_off_is_refused(cut: int) -> None:
    whole = token_file(made_token(1_796_033_438_237))

    with pytest.raises(TokenError):
        tokens_in(whole[: 6 + cut])


def shown(store: TokenStore) -> Token | None:
    found = store.shown()
    return None if found is None else found.token


def test_a_file_that_was_written_again_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tokens"
    first, second = (made_token(at, number=at) for at in (1_000, 2_000))
    path.write_bytes(token_file(first))
    monkeypatch.setenv("HADOOP_TOKEN_FILE_LOCATION", str(path))
    store = TokenStore("nn:9870")
    assert shown(store) == first

    # Half of it is there: what was known goes on to be shown.
    path.write_bytes(token_file(second)[:20])
    halfway = shown(store)
    path.write_bytes(token_file(second))

    assert (halfway, shown(store)) == (first, second)


def test_of_several_tokens_the_one_for_this_server_that_lives_longest_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tokens"
    monkeypatch.setenv("HADOOP_TOKEN_FILE_LOCATION", str(path))
    ours, longer = (made_token(at, service="10.0.0.1:8020") for at in (1_000, 2_000))
    foreign = made_token(9_000, service="10.0.0.2:8020")
    third = made_token(9_000, service="10.0.0.3:8020")
    job_token = made_token(9_000, service="10.0.0.1:8020", kind="YARN_AM_RM_TOKEN")
    path.write_bytes(token_file(foreign, ours, longer, job_token))

    assert shown(TokenStore("10.0.0.1:9870")) == longer
    # Of another server's it is not known which one would do; of one alone it is.
    path.write_bytes(token_file(foreign, third))
    assert shown(TokenStore("10.0.0.1:9870")) is None
    path.write_bytes(token_file(foreign))
    assert shown(TokenStore("10.0.0.1:9870")) == foreign


def test_an_expired_token_of_the_environment_gives_way_to_one_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tokens"
    old, new = made_token(now_ms() - 1), made_token(now_ms() + HOUR_MS)
    path.write_bytes(token_file(new))
    monkeypatch.setenv("HADOOP_TOKEN", old.url_string())
    store = TokenStore("nn:9870")
    fixed = store.expired()
    monkeypatch.setenv("HADOOP_TOKEN_FILE_LOCATION", str(path))

    assert fixed is not None
    assert "$HADOOP_TOKEN" in fixed.name
    assert "have to be started again" in fixed.remedy
    assert shown(store) == new
    assert store.expired() is None
    assert store.expired(margin_ms=2 * HOUR_MS) is not None


def test_a_token_that_nobody_can_read_is_shown_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HADOOP_TOKEN", "opaque")
    found = TokenStore("nn:9870").shown()

    assert found is not None
    assert (found.text, found.expires_ms) == ("opaque", 0)
