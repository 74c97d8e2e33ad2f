"""What a head keeps in motion: the commands that machines plan, their timers, and the sweep.

The plans, the sorting of what a launcher lists, and the launcher's memory are the daemon's own.
"""

from primusd import core, effects
from primusd.datafeed.ledger.events import ListingFailed, UnitsListed
from primusd.datafeed.sources.files import ListingError
from primusd.effects import DELAYS_MS, LISTING_DELAYS_MS, REPEAT_MS, SWEEP_MS, key_of
from primusd.engine import Anew
from primusd.executor.protocol import Bootstrap
from primusd.job.commands import (
    CarryPositions,
    Command,
    KeepPositions,
    LaunchAttempt,
    ListUnits,
    ReleaseAttempt,
    StopAttempt,
)
from primusd.job.events import StopFailed, TimePassed
from primusd.job.ids import AttemptId
from primusd.launchers.base import LauncherEvent, Listed
from primusd.launchers.local import LocalLauncher
from primusd.subscription import Published
from primusd.sweep import Strays, sort_listed
from primusd.testing import pieces_of
from tests.simulation.carrying import CARRY_MS
from tests.simulation.files import Files, listing_ms
from tests.simulation.head import CLUSTER, Head

TIMER_REPEAT_MS = 1_000


class NodesLauncher(LocalLauncher):
    """The local launcher, whose waits are looks that its caller repeats."""

    def launch_now(self, command: LaunchAttempt, bootstrap: Bootstrap, head: Head) -> None:
        """Wish for an attempt."""
        role = head.world.jobs[command.attempt.job].spec.roles[command.attempt.role]
        wish = self.launch(command.attempt, command.node, role.resources, bootstrap)
        try:
            wish.send(None)
        except StopIteration:
            return
        raise AssertionError("a wish waits for nothing")

    def end_now(self, attempt: AttemptId, node: str, *, is_release: bool) -> bool:
        """Wish for an end; return whether the node has carried it out."""
        one = self._node(node)
        wishes = one.release if is_release else one.kill
        one.run.pop(attempt, None)
        if attempt not in wishes:
            wishes[attempt] = self._revision + 1
            self._changed(one)
        return self._is_done(one, wishes[attempt])

    def listed(self) -> tuple[Listed, ...]:
        """Return what the connected nodes have."""
        return tuple(
            Listed(one.attempt, name, one.alive)
            for name, node in self._nodes.items()
            if node.link is not None
            for one in node.listed.values()
        )


