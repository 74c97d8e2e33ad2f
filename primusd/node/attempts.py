"""The attempts that have a directory on this host: starting, watching, ending and releasing them.

What lives is told by locks alone. Processes are signalled only when they are proven to belong to an
attempt: by descent from the holder of its lock, by its control group, or by the attempt's own path
in their environment.
"""

import os
import pwd
import shutil
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec
import structlog
from anyio.abc import TaskGroup
from msgspec import Struct

from primusd.executor.cgroup import find_trees, group_of
from primusd.executor.directory import (
    AttemptDirectory,
    Holder,
    Placing,
    attempt_path,
    find_attempts,
    is_lock_held,
    read_exit_record,
    read_holder,
    take_lock,
)
from primusd.executor.processes import (
    boot_id,
    descendants,
    is_process,
    marked,
    signal_process,
    started_ticks,
)
from primusd.job.ids import AttemptId, is_uid
from primusd.node.host import Gpu
from primusd.node.metering import Share
from primusd.node.protocol import NodeAttempt, NodeStart
from primusd.node.zygote import Zygote

log = structlog.get_logger()

FORK_S = 30.0
END_ROUNDS_MAX = 50
END_AGAIN_S = 0.02
LOOK_EVERY_S = 1.0
"""At locks whose holder could not be watched by a pidfd."""
JOBS_MAX = 2_000
"""Folders that one report names; 17 bytes each."""
SIGKILL = 9
KEPT_SUFFIXES = (".log", ".index")


class Offer(Struct, frozen=True):
    """What `primusd node` gives its attempts, from the configuration."""

    host: str
    inherit: tuple[str, ...]
    enforce: str
    user: str
    gpus: tuple[Gpu, ...]


