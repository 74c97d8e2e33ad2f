"""What a head knows of its own leadership: which one it is, and until when it may act."""

import time
from collections.abc import Callable

import msgspec

from primusd.errors import DeposedError
from primusd.state.election import Identity


def boot_s() -> float:
    """Return seconds since the host started; they go on while it is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


encode_identity = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Identity).decode


def decode_identity(value: bytes) -> Identity:
    """Return whom a key names; a stranger's form is a head without addresses."""
    try:
        return _decode(value)
    except msgspec.MsgspecError:
        return Identity(value.decode(errors="replace")[:80])


class Leadership:
    """Held or not; the election sets it, the journal asks it.

    Attributes:
        lease: To which the leader key is bound; 0 none.
        created: Creation revision of the leader key; 0: this head does not lead.
        clock_s: What deadlines count by.
        deadline_s: By `clock_s`: from then on it must not act, for the lease may have expired.
    """

    def __init__(self, clock_s: Callable[[], float] = boot_s) -> None:
        """Hold nothing yet.

        Args:
            clock_s: Seconds by the clock that goes on while the host is suspended.
        """
        self.clock_s = clock_s
        self.lease = 0
        self.created = 0
        self.deadline_s = 0.0

    @property
    def left_s(self) -> float:
        """For how long it may act yet; 0 when it does not lead."""
        return max(0.0, self.deadline_s - self.clock_s()) if self.created else 0.0

    def check(self) -> float:
        """Return for how long this head may act yet.

        Raises:
            DeposedError: It may not.
        """
        left_s = self.left_s
        if not left_s:
            raise DeposedError("this daemon does not lead any more: its lease may have expired")
        return left_s

    def end(self) -> None:
        """Act no more; the lease is kept in mind, to be revoked."""
        self.created = 0
        self.deadline_s = 0.0