class Keeping:
    """Effects, timer and sweep of one head."""

    def __init__(self, head: Head, launcher: NodesLauncher, files: Files, strays: Strays) -> None:
        self._head = head
        self._launcher = launcher
        self._files = files
        self.strays = strays
        self._plans: dict[str, tuple[Command, ...]] = {}
        self._running: dict[effects.Key, Command] = {}
        self._deadlines: dict[str, int] = {}
        self._is_swept_for_ever = False
        launcher.watch(self._tell)
        head.on_published.append(self._follow)
        head.on_anew.append(self._begin_anew)

    def _tell(self, event: LauncherEvent) -> None:
        if not self._head.is_dead:
            self._head.tell(event.attempt.job, event, by="launcher")

    def _follow(self, published: Published) -> None:
        for machine in published.touched:
            self._keep(machine)

    def _begin_anew(self, why: Anew) -> None:
        if why is Anew.STALL:
            return
        self._deadlines.clear()
        known = core.machines(self._head.world)
        for machine in (*known, *(self._plans.keys() - set(known))):
            self._keep(machine)
        self._sweep()
        if not self._is_swept_for_ever:
            self._is_swept_for_ever = True
            self._head.later(SWEEP_MS, self._sweep_for_ever)

    def _keep(self, machine: str) -> None:
        self._set_timer(machine)
        plan = core.plan(self._head.world, machine)
        before = self._plans.get(machine, ())
        if plan is before:
            return
        wanted = {key: one for one in plan if (key := key_of(one)) is not None}
        for one in before:
            key = key_of(one)
            if key is not None and key not in wanted:
                self._running.pop(key, None)
        for key, command in wanted.items():
            if self._running.get(key) is not command:
                self._begin(key, command)
        if plan:
            self._plans[machine] = plan
        else:
            self._plans.pop(machine, None)

    def _begin(self, key: effects.Key, command: Command) -> None:
        running = self._running.get(key)
        if running is not None and (running == command or isinstance(command, ListUnits)):
            return
        self._running[key] = command
        match command:
            case LaunchAttempt():
                self._launch(key, command)
            case StopAttempt() | ReleaseAttempt():
                wait_ms = max(0, command.not_before_ms - self._head.at_ms())
                self._head.later(wait_ms, self._end, key, command)
            case ListUnits():
                stream = self._head.world.streams[f"{command.job}/{command.stream}"]
                self._head.later(listing_ms(stream.spec), self._list, key, command, 0)
            case CarryPositions() | KeepPositions():
                self._head.later(CARRY_MS, self._carry, key, command, 0)
            case _:
                pass

    def _is_kept(self, key: effects.Key, command: Command) -> bool:
        return self._running.get(key) is command

    def _launch(self, key: effects.Key, command: LaunchAttempt) -> None:
        if self._is_kept(key, command):
            bootstrap = Bootstrap(CLUSTER, command.attempt, ("head",), "key")
            self._launcher.launch_now(command, bootstrap, self._head)
            self._head.later(REPEAT_MS, self._launch, key, command)

    def _end(
        self,
        key: effects.Key,
        command: StopAttempt | ReleaseAttempt,
        tries: int = 0,
        was_delivered: int = 0,
    ) -> None:
        if not self._is_kept(key, command):
            return
        left_ms = command.deadline_ms - self._head.at_ms()
        if left_ms <= 0:
            failed = StopFailed(command.attempt, bool(was_delivered))
            self._head.tell(command.attempt.job, failed, by="launcher")
            self._head.later(REPEAT_MS, self._end, key, command, tries, was_delivered)
            return
        if command.attempt not in self.strays.ahead:
            was_delivered |= self._launcher.end_now(
                command.attempt, command.node, is_release=isinstance(command, ReleaseAttempt)
            )
        delay_ms = DELAYS_MS[-1] if was_delivered else DELAYS_MS[min(tries, len(DELAYS_MS) - 1)]
        self._head.later(min(left_ms, delay_ms), self._end, key, command, tries + 1, was_delivered)

    def _list(self, key: effects.Key, command: ListUnits, tries: int) -> None:
        machine = f"{command.job}/{command.stream}"
        stream = self._head.world.streams.get(machine)
        if not self._is_kept(key, command) or stream is None:
            return
        # While nothing can be recorded this tells nobody, and tries again.
        try:
            known = stream.units
            piece = pieces_of(self._files.list)(stream)
            event = UnitsListed(piece.units, len(known), piece.is_complete)
            self._head.tell(machine, event, by="source")
        except ListingError as error:
            failed = ListingFailed(error.message, error.permanent)
            self._head.tell(machine, failed, by="source")
        delay_ms = LISTING_DELAYS_MS[min(tries, len(LISTING_DELAYS_MS) - 1)]
        self._head.later(delay_ms, self._list, key, command, tries + 1)

    def _carry(self, key: effects.Key, command: CarryPositions | KeepPositions, tries: int) -> None:
        machine = f"{command.job}/{command.stream}"
        world = self._head.world
        stream = world.streams.get(machine)
        if not self._is_kept(key, command) or stream is None:
            return
        if isinstance(command, KeepPositions):
            self._head.tell(machine, self._files.positions.keep(world, stream), by="source")
        else:
            for event in self._files.positions.carried(world, stream):
                self._head.tell(machine, event, by="source")
        delay_ms = LISTING_DELAYS_MS[min(tries, len(LISTING_DELAYS_MS) - 1)]
        self._head.later(delay_ms, self._carry, key, command, tries + 1)

    # Timers.

    def _set_timer(self, machine: str) -> None:
        deadline_ms = core.deadline_ms(self._head.world, machine)
        if deadline_ms == self._deadlines.get(machine, 0):
            return
        if deadline_ms == 0:
            del self._deadlines[machine]
            return
        self._deadlines[machine] = deadline_ms
        wait_ms = max(0, deadline_ms - self._head.at_ms())
        self._head.later(wait_ms, self._ring, machine, deadline_ms)

    def _ring(self, machine: str, deadline_ms: int) -> None:
        if self._deadlines.get(machine) != deadline_ms or self._head.outage is not None:
            return
        left_ms = deadline_ms - self._head.at_ms()
        if left_ms <= 0:
            self._head.tell(machine, TimePassed(), by="timer")
        self._head.later(max(left_ms, TIMER_REPEAT_MS), self._ring, machine, deadline_ms)

    @property
    def timers(self) -> dict[str, int]:
        """Machines that want to hear of the time, and when."""
        return self._deadlines

    # What is found.

    def _sweep_for_ever(self) -> None:
        self._sweep()
        self._head.later(SWEEP_MS, self._sweep_for_ever)

    def _sweep(self) -> None:
        if self._head.outage is not None:
            return
        found = sort_listed(self._head.world, self._launcher.listed(), self.strays.ahead)
        self.strays.put(self._launcher.name, found.strays)
        for one in found.stop:
            if ("stop", one.attempt) not in self._running:
                self._launcher.end_now(one.attempt, one.node, is_release=False)
        for one in found.release:
            self._launcher.end_now(one.attempt, one.node, is_release=True)
