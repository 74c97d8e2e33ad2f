"""How a head that stands by hands a request on to the leader, once and no further.

Watches and logs are sent to the leader by a 307 instead: they may last for days.
"""

import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import aiohttp
import anyio
from aiohttp import hdrs, web
from msgspec import Struct
from yarl import URL

from primusd.api.auth import CALLER, KEYED_PREFIXES, READING_METHODS
from primusd.api.problems import LEADER
from primusd.api.vouching import SCHEME, Voucher, vouch
from primusd.errors import LeaderLostError, NotLeaderError
from primusd.executor.connection import trusting
from primusd.state.election import Heads, News

HOP = "X-Primus-Hop"
"""The head that handed a request on: who gets it and does not lead hands it on no more."""
TERM = "X-Primus-Term"
PASS = "X-Primus-Pass"  # noqa: S105 - the name of a header
"""Beside a 307: what the leader takes in place of a token, for this one request."""
CONNECT_S = 3.0
REACH_S = 1.0
REACHED_FOR_S = 1.0
PART_BYTES = 1 << 18
_NOT_HANDED_ON = frozenset(
    """connection keep-alive proxy-authenticate proxy-authorization te trailer transfer-encoding
    upgrade host origin expect content-length authorization x-primus-hop x-primus-pass""".split()  # noqa: SIM905 - a list of words reads best as one.
)

_NOT_ADDED = (hdrs.USER_AGENT, hdrs.CONTENT_TYPE, hdrs.ACCEPT, hdrs.ACCEPT_ENCODING)


class Own(Struct, frozen=True):
    """What a head has to know of itself to hand requests on."""

    member: str
    secret: bytes
    """Of the cluster."""
    wall_ms: Callable[[], int]
    ca: Callable[[], str | None]
    """What the other heads are trusted by; None: the authorities of this host alone."""
    has_tls: bool
    """Whoever came in by TLS is not handed on without."""


