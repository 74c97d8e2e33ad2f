"""Old revisions of etcd are let go by the leader, where etcd is ours alone."""

import anyio
import structlog

from primusd.errors import StoreUnavailableError
from primusd.state.etcd.client import EtcdClient
from primusd.state.etcd.leadership import Leadership
from primusd.state.etcd.messages import messages

log = structlog.get_logger()

EVERY_S = 60.0
WITHIN_S = 10.0


async def compact_each_minute(
    client: EtcdClient, leadership: Leadership, *, every_s: float = EVERY_S
) -> None:
    """Let go of what was overwritten more than a minute ago, as long as we lead."""
    known = messages()
    before = 0
    while True:
        await anyio.sleep(every_s)
        if not leadership.left_s:
            continue
        try:
            answer = await client.call(
                "KV", "Range", known["RangeRequest"](key=b"\0", count_only=True), within_s=WITHIN_S
            )
            if before:
                # Of a minute ago: whoever reads or watches behind that goes on undisturbed.
                request = known["CompactionRequest"](revision=before)
                await client.call("KV", "Compact", request, within_s=WITHIN_S)
            before = answer.header.revision
        except StoreUnavailableError as error:
            # Another one has compacted, or etcd is away.
            log.debug("etcd.not_compacted", text=error.message)
            before = 0
