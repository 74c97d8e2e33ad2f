"""How often one caller may ask: a bucket that fills with time, one per caller."""

from collections.abc import Callable

from aiohttp import web
from aiohttp.typedefs import Middleware

from primusd.api.auth import CALLER
from primusd.api.problems import Handler
from primusd.errors import TooManyRequestsError

BURST_S = 2
"""A caller may save up the requests of so many seconds."""
CALLERS_MAX = 1_000
WATCHES_MAX = 1_000
"""In all; each is a subscription that every step has to fill."""


class Rates:
    """Buckets of requests by caller."""

    def __init__(self, *, per_s: Callable[[], int], now_ms: Callable[[], int]) -> None:
        self._per_s = per_s
        self._now_ms = now_ms
        self._buckets: dict[str, tuple[float, int]] = {}

    def take(self, caller: str) -> None:
        """Count one request of the caller.

        Raises:
            TooManyRequestsError: It sends more than it may.
        """
        now_ms, per_s = self._now_ms(), self._per_s()
        most = float(per_s * BURST_S)
        saved, then_ms = self._buckets.get(caller, (most, now_ms))
        saved = min(most, saved + (now_ms - then_ms) * per_s / 1000)
        if saved < 1:
            raise TooManyRequestsError(
                f"{caller} sends more than {per_s} requests a second", hint="wait 1 s"
            )
        if len(self._buckets) >= CALLERS_MAX and caller not in self._buckets:
            self._buckets.pop(next(iter(self._buckets)))
        self._buckets[caller] = (saved - 1, now_ms)


def limiter(rates: Rates) -> Middleware:
    """Return the middleware that counts requests per caller; it stands behind the authenticator."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        caller = request.get(CALLER)
        if caller is not None:
            rates.take(caller.name)
        return await handler(request)

    return check
