"""An executor beside a trainer: the daemon's own machine, with calls in place of its coroutines."""

import random
from typing import Protocol

from msgspec.structs import replace

from primusd.executor import machine
from primusd.executor.protocol import (
    SPEAKS,
    Checkpoint,
    Exit,
    Hello,
    LaunchOrder,
    Orders,
    Refused,
    Trainer,
    Welcome,
)
from primusd.executor.reporting import Facts, Watched, compose, watched
from primusd.job.ids import AttemptId
from tests.simulation.reader import Feeds
from tests.simulation.schedule import Schedule
from tests.simulation.trainer import Act
from tests.simulation.wire import Line, Wire

PID = 7


class Place(Protocol):
    """What an executor knows of the host that it lives on."""

    name: str

    @property
    def boot_id(self) -> str:
        """Return which boot of the host this is."""
        ...

    def dial(self, executor: "Executor") -> Line | None:
        """Return a line to whoever leads, None when nobody answers."""
        ...

    def trainer_started(self, executor: "Executor") -> None:
        """Hear that a trainer process exists."""
        ...

    def exited(self, executor: "Executor", exit_: Exit) -> None:
        """Hear of an exit record."""
        ...

    def executor_ended(self, executor: "Executor") -> None:
        """Hear that an executor and all it started is gone."""
        ...


