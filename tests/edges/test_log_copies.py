"""Logs that lie on other hosts: their end is copied before the executor leaves (C72)."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from primusd.api.log_copies import COPY_BYTES_MAX, LogCopies, copies_folder
from primusd.api.log_merge import LogMerge, Wanted
from primusd.api.log_remote import AskedReader
from primusd.errors import NotFoundError
from primusd.executor.directory import attempt_path
from primusd.executor.logs import LogWriter
from primusd.executor.machine import Executor
from primusd.executor.protocol import Answer, Ask, Hold, Leave, Orders, Refused, Welcome
from primusd.executor.reporting import ANSWER_BYTES_MAX, ANSWERS_BYTES_MAX, answer, that_fit
from primusd.job.events import ExecutorExpired
from primusd.job.ids import AttemptId
from primusd.job.phases import AttemptPhase
from primusd.keys import job_key
from tests.edges.daemon_side import (
    SECRET,
    Daemon,
    Voice,
    executor_voice,
    make_exit,
    make_hello,
    make_report,
    serving_daemon,
    voice,
)

pytestmark = pytest.mark.anyio

ATTEMPT = AttemptId("06h2jj0tgvp0hesf", "worker", 0, 1)


def write_logs(host: Path, stdout: bytes, stderr: bytes = b"", *, files_max: int = 9) -> None:
    """Write an ended attempt's logs as its executor does, a line every 10 ms."""
    directory = attempt_path(host, ATTEMPT)
    directory.mkdir(parents=True, exist_ok=True)
    for stream, data in (("stdout", stdout), ("stderr", stderr)):
        writer = LogWriter(directory, stream, file_bytes_max=200_000, files_max=files_max)
        at_ms = 1_000_000
        for line in data.splitlines(keepends=True):
            writer.write(line, at_ms)
            at_ms += 10
        writer.close(at_ms)


class Asked:
    """An executor on another host whose trainer has ended; it answers what it is asked."""

    def __init__(self, host: Path, *, answers_max: int = 1_000) -> None:
        self.host = host
        self.left = answers_max
        self.state = Executor(heads=("unix:/none",), born_ms=0, exit=make_exit(0))

    async def __call__(
        self, attempt: AttemptId, kind: str, *, path: str = "", offset: int = 0, byte_count: int = 0
    ) -> Answer:
        self.left -= 1
        if self.left < 0:
            raise NotFoundError("it is gone")
        ask = Ask(1, kind, path, offset, byte_count)
        return answer(ask, attempt_path(self.host, attempt), self.state, lambda: ())


def merged(state: Path, *, attempt: int = 0) -> list[tuple[int, bytes]]:
    """Return (gap, line) of all that is shown of the job on the daemon's host."""
    folders = (state / "jobs" / ATTEMPT.job, copies_folder(state) / "jobs" / ATTEMPT.job)
    merge = LogMerge(folders, Wanted(attempt=attempt))
    found = []
    while lines := merge.poll(flushes=True):
        found += [(line.gap, line.data) for line in lines]
    return found


def numbered(count: int, width: int) -> bytes:
    return b"".join(b"%0*d\n" % (width, number) for number in range(count))


async def test_a_short_log_is_copied_whole_with_its_times(tmp_path: Path) -> None:
    write_logs(tmp_path / "host", b"a\nc\n", b"b\n")

    await LogCopies(tmp_path).copy(ATTEMPT, Asked(tmp_path / "host"))

    merge = LogMerge((copies_folder(tmp_path) / "jobs" / ATTEMPT.job,), Wanted())
    found = [(line.at_ms, line.stream, line.data) for line in merge.poll(flushes=True)]
    assert found == [
        (1_000_000, "stderr", b"b\n"),
        (1_000_000, "stdout", b"a\n"),
        (1_000_010, "stdout", b"c\n"),
    ]


