"""Who calls, and what they may do (docs/config.md §4).

Over the unix socket the kernel tells who calls, and who may open it may do all. Over TCP every
request needs a token, on loopback too: any local user or web page could reach it. A client
certificate stands in for one where `client_ca` is set.
"""

import hashlib
import hmac
import pwd
import socket
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from struct import Struct as Layout

from aiohttp import web
from aiohttp.typedefs import Middleware
from msgspec import Struct

from primusd.api.problems import Handler
from primusd.api.vouching import Caller
from primusd.errors import ConfigError, ForbiddenError, Problem, UnauthorizedError

ROLES = ("admin", "write", "read")
OPEN_PATHS = frozenset({"/healthz", "/livez", "/readyz", "/version", "/openapi.json"})
KEYED_PREFIXES = ("/executor/", "/node/")
"""Executors and nodes show a key of their own, which their paths check."""
READING_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_PEER = Layout("3i")

VouchedFor = Callable[[web.Request], Caller | None]


CALLER: web.RequestKey[Caller] = web.RequestKey("caller", Caller)


class Token(Struct, frozen=True):
    """A token that opens the TCP listener; only its digest is known."""

    name: str
    role: str
    sha256: str


class Access(Struct, frozen=True):
    """What the TCP listener checks."""

    tokens: tuple[Token, ...] = ()
    hosts: frozenset[str] = LOOPBACK_NAMES
    """Names under which this head may be called; a page that rebinds its own is turned away."""
    page_reads_without_token: bool = False


def read_tokens(path: Path) -> tuple[Token, ...]:
    """Return the tokens of a file of lines `name role sha256`.

    Raises:
        ConfigError: The file cannot be read, or a line is no token; every fault at once.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the token file {path} cannot be read: {error}") from error
    tokens, faults = [], []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        if len(words) == 3 and words[1] in ROLES and len(words[2]) == 64:
            tokens.append(Token(words[0], words[1], words[2].lower()))
        else:
            faults.append(
                Problem(
                    path="auth.tokens",
                    at=f"{path}:{number}",
                    allowed="name, role (admin, write or read), sha256 of the token",
                )
            )
    if faults:
        raise ConfigError(f"{path} has {len(faults)} lines that are no token", errors=tuple(faults))
    return tuple(tokens)


def token_of(name: str, role: str, secret: str) -> Token:
    """Return the token that a secret text opens with."""
    return Token(name, role, hashlib.sha256(secret.encode()).hexdigest())


def _by_nobody(_request: web.Request) -> Caller | None:
    """Return nobody: there is no other head."""
    return None


def authenticate(
    request: web.Request, access: Access, vouched_for: VouchedFor = _by_nobody
) -> Caller:
    """Return who sent the request.

    Args:
        request: As it came.
        access: What is checked.
        vouched_for: Returns for whom another head vouches that handed the request on.

    Raises:
        UnauthorizedError: No token, or one that is not known.
        ForbiddenError: The Host or Origin is another's, or the token only reads.
    """
    peer = peer_of(request)
    if peer is not None:
        return Caller(peer, "admin")
    _check_host(request, access.hosts)
    caller = (
        vouched_for(request)
        or _token_caller(request.headers, access.tokens)
        or _certified_caller(request)
    )
    if caller is None:
        if request.method in READING_METHODS and access.page_reads_without_token:
            return Caller("anonymous", "read")
        raise UnauthorizedError(
            "a token is needed", hint="send Authorization: Bearer <token>, or use the unix socket"
        )
    if caller.role == "read" and request.method not in READING_METHODS:
        raise ForbiddenError(f"{caller.name} may only read")
    return caller


def peer_of(request: web.Request) -> str | None:
    """Return the caller as the kernel knows it, None when the request came over TCP."""
    transport = request.transport
    sock = transport.get_extra_info("socket") if transport is not None else None
    if sock is None or sock.family != socket.AF_UNIX:
        return None
    _, uid, _ = _PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return f"uid:{uid}{_login(uid)}"


def _login(uid: int) -> str:
    try:
        return f" ({pwd.getpwuid(uid).pw_name})"
    except KeyError:
        return ""


def _check_host(request: web.Request, hosts: Iterable[str]) -> None:
    known = frozenset(hosts) | LOOPBACK_NAMES
    if host_name(request.headers.get("Host", "")) not in known:
        raise ForbiddenError(f"this is not the host {request.headers.get('Host', '')!r}")
    origin = request.headers.get("Origin")
    if origin is not None and origin.partition("://")[2] != request.headers.get("Host"):
        raise ForbiddenError(f"requests from pages of {origin!r} are not taken")


def host_name(authority: str) -> str:
    """Return the name in `host:port` or `[v6]:port`."""
    if authority.startswith("["):
        return authority[1:].partition("]")[0]
    return authority.partition(":")[0].lower()


def _certified_caller(request: web.Request) -> Caller | None:
    """Return who a client certificate names; TLS has checked it against `client_ca`."""
    transport = request.transport
    certificate = transport.get_extra_info("peercert") if transport is not None else None
    for part in (certificate or {}).get("subject", ()):
        for key, value in part:
            if key == "commonName":
                return Caller(f"certificate:{value}", "admin")
    return None


def _token_caller(headers: Mapping[str, str], tokens: Iterable[Token]) -> Caller | None:
    kind, _, secret = headers.get("Authorization", "").partition(" ")
    if kind.lower() != "bearer" or not secret:
        return None
    digest = hashlib.sha256(secret.strip().encode(errors="surrogateescape")).hexdigest()
    for token in tokens:
        if hmac.compare_digest(token.sha256, digest):
            return Caller(f"token:{token.name}", token.role)
    return None


def is_open(path: str) -> bool:
    """Return whether a path needs no token, or checks a key of its own."""
    return path in OPEN_PATHS or path.startswith(KEYED_PREFIXES)


def authenticator(access: Callable[[], Access], vouched_for: VouchedFor = _by_nobody) -> Middleware:
    """Return the middleware that lets nobody in unknown."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not is_open(request.path):
            request[CALLER] = authenticate(request, access(), vouched_for)
        return await handler(request)

    return check