class Executor:
    """The process of one attempt, from its lock to its exit record.

    Attributes:
        is_alive: Its lock is held.
        has_trainer: The trainer's process exists.
        exit: Its exit record, once it is on disk.
    """

    def __init__(
        self, attempt: AttemptId, act: Act, place: Place, schedule: Schedule, wire: Wire
    ) -> None:
        self.attempt = attempt
        self.is_alive = True
        self.has_trainer = False
        self.trainers = 0
        self.exit: Exit | None = None
        self.boot_id = place.boot_id
        self.state = machine.Executor(heads=("head",), born_ms=schedule.now_ms)
        self.line: Line | None = None
        self._act = act
        self._place = place
        self._schedule = schedule
        self._wire = wire
        self._random = random.Random(f"{attempt.job}/{attempt.label}/{place.boot_id}")
        self._incarnation = f"{self._random.getrandbits(64):016x}"
        self._feeds: Feeds | None = None
        self._said: Watched | None = None
        self._doing: machine.Duty | None = None
        self._is_signalled = False
        self._frozen_until_ms = 0
        self._preempted_at_ms = 0
        self._checkpoint: Checkpoint | None = None
        self._wake_ms = 0
        self._killed_at_ms = 0
        self._started_at_ms = 0

    @property
    def is_killed(self) -> bool:
        """Whether it took the kill and only its host still waits for it: nothing of it runs."""
        return self._killed_at_ms > 0

    @property
    def never_ends(self) -> bool:
        """Whether the trainer's work has no end by itself: it hangs, or is a helper."""
        return self.has_trainer and (self._act.hangs or self._act.is_endless)

    # Time.

    def _later(self, delay_ms: int, call: object, *args: object) -> None:
        self._schedule.put(self._schedule.now_ms + delay_ms, self._if_alive, (call, args))

    def _if_alive(self, call: object, args: tuple[object, ...]) -> None:
        if not self.is_alive:
            return
        left_ms = self._frozen_until_ms - self._schedule.now_ms
        if left_ms > 0:
            self._schedule.later(left_ms, self._if_alive, call, args)
        else:
            call(*args)  # type: ignore[operator] # as `_later` was given it

    def freeze(self, duration_ms: int) -> None:
        """Stand still, with the trainer."""
        self._frozen_until_ms = self._schedule.now_ms + duration_ms

    def act(self) -> None:
        """Do what is due now: duty, report, dial; and come back when the next thing is."""
        now_ms = self._schedule.now_ms
        self.state = machine.time_passed(self.state, now_ms)
        duty = machine.duty(self.state, now_ms)
        if duty != self._doing:
            self._doing = duty
            self._carry_out(duty)
        if not self.is_alive:
            return
        wake_ms = self._talk(now_ms)
        if isinstance(duty, machine.Idle) and now_ms < duty.wake_ms:
            wake_ms = min(wake_ms, duty.wake_ms) if now_ms < wake_ms else duty.wake_ms
        if now_ms < wake_ms and (wake_ms < self._wake_ms or self._wake_ms <= now_ms):
            self._wake_ms = wake_ms
            self._later(wake_ms - now_ms, self.act)

    def _become(self, state: machine.Executor) -> None:
        if state is not self.state:
            self.state = state
            self.act()

    # Duties.

    def _carry_out(self, duty: machine.Duty) -> None:
        match duty:
            case machine.Prepare(order):
                self._later(self._act.prepare_ms, self._prepared, duty, order)
            case machine.StartTrainer():
                self._later(self._act.start_ms, self._start, duty)
            case machine.EndTrainer(goal):
                self._end(goal)
            case machine.Depart():
                self._gone()
            case machine.Idle():
                pass

    def _prepared(self, duty: machine.Duty, order: LaunchOrder) -> None:
        if self._doing != duty:
            return
        if self._act.prepare_error:
            self._record(self._exit(error=self._act.prepare_error))
            return
        self._feeds = Feeds(order.feeds, self._schedule) if order.feeds else None
        ports = tuple((name, port or 40_000) for name, port in order.ports)
        self._become(replace(self.state, is_held=True, ports=ports))

    def _start(self, duty: machine.Duty) -> None:
        if self._doing != duty:
            return
        if self._act.start_errno:
            self._record(self._exit(errno=self._act.start_errno))
            return
        order = self.state.order
        assert order is not None
        self.has_trainer = True
        self.trainers += 1
        self._started_at_ms = self._schedule.now_ms
        self._place.trainer_started(self)
        is_ready = order.ready is None
        self.state = replace(self.state, is_starting=True)
        self._begin_work(has_probe=not is_ready)
        self._become(replace(self.state, trainer=Trainer(PID, 0, ready=is_ready)))

    def _begin_work(self, *, has_probe: bool) -> None:
        act = self._act
        if has_probe and act.ready_ms >= 0:
            self._later(act.ready_ms, self._ready)
        if act.preempted_after_ms:
            self._later(act.preempted_after_ms, self._preempt)
        if act.checkpoint_after_ms:
            self._later(act.checkpoint_after_ms, self._save)
        if act.dies_with_executor:
            self._later(act.run_ms, self._gone)
        elif act.hangs or act.is_endless:
            pass
        elif self._feeds is not None and act.code == 0:
            self._later(100, self._read)
        else:
            self._later(act.run_ms, self._exited, act.code, act.signal)

    def _ready(self) -> None:
        trainer = self.state.trainer
        if trainer is not None:
            self._become(replace(self.state, trainer=replace(trainer, ready=True)))

    def _save(self) -> None:
        if self.has_trainer:
            self._checkpoint = Checkpoint("/checkpoints/1", 1, self._savepoint())
            self.act()

    def _savepoint(self) -> str:
        """Return the name of the positions that go with a checkpoint, of the newest marked step."""
        start = self.state.start
        if self._feeds is None or start is None:
            return ""
        return f"step-{self._feeds.step}-g{start.generation}"

    def _preempt(self) -> None:
        if not self._preempted_at_ms and self.has_trainer:
            self._preempted_at_ms = self._schedule.now_ms + 30_000
            order = self.state.order
            grace_ms = order.grace_ms if order is not None else 0
            begin_ms = max(self._schedule.now_ms + 1, self._preempted_at_ms - grace_ms)
            self._later(30_000, self._gone)
            self._become(replace(self.state, preempted_ms=begin_ms))

    def _read(self) -> None:
        if not self.has_trainer or self._feeds is None:
            return
        self._feeds.read()
        if self._feeds.is_poisoned:
            self._exited(1, None)
        elif self._feeds.is_over:
            left_ms = self._started_at_ms + self._act.run_ms - self._schedule.now_ms
            self._later(max(0, left_ms), self._exited, 0, None)
        else:
            self._later(self._feeds.pause_ms, self._read)
            self.act()

    # The end.

    def _end(self, goal: machine.StopGoal) -> None:
        if not self.has_trainer:
            self._record(self._exit())
            return
        left_ms = max(0, goal.deadline_ms - self._schedule.now_ms)
        if not self._is_signalled:
            self._is_signalled = True
            if left_ms > 0 and self._act.stop_ms >= 0:
                self._later(self._act.stop_ms, self._exited, self._act.stop_code, None)
        self._later(left_ms, self._kill_trainer)

    def _kill_trainer(self) -> None:
        if self.has_trainer:
            self._killed_at_ms = self._killed_at_ms or self._schedule.now_ms
            self._later(self._act.unkillable_ms, self._exited, None, 9)

    def _exited(self, code: int | None, signal: int | None) -> None:
        if self.has_trainer:
            self.has_trainer = False
            self._record(self._exit(code, signal))

    def _exit(
        self, code: int | None = None, signal: int | None = None, *, error: str = "", errno: int = 0
    ) -> Exit:
        stop = self.state.stop
        if stop is not None and stop.text == machine.ORPHANED:
            error = machine.ORPHANED
        was_stopped = self._is_signalled or not self.trainers
        return Exit(
            code=code,
            signal=signal,
            start_errno=errno or None,
            executor_error=error,
            oom_kills=self._act.oom_kills if code != 0 else 0,
            peak_rss_bytes=0,
            started_ms=0,
            ended_ms=0,
            stop_seen=stop.reason if stop is not None and was_stopped else "",
            matched=(),
            last_lines=self._act.lines,
            positions=self._feeds.give_back_all() if self._feeds is not None else (),
        )

    def _record(self, exit_: Exit) -> None:
        if self.state.exit is None:
            self.exit = exit_
            self._place.exited(self, exit_)
            self._become(replace(self.state, exit=exit_, trainer=None))

    def kill(self) -> bool:
        """End all of the attempt by force; False while something of it cannot be killed."""
        if not self.is_alive:
            return True
        stuck_ms = self._act.unkillable_ms if self.has_trainer else 0
        now_ms = self._schedule.now_ms
        self._killed_at_ms = self._killed_at_ms or now_ms
        if now_ms - self._killed_at_ms < stuck_ms:
            self._schedule.later(stuck_ms, self._kill_again)
            return False
        self._gone()
        return True

    def _kill_again(self) -> None:
        self.kill()

    def _gone(self) -> None:
        """Be gone: the lock is free, and nothing that was started is left."""
        if self.is_alive:
            self.is_alive = self.has_trainer = False
            if self.line is not None:
                self.line.end()
            self._place.executor_ended(self)

    def vanish(self) -> None:
        """Be gone with the host, without a word to anybody."""
        self.is_alive = self.has_trainer = False

    # Its conversation.

    def _talk(self, now_ms: int) -> int:
        """Dial or report when that is due; return when it next is."""
        if self.line is None:
            if self.state.link.dial_ms <= now_ms:
                self._dial(now_ms)
            if self.line is None:
                return self.state.link.dial_ms
        if machine.is_unanswered(self.state, now_ms):
            self._hung_up(self.line)
            return self.state.link.dial_ms
        facts = self._facts()
        said = watched(self.state, facts, ())
        is_urgent = said != self._said or (self._feeds is not None and self._feeds.is_urgent)
        has_moved = self._said is not None and self._said.phase != self.state.phase
        due_ms = machine.report_due_ms(self.state, is_urgent=is_urgent, has_moved=has_moved)
        if not 0 <= due_ms <= now_ms:
            patience_ms = now_ms + machine.BEATS_UNANSWERED_MAX * self.state.beat_ms + 1
            return due_ms if due_ms > 0 else patience_ms
        self._report(facts, said, now_ms)
        return now_ms + self.state.beat_ms

    def _facts(self) -> Facts:
        left_ms = 0
        if self._preempted_at_ms:
            left_ms = max(1, self._preempted_at_ms - self._schedule.now_ms)
        return Facts(checkpoint=self._checkpoint, preemption_ms=left_ms)

    def _report(self, facts: Facts, said: Watched, now_ms: int) -> None:
        assert self.line is not None
        self.state = machine.reported(self.state, now_ms)
        if self._feeds is not None and self.state.exit is None:
            facts = replace(facts, feeds=self._feeds.reports(self.state.link.seq))
        self._said = said
        report = compose(self.state, facts)
        if self._act.hangs and self.has_trainer:
            report = replace(report, hang="no step for 30 min")
        self.line.send(0, self._hear_at_head, self.line, report)

    @staticmethod
    def _hear_at_head(line: Line, report: object) -> None:
        if line.at_head is not None:
            line.at_head.take(report)

    def _dial(self, now_ms: int) -> None:
        line = self._place.dial(self)
        if line is None:
            self.state = machine.closed(self.state, now_ms, self._random.random())
            return
        self.state = machine.opened(self.state, now_ms)
        self.line = line
        line.on_break(lambda: self._hung_up(line))

    def hello(self) -> Hello:
        """Return its first message on a line."""
        term, revision = self.state.seen
        return Hello(
            SPEAKS,
            "c1",
            self.attempt,
            self._incarnation,
            term,
            revision,
            self._place.name,
            dict(self.state.ports),
            self.boot_id,
            PID,
            "0",
        )

    def hear(self, line: Line, message: Welcome | Refused | Orders) -> None:
        """Take a message that came over a line."""
        if self.is_alive and self.line is line:
            self._if_alive(self._take, (message,))

    def _take(self, message: Welcome | Refused | Orders) -> None:
        before = self.state
        chance = self._random.random()
        self.state = machine.received(before, message, self._schedule.now_ms, chance)
        if isinstance(message, Refused) and self.line is not None:
            self._hung_up(self.line)
            return
        if isinstance(message, Orders) and self.state is not before and self._feeds is not None:
            self._feeds.obey(message)
        if self.state is not before:
            self.act()

    def _hung_up(self, line: Line) -> None:
        if self.line is line and self.is_alive:
            self.line = None
            line.end()
            chance = self._random.random()
            self.state = machine.closed(self.state, self._schedule.now_ms, chance)
            self.act()
