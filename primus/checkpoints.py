"""Checkpoints that are whole or not there: written beside, synced, renamed, marked last.

A folder of checkpoints has `step-…` folders, each with its marker `primus.json`: the step, and size
and digest of every file. What has no marker, or does not fit it, does not count. `.primus/` beside
them has a lock, and for each replica the newest attempt that was seen, so that one that was
replaced and does not know it yet adds nothing any more. No daemon takes part in any of it.
"""

import contextlib
import functools
import json
import operator
import os
import sys
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, SupportsIndex

from primus.errors import CheckpointError, SupersededError
from primus.told import told_stop
from primus.trainer import say

KEEP = 3
MARKER = "primus.json"
UNMARKED = ".primus.json.part"
"""The marker before it counts."""
OWN_FOLDER = ".primus"
PREFIX = "step-"
WRITING = ".writing-"
STEP_MAX = 10**12


class Checkpoint(NamedTuple):
    """A checkpoint that is whole."""

    path: Path
    step: int
    savepoint: str
    """Name of the stream positions that belong to it; "" none."""


class _Writer(NamedTuple):
    """Who writes: by it the attempts of one replica are told apart."""

    replica: str
    """`default.ctr-daily.worker-0`; "" outside of a job, where nobody is superseded."""
    attempt: tuple[str, int]
    """Uid of the job, which grows with its age, and number of the attempt."""

    @property
    def suffix(self) -> str:
        """What makes the names of its checkpoints its own."""
        name = self.replica.rpartition(".")[2]
        return f"-{name}-a{self.attempt[1]}" if name else ""

    @property
    def mark(self) -> str:
        """What the names of folders that this replica writes in have in common."""
        return f"{WRITING}{zlib.crc32(self.replica.encode()):08x}-"


def _writer() -> _Writer:
    known = os.environ
    if not known.get("PRIMUS_JOB_UID"):
        return _Writer("", ("", 0))
    names = (known["PRIMUS_NAMESPACE"], known["PRIMUS_JOB"], known["PRIMUS_REPLICA"])
    return _Writer(".".join(names), (known["PRIMUS_JOB_UID"], int(known["PRIMUS_ATTEMPT"])))


@contextlib.contextmanager
def checkpoint(
    step: SupportsIndex,
    *,
    path: str | os.PathLike[str] | None = None,
    keep: int | None = None,
    savepoint: str = "",
) -> Iterator[Path]:
    """Give an empty folder; what is in it at the end of the block becomes a checkpoint.

    It is one only once every file is on the disk: after a crash at any moment the checkpoint before
    is the newest. A block that raises leaves nothing. Older ones of this replica are removed then.

    Args:
        step: Of training, as in `report`.
        path: Folder of the checkpoints; None as the job file's `checkpoint.path` says, else
            `checkpoints` in the replica's own directory, or here outside of a job.
        keep: How many whole ones of this replica stay; None as the job file says, else 3.
        savepoint: Name of the stream positions that belong to it. "": of each `exactlyOnce` stream
            that this process reads, this step is marked as the block begins and sealed at its end.

    Raises:
        SupersededError: A newer attempt of this replica has taken over.
        CheckpointError: Step or keep make no sense, or there is a pipe or a socket in the folder.

    >>> import primus
    >>> with primus.checkpoint(step=100) as folder:
    ...     _ = (folder / "model.txt").write_text("weights")
    >>> primus.latest_checkpoint().step
    100
    """
    step = _whole(step)
    keep = int(os.environ.get("PRIMUS_CHECKPOINT_KEEP", KEEP)) if keep is None else keep
    if keep < 1:
        raise CheckpointError(f"keep is {keep}, must be 1 or more")
    root, writer = _root(path), _writer()
    _claim(root, writer)
    uid, number = writer.attempt
    writing = root / f"{writer.mark}{uid}-{number}-{os.getpid()}-{time.monotonic_ns()}"
    writing.mkdir()
    try:
        marked = {} if savepoint else _mark_streams(step)
        yield writing
        # Sealed before it counts: a checkpoint never names positions that are not there.
        savepoint = savepoint or _joined({name: seal() for name, seal in marked.items()})
        marker = {
            "format": 1,
            "step": step,
            "savepoint": savepoint,
            "replica": writer.replica,
            "attempt": list(writer.attempt),
            "files": _synced(writing),
        }
        with _locked(root):
            _check(root, writer)
            found = _finish(root, writing, writer, marker)
            _prune(root, writer, keep)
    except BaseException:
        _remove(writing)
        raise
    say({"op": "checkpoint", "path": str(found), "step": step, "savepoint": savepoint})


