"""Nodes: adoption after a crash, killing and releasing, and never a signal to a stranger."""

# ruff: noqa: ASYNC220  a test may block its loop

import os
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import msgspec
import pytest

from primusd.executor.directory import (
    AttemptDirectory,
    Holder,
    attempt_path,
    is_lock_held,
    read_holder,
)
from primusd.executor.files import prune
from primusd.executor.main import hold
from primusd.executor.processes import boot_id, signal_process, started_ticks
from primusd.job.ids import AttemptId
from primusd.node.attempts import Attempts, Offer, find_jobs
from primusd.node.bootstrap import end_node, node_holder
from primusd.node.protocol import NodeStart
from primusd.node.zygote import Zygote
from tests.edges.node_process import (
    NodeProcess,
    command,
    is_alive,
    running_node,
    until_dead,
    until_file,
)
from tests.edges.scripted_head import attempt_id, launch_order, shell

pytestmark = pytest.mark.anyio


def is_listed(node: NodeProcess, attempt: AttemptId, *, alive: bool) -> bool:
    found = node.head.node_attempt(attempt)
    return found is not None and found.alive is alive


async def launched(node: NodeProcess, attempt: AttemptId) -> int:
    """Launch a trainer that stays, and return its pid."""
    await node.head.launch(attempt, launch_order(*shell("echo $$; exec sleep 600")))
    pid = int(await until_file(node.directory(attempt).path / "stdout.log"))
    await node.head.until(lambda: is_listed(node, attempt, alive=True))
    return pid


async def test_trainers_outlive_their_node_and_are_adopted_c57(node: NodeProcess) -> None:
    """C57: what a killed node has forked lives on, and the next node takes it up by its lock."""
    attempt = attempt_id()
    trainer = await launched(node, attempt)

    await node.end(signal.SIGKILL)
    assert is_alive(trainer)
    await node.start()

    await node.head.until(lambda: is_listed(node, attempt, alive=True))
    assert is_alive(trainer)
    assert len(node.head.executors[attempt].hellos) == 1


async def test_a_node_whose_fork_server_was_killed_makes_another_and_charges_nobody(
    node: NodeProcess,
) -> None:
    before = await launched(node, attempt_id())
    (warm,) = [pid for pid in children_of(node) if name_of(pid) == "primus-warm"]

    os.kill(warm, signal.SIGKILL)
    attempts = [attempt_id(index=index) for index in range(1, 6)]
    for attempt in attempts:
        await node.head.launch(attempt, launch_order(*shell("echo $$; exec sleep 600")))

    for attempt in attempts:
        await until_file(node.directory(attempt).path / "stdout.log")
    await node.head.until(lambda: all(is_listed(node, one, alive=True) for one in attempts))
    said = [one for report in node.head.node_reports["n1"] for one in report.attempts]
    assert {one.error for one in said} == {""}
    assert all(one.alive for one in said)
    assert is_alive(before)