async def test_of_a_long_log_the_last_mib_is_copied_and_the_rest_is_a_gap(tmp_path: Path) -> None:
    log = numbered(14_000, 99)
    write_logs(tmp_path / "host", log)

    await LogCopies(tmp_path).copy(ATTEMPT, Asked(tmp_path / "host"))

    (gap, first), *lines = merged(tmp_path)
    kept = b"".join(line for _, line in lines)
    assert first == b""
    assert gap + len(kept) == len(log)
    assert kept == log[gap:]
    assert COPY_BYTES_MAX - 100 < len(kept) <= COPY_BYTES_MAX
    assert log[gap - 1 : gap] == b"\n"


async def test_what_the_executor_no_longer_keeps_is_part_of_the_gap(tmp_path: Path) -> None:
    log = numbered(14_000, 99)
    write_logs(tmp_path / "host", log, files_max=3)

    await LogCopies(tmp_path).copy(ATTEMPT, Asked(tmp_path / "host"))

    (gap, _), *lines = merged(tmp_path)
    assert log[gap:] == b"".join(line for _, line in lines)
    assert 300_000 < len(log) - gap < 600_000


async def test_the_tail_of_a_copy_is_the_tail_of_the_log(tmp_path: Path) -> None:
    log = numbered(14_000, 99)
    write_logs(tmp_path / "host", log)
    await LogCopies(tmp_path).copy(ATTEMPT, Asked(tmp_path / "host"))

    folder = copies_folder(tmp_path) / "jobs" / ATTEMPT.job
    lines = LogMerge((folder,), Wanted(), tail=3).poll(flushes=True)

    assert b"".join(line.data for line in lines) == log[-300:]


async def test_what_came_before_the_executor_was_gone_is_kept(tmp_path: Path) -> None:
    log = numbered(14_000, 99)
    write_logs(tmp_path / "host", log)

    await LogCopies(tmp_path).copy(ATTEMPT, Asked(tmp_path / "host", answers_max=4))

    (gap, _), *lines = merged(tmp_path)
    kept = b"".join(line for _, line in lines)
    assert kept == log[gap:][: len(kept)]
    assert len(kept) > 100_000


async def test_an_attempt_without_output_leaves_no_copy(tmp_path: Path) -> None:
    attempt_path(tmp_path / "host", ATTEMPT).mkdir(parents=True)

    await LogCopies(tmp_path).copy(ATTEMPT, Asked(tmp_path / "host"))

    assert not copies_folder(tmp_path).exists()


async def test_files_of_this_host_are_not_copied_c72(tmp_path: Path) -> None:
    copies = LogCopies(tmp_path)

    assert copies.are_wanted(ATTEMPT)
    attempt_path(tmp_path, ATTEMPT).mkdir(parents=True)
    assert not copies.are_wanted(ATTEMPT)


async def test_attempts_here_and_copies_are_one_list_c72(tmp_path: Path) -> None:
    write_logs(tmp_path / "host", b"first\n")
    await LogCopies(tmp_path).copy(ATTEMPT, Asked(tmp_path / "host"))
    second = attempt_path(tmp_path, AttemptId(ATTEMPT.job, "worker", 0, 2))
    second.mkdir(parents=True)
    (second / "stdout.log").write_bytes(b"second\n")

    assert [line for _, line in merged(tmp_path, attempt=1)] == [b"first\n"]
    assert [line for _, line in merged(tmp_path, attempt=2)] == [b"second\n"]
    assert [line for _, line in merged(tmp_path, attempt=-1)] == [b"first\n"]


