"""Keys of jobs and nodes: made from the cluster's secret, so any head can check what none stores.

Source: docs/protocol.md §2.
"""

import base64
import hashlib
import hmac
from functools import lru_cache


def job_key(secret: bytes, uid: str) -> str:
    """Return the key with which the executors of a job come in."""
    return _key(secret, f"job:{uid}")


def node_key(secret: bytes, name: str) -> str:
    """Return the key with which a node comes in."""
    return _key(secret, f"node:{name}")


def feed_key(secret: bytes, uid: str) -> str:
    """Return the key with which a client takes rows from a job's gateways."""
    return _key(secret, f"feed:{uid}")


def head_key(secret: bytes) -> bytes:
    """Return the key with which heads sign what they tell each other of callers."""
    return _key(secret, "head:").encode()


def is_key(shown: str, right: str) -> bool:
    """Return whether a key is the right one, in a time that tells nothing about it."""
    return hmac.compare_digest(shown.encode(), right.encode())


@lru_cache(maxsize=1 << 14)
def _key(secret: bytes, subject: str) -> str:
    digest = hmac.new(secret, subject.encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest).decode()
