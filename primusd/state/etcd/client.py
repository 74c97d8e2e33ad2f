"""A thin client of etcd over `grpc.aio`: endpoints by turns, a short deadline for each try.

A member that hangs keeps its connections open, so it is the deadline of each try that finds it out.
A try that failed may have been carried out all the same, now or later: callers of what writes make
repeats harmless.
"""

import asyncio
import itertools
import random
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from typing import Any, TypeVar

import anyio
import anyio.lowlevel
import grpc
import grpc.aio
import structlog
from msgspec import Struct

from primusd.errors import PrimusdError, StoreFullError, StoreUnavailableError
from primusd.state.etcd.messages import messages, methods

log = structlog.get_logger()
T = TypeVar("T")

MESSAGE_BYTES_MAX = 64 << 20
PAUSE_FIRST_S = 0.02
PAUSE_MAX_S = 0.5
TRY_S_MIN = 0.01
_OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    # More often, or on idle connections, etcd answers with GOAWAY.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
)
_TRANSIENT = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})
_TRANSIENT_WORDS = ("context deadline", "no leader", "leader changed", "request timed out")
_OLD_TOKEN_WORDS = ("invalid auth token", "revision in header is old", "user name is empty")


class EtcdRefusedError(StoreUnavailableError):
    """It answered, and said no: the same will not work later either."""


class Tls(Struct, frozen=True):
    """What connections are secured with, PEM."""

    ca: bytes | None = None
    """None: the authorities of this host."""
    cert: bytes | None = None
    key: bytes | None = None


class EtcdSettings(Struct, frozen=True):
    """How etcd is reached."""

    endpoints: tuple[str, ...]
    """`host:port`, perhaps behind `http://` or `https://`."""
    user: str = ""
    password: str = ""
    tls: Tls | None = None
    try_ms: int = 1_000
    """Deadline of one try."""


