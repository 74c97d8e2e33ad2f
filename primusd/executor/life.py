"""An executor's life: carries out what its machine asks for, and tells it what came of it."""

import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import nullcontext
from pathlib import Path

import anyio
import msgspec
import structlog
from anyio.abc import TaskGroup

from primusd.clock import SystemClock
from primusd.datafeed.delivery.server import FeedServer
from primusd.executor import machine
from primusd.executor.cgroup import Group, find_trees, make_group
from primusd.executor.connection import Head
from primusd.executor.directory import AttemptDirectory, write_exit_record
from primusd.executor.files import FilesError
from primusd.executor.logs import Output
from primusd.executor.machine import Executor, StopGoal
from primusd.executor.preparing import (
    bind_ports,
    host_name,
    prepare_folders,
    taken_port,
    until_ready,
    write_whole,
)
from primusd.executor.protocol import (
    Bootstrap,
    Exit,
    LaunchOrder,
    Orders,
    Probe,
    Start,
    StartVariables,
    Usage,
)
from primusd.executor.protocol import Trainer as TrainerFact
from primusd.executor.reporting import Facts
from primusd.executor.start_documents import Newest, fetch_peers, fetch_variables
from primusd.executor.starter import StartCall, Starter, refusal_line
from primusd.executor.trainer import Trainer
from primusd.executor.variables import Account, complete, find_account, own_variables
from primusd.executor.warnings import Warnings

log = structlog.get_logger()

USAGE_EVERY_S = 10.0
TERMINATION_NOTICE_MS = 30_000
"""What a back end that ends this process with SIGTERM usually leaves."""
DEV_NULL = "/dev/null"


