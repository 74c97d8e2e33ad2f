"""Which cluster this is: its id and its secret, made once and the same for all heads."""

from msgspec import Struct

from primusd.errors import ConfigError, StoreUnavailableError
from primusd.state.etcd.client import EtcdClient
from primusd.state.etcd.layout import Layout
from primusd.state.etcd.requests import created_at, get, put, transaction

ASK_S = 10.0


class ClusterIdentity(Struct, frozen=True):
    """What jobs' and nodes' keys hang on."""

    id: str
    secret: bytes


async def shared_identity(
    client: EtcdClient, layout: Layout, own: ClusterIdentity, *, lived_in: str = ""
) -> ClusterIdentity:
    """Return what the cluster has; whoever comes first gives it its own.

    Args:
        client: Of the store.
        layout: Of the cluster.
        own: Given to a cluster that has none.
        lived_in: Where our jobs are known to be, "" nowhere: a cluster that has none is another.

    Raises:
        ConfigError: There is no such cluster, and our jobs are in one.
        StoreUnavailableError: Etcd does not answer, or refuses.
    """
    if lived_in and not await _is_there(client, layout):
        endpoints = ",".join(one.rpartition("//")[2] for one in client.settings.endpoints)
        raise ConfigError(
            f"etcd at {endpoints} has no cluster below {layout.prefix.decode()}, while the jobs of "
            f"this state directory are in {lived_in}",
            hint=f"start it with --store {lived_in}, put a copy of that store back, or name "
            "another directory with --state-dir",
        )
    request = transaction(
        (created_at(layout.cluster, 0), created_at(layout.secret, 0)),
        (put(layout.cluster, own.id.encode()), put(layout.secret, own.secret)),
        (get(layout.cluster), get(layout.secret)),
    )
    answer = await client.call("KV", "Txn", request, within_s=ASK_S)
    if answer.succeeded:
        return own
    cluster, secret = (one.response_range.kvs for one in answer.responses)
    if not cluster or not secret:
        raise StoreUnavailableError(
            f"{layout.prefix.decode()} in etcd is damaged: cluster or secret is missing",
            hint="restore the store from a copy",
        )
    return ClusterIdentity(cluster[0].value.decode(), bytes(secret[0].value))


async def _is_there(client: EtcdClient, layout: Layout) -> bool:
    request = transaction((), (get(layout.cluster),))
    answer = await client.call("KV", "Txn", request, within_s=ASK_S)
    return bool(answer.responses[0].response_range.kvs)
