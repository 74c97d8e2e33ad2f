"""What an executor knows and therefore does: pure, driven by messages, facts and its own clock.

`life` and `talk` feed it and carry out what `duty` says; the contract tests play lost, doubled and
late messages against these functions alone. Times are milliseconds of a clock that never goes back
(CLOCK_BOOTTIME); a wall clock that is set does nothing here.
"""

from msgspec import Struct
from msgspec.structs import replace

from primusd.executor.protocol import (
    Exit,
    Hold,
    LaunchOrder,
    Leave,
    Orders,
    Refused,
    Start,
    Stop,
    Trainer,
    Welcome,
)

BEAT_MS = 1_000
"""Until the first orders say otherwise."""
BEATS_UNANSWERED_MAX = 3
REPORT_EVERY_MIN_MS = 50
DIAL_FIRST_MS = 200
DIAL_MAX_MS = 5_000
DIALS_AT_ONCE_MAX = 4
LOST_MAX = 4
REFUSED_RETRY_MS = 60_000
NEVER_ANSWERED_MS = 600_000
DELIVER_MS = 3_600_000
"""So long an ended executor stays up to deliver its exit."""
ORPHAN_MS = 7 * 86_400_000

EXIT_LEFT = 0
EXIT_INTERNAL = 70
EXIT_FILES = 71
EXIT_PORTS = 72
EXIT_DISK = 73
EXIT_ORPHANED = 74
EXIT_NO_HEAD = 75

ORPHANED = "internal:orphaned: no head answered"


class StopGoal(Struct, frozen=True):
    """A stop that is to be carried out; it never goes away again."""

    reason: str
    text: str
    deadline_ms: int
    """When the grace is over."""


class Link(Struct, frozen=True):
    """The connection, or the way to the next one."""

    is_open: bool = False
    is_welcome: bool = False
    seq: int = 0
    """Of the newest report on this connection."""
    answered: int = 0
    """Newest seq that orders on this connection have covered."""
    sent_ms: int = 0
    """When the newest report went."""
    opened_ms: int = 0
    dials: int = 0
    """Without a welcome in a row."""
    dial_ms: int = 0
    """Not before; while the connection is open: as the refusal said, 0 it said nothing."""
    head: int = 0
    """Position in `heads` of the one to dial next, or dialled now."""
    sent_on: int = 0
    """By followers in a row."""


class Executor(Struct, frozen=True):
    """All that an executor knows of itself."""

    heads: tuple[str, ...]
    born_ms: int
    order: LaunchOrder | None = None
    orders: Orders | None = None
    """The newest; older ones are dropped."""
    is_held: bool = False
    """Files are there and ports bound."""
    ports: tuple[tuple[str, int], ...] = ()
    start: Start | None = None
    stop: StopGoal | None = None
    is_starting: bool = False
    trainer: Trainer | None = None
    exit: Exit | None = None
    is_told_to_leave: bool = False
    is_over: bool = False
    """Refused by a daemon that knows: end the trainer without grace, record, leave."""
    is_taken: bool = False
    """Another executor of this attempt registered first."""
    preempted_ms: int = 0
    """When the host will take it; 0 unknown."""
    heard_ms: int = 0
    """When a head last gave an order; 0 never."""
    link: Link = Link()
    lost: tuple[str, ...] = ()
    """Heads that did not answer since the last welcome, the newest first."""

    @property
    def phase(self) -> str:
        """The phase as reports say it."""
        if self.exit is not None:
            return "ended"
        if self.stop is not None:
            return "stopping"
        if self.trainer is not None:
            return "running"
        if self.is_starting:
            return "starting"
        return "holding" if self.is_held else "preparing"

    @property
    def seen(self) -> tuple[int, int]:
        """Term and revision of the newest orders; (0, 0) none."""
        return (self.orders.term, self.orders.revision) if self.orders else (0, 0)

    @property
    def beat_ms(self) -> int:
        """The pulse that is asked for."""
        return self.orders.beat_ms if self.orders else BEAT_MS


class Prepare(Struct, frozen=True):
    """Fetch files, bind or check ports."""

    order: LaunchOrder


class StartTrainer(Struct, frozen=True):
    """Start the trainer."""

    start: Start


class EndTrainer(Struct, frozen=True):
    """Stop what runs, or record that nothing ever ran."""

    goal: StopGoal


class Depart(Struct, frozen=True):
    """End this process."""

    code: int


class Idle(Struct, frozen=True):
    """Nothing is to be begun before `wake_ms`; 0: before the next message or fact."""

    wake_ms: int = 0


Duty = Prepare | StartTrainer | EndTrainer | Depart | Idle


