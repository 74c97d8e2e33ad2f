"""The executor's machine against messages that are lost, doubled, late, and heads that forgot."""

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from primusd.executor import machine
from primusd.executor.machine import Depart, EndTrainer, Executor, Idle, Prepare, StartTrainer
from primusd.executor.protocol import (
    Exit,
    Hello,
    Hold,
    Leave,
    Orders,
    Refused,
    Report,
    Start,
    Stop,
    Trainer,
    Welcome,
    decode_daemon_message,
    decode_executor_message,
    encode,
)
from primusd.job.ids import AttemptId
from tests.edges.scripted_head import launch_order

ORDER = launch_order("true")
HEADS = ("unix:/a", "unix:/b")
IGNORANT = ("unknownJob", "stateBehind", "wrongCluster", "badKey", "versionUnknown", "busy", "?")
KNOWING = ("superseded", "attemptOver")
chances = st.floats(0, 1, exclude_max=True)


def orders(
    run: Hold | Start | Stop | Leave, *, term: int, revision: int, report: int = 0
) -> Orders:
    return Orders(
        report, revision, term, run, exit_recorded=False, beat_ms=1_000, ttl_ms=30_000, heads=HEADS
    )


def ended(state: Executor, code: int | None = 0) -> Executor:
    stop = state.stop.reason if state.stop is not None else ""
    exit_ = Exit(code, None, None, "", 0, 0, 0, 0, stop, (), "", ())
    return replace(state, exit=exit_, trainer=None)