class EtcdClient:
    """Calls etcd; made inside the running loop."""

    def __init__(self, settings: EtcdSettings) -> None:
        self._settings = settings
        self._position = 0
        self._token = ""
        self._addresses = tuple(one.rpartition("//")[2] for one in settings.endpoints)
        self._channels = tuple(map(self._channel, settings.endpoints))
        self._calls: dict[tuple[int, str, str], Any] = {}

    @property
    def settings(self) -> EtcdSettings:
        """How etcd is reached."""
        return self._settings

    @property
    def addresses(self) -> tuple[str, ...]:
        """`host:port` of each endpoint."""
        return self._addresses

    @property
    def position(self) -> int:
        """Which endpoint is asked now."""
        return self._position

    def rotate(self, position: int) -> None:
        """Ask the next endpoint, unless somebody else has turned away from this one already."""
        if position == self._position:
            self._position = (position + 1) % len(self._channels)

    def log_in_anew(self) -> None:
        """Ask for a new token before the next call."""
        self._token = ""

    async def close(self) -> None:
        """Close all connections."""
        for channel in self._channels:
            await channel.close()

    async def call(
        self, service: str, method: str, request: object, *, within_s: float, try_s: float = 0.0
    ) -> Any:
        """Return the answer to a request; transient failures are tried again, elsewhere.

        Args:
            service: `KV` for one.
            method: `Txn` for one.
            request: Of the class that goes with it.
            within_s: For how long to try.
            try_s: Deadline of one try; 0 is that of the settings.

        Raises:
            StoreFullError: Its quota is used up.
            StoreUnavailableError: Nobody answered in time, or etcd refused; it may have been
                carried out all the same.
        """
        end_s = anyio.current_time() + within_s
        try_s = try_s or self._settings.try_ms / 1000
        for count in itertools.count(1):
            position, left_s = self._position, end_s - anyio.current_time()
            try:
                await self._ensure_token(left_s)
                return await self.once(
                    position, service, method, request, within_s=min(left_s, try_s)
                )
            except grpc.aio.AioRpcError as error:
                if is_old_token(error) and self._settings.user:
                    self._token = ""
                elif not is_transient(error):
                    raise self.told(error) from error
                if end_s - anyio.current_time() <= TRY_S_MIN:
                    raise self.told(error) from error
            self.rotate(position)
            await self.pause(count)
        raise AssertionError("unreachable: the loop above has no end")

    async def once(
        self, position: int, service: str, method: str, request: object, *, within_s: float
    ) -> Any:
        """Make one try at one endpoint."""
        stub = self._stub(position, service, method)
        call = stub(request, timeout=max(TRY_S_MIN, within_s), metadata=self.metadata())
        return await awaited(call)

    async def stream(
        self, service: str, method: str, request: object, *, within_s: float | None
    ) -> AsyncGenerator[Any]:
        """Yield the answers of one stream at the present endpoint, until it ends.

        Raises:
            grpc.aio.AioRpcError: It broke.
        """
        await self._ensure_token(self._settings.try_ms / 1000)
        metadata = (("hasleader", "true"), *self.metadata())
        call = self._stub(self._position, service, method)(timeout=within_s, metadata=metadata)
        try:
            await awaited(call.write(request))
            while (answer := await awaited(call.read())) is not grpc.aio.EOF:
                yield answer
        except asyncio.InvalidStateError as error:
            # Of a stream that had ended before the request was written.
            raise StoreUnavailableError("the stream to etcd broke") from error
        finally:
            call.cancel()

    async def keep_alive(self, lease: int, *, within_s: float) -> int:
        """Renew a lease with one try; return its new TTL in seconds, 0: it is gone.

        Raises:
            StoreUnavailableError: Nobody answered; the next try goes elsewhere.
        """
        position = self._position
        request = messages()["LeaseKeepAliveRequest"](ID=lease)
        stream = self.stream("Lease", "LeaseKeepAlive", request, within_s=within_s)
        try:
            async with aclosing(stream) as answers:
                async for answer in answers:
                    return int(answer.TTL)
        except grpc.aio.AioRpcError as error:
            if is_old_token(error):
                self.log_in_anew()
            told = self.told(error)
            self.rotate(position)
            raise told from error
        self.rotate(position)
        raise StoreUnavailableError("the stream to etcd ended without an answer")

    async def pause(self, count: int) -> None:
        """Wait after a failed try: not at all until each endpoint has had its turn."""
        rounds = count - len(self._channels)
        if rounds >= 0:
            pause_s = min(PAUSE_FIRST_S * 2 ** min(rounds, 6), PAUSE_MAX_S)
            await anyio.sleep(pause_s * (0.5 + random.random() / 2))  # noqa: S311 - spreads.
        else:
            await anyio.lowlevel.checkpoint()

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return what goes with each request."""
        return (("token", self._token),) if self._token else ()

    def told(self, error: grpc.aio.AioRpcError) -> PrimusdError:
        """Return an error of gRPC as one for people."""
        text = (error.details() or error.code().name).removeprefix("etcdserver: ")
        address = self._addresses[self._position]
        if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and "space exceeded" in text:
            return StoreFullError(
                "the quota of etcd is used up (NOSPACE); nothing was recorded",
                hint="compact and defragment it, then disarm the alarm; trainers go on meanwhile",
            )
        if is_transient(error):
            names = ", ".join(self._addresses)
            return StoreUnavailableError(
                f"etcd does not answer ({names}): {text}", hint="see that a majority of it runs"
            )
        return EtcdRefusedError(f"etcd at {address} refused: {text}", hint=_hint(error))

    async def _ensure_token(self, within_s: float) -> None:
        """Log in, where there is a user and no token yet."""
        if self._token or not self._settings.user:
            return
        position = self._position
        request = messages()["AuthenticateRequest"](
            name=self._settings.user, password=self._settings.password
        )
        within_s = min(within_s, self._settings.try_ms / 1000)
        answer = await self.once(position, "Auth", "Authenticate", request, within_s=within_s)
        self._token = answer.token

    def _channel(self, endpoint: str) -> grpc.aio.Channel:
        address, tls = endpoint.rpartition("//")[2], self._settings.tls
        if tls is None:
            return grpc.aio.insecure_channel(address, options=_OPTIONS)
        credentials = grpc.ssl_channel_credentials(tls.ca, tls.key, tls.cert)
        return grpc.aio.secure_channel(address, credentials, options=_OPTIONS)

    def _stub(self, position: int, service: str, method: str) -> Any:
        key = (position, service, method)
        if key not in self._calls:
            path, request, answer = methods(service)[method]
            is_stream = (service, method) in {("Watch", "Watch"), ("Lease", "LeaseKeepAlive")}
            channel = self._channels[position]
            make = channel.stream_stream if is_stream else channel.unary_unary
            self._calls[key] = make(
                path,
                request_serializer=request.SerializeToString,
                response_deserializer=answer.FromString,
            )
        return self._calls[key]


async def awaited(call: Awaitable[T]) -> T:
    """Return what a call returns, and be cancelled as anyio wants it: grpc drops its mark.

    Source: https://github.com/grpc/grpc/issues/43502.
    """
    try:
        return await call
    except asyncio.CancelledError:
        await anyio.lowlevel.checkpoint_if_cancelled()
        raise


def is_transient(error: grpc.aio.AioRpcError) -> bool:
    """Return whether the same may work elsewhere, or a little later."""
    text = error.details() or ""
    return error.code() in _TRANSIENT or any(word in text for word in _TRANSIENT_WORDS)


def is_old_token(error: grpc.aio.AioRpcError) -> bool:
    """Return whether one has to log in anew."""
    text = error.details() or ""
    is_nobody = error.code() is grpc.StatusCode.UNAUTHENTICATED
    return is_nobody or any(word in text for word in _OLD_TOKEN_WORDS)


def _hint(error: grpc.aio.AioRpcError) -> str:
    text = error.details() or ""
    if "authentication failed" in text:
        return "see store.etcd.user and its password_file"
    if error.code() is grpc.StatusCode.PERMISSION_DENIED:
        return "let the user read and write all below /primusd/"
    return ""