def duty(state: Executor, now_ms: int) -> Duty:
    """Return the one thing that should be in motion now."""
    if state.exit is None:
        return _duty_before_the_end(state, now_ms)
    if state.is_told_to_leave or state.is_over or state.exit.executor_error.startswith(ORPHANED):
        return Depart(exit_code(state.exit))
    leave_ms = max(state.heard_ms, state.born_ms) + DELIVER_MS
    return Depart(exit_code(state.exit)) if now_ms >= leave_ms else Idle(leave_ms)


def _duty_before_the_end(state: Executor, now_ms: int) -> Duty:
    if state.is_taken and state.trainer is None:
        return Depart(EXIT_LEFT)
    if state.stop is not None:
        return EndTrainer(state.stop)
    if state.order is None:
        give_up_ms = state.born_ms + NEVER_ANSWERED_MS
        return Depart(EXIT_NO_HEAD) if now_ms >= give_up_ms else Idle(give_up_ms)
    if not state.is_held:
        return Prepare(state.order)
    if state.start is not None and state.trainer is None:
        return StartTrainer(state.start)
    return Idle(_next_goal_ms(state))


def exit_code(exit_: Exit) -> int:
    """Return the executor's own exit code for how its attempt ended."""
    kind = exit_.executor_error.partition(":")[0]
    if exit_.executor_error.startswith(ORPHANED):
        return EXIT_ORPHANED
    codes = {"": EXIT_LEFT, "files": EXIT_FILES, "portTaken": EXIT_PORTS, "disk": EXIT_DISK}
    return codes.get(kind, EXIT_INTERNAL)


def _next_goal_ms(state: Executor) -> int:
    orphaned_ms = state.heard_ms + (state.order.orphan_ms if state.order else ORPHAN_MS)
    return min(orphaned_ms, state.preempted_ms) if state.preempted_ms else orphaned_ms


def time_passed(state: Executor, now_ms: int) -> Executor:
    """Return the state with the stop that a silent world leads to, once it is due."""
    if state.stop is not None or state.exit is not None or state.order is None:
        return state
    if now_ms < _next_goal_ms(state):
        return state
    grace_ms = state.order.grace_ms
    if state.preempted_ms and now_ms >= state.preempted_ms:
        goal = StopGoal("preempted", "the host takes this attempt", now_ms + grace_ms)
    else:
        goal = StopGoal("superseded", ORPHANED, now_ms + grace_ms)
    return replace(state, stop=goal)


# What the daemon says.


def received(
    state: Executor, message: Welcome | Refused | Orders, now_ms: int, chance: float
) -> Executor:
    """Return the state after a message.

    Args:
        state: The state before it.
        message: As it came over the open connection.
        now_ms: Now.
        chance: A random number in [0, 1), for waits that are spread.
    """
    match message:
        case Welcome():
            return _welcomed(state, message, now_ms)
        case Refused():
            return _refused(state, message, now_ms, chance)
        case Orders():
            return _ordered(state, message, now_ms)


def _welcomed(state: Executor, welcome: Welcome, now_ms: int) -> Executor:
    order = state.order if welcome.order is None else welcome.order
    if state.order is not None:
        order = state.order
    link = replace(state.link, is_welcome=True, dials=0, sent_on=0, opened_ms=now_ms)
    return replace(state, order=order, heard_ms=now_ms, link=link, lost=())


def _ordered(state: Executor, orders: Orders, now_ms: int) -> Executor:
    if (orders.term, orders.revision) < state.seen:
        return state
    link = state.link
    if link.answered < orders.report <= link.seq:
        link = replace(link, answered=orders.report)
    heads = orders.heads or state.heads
    if heads != state.heads:
        link = replace(link, head=_position(heads, state.heads[link.head % len(state.heads)]))
    state = replace(state, orders=orders, heard_ms=now_ms, link=link, heads=heads)
    match orders.run:
        case Hold():
            return state
        case Start():
            return state if state.stop is not None else replace(state, start=orders.run)
        case Stop():
            return _stopped(state, orders.run, now_ms)
        case Leave():
            # Of a trainer that lives: nothing was heard of it, and it was given up.
            goal = state.stop or StopGoal("superseded", "it was given up as lost", now_ms)
            goal = replace(goal, deadline_ms=min(goal.deadline_ms, now_ms))
            return replace(state, is_told_to_leave=True, stop=goal)


def _position(heads: tuple[str, ...], head: str) -> int:
    return heads.index(head) if head in heads else 0


def _stopped(state: Executor, stop: Stop, now_ms: int) -> Executor:
    deadline_ms = now_ms + stop.grace_ms
    if state.stop is None:
        return replace(state, stop=StopGoal(stop.reason, stop.text, deadline_ms))
    if deadline_ms < state.stop.deadline_ms:
        return replace(state, stop=replace(state.stop, deadline_ms=deadline_ms))
    return state


