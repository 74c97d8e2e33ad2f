"""The state directory: who holds it leads; it is made, checked and locked before anything else."""

import errno
import fcntl
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from msgspec import Struct

from primusd.errors import (
    ConfigError,
    PrimusdError,
    StateDirectoryInUseError,
    StoreFullError,
)
from primusd.state.election import embedded_term

SECRET_BYTES = 32
CLUSTER_ID_BYTES = 16
NETWORK_TYPES = frozenset(
    """9p afs beegfs ceph cifs coda gfs2 glusterfs gpfs lustre ncpfs nfs nfs4 ocfs2 orangefs pvfs2
    smb2 smb3 smbfs""".split()  # noqa: SIM905 - a list of words reads best as one.
)
LOCAL_FUSE_TYPES = frozenset({"fuse.fuse-overlayfs", "fuseblk"})
"""The root of a rootless container, and block devices: no other host writes there."""
MOUNTINFO = Path("/proc/self/mountinfo")
_OCTAL = re.compile(r"\\([0-7]{3})")


class ClusterFile(Struct, frozen=True, rename="camel"):
    """`cluster.json`: which cluster this state belongs to, made once."""

    id: str
    name: str
    created_at: str
    store: str = ""
    """Where the journal is, when it is not in this directory: `etcd://h1:2379,h2:2379`."""