def children_of(node: NodeProcess) -> list[int]:
    assert node.process is not None
    pid = node.process.pid
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def name_of(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


async def test_an_end_while_no_node_ran_is_told_with_its_record(node: NodeProcess) -> None:
    attempt = attempt_id()
    await node.head.launch(attempt, launch_order(*shell("mkfifo go; echo $$; read x < go; exit 7")))
    await until_file(node.directory(attempt).path / "stdout.log")
    work = node.directory(attempt).replica_work

    await node.end(signal.SIGKILL)
    node.head.starts.clear()
    executor = node.head.executors[attempt]
    await anyio.to_thread.run_sync((work / "go").write_text, "\n")
    await node.head.until(lambda: executor.exit)
    await node.start()
    await node.head.until(lambda: is_listed(node, attempt, alive=False))

    found = node.head.node_attempt(attempt)
    assert found is not None
    assert found.exit is not None
    assert found.boot_id == boot_id()


async def test_what_has_a_directory_is_never_forked_again(node: NodeProcess) -> None:
    attempt = attempt_id()
    order = launch_order(*shell("echo ran; exit 0"))
    executor = await node.head.launch(attempt, order)
    await node.head.until_ended(executor)
    await node.head.until(lambda: is_listed(node, attempt, alive=False))

    await node.head.launch(attempt, order)
    await node.head.until_node_did(node.head.revision)

    assert node.text(attempt) == "ran\n"
    assert len(executor.hellos) == 1


async def test_an_order_given_twice_makes_one_process(node: NodeProcess) -> None:
    attempt = attempt_id()
    await launched(node, attempt)

    for _ in range(5):
        await node.head.push_nodes()
    await node.head.until_node_did(node.head.revision)

    assert len(node.head.executors[attempt].hellos) == 1


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def forked_by(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def libraries_of(pid: int) -> set[str]:
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {line.split()[-1] for line in lines if line.endswith(".so")}


async def test_a_launch_is_one_fork_of_the_warm_process_and_leaves_no_zombie(
    node: NodeProcess,
) -> None:
    attempts = [attempt_id(index=index) for index in range(3)]
    for attempt in attempts:
        await launched(node, attempt)
    pids = [node.head.executors[attempt].hellos[0].pid for attempt in attempts]
    (warm,) = {parent_of(pid) for pid in pids}
    assert node.process is not None
    assert parent_of(warm) == node.process.pid
    assert [libraries_of(pid) - libraries_of(warm) for pid in pids] == [set()] * 3

    for attempt in attempts:
        await node.head.kill(attempt)
    await node.head.until(lambda: all(is_listed(node, one, alive=False) for one in attempts))
    for pid in pids:
        await until_dead(pid)

    assert forked_by(warm) == []


async def test_killing_ends_executor_and_tree_at_once(node: NodeProcess) -> None:
    attempt = attempt_id()
    line = "trap '' TERM; (setsid sh -c 'echo $$; sleep 600' &); while :; do sleep 0.1; done"
    executor = await node.head.launch(attempt, launch_order(*shell(line)))
    grandchild = int(await until_file(node.directory(attempt).path / "stdout.log"))

    await node.head.kill(attempt)
    await node.head.until(lambda: is_listed(node, attempt, alive=False))

    assert not is_alive(executor.hellos[0].pid)
    assert not is_alive(grandchild)


async def test_an_orphan_of_a_killed_executor_is_ended_before_the_end_is_told_c57(
    node: NodeProcess,
) -> None:
    """C57: what cannot be adopted is gone before anything is started in its place."""
    attempt = attempt_id()
    line = "(setsid sh -c 'echo $$; sleep 600' &); sleep 600"
    executor = await node.head.launch(attempt, launch_order(*shell(line)))
    orphan = int(await until_file(node.directory(attempt).path / "stdout.log"))

    os.kill(executor.hellos[0].pid, signal.SIGKILL)
    await node.head.until(lambda: is_listed(node, attempt, alive=False))

    assert not is_alive(orphan)


async def test_killing_what_never_started_is_answered_by_its_absence(node: NodeProcess) -> None:
    attempt = attempt_id(9)

    await node.head.kill(attempt)
    await node.head.until_node_did(node.head.revision)

    assert node.head.node_attempt(attempt) is None


async def test_a_foreign_process_with_a_recorded_pid_is_never_signalled_c58(
    tmp_path: Path,
) -> None:
    """C58: the pid in an old lock file is a stranger's by now."""
    stranger = subprocess.Popen(["sleep", "600"])
    try:
        for number, ticks in ((1, started_ticks(stranger.pid)), (2, 12345)):
            path = attempt_path(tmp_path, attempt_id(number))
            path.mkdir(parents=True)
            (path / "place.json").write_bytes(b"{}")
            holder = Holder(stranger.pid, ticks, boot_id())
            (path / "lock").write_bytes(msgspec.json.encode(holder))
        async with running_node(tmp_path) as node:
            await node.head.until(lambda: is_listed(node, attempt_id(1), alive=False))
            for number in (1, 2):
                await node.head.kill(attempt_id(number))
                await node.head.release(attempt_id(number))
            await node.head.until(lambda: node.head.node_attempt(attempt_id(2)) is None)

        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_signal_goes_only_to_the_process_of_that_start_time_c58() -> None:
    """C58: pid and start time together are a process."""
    child = subprocess.Popen(["sleep", "600"])
    try:
        assert not signal_process(child.pid, started_ticks(child.pid) + 1, signal.SIGKILL)
        assert child.poll() is None
        assert signal_process(child.pid, started_ticks(child.pid), signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
    finally:
        child.kill()


async def test_releasing_ends_what_still_lives(node: NodeProcess) -> None:
    attempt = attempt_id()
    trainer = await launched(node, attempt)

    await node.head.release(attempt)
    await node.head.until(lambda: node.head.node_attempt(attempt) is None)

    assert not is_alive(trainer)
    assert not is_lock_held(node.directory(attempt).lock)


async def test_a_node_replaces_itself_and_keeps_every_trainer(node: NodeProcess) -> None:
    attempt = attempt_id()
    trainer = await launched(node, attempt)
    assert node.process is not None
    pid, hellos = node.process.pid, node.head.node_hellos

    os.kill(pid, signal.SIGHUP)
    await node.head.until(lambda: node.head.node_hellos > hellos)
    await node.head.until(lambda: is_listed(node, attempt, alive=True))

    assert is_alive(trainer)
    second = attempt_id(2)
    executor = await node.head.launch(second, launch_order(*shell("exit 5")))
    assert (await node.head.until_ended(executor)).code == 5


async def test_one_state_directory_has_one_node(node: NodeProcess) -> None:
    second = await anyio.to_thread.run_sync(
        lambda: subprocess.run(
            command("node", "--state-dir", str(node.state)), capture_output=True, check=False
        )
    )

    assert node.process is not None
    assert second.returncode == 0
    holder = node_holder(node.state)
    assert holder is not None
    assert holder.pid == node.process.pid


async def test_a_node_is_ended_by_its_lock(node: NodeProcess) -> None:
    trainer = await launched(node, attempt_id())
    assert node.process is not None

    assert end_node(node.state)
    process, node.process = node.process, None
    assert await anyio.to_thread.run_sync(process.wait) == 0

    assert node_holder(node.state) is None
    assert is_alive(trainer)


async def test_a_head_that_is_gone_for_long_is_found_again(node: NodeProcess) -> None:
    trainer = await launched(node, attempt_id())

    await node.head.cut()
    await anyio.sleep(0.5)
    await node.head.start()
    hellos = node.head.node_hellos
    await node.head.until(lambda: node.head.node_hellos > hellos)
    await node.head.until(lambda: is_listed(node, attempt_id(), alive=True))

    assert is_alive(trainer)


async def test_older_orders_are_dropped(node: NodeProcess) -> None:
    attempt = attempt_id()
    await launched(node, attempt)

    node.head.kills.add(attempt)
    node.head.term = 0
    await node.head.push_nodes()
    await node.head.until_reports(3)

    assert is_listed(node, attempt, alive=True)


async def test_a_fork_that_fails_is_told(node: NodeProcess) -> None:
    attempt = attempt_id()
    blocker = attempt_path(node.state, attempt).parent.parent
    blocker.parent.mkdir(parents=True, exist_ok=True)
    blocker.write_text("a file where a folder has to be")

    node.head.starts[attempt] = NodeStart(b"{}", attempt, 0, 0, ())
    await node.head.push_nodes()
    await node.head.until(lambda: node.head.node_attempt(attempt))

    found = node.head.node_attempt(attempt)
    assert found is not None
    assert not found.alive
    assert "Not a directory" in found.error


class SlowZygote(Zygote):
    """Forks nothing within the time; what it was asked for may come later."""

    def __init__(self) -> None:
        self.asked: list[Path] = []

    is_gone = False

    async def fork_executor(self, attempt: Path, *, within_s: float) -> str:
        self.asked.append(attempt)
        return f"no answer within {within_s:.0f} s"


async def test_a_fork_that_is_late_cannot_begin_after_it_was_told_as_failed(
    tmp_path: Path,
) -> None:
    attempt = attempt_id()
    zygote = SlowZygote()
    offer = Offer(host="n1", inherit=(), enforce="none", user="", gpus=())
    async with anyio.create_task_group() as tasks:
        attempts = Attempts(tmp_path, zygote, offer, tasks)
        attempts.start(NodeStart(b"{}", attempt, 0, 0, ()))
        await attempts.changed.wait()
        (told,) = attempts.listed()

        assert (told.alive, told.error) == (False, "no answer within 30 s")
        assert hold(AttemptDirectory(zygote.asked[0])) is None
        await attempts.release(attempt)
        assert attempts.listed() == ()


async def test_the_host_is_sampled(node: NodeProcess) -> None:
    hello = node.head.nodes["n1"]
    first = node.head.node_reports["n1"][0]

    assert hello.cpu_milli >= 1000
    assert hello.memory_bytes > 1 << 28
    assert first.usage is not None
    assert first.usage.cpu_ms > 0
    assert first.memory_free_bytes > 0
    assert first.disk_free_bytes > 0


async def test_pretended_gpus_are_given_out_once(tmp_path: Path) -> None:
    async with running_node(tmp_path, "--gpus", "2", "--label", "rack=a") as node:
        for number in (1, 2):
            attempt = attempt_id(number)
            executor = node.head.expect(
                attempt, launch_order(*shell("echo $CUDA_VISIBLE_DEVICES; sleep 600"))
            )
            bootstrap = msgspec.json.encode(node.head.bootstrap(attempt))
            node.head.starts[attempt] = NodeStart(bootstrap, attempt, 0, 0, ("",))
            await node.head.push_nodes()
            await node.head.until_reported(executor)
            await until_file(node.directory(attempt).path / "stdout.log")

        hello = node.head.nodes["n1"]
        assert dict(hello.labels) == {"rack": "a"}
        seen = {node.text(attempt_id(number)).strip() for number in (1, 2)}
        assert seen == {uuid for uuid, _, _ in hello.gpus}


async def test_the_lock_says_who_holds_it(node: NodeProcess) -> None:
    attempt = attempt_id()
    await launched(node, attempt)

    holder = read_holder(node.directory(attempt).lock)

    assert holder is not None
    assert holder.pid == node.head.executors[attempt].hellos[0].pid
    assert holder.started_ticks == started_ticks(holder.pid)
    os.kill(holder.pid, signal.SIGKILL)
    await until_dead(holder.pid)


def test_shipped_files_that_nobody_used_for_long_go(tmp_path: Path) -> None:
    for name, age_ms in (("old", 8 * 86_400_000), ("new", 1_000)):
        (tmp_path / name).write_text(name)
        at_ns = (1_800_000_000_000 - age_ms) * 1_000_000
        os.utime(tmp_path / name, ns=(at_ns, at_ns))

    count = prune(tmp_path, older_than_ms=7 * 86_400_000, now_ms=1_800_000_000_000)

    assert count == 1
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    assert prune(tmp_path / "nowhere", older_than_ms=1, now_ms=1) == 0


UNIFIED = Path("/sys/fs/cgroup/unified")
DELEGATING = """
import os, sys
from pathlib import Path
from primusd.executor import cgroup
own = Path(sys.argv[1])
(own / "cgroup.procs").write_text("0")
# As a host without version 1 has it.
trees = cgroup.Trees(unified=own)
cgroup.find_trees = lambda enforce: trees
print(cgroup.delegate(frozenset({"hugetlb", "nothing"})))
group = cgroup.make_group(trees, cgroup.AttemptId("j", "r", 0, 1))
print((own / "primusd" / "j-r-0-a1" / "hugetlb.2MB.max").exists(), group.can_kill)
print(Path("/proc/self/cgroup").read_text().splitlines()[-1].endswith("/node"))
group.remove()
"""


@pytest.mark.root
@pytest.mark.skipif(
    os.geteuid() != 0 or not (UNIFIED / "cgroup.procs").exists(), reason="makes a control group"
)
def test_a_node_moves_aside_so_that_others_can_be_limited() -> None:
    given = UNIFIED / "cgroup.subtree_control"
    if "hugetlb" not in (UNIFIED / "cgroup.controllers").read_text():
        pytest.skip("version 2 has no controller here that could be given on")
    was_given = "hugetlb" in given.read_text()
    given.write_text("+hugetlb")
    own = UNIFIED / f"primusd-test-{os.getpid()}"
    own.mkdir()
    try:
        done = subprocess.run(
            [sys.executable, "-c", DELEGATING, own], capture_output=True, text=True, check=True
        )
        assert done.stdout.splitlines() == ["True", "True True", "True"]
    finally:
        for folder in ("node", "primusd", ""):
            (own / folder).rmdir()
        if not was_given:
            given.write_text("-hugetlb")


async def test_folders_of_dropped_jobs_go_once_nothing_of_them_is_left(node: NodeProcess) -> None:
    attempt = attempt_id()
    await launched(node, attempt)
    gone, kept = "06f3k2m9q1x7aaaa", "06f3k2m9q1x7bbbb"
    for job in (gone, kept):
        (node.state / "jobs" / job / "worker-0" / "work").mkdir(parents=True)
        (node.state / "jobs" / job / "worker-0" / "work" / "model.bin").write_bytes(b"weights")

    node.head.dropped_jobs = (gone, attempt.job, "..", "../..")
    await node.head.push_nodes()
    await node.head.until(lambda: not (node.state / "jobs" / gone).exists())

    assert (node.state / "jobs" / kept / "worker-0" / "work" / "model.bin").exists()
    assert node.directory(attempt).path.exists()
    assert is_listed(node, attempt, alive=True)
    await node.head.kill(attempt)
    await node.head.release(attempt)
    await node.head.until(lambda: node.head.node_attempt(attempt) is None)
    await node.head.push_nodes()
    await node.head.until(lambda: not (node.state / "jobs" / attempt.job).exists())


def test_the_folders_that_a_node_has_are_those_of_jobs(tmp_path: Path) -> None:
    assert find_jobs(tmp_path) == ()
    for name in ("06f3k2m9q1x7bbbb", "06f3k2m9q1x7aaaa", "lost+found"):
        (tmp_path / "jobs" / name).mkdir(parents=True)

    assert find_jobs(tmp_path) == ("06f3k2m9q1x7aaaa", "06f3k2m9q1x7bbbb")