class Play(RuleBasedStateMachine):
    """An executor, everything that was ever said to it, and what it may conclude from that."""

    @initialize()
    def begin(self) -> None:
        self.now_ms = 1_000_000
        self.state = Executor(heads=HEADS, born_ms=self.now_ms)
        self.term, self.revision = 1, 1
        self.run: Hold | Start | Stop | Leave = Hold()
        self.said: list[Orders] = []
        self.starts = 0
        self.was_told_to_end = False
        self.seen = (0, 0)

    # The daemon.

    @rule()
    def daemon_says(self) -> None:
        """Orders go; whether they arrive is another rule's matter."""
        report = self.state.link.seq
        self.said.append(orders(self.run, term=self.term, revision=self.revision, report=report))

    @rule(is_new_term=st.booleans())
    def daemon_goes_on(self, *, is_new_term: bool) -> None:
        """What should be so changes, only ever forward."""
        match self.run:
            case Hold():
                self.run = Start(1, "sha256:1")
            case Start():
                self.run = Stop("cancelled", "", 5_000)
            case _:
                self.run = Leave()
        self.revision += 1
        self.term += is_new_term

    # The network.

    @precondition(lambda self: not self.state.link.is_open)
    @rule()
    def connection_opens(self) -> None:
        self.state = machine.opened(self.state, self.now_ms)

    @precondition(lambda self: self.state.link.is_open)
    @rule(chance=chances)
    def connection_ends(self, chance: float) -> None:
        self.state = machine.closed(self.state, self.now_ms, chance)
        assert self.now_ms <= self.state.link.dial_ms <= self.now_ms + 1.5 * 60_000

    @precondition(lambda self: self.state.link.is_open and not self.state.link.is_welcome)
    @rule()
    def welcome_arrives(self) -> None:
        order = None if self.state.seen[0] else ORDER
        if self.state.order is None and order is None:
            return
        self._receive(Welcome(1, order))

    @precondition(lambda self: self.said and self.state.link.is_welcome)
    @rule(data=st.data())
    def orders_arrive(self, data: st.DataObject) -> None:
        """Any orders that were ever said: late, again, or the newest."""
        message = data.draw(st.sampled_from(self.said))
        if (message.term, message.revision) >= self.state.seen:
            self.was_told_to_end |= isinstance(message.run, Stop | Leave)
        self._receive(message)

    @precondition(lambda self: self.state.link.is_open and not self.state.link.is_welcome)
    @rule(code=st.sampled_from(IGNORANT), chance=chances)
    def an_ignorant_daemon_refuses(self, code: str, chance: float) -> None:
        self._receive(Refused(code, "", retry_ms=1_000), chance)
        self.connection_ends(chance)

    @precondition(lambda self: self.state.link.is_open and not self.state.link.is_welcome)
    @rule(code=st.sampled_from(KNOWING))
    def a_daemon_that_knows_refuses(self, code: str) -> None:
        self.was_told_to_end = True
        self._receive(Refused(code, ""))

    def _receive(self, message: Welcome | Refused | Orders, chance: float = 0.5) -> None:
        self.state = machine.received(self.state, message, self.now_ms, chance)

    # The executor's hands.

    @rule()
    def does_its_duty(self) -> None:
        duty = machine.duty(self.state, self.now_ms)
        match duty:
            case Prepare():
                self.state = replace(self.state, is_held=True)
            case StartTrainer():
                assert not self.was_told_to_end
                self.starts += 1
                trainer = Trainer(7, 0, ready=True)
                self.state = replace(self.state, is_starting=True, trainer=trainer)
            case EndTrainer():
                assert self.was_told_to_end
                self.state = ended(self.state)
            case Depart(code):
                assert self.state.exit is not None or code == machine.EXIT_NO_HEAD
            case Idle(wake_ms):
                assert wake_ms == 0 or wake_ms > self.now_ms

    @precondition(lambda self: self.state.trainer is not None)
    @rule()
    def trainer_ends_by_itself(self) -> None:
        self.state = ended(self.state)

    @precondition(lambda self: machine.report_due_ms(self.state, is_urgent=True) >= 0)
    @rule()
    def reports(self) -> None:
        due_ms = machine.report_due_ms(self.state, is_urgent=True)
        moved_ms = machine.report_due_ms(self.state, is_urgent=True, has_moved=True)
        assert moved_ms in (0, self.state.link.sent_ms), "a new phase waits for no 50 ms"
        self.now_ms = max(self.now_ms, due_ms)
        self.state = machine.reported(self.state, self.now_ms)
        assert machine.report_due_ms(self.state, is_urgent=True) == -1

    @rule(passed_ms=st.integers(1, 100_000))
    def time_passes(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        before = self.state
        self.state = machine.time_passed(before, self.now_ms)
        if self.state.stop is not None and before.stop is None:
            assert self.now_ms - before.heard_ms >= ORDER.orphan_ms
            self.was_told_to_end = True

    # What always holds.

    @invariant()
    def it_starts_at_most_once(self) -> None:
        assert self.starts <= 1

    @invariant()
    def its_phase_is_one_of_the_list(self) -> None:
        assert self.state.phase in {
            "preparing",
            "holding",
            "starting",
            "running",
            "stopping",
            "ended",
        }

    @invariant()
    def what_it_saw_never_falls(self) -> None:
        assert self.state.seen >= self.seen
        self.seen = self.state.seen

    @invariant()
    def a_stop_is_never_forgotten(self) -> None:
        assert (self.state.stop is not None) == self.was_told_to_end

    @invariant()
    def it_reaches_its_end_once_the_network_is_good(self) -> None:
        """From here, answered properly, an executor that is told to leave leaves."""
        state, now_ms = self.state, self.now_ms
        for _ in range(12):
            if not state.link.is_open:
                now_ms = max(now_ms, state.link.dial_ms)
                state = machine.opened(state, now_ms)
            order = ORDER if state.order is None else None
            state = machine.received(state, Welcome(1, order), now_ms, 0.5)
            leave = orders(Leave(), term=self.term + 1, revision=self.revision + 1)
            state = machine.received(state, leave, now_ms, 0.5)
            match machine.duty(state, now_ms):
                case Depart():
                    return
                case EndTrainer():
                    state = ended(state)
                case _:
                    pass
        raise AssertionError(f"it does not leave: {state}")


Play.TestCase.settings = settings(max_examples=100, stateful_step_count=50)
TestPlay = Play.TestCase


def held() -> Executor:
    state = machine.opened(Executor(heads=HEADS, born_ms=0), 0)
    state = machine.received(state, Welcome(1, ORDER), 0, 0.5)
    return replace(state, is_held=True)


def running() -> Executor:
    state = machine.received(held(), orders(Start(1, ""), term=1, revision=1), 0, 0.5)
    return replace(state, trainer=Trainer(7, 0, ready=True))


def test_a_head_that_is_gone_for_the_orphan_time_ends_the_trainer() -> None:
    state = machine.time_passed(running(), ORDER.orphan_ms - 1)
    assert isinstance(machine.duty(state, ORDER.orphan_ms - 1), Idle)

    state = machine.time_passed(state, ORDER.orphan_ms)

    duty = machine.duty(state, ORDER.orphan_ms)
    assert isinstance(duty, EndTrainer)
    assert duty.goal.deadline_ms == ORDER.orphan_ms + ORDER.grace_ms


def test_an_executor_that_no_head_ever_answered_gives_up_after_ten_minutes() -> None:
    state = Executor(heads=HEADS, born_ms=5)

    assert machine.duty(state, 600_004) == Idle(600_005)
    assert machine.duty(state, 600_005) == Depart(machine.EXIT_NO_HEAD)


def test_an_ended_executor_waits_an_hour_for_a_head() -> None:
    state = ended(running(), code=3)

    assert machine.duty(state, 3_599_999) == Idle(3_600_000)
    assert machine.duty(state, 3_600_000) == Depart(machine.EXIT_LEFT)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ("", 0),
        ("internal:x", 70),
        ("files:x", 71),
        ("portTaken:main", 72),
        ("disk", 73),
        (machine.ORPHANED, 74),
    ],
)
def test_its_own_exit_code_tells_its_own_failure(error: str, code: int) -> None:
    state = ended(running())
    assert state.exit is not None

    assert machine.exit_code(replace(state.exit, executor_error=error)) == code


