"""Which cluster this is: its id and its secret, made once and the same for all heads."""

from msgspec import Struct

from primusd.errors import StoreUnavailableError
from primusd.state.etcd.client import EtcdClient
from primusd.state.etcd.layout import Layout
from primusd.state.etcd.requests import created_at, get, put, transaction

ASK_S = 10.0


class ClusterIdentity(Struct, frozen=True):
    """What jobs' and nodes' keys hang on."""

    id: str
    secret: bytes


async def shared_identity(
    client: EtcdClient, layout: Layout, own: ClusterIdentity
) -> ClusterIdentity:
    """Return what the cluster has; whoever comes first gives it its own.

    Raises:
        StoreUnavailableError: Etcd does not answer, or refuses.
    """
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
