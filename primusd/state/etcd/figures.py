"""How full etcd is: asked of each server, in words that newer ones have and etcd3 does not know."""

import asyncio
from contextlib import aclosing
from typing import Any

import grpc.aio
from google.protobuf import unknown_fields
from msgspec import Struct

from primusd.errors import PrimusdError
from primusd.state.etcd.client import EtcdClient
from primusd.state.etcd.messages import messages
from primusd.state.figures import ServerFigures, StoreFigures

QUOTA_BYTES = 2 << 30
"""What etcd takes where nobody gave it `--quota-backend-bytes`, and none tells: before 3.6."""
ASK_S = 3.0
COMPACTED_S = 1.0
_USED_FIELD = 9
"""`dbSizeInUse` of a StatusResponse, since 3.4. Source: etcd v3.6, `rpc.proto`."""
_ERRORS_FIELD = 8
"""`errors`, since 3.4: what alarms are on, in words."""
_QUOTA_FIELD = 12
"""`dbSizeQuota`, since 3.6."""


NOSPACE = 1


class Alarm(Struct, frozen=True):
    """What a server stopped for."""

    server: int
    kind: int
    """NOSPACE, or another."""


async def measure(client: EtcdClient, *, quota_byte_count: int = 0) -> StoreFigures:
    """Return the figures of all servers; those that do not answer say why.

    Args:
        client: Of them.
        quota_byte_count: As configured; 0: what the servers say, else etcd's own default.
    """
    servers: list[ServerFigures] = []
    revision, told, is_full = 0, 0, False
    for position, address in enumerate(client.addresses):
        try:
            answer = await client.once(
                position, "Maintenance", "Status", messages()["StatusRequest"](), within_s=ASK_S
            )
        except grpc.aio.AioRpcError as error:
            text = error.details() or error.code().name
            servers.append(ServerFigures(address, error=f"it does not answer: {text}"))
            continue
        more, said = _unknown_fields(answer)
        is_full |= "NOSPACE" in said
        revision = max(revision, answer.header.revision)
        told = max(told, more.get(_QUOTA_FIELD, 0))
        servers.append(
            ServerFigures(
                address,
                version=answer.version,
                byte_count=answer.dbSize,
                used_byte_count=more.get(_USED_FIELD, 0),
                is_leader=answer.leader == answer.header.member_id,
            )
        )
    return StoreFigures(
        kind="etcd",
        place=", ".join(client.addresses),
        byte_count=max((one.byte_count for one in servers), default=0),
        quota_byte_count=quota_byte_count or told or QUOTA_BYTES,
        revision=revision,
        is_full=is_full,
        servers=tuple(servers),
    )


async def alarms(client: EtcdClient) -> tuple[Alarm, ...]:
    """Return which alarms are on.

    Raises:
        StoreUnavailableError: Nobody tells.
    """
    request = messages()["AlarmRequest"](action=0, memberID=0, alarm=0)
    answer = await client.call("Maintenance", "Alarm", request, within_s=ASK_S)
    return tuple(Alarm(one.memberID, one.alarm) for one in answer.alarms)


async def compaction_point(client: EtcdClient, key: bytes) -> int:
    """Return up to which revision nothing older is kept; 0: all is kept, or nobody tells.

    Nothing but a watch from the beginning says it.

    Args:
        client: Of etcd.
        key: One that was written once: it is handed out where nothing was let go of.
    """
    known = messages()
    request = known["WatchRequest"](
        create_request=known["WatchCreateRequest"](key=key, start_revision=1)
    )
    try:
        async with aclosing(
            client.stream("Watch", "Watch", request, within_s=COMPACTED_S)
        ) as answers:
            async for answer in answers:
                if answer.compact_revision:
                    return int(answer.compact_revision)
                if answer.events:
                    return 0
    except (grpc.aio.AioRpcError, PrimusdError, asyncio.InvalidStateError):
        pass
    return 0


def _unknown_fields(answer: Any) -> tuple[dict[int, int], str]:  # a class that protobuf makes
    """Return what etcd3's messages lack: numbers by their field, and the words of `errors`."""
    numbers: dict[int, int] = {}
    words: list[str] = []
    fields: Any = unknown_fields.UnknownFieldSet(answer)  # its stubs know no iteration
    for one in fields:
        if isinstance(one.data, int):
            numbers[one.field_number] = one.data
        elif one.field_number == _ERRORS_FIELD and isinstance(one.data, bytes):
            words.append(one.data.decode(errors="replace"))
    return numbers, " ".join(words)