async def test_previous_counts_a_newest_attempt_that_has_no_files_here(tmp_path: Path) -> None:
    for number in (1, 2):
        path = attempt_path(tmp_path, AttemptId(ATTEMPT.job, "worker", 0, number))
        path.mkdir(parents=True)
        (path / "stdout.log").write_bytes(b"attempt %d\n" % number)

    folder = tmp_path / "jobs" / ATTEMPT.job
    merge = LogMerge((folder,), Wanted(attempt=-1), newest={"worker-0": 3})

    assert [line.data for line in merge.poll()] == [b"attempt 2\n"]


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pieces=st.lists(st.integers(1, 40), min_size=1, max_size=12),
    reads=st.lists(st.integers(1, 50), min_size=1, max_size=12),
    copied_from=st.integers(0, 200),
)
def test_a_reader_that_follows_loses_nothing_when_the_attempt_ends(
    tmp_path: Path, pieces: list[int], reads: list[int], copied_from: int
) -> None:
    """Asked piece by piece, then read on in the copy, wherever that begins."""
    log = bytes(range(256)) * 2
    copy = attempt_path(copies_folder(tmp_path), ATTEMPT)
    copy.mkdir(parents=True, exist_ok=True)
    for path in copy.iterdir():
        path.unlink()
    reader = AskedReader(0, copy, "stdout")
    taken, position = b"", 0
    sizes = iter(reads)
    for size in pieces:
        if not reader.is_read:
            piece = reader.read(position, next(sizes, 60))
            assert piece.offset == position
            taken += piece.data
            position += len(piece.data)
        if reader.is_read:
            begin = reader.next_offset
            reader.push(begin, log[begin : begin + size])
    (copy / f"stdout.{copied_from:016d}.log").write_bytes(log[copied_from:])
    (copy / "stdout.log").write_bytes(b"")

    while (piece := reader.read(position, 60)).data:
        assert log[piece.offset :].startswith(piece.data)
        assert piece.offset in {position, copied_from}
        taken += piece.data
        position = piece.offset + len(piece.data)

    assert position == len(log)
    assert taken.endswith(log[copied_from:])


def test_answers_go_in_as_many_reports_as_they_need() -> None:
    big = [Answer(number, bytes(ANSWER_BYTES_MAX), end=False) for number in range(5)]
    small = Answer(9, b"x", end=True)

    assert [one.id for one in that_fit(big)] == [0, 1]
    assert that_fit([small, *big]) == (small, big[0])
    assert that_fit([Answer(1, bytes(ANSWERS_BYTES_MAX + 1), end=True), small])[0].id == 1
    assert that_fit([]) == ()


def test_an_offset_from_the_end_counts_in_the_index_too(tmp_path: Path) -> None:
    write_logs(tmp_path, numbered(100, 9))
    state = Asked(tmp_path).state

    def asked(path: str, offset: int) -> Answer:
        return answer(Ask(1, "logs", path, offset), attempt_path(tmp_path, ATTEMPT), state, tuple)

    whole, end = asked("stdout.index", 0), asked("stdout.index", -48)

    assert (end.data, end.offset) == (whole.data[-48:], len(whole.data) - 48)
    assert asked("stdout.index", -(1 << 30)) == whole


# On the wire.


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    async with serving_daemon(tmp_path) as served:
        await served.add_node()
        yield served


async def ended(executor: Voice) -> Orders:
    """Let an executor's trainer end, and return the orders that count it in."""
    await executor.report("holding")
    await executor.report("running", is_started=True)
    return await executor.report("ended", exit_=make_exit(3))


async def answer_all(executor: Voice, orders: Orders, log: dict[str, bytes]) -> None:
    """Answer whatever is asked until the executor is to leave."""
    while not isinstance(orders.run, Leave):
        executor.seq += 1
        answers = tuple(Answer(ask.id, log.get(ask.path, b""), end=True) for ask in orders.asks)
        await executor.say_with(make_report(executor.seq, "ended"), answers)
        orders = await executor.hear_orders()