class StateDirectory:
    """A state directory that this process holds.

    Attributes:
        path: Of the directory.
        cluster_id: Made once, with the secret.
        secret: 32 bytes; the keys of jobs and nodes are made from it.
        store: Where its jobs are when they are not in it, as last started; "" in it, or nowhere.
    """

    def __init__(
        self, path: Path, lock_fd: int, cluster_id: str, secret: bytes, *, store: str = ""
    ) -> None:
        self.path = path
        self.cluster_id = cluster_id
        self.secret = secret
        self.store = store
        self._lock_fd = lock_fd

    def home(self) -> str:
        """Return what tells this directory from all others, made once."""
        path = self.path / "home"
        try:
            return path.read_text(encoding="ascii").strip()
        except FileNotFoundError:
            home = secrets.token_hex(CLUSTER_ID_BYTES)
            write_durably(path, f"{home}\n".encode(), mode=0o600)
            return home

    def check_embedded(self) -> None:
        """See that its jobs are not in another store.

        Raises:
            ConfigError: They are.
        """
        if self.store:
            raise ConfigError(
                f"the jobs of the state directory {self.path} are in {self.store}, "
                "not in an embedded store",
                hint=f"start it with --store {self.store}, or name another one with --state-dir",
            )

    def adopt(self, cluster_id: str, secret: bytes, *, store: str) -> None:
        """Become part of a cluster that other heads share.

        Args:
            cluster_id: Of that cluster.
            secret: Likewise.
            store: Where its jobs are, as `--store` names it.

        Raises:
            ConfigError: It holds a store of its own, or its jobs are in another one.
        """
        if (self.path / "journal.db").exists():
            raise ConfigError(
                f"the state directory {self.path} has an embedded store with jobs of its own",
                hint="name another one with --state-dir, start it with --store embedded, or put "
                f"its jobs into that store first: primusctl store move --to {store}",
            )
        if self.store and cluster_id != self.cluster_id:
            raise ConfigError(
                f"the jobs of the state directory {self.path} are in {self.store}, in cluster "
                f"{self.cluster_id}; what {store} has is cluster {cluster_id}",
                hint=f"start it with --store {self.store}, or name another one with --state-dir",
            )
        self.keep(cluster_id, secret, store=store)

    def keep(self, cluster_id: str, secret: bytes, *, store: str) -> None:
        """Write down which cluster this is, and where its jobs are; "": in this directory."""
        if (cluster_id, secret, store) == (self.cluster_id, self.secret, self.store):
            return
        known = msgspec.json.decode((self.path / "cluster.json").read_bytes(), type=ClusterFile)
        changed = msgspec.structs.replace(known, id=cluster_id, store=store)
        write_durably(self.path / "secret", secret, mode=0o600)
        write_durably(self.path / "cluster.json", msgspec.json.encode(changed), mode=0o644)
        self.cluster_id, self.secret, self.store = cluster_id, secret, store

    def close(self) -> None:
        """Let another daemon have it."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1


def take_state_directory(
    path: Path, *, cluster: str, mode: int = 0o700, mountinfo: str | None = None
) -> StateDirectory:
    """Make the directory where it is missing, and hold it for as long as this process lives.

    Args:
        path: Absolute.
        cluster: Name of the cluster, as configured.
        mode: Of directories that are made.
        mountinfo: What `/proc/self/mountinfo` says; None reads it.

    Raises:
        StateDirectoryInUseError: Another daemon holds it.
        ConfigError: It cannot be used: no permission, read-only, a network file system, or the
            state of another cluster.
        StoreFullError: There is no room for its first files.
    """
    try:
        # Before anything is touched there: a server that is gone would hold us for ever.
        check_local(path, MOUNTINFO.read_text() if mountinfo is None else mountinfo)
        make_directory(path, mode=mode)
        lock_fd = _locked(path)
        try:
            known = _cluster_file(path / "cluster.json", cluster)
            secret = _secret(path / "secret")
        except BaseException:
            os.close(lock_fd)
            raise
    except OSError as error:
        raise unusable(path, error) from error
    return StateDirectory(path, lock_fd, known.id, secret, store=known.store)


def make_directory(path: Path, *, mode: int) -> None:
    """Make a directory and its parents with a mode; one that is there is left as it is."""
    missing = [one for one in (path, *path.parents) if not one.exists()]
    for one in reversed(missing):
        one.mkdir(mode=mode, exist_ok=True)
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))


def unusable(path: Path, error: OSError) -> PrimusdError:
    """Return one sentence on why a state directory cannot be used."""
    hint = "name another one with --state-dir"
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return StoreFullError(
                f"the disk of the state directory {path} is full; nothing was started",
                hint=f"free some room there, or {hint}",
            )
        case errno.EROFS:
            return ConfigError(
                f"the state directory {path} is on a read-only file system", hint=hint
            )
        case errno.EACCES | errno.EPERM:
            return ConfigError(
                f"the state directory {path} cannot be written by {_user()}: permission denied",
                hint=hint,
            )
        case _:
            text = error.strerror or str(error)
            return ConfigError(f"the state directory {path} cannot be used: {text}", hint=hint)


def check_local(path: Path, mountinfo: str) -> None:
    """Refuse a network file system: its locks and its WAL are not safe.

    Raises:
        ConfigError: The path is on one.
    """
    kind = file_system_type(path, mountinfo)
    is_fuse = kind == "fuse" or kind.startswith("fuse.")
    if kind in NETWORK_TYPES or (is_fuse and kind not in LOCAL_FUSE_TYPES):
        raise ConfigError(
            f"the state directory {path} is on a network file system ({kind}), whose locks are not "
            "safe for the embedded store",
            hint="name a directory on a local disk with --state-dir",
        )


def file_system_type(path: Path, mountinfo: str) -> str:
    """Return the type of the file system that a path is on, "" when it cannot be told.

    Source: proc(5), /proc/pid/mountinfo.
    """
    real = Path(os.path.realpath(path))
    best, kind = -1, ""
    for mount_point, mount_type in _mounts(mountinfo):
        depth = len(mount_point.parts)
        # Of two mounts on one point the later one is seen.
        if depth >= best and (mount_point == real or mount_point in real.parents):
            best, kind = depth, mount_type
    return kind


def _mounts(mountinfo: str) -> Iterator[tuple[Path, str]]:
    for line in mountinfo.splitlines():
        before, separator, after = line.partition(" - ")
        fields, rest = before.split(" "), after.split(" ")
        if separator and len(fields) > 4:
            # Blanks and the like are written as octal escapes.
            point = _OCTAL.sub(lambda escape: chr(int(escape[1], 8)), fields[4])
            yield Path(point), rest[0]


def _locked(path: Path) -> int:
    """Return the descriptor that holds the lock; its file names us for a second daemon."""
    fd = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
        os.close(fd)
        pid = int(text) if text.isdecimal() else 0
        raise StateDirectoryInUseError(
            f"the state directory {path} is in use by process {pid or 'unknown'}",
            pid=pid,
            hint="stop that primusd, or give this one another --state-dir",
        ) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def _cluster_file(path: Path, cluster: str) -> ClusterFile:
    try:
        known = msgspec.json.decode(path.read_bytes(), type=ClusterFile)
    except FileNotFoundError:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        known = ClusterFile(secrets.token_hex(CLUSTER_ID_BYTES), cluster, now)
        write_durably(path, msgspec.json.encode(known), mode=0o644)
    except msgspec.MsgspecError as error:
        raise ConfigError(
            f"{path} is damaged: {error}", hint="restore it from a copy of the state directory"
        ) from error
    if known.name != cluster:
        raise ConfigError(
            f"the state directory {path.parent} belongs to cluster {known.name!r}, "
            f"not to {cluster!r}",
            hint=f"start it with --cluster {known.name}, or name another --state-dir",
        )
    return known


def _secret(path: Path) -> bytes:
    try:
        secret = path.read_bytes()
    except FileNotFoundError:
        secret = secrets.token_bytes(SECRET_BYTES)
        write_durably(path, secret, mode=0o600)
    if len(secret) != SECRET_BYTES:
        raise ConfigError(
            f"{path} is damaged: it has {len(secret)} bytes instead of {SECRET_BYTES}",
            hint="restore it from a copy of the state directory",
        )
    return secret


def write_durably(path: Path, data: bytes, *, mode: int) -> None:
    """Make a file appear whole, or not at all, and stay over a power cut."""
    temporary = path.with_name(f".{path.name}.new")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        os.fchmod(fd, mode)
        os.write(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)
    temporary.rename(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _user() -> str:
    return f"uid {os.geteuid()}"


class EmbeddedElection:
    """Who holds the state directory leads, for as long as the process lives."""

    def __init__(self, directory: StateDirectory) -> None:
        self._directory = directory

    async def campaign(self, *, last_term: int, wall_ms: int) -> int:
        """Return the next term at once: the lock is held already."""
        return embedded_term(last_term=last_term, wall_ms=wall_ms)

    async def resign(self) -> None:
        """Let go of the lock."""
        self._directory.close()

    def held(self) -> AbstractAsyncContextManager[None]:
        """Return a scope that nothing cancels: a lock does not expire."""
        return nullcontext()