def latest_checkpoint(path: str | os.PathLike[str] | None = None) -> Checkpoint | None:
    """Return the newest checkpoint that is whole, whoever wrote it; None where there is none.

    Every file of it is read and compared with its digest; what does not fit is passed over with a
    warning. Within a job, asking says that older attempts of this replica write no more.

    Args:
        path: Folder of the checkpoints; None the same one as in `checkpoint`.

    >>> import primus
    >>> primus.latest_checkpoint("nothing-here") is None
    True
    """
    root = _root(path)
    _loaded.clear()
    if not root.is_dir():
        return None
    with contextlib.suppress(PermissionError):
        # Who may only read cannot be superseded either.
        _claim(root, _writer())
    for folder, marker in reversed(_marked(root)):
        fault = _fault(folder, marker)
        if not fault:
            _note_loaded(marker)
            return Checkpoint(folder, int(marker["step"]), str(marker.get("savepoint", "")))
        warnings.warn(f"checkpoint {folder} is passed over: {fault}", stacklevel=2)
    return None


# The positions of streams that belong to a checkpoint.

_loaded: dict[str, str] = {}
"""Savepoint by stream of the checkpoint that `latest_checkpoint` found; by "" of the only one."""


def loaded_savepoint(stream: str) -> str:
    """Return the savepoint of a stream that belongs to the checkpoint that was found; "" none."""
    return _loaded.get(stream, _loaded.get("", ""))


def _mark_streams(step: int) -> dict[str, Callable[[], str]]:
    """Mark a step in every exactlyOnce stream; return by stream what waits for its savepoint."""
    feeds = sys.modules.get("primus.feed")
    if feeds is None:
        return {}
    found: dict[str, Callable[[], str]] = {}
    for feed in feeds.exactly_once_feeds():
        feed.mark(step)
        found[feed.stream] = functools.partial(feed.savepoint, step)
    return found


def _joined(savepoints: dict[str, str]) -> str:
    """Return savepoints by stream as one text; of a single stream its name alone."""
    if len(savepoints) == 1:
        return next(iter(savepoints.values()))
    return ",".join(f"{stream}={name}" for stream, name in savepoints.items())


def _note_loaded(marker: dict[str, Any]) -> None:
    """Keep where streams begin with this checkpoint, if it is of this job."""
    savepoint = str(marker.get("savepoint", ""))
    _loaded.clear()
    own, (uid, _) = os.environ.get("PRIMUS_JOB_UID", ""), marker["attempt"]
    if not savepoint:
        return
    if uid != own:
        warnings.warn(
            f"this checkpoint is of job {uid}: the model goes on, and streams of this job begin "
            f"where its job file says (restore: JOB/{savepoint})",
            stacklevel=3,
        )
        return
    for part in savepoint.split(","):
        stream, equals, name = part.rpartition("=")
        _loaded[stream if equals else ""] = name


def _whole(step: SupportsIndex) -> int:
    """Return a step as the integer it is; numpy's and torch's are no int."""
    try:
        number = operator.index(step)
    except TypeError:
        number = -1
    if not 0 <= number < STEP_MAX:
        raise CheckpointError(f"step is {step!r}, must be a whole number, 0 or more")
    return number


def _root(path: str | os.PathLike[str] | None) -> Path:
    named = os.fspath(path) if path is not None else os.environ.get("PRIMUS_CHECKPOINT_PATH", "")
    return Path(named or Path(os.environ.get("PRIMUS_WORKDIR", "")) / "checkpoints").absolute()


# Who may write.