def test_a_preempted_host_leads_to_a_stop_while_there_is_time() -> None:
    state = replace(running(), preempted_ms=20_000)

    state = machine.time_passed(state, 20_000)

    assert state.stop is not None
    assert state.stop.reason == "preempted"


def test_c63_a_trainer_whose_attempt_was_given_up_is_told_so_and_gets_no_grace() -> None:
    state = machine.received(running(), orders(Leave(), term=1, revision=2), 50, 0.5)

    duty = machine.duty(state, 50)

    assert isinstance(duty, EndTrainer)
    assert (duty.goal.reason, duty.goal.deadline_ms) == ("superseded", 50)


def test_dialling_slows_down_to_five_seconds() -> None:
    state = Executor(heads=HEADS, born_ms=0)
    waits, heads = [], []
    for _ in range(8):
        state = machine.closed(machine.opened(state, 0), 0, 0.99999)
        waits.append(state.link.dial_ms)
        heads.append(state.link.head)

    assert waits == [199, 399, 799, 1_599, 3_199, 4_999, 4_999, 4_999]
    assert heads == [1, 0] * 4


def test_dialling_slows_down_also_where_nobody_listens() -> None:
    state = machine.closed(replace(running(), heads=HEADS), 0, 0.99999)
    waits, now_ms = [], 0
    for _ in range(6):
        now_ms = state.link.dial_ms
        state = machine.closed(state, now_ms, 0.99999)
        waits.append(state.link.dial_ms - now_ms)

    assert waits == [199, 399, 799, 1_599, 3_199, 4_999]


