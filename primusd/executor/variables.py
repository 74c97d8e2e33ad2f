"""The trainer's environment, as the executor completes it at the start (docs/config.md §5)."""

import os
import pwd
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

import primus
from primusd.executor.directory import AttemptDirectory, Placing
from primusd.executor.protocol import LaunchOrder

SDK = Path(primus.__file__).parent
VALUE_BYTES_MAX = 96 << 10
"""One string over 128 KiB cannot be executed; a longer value than this goes to a file."""


class Account(Struct, frozen=True):
    """Who the trainer runs as; -1 and no groups: who the executor is."""

    uid: int = -1
    gid: int = -1
    groups: tuple[int, ...] = ()


def find_account(user: str) -> Account:
    """Return a user of this host; the executor's own where no name is given.

    Raises:
        KeyError: There is no such user.
    """
    if not user:
        return Account()
    entry = pwd.getpwnam(user)
    groups = tuple(os.getgrouplist(user, entry.pw_gid))
    return Account(entry.pw_uid, entry.pw_gid, groups)


def own_variables(
    directory: AttemptDirectory,
    placing: Placing,
    *,
    ports: tuple[tuple[str, int], ...],
    host: str,
    temporary: Path,
) -> dict[str, str]:
    """Return what is known only beside the trainer."""
    variables = {
        "PRIMUS_HOST": host,
        "PRIMUS_PEERS_FILE": str(directory.peers),
        "PRIMUS_STOP_FILE": str(directory.stop),
        "PRIMUS_WARN_FILE": str(directory.warn),
        "PRIMUS_PYTHON": sys.executable,
        "PRIMUS_WORKDIR": str(directory.replica_work),
        "TMPDIR": str(temporary),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(placing.gpus),
    }
    if ports:
        variables["PRIMUS_PORT"] = str(ports[0][1])
        variables["PRIMUS_PORTS"] = ",".join(f"{name}={number}" for name, number in ports)
    return variables


def offer_sdk(folder: Path) -> str:
    """Return the folder, with `primus` in it and nothing else.

    Whatever Python a trainer is started with can import it; that it is the executor's own makes
    both speak the same protocol.
    """
    link = folder / "primus"
    folder.mkdir(exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(SDK)
    return str(folder)


def complete(
    order: LaunchOrder,
    placing: Placing,
    *layers: Mapping[str, str],
    files: Mapping[str, str],
    directory: AttemptDirectory,
    account: Account,
) -> dict[str, str]:
    """Return the whole environment: inherited, the order's, then each layer over it.

    Args:
        order: Its `env` is the job's.
        placing: Names what comes from the node's environment.
        layers: What the framework, the executor and the feed add.
        files: What the framework wants to be in files, by the variables that name them.
        directory: Where these are written, and values that are too long to be passed.
        account: Whom those files belong to.
    """
    complete_: dict[str, str] = {
        name: value
        for name, value in os.environ.items()
        if placing.inherit is None or name in placing.inherit
    }
    if account.uid >= 0:
        entry = pwd.getpwuid(account.uid)
        complete_ |= {"HOME": entry.pw_dir, "USER": entry.pw_name}
    complete_ |= order.env
    for layer in layers:
        complete_ |= layer
    path = (complete_.get("PYTHONPATH"), offer_sdk(directory.sdk))
    complete_["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    values = directory.values
    shutil.rmtree(values, ignore_errors=True)
    for name, text in files.items():
        complete_[name] = _write_value(values, name, text, account)
    for name, value in list(complete_.items()):
        if len(value.encode()) > VALUE_BYTES_MAX:
            del complete_[name]
            complete_[f"{name}_FILE"] = _write_value(values, name, value, account)
    return complete_


def _write_value(values: Path, name: str, text: str, account: Account) -> str:
    values.mkdir(exist_ok=True)
    path = values / name
    path.write_text(text, encoding="utf-8")
    os.chown(path, account.uid, account.gid)
    return str(path)
