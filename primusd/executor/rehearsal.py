"""What a spare executor goes through before it has an attempt, so that its memory is its own.

Everything that was forked shares its memory with the process before it, and the first write to each
page of it costs a copy. So a spare runs its event loop once, and dials a head that it plays itself.
"""

import asyncio
import base64
import hashlib
import os
import signal

import anyio

from primusd import __version__
from primusd.executor import own_log
from primusd.executor.connection import Head
from primusd.executor.processes import started_ticks
from primusd.executor.protocol import SPEAKS, Hello, Refused, decode_daemon_message, encode
from primusd.job.ids import AttemptId

REHEARSAL_S = 5.0
WEBSOCKET_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
FINAL_BINARY = 0x82
"""First byte of a frame that is a whole binary message."""
CLOSE = b"\x88\x00"
"""Frame of a side that says no more. Without it who dialled waits for it, for 10 s."""
HELLO = Hello(
    speaks=SPEAKS,
    cluster="rehearsal",
    attempt=AttemptId("rehearsal", "worker", 0, 1),
    incarnation="",
    seen_term=0,
    seen_revision=0,
    host="",
    ports={},
    boot_id="",
    pid=0,
    version=__version__,
)


def rehearse() -> None:
    """Dial, say hello, and be refused; nothing of it is left.

    Raises:
        OSError: Also as an ExceptionGroup: there is no connection to be had, or no end of it.
    """
    own_log.configure()
    anyio.run(_rehearse)


async def _rehearse() -> None:
    # A name in no file system: nothing is left of it whatever becomes of this process.
    name = f"\0primus-rehearsal-{os.getpid()}"
    server = await asyncio.start_unix_server(_play_head, name)
    with anyio.fail_after(REHEARSAL_S):
        async with server, anyio.create_task_group() as tasks:
            with anyio.open_signal_receiver(signal.SIGCHLD, signal.SIGTERM):
                tasks.start_soon(_converse, f"unix:{name}")


async def _converse(address: str) -> None:
    started_ticks(os.getpid())
    async with Head(address, key="", ca=None).connect("/rehearsal") as connection:
        await connection.send(encode(HELLO))
        async for data in connection.messages():
            decode_daemon_message(data)
            break


async def _play_head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Take a WebSocket (RFC 6455), refuse whoever dials, and wait for the end."""
    head = await reader.readuntil(b"\r\n\r\n")
    _, _, rest = head.partition(b"Sec-WebSocket-Key: ")
    key, _, _ = rest.partition(b"\r\n")
    accept = base64.b64encode(hashlib.sha1(key + WEBSOCKET_GUID).digest())  # noqa: S324 RFC 6455
    writer.write(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n"
        b"Sec-WebSocket-Accept: %s\r\n\r\n" % accept
    )
    body = encode(Refused("rehearsal", ""))
    writer.write(bytes((FINAL_BINARY, len(body))) + body + CLOSE)
    await reader.read()
    writer.close()
