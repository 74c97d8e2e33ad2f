"""How a trainer reaches its executor, greets it, and frames what it says (docs/protocol.md §10)."""

import os

# What `socket` is made of: the module around it takes longer to load than all that is here.
from _socket import AF_UNIX, SO_RCVBUF, SOCK_STREAM, SOL_SOCKET, socket

from primus import stacks

CONNECT_TIMEOUT_S = 10.0
SOCKET_BYTES = 1 << 20
LENGTH_BYTES = 4


def control_frame(text: str) -> bytes:
    """Return the frame of a control message, which is JSON."""
    body = b"J" + text.encode()
    return len(body).to_bytes(LENGTH_BYTES, "little") + body


def greeting() -> bytes:
    """Return what is said first on a connection."""
    return control_frame(
        f'{{"op":"hello","sdk":"primus-py/1","pid":{os.getpid()},"framework":"",'
        f'"stacks":{stacks.listen()}}}'
    )


def dial(path: str) -> socket:
    """Connect by descriptor: the path of a socket may have 107 bytes only.

    Raises:
        OSError: Nobody listens there.
    """
    folder, name = os.path.split(path)
    link = socket(AF_UNIX, SOCK_STREAM)
    at = -1
    try:
        link.settimeout(CONNECT_TIMEOUT_S)
        link.setsockopt(SOL_SOCKET, SO_RCVBUF, SOCKET_BYTES)
        at = os.open(folder or ".", os.O_PATH | os.O_DIRECTORY)
        link.connect(f"/proc/self/fd/{at}/{name}")
        link.settimeout(None)
    except OSError:
        link.close()
        raise
    finally:
        if at >= 0:
            os.close(at)
    return link
