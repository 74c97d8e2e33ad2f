"""Delegation tokens as Hadoop writes them, made for tests; none of them is signed."""

from collections.abc import Sequence

from primusd.datafeed.storage.hadoop_tokens import Token


def long_bytes(number: int) -> bytes:
    """Return a number as Hadoop's `writeVLong` writes it."""
    if -112 <= number <= 127:
        return number.to_bytes(1, signed=True)
    first, number = (-112, number) if number >= 0 else (-120, ~number)
    count = max(1, (number.bit_length() + 7) // 8)
    return (first - count).to_bytes(1, signed=True) + number.to_bytes(count)


def sized(data: bytes) -> bytes:
    return long_bytes(len(data)) + data


def made_token(
    expires_ms: int,
    *,
    issued_ms: int = 0,
    owner: str = "ann",
    service: str = "",
    kind: str = "HDFS_DELEGATION_TOKEN",
    number: int = 1,
) -> Token:
    """Return a token that says so of itself."""
    names = b"".join(sized(one.encode()) for one in (owner, "yarn", ""))
    numbers = b"".join(long_bytes(one) for one in (issued_ms, expires_ms, number, 2))
    return Token(b"\0" + names + numbers, b"secret", kind, service)


def token_file(*tokens: Token) -> bytes:
    """Return a file of tokens, as `hdfs fetchdt` writes it."""
    body = long_bytes(len(tokens))
    for token in tokens:
        parts = (token.identifier, token.password, token.kind.encode(), token.service.encode())
        body += sized(b"an alias") + b"".join(map(sized, parts))
    return b"HDTS\0" + body + long_bytes(1) + sized(b"a key") + sized(b"of another kind")


def token_file_of_protocol_buffers(*tokens: Token) -> bytes:
    """Return the same in the form that YARN may be told to write."""
    body = b""
    for token in tokens:
        parts = (token.identifier, token.password, token.kind.encode(), token.service.encode())
        inner = _fields(parts)
        body += _field(1, _fields((b"an alias",)) + _field(2, inner))
    body += _field(2, _field(1, b"a key") + _field(3, b"of another kind"))
    return b"HDTS\1" + _varint(len(body)) + body


def _fields(parts: Sequence[bytes]) -> bytes:
    return b"".join(_field(number, part) for number, part in enumerate(parts, start=1))


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])