class Attempts:
    """Every attempt directory of this node that is not released.

    Attributes:
        changed: Set when a report has something new to say.
    """

    def __init__(self, state: Path, zygote: Zygote, offer: Offer, tasks: TaskGroup) -> None:
        self._state = state
        self._zygote = zygote
        self._offer = offer
        self._tasks = tasks
        self._known: dict[AttemptId, NodeAttempt] = {}
        self._starting: set[AttemptId] = set()
        self._fences: dict[AttemptId, int] = {}
        self._dropping: set[str] = set()
        self.changed = anyio.Event()

    def adopt(self) -> None:
        """Take up what an earlier node process on this host has left."""
        for attempt, path in find_attempts(self._state):
            # Until what an ended one left behind is gone too it counts as alive.
            self._known[attempt] = NodeAttempt(attempt, alive=True, exit=None)
            self._look(attempt, AttemptDirectory(path))
        if self._known:
            log.info("node.adopted", attempts=len(self._known))

    def listed(self) -> tuple[NodeAttempt, ...]:
        """Return all that a report says of them."""
        return tuple(self._known.values())

    def shares(self) -> tuple[Share, ...]:
        """Return the attempts that run here, with what their slots have."""
        found: list[Share] = []
        for one in self._known.values():
            directory = AttemptDirectory(attempt_path(self._state, one.attempt))
            holder = read_holder(directory.lock) if one.alive else None
            if holder is not None and is_process(holder.pid, holder.started_ticks):
                placing = directory.read_placing()
                found.append(Share(holder.pid, placing.cpu_milli, placing.memory_bytes))
        return tuple(found)

    @property
    def is_starting(self) -> bool:
        """Whether a fork is on its way."""
        return bool(self._starting)

    # Starting.

    def start(self, order: NodeStart) -> None:
        """Fork an executor, unless the attempt ever had a directory here."""
        attempt = order.attempt
        if attempt in self._known or attempt in self._starting:
            return
        path = attempt_path(self._state, attempt)
        if path.exists():
            return
        self._starting.add(attempt)
        self._tasks.start_soon(self._start, order, AttemptDirectory(path))

    async def _start(self, order: NodeStart, directory: AttemptDirectory) -> None:
        attempt = order.attempt
        try:
            self._write(order, directory)
            error = await self._zygote.fork_executor(directory.path, within_s=FORK_S)
        except OSError as failure:
            error = str(failure)
        self._starting.discard(attempt)
        if error and self._is_fenced(attempt, directory):
            if self._zygote.is_gone:
                self._forget_start(attempt, directory)
                return
            log.error("attempt.fork_failed", job=attempt.job, attempt=attempt.label, text=error)
            self._note(NodeAttempt(attempt, alive=False, exit=None, error=error))
            return
        log.info("attempt.forked", job=attempt.job, attempt=attempt.label)
        self._note(NodeAttempt(attempt, alive=True, exit=None))
        self._look(attempt, directory)

    def _is_fenced(self, attempt: AttemptId, directory: AttemptDirectory) -> bool:
        """Hold the lock of an attempt whose fork failed: what is only late must not begin yet.

        False when its executor holds it: it was late, and it lives.
        """
        try:
            lock = take_lock(directory.lock, Holder(os.getpid(), 0, ""))
        except OSError:
            # Where no lock can be made, no executor can make it either.
            return True
        if lock is not None:
            self._fences[attempt] = lock
        return lock is not None

    def _forget_start(self, attempt: AttemptId, directory: AttemptDirectory) -> None:
        """Leave no trace of a fork that the next life of this node makes: it has all orders."""
        shutil.rmtree(directory.path)
        if attempt in self._fences:
            os.close(self._fences.pop(attempt))

    def _write(self, order: NodeStart, directory: AttemptDirectory) -> None:
        directory.path.mkdir(parents=True)
        if self._offer.user:
            _let_through(directory.path, self._state)
        placing = Placing(
            inherit=self._offer.inherit,
            host=self._offer.host,
            gpus=self._pick_gpus(order.gpus),
            cpu_milli=order.cpu_milli,
            memory_bytes=order.memory_bytes,
            enforce=self._offer.enforce,
            user=self._offer.user,
            cache=str(cache_folder(self._state)),
        )
        directory.placing.write_bytes(msgspec.json.encode(placing))
        descriptor = os.open(directory.bootstrap, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(order.bootstrap)

    def _pick_gpus(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        """Return uuids: those named, and a free one for each that is left to this node ("")."""
        taken = set(wanted)
        for one in self._known.values():
            if one.alive:
                path = attempt_path(self._state, one.attempt)
                taken.update(AttemptDirectory(path).read_placing().gpus)
        free = [uuid for uuid, _, _ in self._offer.gpus if uuid not in taken]
        picked = [uuid or (free.pop(0) if free else "") for uuid in wanted]
        return tuple(uuid for uuid in picked if uuid)

    # Watching.

    def _look(self, attempt: AttemptId, directory: AttemptDirectory) -> None:
        """Watch an attempt while its lock is held; else note how it ended."""
        if is_lock_held(directory.lock):
            self._tasks.start_soon(self._watch, attempt, directory)
        else:
            self._tasks.start_soon(self._note_end, attempt, directory)

    async def _watch(self, attempt: AttemptId, directory: AttemptDirectory) -> None:
        while is_lock_held(directory.lock):
            await _holder_gone(directory)
        await self._note_end(attempt, directory)

    async def _note_end(self, attempt: AttemptId, directory: AttemptDirectory) -> None:
        """End what an executor left behind, then say that it is over."""
        await end_processes(directory, attempt)
        if attempt in self._known:
            exit_ = read_exit_record(directory.exit)
            holder = read_holder(directory.lock)
            boot = holder.boot_id if holder is not None else ""
            self._note(NodeAttempt(attempt, alive=False, exit=exit_, boot_id=boot))

    def _note(self, one: NodeAttempt) -> None:
        self._known[one.attempt] = one
        self.changed.set()

    # Ending.

    async def kill(self, attempt: AttemptId) -> None:
        """End all of an attempt now."""
        if attempt in self._known and self._known[attempt].alive:
            log.warning("attempt.killed", job=attempt.job, attempt=attempt.label)
            await end_processes(AttemptDirectory(attempt_path(self._state, attempt)), attempt)

    async def release(self, attempt: AttemptId) -> None:
        """End what still lives of an attempt, and keep of it only logs and exit record."""
        if attempt not in self._known:
            return
        if attempt in self._fences:
            os.close(self._fences.pop(attempt))
        directory = AttemptDirectory(attempt_path(self._state, attempt))
        if not await end_processes(directory, attempt):
            return
        if directory.path.exists():
            _clear(directory)
        del self._known[attempt]
        self.changed.set()

    def drop(self, job: str) -> None:
        """Remove the folder of a job whose record went, unless an attempt of it is still here."""
        busy = {attempt.job for attempt in (*self._known, *self._starting)}
        if job in busy or job in self._dropping or not is_uid(job):
            return
        if job_folder(self._state, job).exists():
            self._dropping.add(job)
            self._tasks.start_soon(self._remove, job)

    async def _remove(self, job: str) -> None:
        folder = job_folder(self._state, job)
        await anyio.to_thread.run_sync(partial(shutil.rmtree, folder, ignore_errors=True))
        # One that cannot be removed is not tried again each second.
        if not folder.exists():
            self._dropping.discard(job)
            log.info("job.dropped", job=job)


def job_folder(state: Path, job: str) -> Path:
    """Return where everything of a job lies below a state directory."""
    return state / "jobs" / job


def find_jobs(state: Path) -> tuple[str, ...]:
    """Return the uids of the jobs that have a folder on this host, the oldest first."""
    try:
        with os.scandir(state / "jobs") as entries:
            return tuple(sorted(one.name for one in entries if is_uid(one.name)))[:JOBS_MAX]
    except FileNotFoundError:
        return ()


async def _holder_gone(directory: AttemptDirectory) -> None:
    """Return when the holder of the lock has ended, or after a while."""
    holder = read_holder(directory.lock)
    try:
        descriptor = os.pidfd_open(holder.pid) if holder is not None else -1
    except ProcessLookupError:
        descriptor = -1
    if holder is None or descriptor < 0 or started_ticks(holder.pid) != holder.started_ticks:
        if descriptor >= 0:
            os.close(descriptor)
        await anyio.sleep(LOOK_EVERY_S if holder is not None else END_AGAIN_S)
        return
    try:
        await anyio.wait_readable(descriptor)
    finally:
        os.close(descriptor)


async def end_processes(directory: AttemptDirectory, attempt: AttemptId) -> bool:
    """End every process that is proven to belong to an attempt; return whether none is left."""
    group = group_of(find_trees("auto"), attempt)
    for _ in range(END_ROUNDS_MAX):
        found = proven(directory)
        group.kill()
        for pid, ticks in found:
            signal_process(pid, ticks, SIGKILL)
        if not found and not is_lock_held(directory.lock):
            group.remove()
            return True
        await anyio.sleep(END_AGAIN_S)
    return False


def proven(directory: AttemptDirectory) -> tuple[tuple[int, int], ...]:
    """Return (pid, start time) of the live processes that belong to an attempt, proof in hand.

    The lock's holder counts only while the lock is held and boot id and start time agree: a pid in
    an old file may be a stranger's by now.
    """
    found = list(marked(f"PRIMUS_STOP_FILE={directory.stop}".encode()))
    holder = read_holder(directory.lock)
    if (
        holder is not None
        and holder.boot_id == boot_id()
        and is_process(holder.pid, holder.started_ticks)
        and is_lock_held(directory.lock)
    ):
        found += [*descendants([holder.pid]), (holder.pid, holder.started_ticks)]
    alive = {(pid, ticks) for pid, ticks in found if is_process(pid, ticks)}
    # The executor last: while it lives, orphans come to it and are found.
    executor = holder.pid if holder is not None else 0
    return tuple(sorted(alive, key=lambda pair: pair[0] == executor))


def _clear(directory: AttemptDirectory) -> None:
    for path in directory.path.iterdir():
        if path.suffix in KEPT_SUFFIXES or path in (directory.exit, directory.placing):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    # Its absence says "released", so it goes last.
    directory.placing.unlink(missing_ok=True)


def _let_through(path: Path, state: Path) -> None:
    """Let another user pass through the folders above an attempt, and list none of them."""
    for folder in (path, *path.parents):
        folder.chmod(folder.stat().st_mode | 0o011)
        if folder == state:
            return


def cache_folder(state: Path) -> Path:
    """Return where this host keeps shipped files by digest."""
    return state / "cache" / "sha256"


def default_user() -> str:
    """Return `primus` where root is us and that user exists; "" otherwise."""
    if os.geteuid() != 0:
        return ""
    try:
        return pwd.getpwnam("primus").pw_name
    except KeyError:
        return ""
