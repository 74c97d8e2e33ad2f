"""A store that was moved elsewhere says so: no head must go on with what it held."""

from primusd.errors import ConfigError
from primusd.state.etcd.client import EtcdClient
from primusd.state.etcd.layout import Layout
from primusd.state.etcd.messages import messages

ASK_S = 10.0


async def moved_to(client: EtcdClient, layout: Layout) -> str:
    """Return where the cluster's store was moved to; "" it was not.

    Raises:
        StoreUnavailableError: Etcd does not answer, or refuses.
    """
    request = messages()["RangeRequest"](key=layout.moved)
    answer = await client.call("KV", "Range", request, within_s=ASK_S)
    return answer.kvs[0].value.decode(errors="replace") if answer.kvs else ""


async def check_not_moved(client: EtcdClient, layout: Layout) -> None:
    """See that the cluster's store is still this one.

    Raises:
        ConfigError: It was moved.
        StoreUnavailableError: Etcd does not answer, or refuses.
    """
    where = await moved_to(client, layout)
    if where:
        raise ConfigError(
            f"the store of this cluster was moved from etcd to {where}",
            hint="start primusd there, or move it back: primusctl store move --to etcd://…",
        )
