"""The directory of an attempt: its lock, its exit record, and where everything else lies in it.

`<state>/jobs/<uid>/<role>-<index>/work/` is kept over attempts, `a<attempt>/` belongs to one. The
`flock` on `lock`, not a pid, is "this attempt lives": it goes with the process, over any crash.
"""

import errno
import fcntl
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from primusd.executor.protocol import Exit
from primusd.job.ids import AttemptId, parse_replica

EXIT_RECORD_BYTES = 8192
"""Allocated before the trainer starts, so that a full disk cannot lose the verdict."""

_decode_exit = msgspec.json.Decoder(Exit).decode


class Placing(Struct, frozen=True):
    """What the node has decided for an attempt on its host; `place.json`, absent in a container."""

    inherit: tuple[str, ...] | None = None
    """Names of variables that come from the node's own environment; None: all, as an image has."""
    host: str = ""
    """As peers should call this host; "" = the executor finds out."""
    gpus: tuple[str, ...] = ()
    """Uuids."""
    cpu_milli: int = 0
    memory_bytes: int = 0
    """0 no limit."""
    enforce: str = "auto"
    """auto | cgroup | none."""
    user: str = ""
    """Trainers of a root node run as this user; "" as the node itself."""
    cache: str = ""
    """Folder of shipped files by digest, shared on the host; "" one of its own."""


class Holder(Struct, frozen=True):
    """Who holds the lock of an attempt: evidence, written into the lock file."""

    pid: int
    started_ticks: int
    """Field 22 of /proc/PID/stat: with the pid and the boot it names one process for ever."""
    boot_id: str


# Made once in the process that executors are forked from, and not in each of them.
_decode_placing = msgspec.json.Decoder(Placing).decode
_decode_holder = msgspec.json.Decoder(Holder).decode


class AttemptDirectory:
    """Paths of one attempt."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = path / "lock"
        self.bootstrap = path / "bootstrap.json"
        self.placing = path / "place.json"
        self.exit = path / "exit.json"
        self.executor_log = path / "executor.log"
        self.socket = path / "trainer.sock"
        self.peers = path / "peers.json"
        self.stop = path / "stop.json"
        self.warn = path / "warn.json"
        self.values = path / "env"
        self.sdk = path / "sdk"
        self.replica_work = path.parent / "work"
        self.told = (self.socket, self.peers, self.stop, self.warn)

    def read_placing(self) -> Placing:
        """Return what the node decided; the defaults where no node did."""
        try:
            return _decode_placing(self.placing.read_bytes())
        except FileNotFoundError:
            return Placing()


def attempt_path(state: Path, attempt: AttemptId) -> Path:
    """Return where an attempt lies below a state directory."""
    return state / "jobs" / attempt.job / attempt.replica / f"a{attempt.attempt}"


def find_attempts(state: Path) -> Iterator[tuple[AttemptId, Path]]:
    """Yield every attempt directory of a node that is not released: it has its `place.json`."""
    for placing in sorted(state.glob("jobs/*/*/a*/place.json")):
        folder = placing.parent
        number = folder.name[1:]
        try:
            role, index = parse_replica(folder.parent.name)
        except ValueError:
            continue
        if number.isdecimal():
            yield AttemptId(folder.parents[1].name, role, index, int(number)), folder


def take_lock(lock: Path, holder: Holder) -> int | None:
    """Take the lock for the life of this process and return its descriptor; None: it is held."""
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    text = msgspec.json.encode(holder)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, text, 0)
    return descriptor


def is_lock_held(lock: Path) -> bool:
    """Return whether somebody holds the lock.

    It is probed by taking it shared for a moment; whoever wants it for good tries again.
    """
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def read_holder(lock: Path) -> Holder | None:
    """Return who last took the lock; None when it was never taken, or is being taken now."""
    try:
        return _decode_holder(lock.read_bytes())
    except (OSError, msgspec.DecodeError):
        return None


def allocate_exit_record(path: Path) -> None:
    """Set the exit record's room aside on the disk; what a record already holds is kept.

    Not synced: a host that goes down takes the trainer along, and the record itself is synced.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.posix_fallocate(descriptor, 0, EXIT_RECORD_BYTES)
    finally:
        os.close(descriptor)


def read_exit_record(path: Path) -> Exit | None:
    """Return the exit record; None when there is none, or it is not complete."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    head, _, rest = data.partition(b"\n")
    digest, _, length = head.partition(b" ")
    if not length.isdigit():
        return None
    body = rest[: int(length)]
    if hashlib.sha256(body).hexdigest().encode() != digest:
        return None
    return _decode_exit(body)


def write_exit_record(path: Path, exit_: Exit) -> None:
    """Write the exit record in place and make it durable; cut down to the room it has if need be.

    The last lines are cut first, then marks, then positions are left out: a lease without one goes
    back to where it was granted, so rows may come twice but none is lost.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        data = _frame(exit_)
        if len(data) > EXIT_RECORD_BYTES and not _has_room(descriptor, len(data)):
            data = _frame(fit_exit(exit_, EXIT_RECORD_BYTES))
        data += b" " * max(0, EXIT_RECORD_BYTES - len(data))
        os.pwrite(descriptor, data, 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fit_exit(exit_: Exit, byte_count: int) -> Exit:
    """Return the exit, cut so that its record is at most so long."""
    while len(_frame(exit_)) > byte_count and (exit_.last_lines or exit_.marks or exit_.positions):
        if exit_.last_lines:
            kept = exit_.last_lines[len(exit_.last_lines) // 2 + 1 :]
            exit_ = msgspec.structs.replace(exit_, last_lines=kept)
        elif exit_.marks:
            exit_ = msgspec.structs.replace(exit_, marks=exit_.marks[:-1])
        else:
            kept_count = len(exit_.positions) // 2
            exit_ = msgspec.structs.replace(exit_, positions=exit_.positions[:kept_count])
    return exit_


def _frame(exit_: Exit) -> bytes:
    body = msgspec.json.encode(exit_)
    return b"%s %d\n%s\n" % (hashlib.sha256(body).hexdigest().encode(), len(body), body)


def _has_room(descriptor: int, byte_count: int) -> bool:
    try:
        os.posix_fallocate(descriptor, 0, byte_count)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        return False
    return True
