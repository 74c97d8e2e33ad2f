"""What is shown to a storage so that it answers, how long that is good for, and what to do then."""

import time

from primusd.datafeed.protocol import Credential

REREAD = "what replaces it there is taken up at once"
RESTART = (
    "it is of the environment, so primusd and its nodes have to be started again with a new one"
)
WAITED_FOR = frozenset({"expired", "denied"})
"""Kinds of `StorageError` that tell of who asks and not of what was asked for: no data is bad."""


def expired_words(credential: Credential | None, said: str, *, now_ms: int | None = None) -> str:
    """Return in a sentence which credential is no longer good, since when, and what to do.

    Args:
        credential: That was shown; None when nobody can tell which one it was.
        said: What the storage answered.
        now_ms: Milliseconds since the Unix epoch; None: now.
    """
    if credential is None:
        return f"the credentials are no longer good: {said}"
    now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    if not credential.expires_ms:
        when = "is no longer good"
    elif credential.expires_ms <= now:
        when = f"expired at {utc_words(credential.expires_ms)}"
    else:
        # What it says itself is the longest that it may live: others renew it meanwhile.
        until = utc_words(credential.expires_ms)
        when = f"was refused before its end at {until}: not renewed, or cancelled"
    return f"{credential.name} {when}; {credential.remedy} ({said})"


def utc_words(at_ms: int) -> str:
    """Return a time to the second, in UTC."""
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(at_ms // 1000))
