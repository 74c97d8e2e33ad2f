"""Which head of a cluster is asked: the leader, found by asking in turn."""

import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

from primusd.ctl.exchange import Answer

LEADER = "X-Primus-Leader"
"""A head that refuses because it does not lead names here who does, "" nobody; nothing was done."""
SENT_ON_STATUS = 307
"""A follower sends whoever watches or reads logs to the leader,"""
PASS = "X-Primus-Pass"  # noqa: S105 - the name of a header
"""with what it takes there for this one request, instead of a token."""
PASS_SCHEME = "PrimusHead"  # noqa: S105 - how it is shown
TAKES_NO_TOKEN = "it does not take the token that was found"  # noqa: S105 - words
"""Said of a head with other tokens: another one of those that were given may take ours."""
HOPS_MAX = 4
CONNECT_S = 3.0
"""A head that takes no connection for so long is passed over where there are others."""
UNIX = "unix:"
HTTP_PORT, HTTPS_PORT = 80, 443


class Heads:
    """The heads that are known, and the one that led when it was last asked.

    Attributes:
        address: Of the head that is asked first.
    """

    def __init__(self, addresses: str) -> None:
        """Know heads by their addresses, separated by commas."""
        self._given = tuple(one for one in addresses.split(",") if one)
        self.address = self._given[0]

    @property
    def has_others(self) -> bool:
        """Whether there is another one to ask than the first."""
        return any(one != self.address for one in self._given)

    @property
    def is_one_of_several(self) -> bool:
        """Whether the head that was asked last was given, with others."""
        return len(self._given) > 1 and self.address in self._given

    @property
    def followed(self) -> str:
        """The address to which another head sent us; "" it is one that was given."""
        return "" if self.address in self._given else self.address

    def round(self) -> "Round":
        """Return the heads to ask for one request, in turn."""
        return Round(self.address, self._given)

    def pass_over(self) -> None:
        """Ask another one first the next time: this one was lost while it worked."""
        others = [one for one in self._given if one != self.address]
        behind = self._given.index(self.address) if self.address in self._given else 0
        if others:
            self.address = others[behind % len(others)]


class Round:
    """One request's way from head to head.

    Attributes:
        said: What each that was asked said instead of doing it.
    """

    def __init__(self, first: str, given: tuple[str, ...]) -> None:
        self._waiting = list(dict.fromkeys([first, *given]))
        self._hops = 0
        self._passes: dict[str, str] = {}
        self.said: dict[str, str] = {}

    def addresses(self) -> Iterator[str]:
        """Yield whom to ask, until one was asked that leads."""
        while self._waiting:
            address = self._waiting.pop(0)
            if address not in self.said:
                yield address

    def follow(self, asked: str, leader: str, *, shown: str = "") -> None:
        """Ask next whom a follower named; a head that is known by TLS names none without.

        Args:
            asked: Address of the follower.
            leader: Address that it named; "" none.
            shown: What that one takes in place of our token, for this request.
        """
        is_safe = not asked.startswith("https:") or leader.startswith("https:")
        if leader and is_safe and self._hops < HOPS_MAX:
            self._hops += 1
            self._waiting.insert(0, leader)
            if shown:
                self._passes[leader] = f"{PASS_SCHEME} {shown}"

    def shown_to(self, address: str) -> str:
        """Return what a head takes in place of our token; "" nothing was given out for it."""
        return self._passes.get(address, "")


def connect(address: str, *, ca: str, within_s: float, timeout_s: float) -> socket.socket:
    """Return an open connection to a head.

    Args:
        address: In one of its three forms.
        ca: A file with the authorities by which it is judged; "" those of this host.
        within_s: How long it may take to get there.
        timeout_s: How long an answer may take after that.

    Raises:
        OSError: Nobody listens there, or it is not who it should be; nothing was sent.
    """
    if address.startswith(UNIX):
        opened = _unix(address.removeprefix(UNIX), within_s)
    else:
        parts = urlsplit(address)
        host = parts.hostname or "localhost"
        is_secure = parts.scheme == "https"
        place = (host, parts.port or (HTTPS_PORT if is_secure else HTTP_PORT))
        opened = socket.create_connection(place, within_s)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if is_secure:
            opened = _secured(opened, host, ca)
    opened.settimeout(timeout_s)
    return opened


def host_of(address: str) -> str:
    """Return what a request to a head says in its `Host`."""
    return "localhost" if address.startswith(UNIX) else urlsplit(address).netloc.rpartition("@")[2]


def leader_named(answer: Answer) -> str | None:
    """Return whom a head names that does not lead, "" nobody; None: it answers as the leader."""
    is_follower = answer.status == 503 and answer.has_header(LEADER)
    return answer.header(LEADER) if is_follower else None


def sent_on_to(answer: Answer) -> tuple[str, str] | None:
    """Return the address of the head that a follower sends us on to, and what it takes there."""
    if answer.status != SENT_ON_STATUS:
        return None
    parts = urlsplit(answer.header("Location"))
    return f"{parts.scheme}://{parts.netloc}", answer.header(PASS)


def _unix(path: str, timeout_s: float) -> socket.socket:
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    opened.settimeout(timeout_s)
    try:
        opened.connect(path)
    except BaseException:
        opened.close()
        raise
    return opened


def _secured(opened: socket.socket, host: str, ca: str) -> socket.socket:
    """Return the connection with TLS on it; it is closed where that cannot be had."""
    import ssl  # noqa: PLC0415 - takes as long to load as a request on this host

    try:
        context = ssl.create_default_context(cafile=ca or None)
        return context.wrap_socket(opened, server_hostname=host)
    except BaseException:
        opened.close()
        raise
