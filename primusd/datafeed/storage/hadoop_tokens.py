"""Delegation tokens of Hadoop, decoded: as URLs carry them, and files that hold several. Pure.

Source: `Token`, `AbstractDelegationTokenIdentifier`, `WritableUtils` and `Credentials` of Apache
Hadoop's API documentation; a file is in one of two forms, of Writables or of Protocol Buffers.
"""

import base64
import binascii
from collections.abc import Iterator

from msgspec import Struct

MAGIC = b"HDTS"
KINDS = ("HDFS_DELEGATION_TOKEN", "WEBHDFS delegation", "SWEBHDFS delegation")
"""That a NameNode gives out, by each of its services."""
_LONGEST = 1 << 20


class TokenError(Exception):
    """These bytes are no token."""


class Token(Struct, frozen=True):
    """A delegation token. Its password goes to nobody but the server."""

    identifier: bytes
    password: bytes
    kind: str
    service: str
    """`host:port`, or `ha-hdfs:` and a name service; "" it does not say."""

    def url_string(self) -> str:
        """Return it as WebHDFS takes it."""
        parts = (self.identifier, self.password, self.kind.encode(), self.service.encode())
        raw = b"".join(_long(len(part)) + part for part in parts)
        return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


class Identity(Struct, frozen=True):
    """What a token says of itself, for anyone to read."""

    owner: str
    renewer: str
    real_user: str
    issued_ms: int
    expires_ms: int
    """The longest that it may live, however often it is renewed."""


def token_of(text: str) -> Token:
    """Return a token from the form in which URLs and environments carry it.

    Raises:
        TokenError: It is none.
    """
    try:
        raw = base64.urlsafe_b64decode(text.strip() + "=" * (-len(text.strip()) % 4))
    except (binascii.Error, ValueError) as error:
        raise TokenError(str(error)) from None
    return _token(_Reader(raw))


def tokens_in(data: bytes) -> tuple[Token, ...]:
    """Return all tokens of a file as `hdfs fetchdt` and YARN write it.

    Raises:
        TokenError: It is no such file.
    """
    if data[:4] != MAGIC or len(data) < 6:
        raise TokenError(f"it begins with {data[:4]!r}, a file of tokens with {MAGIC!r}")
    if data[4] == 0:
        reader = _Reader(data[5:])
        return tuple(_named(reader) for _ in range(reader.long()))
    if data[4] == 1:
        return tuple(_proto_tokens(data[5:]))
    raise TokenError(f"files of tokens have version 0 or 1, this one has {data[4]}")


def identity_of(token: Token) -> Identity:
    """Return whose a token is and how long it may live.

    Raises:
        TokenError: It is of a kind that says so in another way.
    """
    reader = _Reader(token.identifier)
    if reader.take(1) != b"\0":
        raise TokenError("an identifier of another version")
    owner, renewer, real_user = reader.text(), reader.text(), reader.text()
    return Identity(owner, renewer, real_user, reader.long(), reader.long())


def _named(reader: "_Reader") -> Token:
    reader.text()
    return _token(reader)


def _token(reader: "_Reader") -> Token:
    identifier, password = reader.bytes(), reader.bytes()
    return Token(identifier, password, reader.text(), reader.text())


class _Reader:
    """Takes Writables off the front of some bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        found = self._data[self._at : self._at + count]
        if not 0 <= count <= _LONGEST or len(found) < count:
            raise TokenError("it ends early")
        self._at += count
        return found

    def long(self) -> int:
        """Return a number of variable length: small ones are their own first byte."""
        first = int.from_bytes(self.take(1), signed=True)
        if first >= -112:
            return first
        is_negative = first < -120
        found = int.from_bytes(self.take(-first - (120 if is_negative else 112)))
        return ~found if is_negative else found

    def bytes(self) -> bytes:
        return self.take(self.long())

    def text(self) -> str:
        return self.bytes().decode(errors="replace")


def _long(number: int) -> bytes:
    """Return a number of at least 0 as `_Reader.long` reads it."""
    if number <= 127:
        return bytes([number])
    count = (number.bit_length() + 7) // 8
    return (-112 - count).to_bytes(1, signed=True) + number.to_bytes(count)


def _proto_tokens(data: bytes) -> Iterator[Token]:
    """Yield the tokens of a file of Protocol Buffers: fields of bytes, two levels deep."""
    _, at = _varint(data, 0)
    for field, named in _fields(data[at:]):
        if field != 1:
            continue
        for inner, value in _fields(named):
            if inner == 2:
                parts = dict(_fields(value))
                kind, service = parts.get(3, b""), parts.get(4, b"")
                yield Token(
                    parts.get(1, b""),
                    parts.get(2, b""),
                    kind.decode(errors="replace"),
                    service.decode(errors="replace"),
                )


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        if tag & 7 != 2:
            raise TokenError(f"a field of wire type {tag & 7}")
        count, at = _varint(data, at)
        if at + count > len(data):
            raise TokenError("it ends early")
        yield tag >> 3, data[at : at + count]
        at += count


def _varint(data: bytes, at: int) -> tuple[int, int]:
    found = shift = 0
    while at < len(data) and shift < 64:
        found |= (data[at] & 127) << shift
        at += 1
        if data[at - 1] < 128:
            return found, at
        shift += 7
    raise TokenError("it ends early")
