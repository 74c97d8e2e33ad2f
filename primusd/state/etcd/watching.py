"""A watch of keys that goes on over broken streams and members that went."""

import itertools
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any

import grpc
import grpc.aio

from primusd.errors import PrimusdError, StoreUnavailableError
from primusd.state.etcd.client import EtcdClient, is_old_token, is_transient
from primusd.state.etcd.messages import messages

_BROKEN = frozenset({grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.CANCELLED})

Event = Any
"""An etcd event; protobuf makes its class while the program runs."""


class CompactedError(PrimusdError):
    """The revisions that a watch wants are gone: whoever watches has to read again."""

    code = "ResourceVersionTooOld"
    status = 410


async def watch(
    client: EtcdClient,
    key: bytes,
    end: bytes,
    from_revision: int,
    sink: Callable[[Sequence[Event]], bool],
) -> None:
    """Hand on what happens to keys, in order and each once, until the sink returns True.

    It goes on behind the last event that was handed on, never behind the revision that an answer
    names: in a catch-up that is the store's, ahead of its events.

    Args:
        client: Asked one endpoint after the other.
        key: The first.
        end: The first behind them; b"" for `key` alone.
        from_revision: Of the first event wanted.
        sink: Told of events; True: that is enough.

    Raises:
        CompactedError: Events that were wanted are gone.
        StoreUnavailableError: Etcd refuses.
    """
    create = messages()["WatchCreateRequest"]
    wanted = from_revision
    for count in itertools.count(1):
        position = client.position
        request = messages()["WatchRequest"](
            create_request=create(key=key, range_end=end, start_revision=wanted)
        )
        try:
            async with aclosing(_events(client, request)) as batches:
                async for events in batches:
                    wanted = events[-1].kv.mod_revision + 1
                    if sink(events):
                        return
        except grpc.aio.AioRpcError as error:
            if is_old_token(error) and client.settings.user:
                client.log_in_anew()
            elif not is_transient(error) and error.code() not in _BROKEN:
                raise client.told(error) from error
        except StoreUnavailableError:
            # The stream broke before it began.
            pass
        client.rotate(position)
        await client.pause(count)


async def _events(client: EtcdClient, request: object) -> AsyncGenerator[Sequence[Event]]:
    stream = client.stream("Watch", "Watch", request, within_s=None)
    async with aclosing(stream) as answers:
        async for answer in answers:
            if answer.compact_revision:
                raise CompactedError(f"etcd has no revisions before {answer.compact_revision}")
            if answer.canceled:
                return
            if answer.events:
                yield answer.events
