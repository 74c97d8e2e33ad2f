"""Which delegation token is shown to a NameNode: from the environment or a file, read again.

`$HADOOP_TOKEN` holds tokens as URLs carry them, separated by commas, and stays what it was when the
process began. The file of `$HADOOP_TOKEN_FILE_LOCATION` is looked at before each use.
"""

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from primusd.datafeed.protocol import Credential
from primusd.datafeed.storage.credentials import REREAD, RESTART
from primusd.datafeed.storage.hadoop_tokens import (
    KINDS,
    Identity,
    Token,
    TokenError,
    identity_of,
    token_of,
    tokens_in,
)

IN_ENVIRONMENT = "HADOOP_TOKEN"
IN_FILE = "HADOOP_TOKEN_FILE_LOCATION"
FOREIGN = 2
"""Rank of a token that names another server than the one that is asked."""


class Shown(Struct, frozen=True):
    """A token that is there, and where it is from."""

    text: str
    """As WebHDFS takes it."""
    place: str
    token: Token | None = None
    """None: nobody can read it, so it is given to any server."""
    identity: Identity | None = None

    @property
    def expires_ms(self) -> int:
        """When it ends at the latest, in milliseconds since the Unix epoch; 0 it does not say."""
        return self.identity.expires_ms if self.identity else 0

    @property
    def credential(self) -> Credential:
        """What is told of it."""
        is_fixed = self.place.startswith("$")
        owner = f" of {self.identity.owner}" if self.identity else ""
        return Credential(
            f"the HDFS delegation token{owner} in {self.place}",
            self.identity.issued_ms if self.identity else 0,
            self.expires_ms,
            f"{RESTART}, or a file named by ${IN_FILE} be used" if is_fixed else REREAD,
        )


class TokenStore:
    """The tokens for one NameNode, gateway or name service."""

    def __init__(self, authority: str, *, in_environment: bool = True) -> None:
        """Read nothing yet.

        Args:
            authority: `host:port` or a name service, as in the URL.
            in_environment: Those of `$HADOOP_TOKEN` are shown too.
        """
        self._authority = authority
        self._in_environment = in_environment
        self._told: tuple[str, int, int, int] | None = None
        self._of_file: tuple[Shown, ...] = ()
        self._names: tuple[str, ...] | None = None

    def shown(self) -> Shown | None:
        """Return the token to show now, of several for this server the one that lives longest."""
        there = (*_of_environment(), *self._in_file()) if self._in_environment else self._in_file()
        ranked = [(self._rank(one), one) for one in there]
        best = min((rank for rank, _ in ranked), default=0)
        found = [one for rank, one in ranked if rank == best]
        services = {one.token.service for one in found if one.token}
        if not found or (best == FOREIGN and len(services) > 1):
            return None
        return max(found, key=lambda one: one.expires_ms)

    def expired(self, *, margin_ms: int = 0) -> Credential | None:
        """Return the credential if it is over by its own words, or will be within a margin."""
        shown = self.shown()
        if shown is None or not shown.expires_ms:
            return None
        now_ms = time.time_ns() // 1_000_000
        return shown.credential if shown.expires_ms <= now_ms + margin_ms else None

    def credential(self) -> Credential | None:
        """Return what is shown, where it is known when it ends."""
        shown = self.shown()
        return shown.credential if shown is not None and shown.expires_ms else None

    def _in_file(self) -> tuple[Shown, ...]:
        path = os.environ.get(IN_FILE, "")
        if not path:
            return ()
        try:
            found = Path(path).stat()
            told = (path, found.st_ino, found.st_mtime_ns, found.st_size)
            if told != self._told:
                tokens = tokens_in(Path(path).read_bytes())
                self._of_file = tuple(_shown(one, path) for one in tokens if one.kind in KINDS)
                self._told = told
        except (OSError, TokenError):
            # Being written, or away: what was there before is shown until it is whole.
            return self._of_file
        return self._of_file

    def _rank(self, shown: Shown) -> int:
        """Return how surely a token is for this server: 0 it names it, 1 its host, 2 another."""
        if shown.token is None or not shown.token.service:
            return 1
        service = shown.token.service.removeprefix("ha-hdfs:")
        if service == self._authority:
            return 0
        host, port = _split(service)
        if host not in self._hosts():
            return FOREIGN
        return 0 if port == _split(self._authority)[1] else 1

    def _hosts(self) -> tuple[str, ...]:
        """Return the names and addresses of this server's host, looked up once."""
        if self._names is None:
            host = _split(self._authority)[0]
            try:
                found = (
                    {str(one[4][0]) for one in socket.getaddrinfo(host, None)} if host else set()
                )
            except OSError:
                return (host,)
            self._names = (host, *sorted(found))
        return self._names


def _of_environment() -> Iterator[Shown]:
    for text in os.environ.get(IN_ENVIRONMENT, "").split(","):
        if not text.strip():
            continue
        try:
            token = token_of(text)
        except TokenError:
            yield Shown(text.strip(), f"${IN_ENVIRONMENT}")
        else:
            yield replace(_shown(token, f"${IN_ENVIRONMENT}"), text=text.strip())


def _shown(token: Token, place: str) -> Shown:
    try:
        identity = identity_of(token)
    except TokenError:
        identity = None
    return Shown(token.url_string(), place, token, identity)


def _split(address: str) -> tuple[str, str]:
    host, _, port = address.rpartition(":") if ":" in address else (address, "", "")
    return host.strip("[]"), port