def _refused(state: Executor, refused: Refused, now_ms: int, chance: float) -> Executor:
    match refused.code:
        case "superseded" | "attemptOver":
            goal = state.stop or StopGoal("superseded", refused.text, now_ms)
            goal = replace(goal, deadline_ms=min(goal.deadline_ms, now_ms))
            return replace(state, is_over=True, stop=goal)
        case "attemptTaken" if state.trainer is None and state.exit is None:
            return replace(state, is_taken=True)
        case "notLeader":
            return _redirected(state, refused, now_ms, chance)
        case "busy":
            wait_ms = int(refused.retry_ms * (0.5 + chance))
        case "wrongCluster" if state.link.dials + 1 < len(state.heads):
            return _turned(state, now_ms)
        case _:
            # unknownJob, stateBehind, badKey, versionUnknown, and what a newer daemon may say:
            # nobody who knows has ended this attempt, so its trainer is kept.
            wait_ms = int(REFUSED_RETRY_MS * (0.75 + chance / 2))
    return replace(state, link=replace(state.link, dial_ms=now_ms + wait_ms))


def _redirected(state: Executor, refused: Refused, now_ms: int, chance: float) -> Executor:
    """Dial the heads that a follower named; two that name each other are not dialled for ever.

    One that says when to dial again has kept us waiting for a leader: it answers as soon as there
    is one, so nothing is won by staying away for longer.
    """
    link = state.link
    if refused.retry_ms:
        wait_ms = int(refused.retry_ms * (0.5 + chance))
        link = replace(link, dials=0, sent_on=0, dial_ms=now_ms + wait_ms)
    known = state.heads[link.head % len(state.heads)]
    others = tuple(head for head in refused.heads if head != known)
    if not others or link.sent_on >= DIALS_AT_ONCE_MAX:
        return replace(state, link=link)
    link = replace(link, head=0, dial_ms=now_ms, sent_on=link.sent_on + 1)
    return replace(state, heads=(*others, known), link=link)


def _turned(state: Executor, now_ms: int) -> Executor:
    head = (state.link.head + 1) % len(state.heads)
    return replace(state, link=replace(state.link, head=head, dial_ms=now_ms))


# The connection.


def opened(state: Executor, now_ms: int) -> Executor:
    """Return the state once a connection is made; the hello goes next."""
    old = state.link
    link = Link(is_open=True, opened_ms=now_ms, dials=old.dials, head=old.head, sent_on=old.sent_on)
    return replace(state, link=link)


def closed(state: Executor, now_ms: int, chance: float) -> Executor:
    """Return the state without a connection: when to dial, and whom.

    The first try comes at random within a beat, then after 0.2 s doubling to 5 s, half of it
    random.
    """
    link = state.link
    if link.is_open and not link.is_welcome and link.dial_ms:
        # A refusal said when; what an earlier one said counts no longer.
        link = Link(
            dials=link.dials + 1, dial_ms=link.dial_ms, head=link.head, sent_on=link.sent_on
        )
        return replace(state, link=link)
    if link.is_welcome:
        wait_ms = int(state.beat_ms * chance)
        dials = 0
    else:
        longest = min(DIAL_MAX_MS, DIAL_FIRST_MS << min(link.dials, 10))
        wait_ms = int(longest * (0.5 + chance / 2))
        dials = link.dials + 1
    head = (link.head + 1) % len(state.heads)
    # After a wait it may be sent on again, once.
    sent_on = min(link.sent_on, DIALS_AT_ONCE_MAX - 1)
    lost = state.lost
    if link.is_welcome or not link.is_open:
        gone = state.heads[link.head % len(state.heads)]
        lost = (gone, *(one for one in lost if one != gone))[:LOST_MAX]
    link = Link(dials=dials, dial_ms=now_ms + wait_ms, head=head, sent_on=sent_on)
    return replace(state, link=link, lost=lost)


def is_unanswered(state: Executor, now_ms: int) -> bool:
    """Return whether the open connection has been silent for so long that it is given up."""
    link = state.link
    if not link.is_open:
        return False
    patience_ms = BEATS_UNANSWERED_MAX * state.beat_ms
    if not link.is_welcome:
        return now_ms - link.opened_ms > max(patience_ms, DIAL_MAX_MS)
    return link.answered < link.seq and now_ms - link.sent_ms > patience_ms


def report_due_ms(state: Executor, *, is_urgent: bool, has_moved: bool = False) -> int:
    """Return when the next report may go; -1: not while the last one is on its way.

    Args:
        state: Of this executor.
        is_urgent: There is news.
        has_moved: The news is another phase. There are few of them in a life, and a gang waits.
    """
    link = state.link
    if not link.is_welcome or link.answered < link.seq:
        return -1
    if link.seq == 0:
        return 0
    if has_moved:
        return link.sent_ms
    return link.sent_ms + (REPORT_EVERY_MIN_MS if is_urgent else state.beat_ms)


def reported(state: Executor, now_ms: int) -> Executor:
    """Return the state with one more report on its way; its number is `link.seq`."""
    return replace(state, link=replace(state.link, seq=state.link.seq + 1, sent_ms=now_ms))