async def test_an_ended_executor_elsewhere_is_asked_before_it_leaves_c72(daemon: Daemon) -> None:
    attempt = AttemptId(await daemon.submit(is_here=False), "worker", 0, 1)
    log = {"stdout": b"hello\n", "stderr": b"oops\n"}

    async with executor_voice(daemon, attempt) as executor:
        orders = await ended(executor)
        assert isinstance(orders.run, Hold)
        assert orders.exit_recorded
        assert daemon.attempt(attempt).phase is AttemptPhase.ENDED
        await answer_all(executor, orders, log)

    copy = attempt_path(copies_folder(daemon.state), attempt)
    assert (copy / "stdout.log").read_bytes() == b"hello\n"
    assert (copy / "stderr.log").read_bytes() == b"oops\n"


async def test_an_ended_executor_that_does_not_answer_leaves_after_a_while(
    tmp_path: Path,
) -> None:
    async with serving_daemon(tmp_path, copy_within_s=0.05) as daemon:
        await daemon.add_node()
        attempt = AttemptId(await daemon.submit(is_here=False), "worker", 0, 1)
        async with executor_voice(daemon, attempt) as executor:
            orders = await ended(executor)
            assert isinstance(orders.run, Hold)
            while not isinstance(orders.run, Leave):
                orders = await executor.hear_orders()

        assert orders.asks == ()
        assert not copies_folder(daemon.state).exists()


async def test_an_ended_executor_on_this_host_leaves_at_once(daemon: Daemon) -> None:
    attempt = AttemptId(await daemon.submit(), "worker", 0, 1)

    async with executor_voice(daemon, attempt) as executor:
        orders = await ended(executor)

    assert orders.run == Leave()
    assert orders.asks == ()


async def test_logs_that_had_not_come_when_the_daemon_ended_come_afterwards(
    daemon: Daemon,
) -> None:
    """The end was recorded, so its executor would be refused; it is heard once more."""
    attempt = AttemptId(await daemon.submit(is_here=False), "worker", 0, 1)
    async with executor_voice(daemon, attempt) as executor:
        seen = await ended(executor)

    hello = make_hello(attempt, seen=(seen.term, seen.revision))
    async with voice(daemon, key=job_key(SECRET, attempt.job)) as executor:
        assert await executor.ask(hello) == Welcome(1, None)
        orders = await executor.report("ended")
        assert isinstance(orders.run, Hold)
        await answer_all(executor, orders, {"stdout": b"hello\n"})
    async with voice(daemon, key=job_key(SECRET, attempt.job)) as executor:
        refused = await executor.ask(hello)

    copy = attempt_path(copies_folder(daemon.state), attempt)
    assert (copy / "stdout.log").read_bytes() == b"hello\n"
    assert isinstance(refused, Refused)
    assert refused.code == "attemptOver"


async def test_another_executor_of_an_attempt_that_is_over_is_refused(daemon: Daemon) -> None:
    attempt = AttemptId(await daemon.submit(is_here=False), "worker", 0, 1)
    async with executor_voice(daemon, attempt) as executor:
        seen = await ended(executor)

    async with voice(daemon, key=job_key(SECRET, attempt.job)) as executor:
        hello = make_hello(attempt, seen=(seen.term, seen.revision), incarnation="fedcba9876543210")
        refused = await executor.ask(hello)

    assert isinstance(refused, Refused)
    assert refused.code == "attemptOver"


async def test_a_lost_executor_that_comes_back_with_its_trainer_is_told_to_leave(
    daemon: Daemon,
) -> None:
    attempt = AttemptId(await daemon.submit(is_here=False), "worker", 0, 1)
    async with executor_voice(daemon, attempt) as executor:
        await executor.report("holding")
        seen = await executor.report("running", is_started=True)
    await daemon.engine.propose(attempt.job, ExecutorExpired(attempt), by="liveness")

    async with voice(daemon, key=job_key(SECRET, attempt.job)) as executor:
        await executor.ask(make_hello(attempt, seen=(seen.term, seen.revision)))
        orders = await executor.report("running", is_started=True)

    assert orders.run == Leave()
