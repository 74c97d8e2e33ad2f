"""How one head vouches to another for a caller whose request it hands on.

A head checks its callers by itself: the unix socket, its own token, those of `[auth] tokens`,
certificates. What it tells the leader of them is signed with a key of the cluster's secret, which
heads alone have, and holds for one method and target, and for minutes: whoever gets hold of it can
do nothing else with it.
"""

import base64
import hashlib
import hmac

import msgspec
from aiohttp import web
from msgspec import Struct

from primusd.errors import UnauthorizedError
from primusd.keys import head_key

SCHEME = "PrimusHead"
GOOD_FOR_MS = 300_000
"""By the wall clocks of two heads, which may differ by that much."""


class Caller(Struct, frozen=True):
    """Who sent a request."""

    name: str
    """As the journal keeps it: `uid:1000 (ann)`, `token:ci`; `… via b`: head b handed it on."""
    role: str


class Voucher(Struct, frozen=True, array_like=True):
    """What is signed."""

    member: str
    """The head that vouches."""
    caller: Caller
    method: str
    target: str
    """Path and query as they were sent."""
    at_ms: int
    """Wall clock of that head."""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Voucher).decode


def vouch(secret: bytes, voucher: Voucher) -> str:
    """Return what goes into `Authorization`, behind the scheme."""
    body = base64.urlsafe_b64encode(_encode(voucher))
    return f"{body.decode()}.{_signature(secret, body)}"


def vouched_for(request: web.Request, secret: bytes, *, now_ms: int) -> Caller | None:
    """Return the caller for whom another head vouches; None: the request has no such word.

    Args:
        request: As it came.
        secret: Of the cluster.
        now_ms: Wall clock.

    Raises:
        UnauthorizedError: It has one that does not hold.
    """
    scheme, _, shown = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != SCHEME.lower():
        return None
    body, _, signature = shown.strip().partition(".")
    raw = body.encode(errors="surrogateescape")
    if not hmac.compare_digest(
        _signature(secret, raw).encode(), signature.encode(errors="surrogateescape")
    ):
        raise UnauthorizedError("no head of this cluster vouches for that")
    voucher = _decode(base64.urlsafe_b64decode(raw))
    if (voucher.method, voucher.target) != (request.method, request.rel_url.raw_path_qs):
        raise UnauthorizedError(f"{voucher.member} vouches for another request than this one")
    if abs(now_ms - voucher.at_ms) > GOOD_FOR_MS:
        away_s = abs(now_ms - voucher.at_ms) // 1000
        raise UnauthorizedError(
            f"the word of {voucher.member} is {away_s} s away from the clock of this head",
            hint="ask again; should it stay so, see to the clocks of both hosts",
        )
    return Caller(f"{voucher.caller.name} via {voucher.member}", voucher.caller.role)


def _signature(secret: bytes, body: bytes) -> str:
    return hmac.new(head_key(secret), body, hashlib.sha256).hexdigest()