class Life:
    """One attempt, from its lock to its exit record.

    Attributes:
        state: What the machine knows; set through `become`.
        facts: What reports say beyond it.
        hang: Evidence that the trainer hangs; "" it does not.
    """

    def __init__(self, bootstrap: Bootstrap, directory: AttemptDirectory, starter: Starter) -> None:
        self.bootstrap = bootstrap
        self.directory = directory
        self.placing = directory.read_placing()
        self.host = self.placing.host or host_name()
        self.incarnation = os.urandom(8).hex()
        self.pid = os.getpid()
        self.clock = SystemClock()
        self.state = Executor(heads=bootstrap.heads, born_ms=self.clock.boot_ms())
        self.feed: FeedServer | None = None
        self.usage: Usage | None = None
        self.hang = ""
        self._starter = starter
        self._trainer: Trainer | None = None
        self._output: Output | None = None
        self._account = Account()
        self._preempted_at_ms = 0
        self._peers = ""
        self._newest = Newest()
        self._warnings = Warnings(directory.warn)
        self._stop_signalled = False
        self._started_ms = 0
        self._woken = anyio.Event()
        self._tasks: TaskGroup | None = None

    def now_ms(self) -> int:
        """Return the time that the machine counts by."""
        return self.clock.boot_ms()

    def become(self, state: Executor) -> None:
        """Take a new state and wake whoever acts on it."""
        if state is not self.state:
            self.state = state
            self.wake()

    def wake(self) -> None:
        """Let everybody who waits look again."""
        self._woken.set()
        self._woken = anyio.Event()

    async def woken(self, until_ms: int = 0) -> None:
        """Return at the next change, or at a time of `now_ms`."""
        left_s = (until_ms - self.now_ms()) / 1000
        with anyio.move_on_after(left_s) if until_ms else nullcontext():
            await self._woken.wait()

    def facts(self) -> Facts:
        """Return what reports say beyond the machine's state, answers left out."""
        left_ms = max(1, self._preempted_at_ms - self.now_ms()) if self._preempted_at_ms else 0
        if (feed := self.feed) is None:
            return Facts(usage=self.usage, preemption_ms=left_ms, hang=self.hang)
        return Facts(
            progress=feed.progress,
            checkpoint=feed.checkpoint,
            usage=self.usage,
            preemption_ms=left_ms,
            hang=self.hang,
        )

    def pids(self) -> tuple[int, ...]:
        """Return the trainer's process and all that it started."""
        return self._trainer.pids() if self._trainer is not None else ()

    def cpu_ms(self) -> int:
        """Return the processor time that the trainer and all it started used so far."""
        return self._trainer.usage().cpu_ms if self._trainer is not None else 0

    def note(self, text: str) -> None:
        """Put what we have to say ourselves into the trainer's log."""
        if self._output is not None:
            self._output.note("stderr", text)

    async def run(self, talk: Callable[["Life"], Coroutine[object, object, None]]) -> int:
        """Live; return this process's exit code."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            tasks.start_soon(self._hear_signals)
            tasks.start_soon(talk, self)
            tasks.start_soon(self._measure)
            code = await self._act()
            tasks.cancel_scope.cancel()
        return code

    async def _act(self) -> int:
        """Keep the machine's duty in motion; return once it is to depart."""
        while True:
            now_ms = self.now_ms()
            self.become(machine.time_passed(self.state, now_ms))
            duty = machine.duty(self.state, now_ms)
            match duty:
                case machine.Depart():
                    await self._depart()
                    return duty.code
                case machine.Idle():
                    self._refresh_peers()
                    await self.woken(duty.wake_ms)
                case _:
                    await self._keep(duty)

    async def _keep(self, duty: machine.Duty) -> None:
        """Carry out a duty until it is done or another one is due."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._carry_out, duty, tasks.cancel_scope)
            while machine.duty(self.state, self.now_ms()) == duty:
                await self.woken()
            tasks.cancel_scope.cancel()

    async def _carry_out(self, duty: machine.Duty, scope: anyio.CancelScope) -> None:
        match duty:
            case machine.Prepare():
                await self._prepare(duty.order)
            case machine.StartTrainer():
                await self._start(duty.start)
            case machine.EndTrainer():
                await self._end(duty.goal)
            case _:
                scope.cancel()

    # Before the start.

    async def _prepare(self, order: LaunchOrder) -> None:
        try:
            self._account = find_account(self.placing.user)
            await prepare_folders(
                order, self.directory, self.placing, self._account, self._fetch_blob
            )
        except (FilesError, OSError, KeyError) as error:
            self._fail(f"files:{error}")
            return
        taken = taken_port(order.ports)
        if taken:
            self._fail(f"portTaken:{taken}")
            return
        try:
            await self._open_feed(order)
            ports = bind_ports(order.ports)
        except OSError as error:
            self._fail(f"internal:{error}")
            return
        self.become(msgspec.structs.replace(self.state, is_held=True, ports=ports))

    def _fetch_blob(self, path: str) -> AsyncIterator[bytes]:
        return self.head().fetch(f"{path}?job={self.bootstrap.attempt.job}")

    async def _open_feed(self, order: LaunchOrder) -> None:
        assert self._tasks is not None
        if self.feed is None:
            feed = FeedServer(
                order.feeds,
                directory=self.directory.path,
                attempt=self.bootstrap.attempt,
                owner=(self._account.uid, self._account.gid),
                folder=order.workdir or str(self.directory.replica_work),
            )
            await self._tasks.start(feed.run)
            self.feed = feed

    # The start.

    async def _start(self, start: Start) -> None:
        order = self.state.order
        assert order is not None
        peers = await fetch_peers(self.head, self.bootstrap.attempt, start)
        variables = await fetch_variables(self.head, self.bootstrap.attempt, start)
        self.become(msgspec.structs.replace(self.state, is_starting=True))
        try:
            write_whole(self.directory.peers, peers)
            self._peers = start.peers
            failure = self._spawn(order, start, variables)
        except OSError as error:
            self._fail(f"disk:{error}")
            return
        if failure:
            await self._finish(start_errno=failure)
            return
        self._begin_watching(order)

    def _spawn(self, order: LaunchOrder, start: Start, variables: StartVariables) -> int:
        """Start the trainer's process; return 0, or the errno of what failed."""
        assert self.feed is not None
        assert self._tasks is not None
        self._output = Output(
            self.directory.path,
            file_bytes_max=order.log_bytes_max,
            files_max=order.log_files_max,
            patterns=order.log_patterns,
            wall_ms=self.clock.wall_ms,
        )
        self._trainer = Trainer(self._starter, self._output, self._make_group())
        self._started_ms = self.clock.wall_ms()
        self.feed.trainer_starting(generation=start.generation)
        stdin = self.feed.stdin_for_trainer()
        stdin = os.open(DEV_NULL, os.O_RDONLY | os.O_CLOEXEC) if stdin is None else stdin
        call = self._call(order, self._trainer, variables)
        try:
            failure = self._trainer.start(call, stdin, self._tasks)
        finally:
            os.close(stdin)
        if failure:
            self._output.take("stderr", f"{refusal_line(call, failure)}\n".encode())
        return failure

    def _begin_watching(self, order: LaunchOrder) -> None:
        assert self.feed is not None
        assert self._trainer is not None
        assert self._tasks is not None
        self.feed.trainer_started(self._trainer.pid)
        fact = TrainerFact(self._trainer.pid, self._started_ms, ready=order.ready is None)
        self._tasks.start_soon(self._watch, self._trainer)
        if order.ready is not None:
            self._tasks.start_soon(self._probe, order.ready)
        self.become(msgspec.structs.replace(self.state, trainer=fact))
        log.info("trainer.started", pid=fact.pid)

    def _make_group(self) -> Group:
        group = make_group(find_trees(self.placing.enforce), self.bootstrap.attempt)
        group.limit(cpu_milli=self.placing.cpu_milli, memory_bytes=self.placing.memory_bytes)
        return group

    def _call(self, order: LaunchOrder, trainer: Trainer, variables: StartVariables) -> StartCall:
        assert self.feed is not None
        own = own_variables(
            self.directory,
            self.placing,
            ports=self.state.ports,
            host=self.host,
            temporary=self.directory.replica_work / "tmp",
        )
        env = complete(
            order,
            self.placing,
            variables.env,
            own,
            self.feed.environment(),
            files=variables.files,
            directory=self.directory,
            account=self._account,
        )
        return StartCall(
            order.command,
            env,
            order.workdir or str(self.directory.replica_work),
            trainer.cgroups,
            self._account.uid,
            self._account.gid,
            self._account.groups,
        )

    def _refresh_peers(self) -> None:
        start = self.state.start
        if start is not None and start.peers != self._peers and self.state.trainer is not None:
            assert self._tasks is not None
            self._peers = start.peers
            self._tasks.start_soon(self._newest.run, self._rewrite_peers, start)

    async def _rewrite_peers(self, start: Start) -> None:
        peers = await fetch_peers(self.head, self.bootstrap.attempt, start)
        self._try_to_write(self.directory.peers, peers)
        if self.feed is not None:
            self.feed.peers_changed()

    def _try_to_write(self, path: Path, data: bytes) -> None:
        """Write a file for the trainer; on a full disk it does without, rather than end of it."""
        try:
            write_whole(path, data)
        except OSError as error:
            log.warning("file.not_written", path=path.name, text=str(error))

    async def _probe(self, probe: Probe) -> None:
        """Tell once that the trainer is ready."""
        order, feed = self.state.order, self.feed
        assert order is not None
        assert feed is not None
        home = Path(order.workdir or self.directory.replica_work)
        if probe.kind == "sdk":
            while not feed.ready:
                await self.woken()
        else:
            await until_ready(probe, home, dict(self.state.ports))
        trainer = self.state.trainer
        if trainer is not None:
            fact = msgspec.structs.replace(trainer, ready=True)
            self.become(msgspec.structs.replace(self.state, trainer=fact))

    # The end.

    async def _watch(self, trainer: Trainer) -> None:
        await trainer.exited.wait()
        await self._finish()

    async def _end(self, goal: StopGoal) -> None:
        """Stop the trainer: word, signal, grace, kill. What never started is over at once."""
        trainer = self._trainer
        if trainer is None or self.state.trainer is None:
            await self._finish()
            return
        order = self.state.order
        assert order is not None
        trainer.reap()
        if trainer.exited.is_set():
            return
        left_ms = goal.deadline_ms - self.now_ms()
        if not self._stop_signalled:
            self._stop_signalled = True
            word = msgspec.json.encode({"reason": goal.reason, "graceMs": max(0, left_ms)})
            self._try_to_write(self.directory.stop, word)
            if self.feed is not None:
                self.feed.stopping(goal.reason, max(0, left_ms))
            if left_ms > 0:
                trainer.signal(order.stop_signal)
        await anyio.sleep(max(0, left_ms) / 1000)
        trainer.signal(signal.SIGKILL)
        await trainer.end_all()

    def _fail(self, text: str) -> None:
        log.error("attempt.failed", text=text)
        self._record(self._exit(executor_error=text))

    async def _finish(self, *, start_errno: int | None = None) -> None:
        """Record the end once, whoever saw it first."""
        with anyio.CancelScope(shield=True):
            if self.state.exit is not None:
                return
            trainer = self._trainer
            if trainer is None:
                self._starter.dismiss()
                self._record(self._exit())
                return
            ended = await trainer.finish()
            is_started = start_errno is None
            code, signal_ = (ended.code, ended.signal) if is_started else (None, None)
            self._record(
                self._exit(
                    code=code,
                    signal=signal_,
                    start_errno=start_errno,
                    executor_error=self._stolen_port() if code else "",
                    oom_kills=ended.oom_kills,
                    peak_rss_bytes=ended.peak_rss_bytes,
                )
            )

    def _stolen_port(self) -> str:
        """Return the fault of a trainer that failed because of a port; "" where there is none.

        Nothing of ours runs any more, so whoever holds one is a stranger: it came between our look
        and the trainer's.
        """
        order = self.state.order
        taken = taken_port(order.ports) if order is not None and not self._stop_signalled else ""
        return f"portTaken:{taken}" if taken else ""

    def _exit(
        self,
        *,
        code: int | None = None,
        signal: int | None = None,
        start_errno: int | None = None,
        executor_error: str = "",
        oom_kills: int = 0,
        peak_rss_bytes: int = 0,
    ) -> Exit:
        stop = self.state.stop
        if stop is not None and stop.text == machine.ORPHANED:
            executor_error = machine.ORPHANED
        was_stopped = self._stop_signalled or self._trainer is None
        if (output := self._output) is not None:
            output.close()
        return Exit(
            code=code,
            signal=signal,
            start_errno=start_errno,
            executor_error=executor_error,
            oom_kills=oom_kills,
            peak_rss_bytes=peak_rss_bytes,
            started_ms=self._started_ms,
            ended_ms=self.clock.wall_ms(),
            stop_seen=stop.reason if stop is not None and was_stopped else "",
            matched=output.matched if output is not None else (),
            last_lines=output.last_lines if output is not None else "",
            positions=self.feed.trainer_ended(code, signal) if self.feed is not None else (),
            marks=self.feed.last_marks if self.feed is not None else (),
        )

    def _record(self, exit_: Exit) -> None:
        try:
            write_exit_record(self.directory.exit, exit_)
        except OSError:
            log.exception("exit.write_failed")
            exit_ = msgspec.structs.replace(exit_, executor_error=exit_.executor_error or "disk")
        log.info("attempt.ended", code=exit_.code, signal=exit_.signal, stop=exit_.stop_seen)
        self.become(msgspec.structs.replace(self.state, exit=exit_, trainer=None))

    async def _depart(self) -> None:
        with anyio.CancelScope(shield=True):
            if self._trainer is not None:
                await self._trainer.end_all()
            self._starter.dismiss()
        for path in self.directory.told:
            path.unlink(missing_ok=True)

    # All along.

    async def _hear_signals(self) -> None:
        with anyio.open_signal_receiver(signal.SIGCHLD, signal.SIGTERM) as signals:
            async for number in signals:
                if number == signal.SIGTERM:
                    self._preempt()
                elif self._trainer is not None:
                    self._trainer.reap()

    def _preempt(self) -> None:
        if not self._preempted_at_ms:
            self._preempted_at_ms = self.now_ms() + TERMINATION_NOTICE_MS
            grace_ms = self.state.order.grace_ms if self.state.order else 0
            begin_ms = max(self.now_ms() + 1, self._preempted_at_ms - grace_ms)
            self.become(msgspec.structs.replace(self.state, preempted_ms=begin_ms))

    async def _measure(self) -> None:
        while True:
            if self._trainer is not None and self.state.trainer is not None:
                self.usage = self._trainer.usage()
            await anyio.sleep(USAGE_EVERY_S)

    def head(self) -> Head:
        """Return the head that is dialled now."""
        address = self.state.heads[self.state.link.head % len(self.state.heads)]
        return Head(address, key=self.bootstrap.key, ca=self.bootstrap.ca)

    def ordered(self, orders: Orders, sent_at: float) -> None:
        """Hand orders that the machine took to the feed."""
        if self.feed is not None:
            self.feed.orders(orders.feeds, sent_at=sent_at, ttl_ms=orders.ttl_ms)
        trainer = self._trainer if self.state.trainer is not None else None
        self._warnings.hear(orders.near, now_ms=self.now_ms(), feed=self.feed, trainer=trainer)