@contextlib.contextmanager
def _locked(root: Path) -> Iterator[None]:
    import fcntl  # noqa: PLC0415 seldom needed

    own = root / OWN_FOLDER
    own.mkdir(parents=True, exist_ok=True)
    with (own / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _claim(root: Path, writer: _Writer) -> None:
    """Take the place of older attempts.

    Raises:
        SupersededError: This one is the older.
    """
    with _locked(root):
        _check(root, writer)
        if writer.replica:
            known = root / OWN_FOLDER / writer.replica
            part = known.with_name(f".{known.name}.part")
            _write(part, json.dumps(writer.attempt).encode())
            part.rename(known)
            _sync_folder(known.parent)


def _check(root: Path, writer: _Writer) -> None:
    stop = told_stop()
    if stop is not None and stop.reason == "superseded":
        raise SupersededError("a newer attempt of this replica has taken over")
    try:
        uid, number = json.loads((root / OWN_FOLDER / writer.replica).read_text())
    except (OSError, ValueError):
        return
    if writer.replica and (uid, number) > writer.attempt:
        raise SupersededError(
            f"attempt {number} of {writer.replica} (job {uid}) writes checkpoints to {root} now; "
            f"this is attempt {writer.attempt[1]} of job {writer.attempt[0]}"
        )


# Writing.


def _synced(folder: Path) -> dict[str, list[object]]:
    """Return size and digest of every file of a folder, once all of them are on the disk."""
    files: dict[str, list[object]] = {}
    for where, folders, names in os.walk(folder, topdown=False):
        for name in names:
            path = Path(where, name)
            if path.is_symlink():
                continue
            if not path.is_file():
                raise CheckpointError(f"{path} is no file; only files and folders can be kept")
            with path.open("rb") as file:
                os.fsync(file.fileno())
            files[str(path.relative_to(folder))] = list(_measured(path))
        _sync_folder(Path(where))
        folders.clear()
    if MARKER in files:
        raise CheckpointError(f"{MARKER} is the name of the marker; give that file another one")
    return files


def _measured(path: Path) -> tuple[int, str]:
    import hashlib  # noqa: PLC0415 seldom needed

    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return file.tell(), digest


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(path: Path, data: bytes) -> None:
    """Write a small file and bring it to the disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _finish(root: Path, writing: Path, writer: _Writer, marker: dict[str, object]) -> Path:
    """Give the folder its name and then its marker; with the lock held."""
    number = max((int(one["number"]) for _, one in _marked(root)), default=0) + 1
    _write(writing / UNMARKED, json.dumps({**marker, "number": number}, indent=1).encode())
    _sync_folder(writing)
    folder = _free_name(root, f"{PREFIX}{marker['step']:012d}{writer.suffix}")
    writing.rename(folder)
    _sync_folder(root)
    (folder / UNMARKED).rename(folder / MARKER)
    _sync_folder(folder)
    return folder


def _free_name(root: Path, name: str) -> Path:
    """Return a name that is not taken: after a rewind a step may come again."""
    path, again = root / name, 1
    while path.exists():
        again += 1
        path = root / f"{name}.{again}"
    return path


def _prune(root: Path, writer: _Writer, keep: int) -> None:
    """Remove what is not kept: older ones of this replica, and what its earlier attempts left."""
    own = [folder for folder, marker in _marked(root) if marker.get("replica") == writer.replica]
    for folder in own[:-keep]:
        _remove(folder)
    for folder in root.glob(f"{writer.mark}*"):
        uid, number = folder.name.removeprefix(writer.mark).split("-")[:2]
        if writer.replica and (uid, int(number)) < writer.attempt:
            _remove(folder)
    for path in root.glob(f"{PREFIX}*/{UNMARKED}"):
        if json.loads(path.read_bytes()).get("replica") == writer.replica:
            _remove(path.parent)


def _remove(folder: Path) -> None:
    """Remove a folder, its marker first: half of it must never count as whole."""
    import shutil  # noqa: PLC0415 seldom needed

    (folder / MARKER).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


# Reading.


def _marked(root: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Return the folders with a marker, in the order in which they were written."""
    found: list[tuple[int, str, dict[str, Any]]] = []
    for path in root.glob(f"{PREFIX}*/{MARKER}"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            marker = json.loads(path.read_bytes())
            found.append((int(marker["number"]), str(path.parent), marker))
    return [(Path(folder), marker) for _, folder, marker in sorted(found, key=lambda one: one[:2])]


def _fault(folder: Path, marker: dict[str, Any]) -> str:
    """Return what of a checkpoint does not fit its marker; "" it is whole."""
    for name, known in marker["files"].items():
        try:
            size, digest = _measured(folder / name)
        except OSError as error:
            return f"{name}: {error.strerror}"
        if size != known[0]:
            return f"{name} has {size} bytes, {known[0]} were written"
        if digest != known[1]:
            return f"{name} is not what was written"
    return ""
