"""What readers show their storages, told of before it ends and once it has."""

from collections.abc import Iterator

from primusd.datafeed.ledger.model import Stream
from primusd.datafeed.protocol import Credential
from primusd.views.feed_documents import FeedNote
from primusd.views.live import Live
from primusd.views.times import rfc3339, said_duration

SOON_PART = 8
"""The last eighth of its life: seven days are warned of almost a day ahead, an hour by minutes."""
SOON_MAX_MS = 24 * 3_600_000
SOON_UNKNOWN_MS = 3_600_000
"""Where nobody knows when its life began."""
NOTES_MAX = 8


def credential_notes(stream: Stream, live: Live, *, at_ms: int) -> tuple[FeedNote, ...]:
    """Return which credentials end soon or have ended, each once, the first to end first.

    Args:
        stream: Whose readers' reports are looked at.
        live: Has them.
        at_ms: Journal time; when a credential ends is wall time.
    """
    now_ms = at_ms + live.clock_skew_ms
    found: dict[Credential, list[str]] = {}
    for replica, credential in _shown(stream, live):
        if ends_soon(credential, now_ms):
            found.setdefault(credential, []).append(replica)
    first = sorted(found, key=lambda one: (one.expires_ms, one.name))[:NOTES_MAX]
    return tuple(_note(one, found[one], now_ms) for one in first)


def _shown(stream: Stream, live: Live) -> Iterator[tuple[str, Credential]]:
    for attempt in sorted(stream.readers):
        for report in live.feeds.get(attempt, ()):
            if report.stream == stream.name:
                yield from ((attempt.replica, one) for one in report.credentials)


def ends_soon(credential: Credential, now_ms: int) -> bool:
    """Return whether somebody should replace a credential now, or should have done so before."""
    ahead_ms = SOON_UNKNOWN_MS
    if credential.issued_ms:
        life_ms = credential.expires_ms - credential.issued_ms
        ahead_ms = min(SOON_MAX_MS, life_ms // SOON_PART)
    return credential.expires_ms - now_ms <= ahead_ms


def _note(credential: Credential, replicas: list[str], now_ms: int) -> FeedNote:
    left_ms = credential.expires_ms - now_ms
    at = rfc3339(credential.expires_ms)
    when = f"expires in {said_duration(left_ms)}, at {at}" if left_ms > 0 else f"expired at {at}"
    others = f" and {len(replicas) - 1} more" if len(replicas) > 1 else ""
    return FeedNote(
        reason="CredentialExpires" if left_ms > 0 else "CredentialExpired",
        subject=replicas[0],
        message=f"{replicas[0]}{others}: {credential.name} {when}; {credential.remedy}",
        numbers={"leftMs": max(0, left_ms), "readers": len(replicas)},
    )