class Forwarder:
    """Hands requests on to whoever leads."""

    def __init__(self, own: Own, heads: Callable[[], Heads], news: News) -> None:
        self._own = own
        self._heads = heads
        self._news = news
        self._reached: tuple[str, float, NotLeaderError | None] = ("", 0.0, None)

    async def forward(self, request: web.Request) -> web.StreamResponse:
        """Return the leader's answer, or the way to it.

        Raises:
            NotLeaderError: Nobody leads, or the one who does is not reached; nothing was done.
            LeaderLostError: It went while it worked.
        """
        heads = self._heads()
        if HOP in request.headers:
            raise not_leader(heads)
        address = self._address(heads)
        if _lasts(request):
            return self._way(request, address, heads)
        response: web.StreamResponse | None = None
        try:
            async with self._asked(request, address, heads) as answer:
                response = web.StreamResponse(
                    status=answer.status, headers=_answered(answer, address, heads)
                )
                await response.prepare(request)
                async for part in answer.content.iter_chunked(PART_BYTES):
                    await response.write(part)
                await response.write_eof()
                return response
        except aiohttp.ClientConnectorError as error:
            raise _unreached(heads, address, str(error)) from error
        except (aiohttp.ClientError, TimeoutError) as error:
            if response is not None and response.prepared:
                # The head of the answer is out: that it ends too early says the rest.
                if request.transport is not None:
                    request.transport.abort()
                return response
            if request.method in READING_METHODS:
                raise _unreached(heads, address, str(error) or type(error).__name__) from error
            raise LeaderLostError(
                f"the leader went while it worked ({address}): nobody knows whether that was done",
                hint="look, and ask again where it was not; the same Idempotency-Key does it once",
            ) from error

    async def check_reached(self) -> None:
        """See that requests that come now can be handed on; asked at most once a second.

        Raises:
            NotLeaderError: They cannot.
        """
        heads = self._heads()
        address = self._address(heads)
        known, until_s, failed = self._reached
        if known != address or time.monotonic() > until_s:
            failed = await self._failed(heads, address)
            self._reached = (address, time.monotonic() + REACHED_FOR_S, failed)
        if failed is not None:
            raise failed

    async def _failed(self, heads: Heads, address: str) -> NotLeaderError | None:
        try:
            async with (
                self._session(address, REACH_S) as session,
                session.get(f"{address}/readyz?leads=1") as answer,
            ):
                if answer.status == 200:
                    return None
                return _unreached(heads, address, (await answer.text()).strip())
        except (aiohttp.ClientError, TimeoutError) as error:
            return _unreached(heads, address, str(error) or type(error).__name__)

    def _address(self, heads: Heads) -> str:
        """Return where the leader is, if requests may be handed on to it."""
        leader = heads.leader
        if leader is None:
            raise not_leader(heads)
        if leader.member == self._own.member:
            raise NotLeaderError(
                "this daemon takes over just now", hint="try again in a moment", leader=""
            )
        address = next(iter(leader.addresses), "")
        if not address:
            raise NotLeaderError(
                f"{leader.member} leads, and listens on no address that others reach",
                hint=f"set listen.tcp and listen.advertise of {leader.member}",
                leader="",
            )
        if self._own.has_tls and not address.startswith("https:"):
            raise not_leader(heads)
        return address.rstrip("/")

    def _way(self, request: web.Request, address: str, heads: Heads) -> web.Response:
        headers = {
            hdrs.LOCATION: f"{address}{request.rel_url.raw_path_qs}",
            LEADER: address,
            TERM: str(heads.term),
        }
        if CALLER in request:
            headers[PASS] = self._word(request)
        return web.Response(status=307, headers=headers)

    @asynccontextmanager
    async def _asked(
        self, request: web.Request, address: str, heads: Heads
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield the answer of the leader; broken off once it leads no more."""
        async with self._session(address) as session:
            with anyio.CancelScope() as scope:

                def look() -> None:
                    if self._heads().term != heads.term:
                        scope.cancel()

                with self._news.told_to(look):
                    async with session.request(
                        request.method,
                        URL(f"{address}{request.rel_url.raw_path_qs}", encoded=True),
                        headers=self._sent(request),
                        data=request.content if request.body_exists else None,
                        allow_redirects=False,
                        skip_auto_headers=_NOT_ADDED,
                    ) as answer:
                        yield answer
        if scope.cancelled_caught:
            raise TimeoutError("it leads no more")

    def _session(self, address: str, total_s: float | None = None) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            ssl=trusting(self._own.ca()) if address.startswith("https:") else True,
            # One connection each: one that is kept may be closed under the next request.
            force_close=True,
        )
        timeout = aiohttp.ClientTimeout(total=total_s, sock_connect=CONNECT_S)
        return aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False)

    def _sent(self, request: web.Request) -> dict[str, str]:
        headers = {
            name: value
            for name, value in request.headers.items()
            if name.lower() not in _NOT_HANDED_ON
        }
        headers[HOP] = self._own.member
        if request.body_exists and request.content_length is not None:
            headers[hdrs.CONTENT_LENGTH] = str(request.content_length)
        if CALLER in request:
            headers[hdrs.AUTHORIZATION] = f"{SCHEME} {self._word(request)}"
        elif request.path.startswith(KEYED_PREFIXES) and hdrs.AUTHORIZATION in request.headers:
            # Keys of jobs and nodes are the same for all heads.
            headers[hdrs.AUTHORIZATION] = request.headers[hdrs.AUTHORIZATION]
        return headers

    def _word(self, request: web.Request) -> str:
        own = self._own
        voucher = Voucher(
            own.member, request[CALLER], request.method, request.rel_url.raw_path_qs, own.wall_ms()
        )
        return vouch(own.secret, voucher)


FORWARDER: web.AppKey[Forwarder] = web.AppKey("forwarder", Forwarder)


def _lasts(request: web.Request) -> bool:
    """Return whether an answer goes on for as long as its reader wants."""
    is_watch = request.query.get("watch", "0").lower() not in ("", "0", "false", "no")
    is_log = request.path.startswith("/api/") and request.path.endswith("/logs")
    return request.method in READING_METHODS and (is_watch or is_log)


def _answered(answer: aiohttp.ClientResponse, address: str, heads: Heads) -> Mapping[str, str]:
    headers = {
        name: value
        for name, value in answer.headers.items()
        if name.lower() not in _NOT_HANDED_ON or name.lower() == "content-length"
    }
    headers[TERM] = str(heads.term)
    if answer.status != 503:
        # Beside a 503 it would say that nothing was done.
        headers[LEADER] = address
    return headers


def _unreached(heads: Heads, address: str, text: str) -> NotLeaderError:
    leader = heads.leader.member if heads.leader is not None else ""
    return NotLeaderError(
        f"{leader} leads, and does not answer at {address}: {text}",
        hint="try again in a moment: should it be gone, another one leads once its lease is over",
        leader="",
    )


def not_leader(heads: Heads) -> NotLeaderError:
    """Return what a caller is told whose request is not handed on."""
    if heads.leader is None:
        return NotLeaderError(
            "this daemon does not lead, and nobody else does yet",
            hint="try again in a moment",
            leader="",
        )
    address = next(iter(heads.leader.addresses), "")
    return NotLeaderError(
        f"this daemon stands by: {heads.leader.member} leads, term {heads.term}",
        hint=f"ask {address}" if address else "",
        leader=address,
    )
