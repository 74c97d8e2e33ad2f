"""Which servers are good enough: some versions of etcd lose what they acknowledged."""

import re

import grpc.aio
import structlog

from primusd.errors import ConfigError, StoreUnavailableError
from primusd.state.etcd.client import EtcdClient, is_transient
from primusd.state.etcd.messages import messages

log = structlog.get_logger()

Version = tuple[int, ...]
REFUSED: tuple[tuple[Version, Version], ...] = (((3, 5, 0), (3, 5, 2)),)
"""First and last. They lost acknowledged writes at a `kill -9`: etcd issues 13766 and 14370."""
OLDEST: Version = (3, 4, 0)
"""Before it, watches and leases have faults that were mended later, and nobody tests them."""
WARNED: tuple[tuple[Version, Version], ...] = (
    ((3, 4, 0), (3, 4, 21)),
    ((3, 5, 3), (3, 5, 5)),
)
_NUMBERS = re.compile(r"(\d+)\.(\d+)\.(\d+)")
STATUS_S = 2.0


def judge(version: str) -> str:
    """Return what is to be warned of; "" nothing.

    Args:
        version: As the server says it.

    Raises:
        ConfigError: It must not be used.
    """
    found = _NUMBERS.match(version)
    numbers: Version = tuple(map(int, found.groups())) if found else ()
    if not numbers:
        return f"etcd says its version is {version!r}, which nobody has tried with primusd"
    if any(first <= numbers <= last for first, last in REFUSED):
        raise ConfigError(
            f"etcd {version} loses writes that it acknowledged; primusd does not use it",
            hint="take 3.5.6 or newer, or 3.4.22 or newer of 3.4",
        )
    if numbers < OLDEST:
        raise ConfigError(
            f"etcd {version} is too old; primusd needs 3.4.22 or newer",
            hint="take 3.5.6 or newer, or 3.4.22 or newer of 3.4",
        )
    if any(first <= numbers <= last for first, last in WARNED):
        return f"etcd {version} has known faults; take 3.4.22 or newer, or 3.5.6 or newer"
    return ""


async def check_versions(client: EtcdClient) -> tuple[str, ...]:
    """Ask all servers for their version; return those of whoever answered.

    Raises:
        ConfigError: One of them must not be used.
        StoreUnavailableError: Nobody answers.
    """
    versions: list[str] = []
    failed: StoreUnavailableError | None = None
    for position in range(len(client.settings.endpoints)):
        try:
            answer = await client.once(
                position, "Maintenance", "Status", messages()["StatusRequest"](), within_s=STATUS_S
            )
        except grpc.aio.AioRpcError as error:
            told = client.told(error)
            failed = StoreUnavailableError(told.message, hint=told.hint)
            if not is_transient(error):
                # It wants a user, or has a fault that the first real call will tell.
                log.debug("etcd.version_unknown", text=failed.message)
            continue
        if warning := judge(answer.version):
            log.warning("etcd.version_doubtful", text=warning)
        versions.append(answer.version)
    if not versions and failed is not None:
        raise failed
    return tuple(versions)