def test_what_a_refusal_said_is_waited_for_once() -> None:
    state = machine.opened(Executor(heads=HEADS, born_ms=0), 0)
    state = machine.received(state, Refused("busy", "", (), 1_000), 0, 0.5)
    state = machine.closed(state, 0, 0.5)
    asked_ms = state.link.dial_ms

    state = machine.closed(state, asked_ms, 0.99999)

    assert asked_ms == 1_000
    assert state.link.dial_ms > asked_ms


def test_two_followers_that_name_each_other_are_not_dialled_for_ever() -> None:
    state = Executor(heads=("unix:/a", "unix:/b"), born_ms=0)
    waits = []
    for _ in range(8):
        state = machine.opened(state, 0)
        dialled = state.heads[state.link.head]
        other = "unix:/b" if dialled == "unix:/a" else "unix:/a"
        state = machine.received(state, Refused("notLeader", "", (other,)), 1, 0.5)
        state = machine.closed(state, 1, 0.5)
        waits.append(state.link.dial_ms - 1)

    assert waits[:4] == [0, 0, 0, 0]
    # From then on one in turn is waited for.
    assert min(waits[4::2]) >= 1_000


def test_who_was_kept_waiting_for_a_leader_dials_again_at_once() -> None:
    state = Executor(heads=HEADS, born_ms=0)
    for _ in range(6):
        state = machine.closed(state, 0, 0.5)
    assert state.link.dials == 6
    state = machine.opened(state, 1_000)
    state = machine.received(state, Refused("notLeader", "", (), 250), 5_000, 0.5)
    state = machine.closed(state, 5_000, 0.5)

    assert state.link.dial_ms == 5_250
    # And whoever is named then is dialled at once, however long all that took.
    state = machine.opened(state, 5_250)
    state = machine.received(state, Refused("notLeader", "", ("http://new:1",)), 5_300, 0.5)
    state = machine.closed(state, 5_300, 0.5)
    assert state.link.dial_ms == 5_300
    assert state.heads[state.link.head] == "http://new:1"


def test_heads_that_did_not_answer_are_kept_in_mind_until_one_does() -> None:
    state = Executor(heads=("unix:/a", "unix:/b", "unix:/c"), born_ms=0)
    for _ in range(2):
        state = machine.closed(state, 0, 0.5)
    assert state.lost == ("unix:/b", "unix:/a")
    state = machine.opened(state, 0)
    state = machine.received(state, Refused("busy", "", (), 100), 0, 0.5)
    assert machine.closed(state, 0, 0.5).lost == ("unix:/b", "unix:/a")
    state = machine.received(state, Welcome(1, ORDER), 0, 0.5)
    assert state.lost == ()

    assert machine.closed(state, 0, 0.5).lost == ("unix:/c",)


def test_a_report_that_is_not_answered_for_three_beats_ends_the_connection() -> None:
    state = machine.reported(running(), 100)

    assert not machine.is_unanswered(state, 3_100)
    assert machine.is_unanswered(state, 3_101)


MESSAGES = (
    Hello((1, 1), "c", AttemptId("j", "r", 0, 1), "i", 0, 0, "h", {}, "b", 1, "v"),
    Report(1, "running", 3, Trainer(1, 2, ready=True), None),
    Welcome(1, ORDER),
    Refused("busy", "text", ("h",), 5),
    orders(Stop("hung", "text", 7), term=1, revision=2),
)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_cut_after_any_byte_is_no_message(
    message: Hello | Report | Welcome | Refused | Orders,
) -> None:
    data = encode(message)
    decode = (
        decode_executor_message if isinstance(message, Hello | Report) else decode_daemon_message
    )

    assert decode(data) == message
    for length in range(len(data)):
        with pytest.raises(msgspec.DecodeError):
            decode(data[:length])


def test_fields_that_a_newer_version_appends_are_passed_over() -> None:
    data = msgspec.msgpack.decode(encode(Refused("busy", "text")))

    longer = msgspec.msgpack.encode([*data, "something new"])

    assert decode_daemon_message(longer) == Refused("busy", "text")
