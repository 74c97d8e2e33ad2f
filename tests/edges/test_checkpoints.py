"""`primus.checkpoint`: whole or not there, whoever dies when; never by who was replaced (C41)."""

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import anyio
import numpy as np
import pytest

import primus
from bench.grantor import Grantor
from primus.checkpoints import loaded_savepoint
from primus.errors import CheckpointError, SupersededError
from primusd.executor.protocol import Near
from tests.edges.fed_trainer import Fed, fed, until

ROOT = str(Path(__file__).parents[2])

CRASHING = """
import os, sys
import primus

at, calls = int(sys.argv[1]), 0

def dying(call):
    def act(*arguments, **words):
        global calls
        calls += 1
        if calls == at:
            os._exit(9)
        return call(*arguments, **words)
    return act

os.fsync, os.rename, os.unlink, os.rmdir = map(dying, (os.fsync, os.rename, os.unlink, os.rmdir))
with primus.checkpoint(step=200, keep=1) as folder:
    (folder / "weights").write_text("new")
    (folder / "optimizer").mkdir()
    (folder / "optimizer" / "state").write_text("new too")
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("PRIMUS")]:
        monkeypatch.delenv(name)


class Become(Protocol):
    """Makes this process an attempt of a job."""

    def __call__(
        self, number: int, *, uid: str = "06f1", job: str = "ctr", replica: str = "w-0"
    ) -> None: ...


@pytest.fixture
def become(monkeypatch: pytest.MonkeyPatch) -> Become:
    def act(number: int, *, uid: str = "06f1", job: str = "ctr", replica: str = "w-0") -> None:
        for name, value in (
            ("JOB", job), ("JOB_UID", uid), ("NAMESPACE", "ads"), ("REPLICA", replica),
            ("ATTEMPT", str(number)),
        ):  # fmt: skip
            monkeypatch.setenv(f"PRIMUS_{name}", value)

    return act


def write(
    step: int,
    text: str = "weights",
    *,
    keep: int | None = None,
    meanwhile: Callable[[], object] = lambda: None,
) -> None:
    with primus.checkpoint(step=step, keep=keep) as folder:
        (folder / "model").mkdir()
        (folder / "model" / "weights").write_text(text)
        meanwhile()


def steps() -> list[int]:
    """Return the steps of all folders that stand as checkpoints, in the order of their names."""
    return sorted(
        int(one.name.split("-")[1].split(".")[0]) for one in Path("checkpoints").glob("step-*")
    )


def left_over() -> list[str]:
    return [one.name for one in Path("checkpoints").glob(".writing-*")]


def newest() -> primus.Checkpoint:
    found = primus.latest_checkpoint()
    assert found is not None
    return found


def test_what_was_written_is_found_again_with_its_step() -> None:
    with primus.checkpoint(step=7, savepoint="s7") as folder:
        (folder / "weights").write_text("w")
        assert primus.latest_checkpoint() is None

    found = newest()

    assert (found.step, found.savepoint) == (7, "s7")
    assert (found.path / "weights").read_text() == "w"
    assert found.path.is_absolute()
    assert left_over() == []


def test_positions_come_with_the_checkpoint_of_the_same_job_only(become: Become) -> None:
    """M122: those of another job name nothing here; the model goes on, and it is said."""
    become(1)
    with primus.checkpoint(step=7, path="c", savepoint="clicks=step-7-g1,views=step-7-g2"):
        pass
    primus.latest_checkpoint("c")
    own = [loaded_savepoint(stream) for stream in ("clicks", "views", "other")]
    with primus.checkpoint(step=8, path="c", savepoint="step-8-g1"):
        pass
    primus.latest_checkpoint("c")
    only = loaded_savepoint("clicks")
    primus.latest_checkpoint("nothing-here")
    none = loaded_savepoint("clicks")
    become(1, uid="06f2", job="other")

    with pytest.warns(UserWarning, match=r"job 06f1.*restore: JOB/step-8-g1"):
        found = primus.latest_checkpoint("c")

    assert (own, only, none) == (["step-7-g1", "step-7-g2", ""], "step-8-g1", "")
    assert found is not None
    assert found.step == 8
    assert loaded_savepoint("clicks") == ""


def test_the_newest_is_the_last_one_written_and_so_many_stay() -> None:
    for step in (10, 20, 30, 5):
        write(step, keep=2)

    assert newest().step == 5
    assert steps() == [5, 30]


def test_a_step_may_come_again() -> None:
    write(10, "first")
    write(10, "second")

    assert (newest().path / "model" / "weights").read_text() == "second"
    assert steps() == [10, 10]


def test_a_block_that_raises_leaves_nothing_and_raises_on() -> None:
    write(10)

    with pytest.raises(ZeroDivisionError):
        write(20, meanwhile=lambda: 1 / 0)

    assert (newest().step, steps(), left_over()) == (10, [10], [])


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: (path / "model" / "weights").write_text("weightz"),
        lambda path: (path / "model" / "weights").write_text("weights and more"),
        lambda path: (path / "model" / "weights").unlink(),
    ],
    ids=["changed", "longer", "missing"],
)
def test_one_that_is_not_whole_is_passed_over_and_said_so(damage: Callable[[Path], object]) -> None:
    write(10)
    write(20)
    damage(newest().path)

    with pytest.warns(UserWarning, match="weights"):
        assert newest().step == 10


@pytest.mark.parametrize("text", ["", "{", "[]", '{"number": "x"}', '{"step": 3}'])
def test_a_marker_that_says_nothing_marks_nothing(text: str) -> None:
    write(10)
    broken = Path("checkpoints", "step-000000000099")
    broken.mkdir()
    (broken / "primus.json").write_text(text)

    assert newest().step == 10


@pytest.mark.parametrize(
    ("step", "keep"), [(-1, 1), (10**12, 1), (1, 0), ("7", 1), (1.5, 1), (None, 1)]
)
def test_a_step_or_a_number_that_makes_no_sense_is_refused(step: Any, keep: int) -> None:
    with pytest.raises(CheckpointError), primus.checkpoint(step=step, keep=keep):
        pass

    assert not Path("checkpoints").exists()


def test_a_step_may_be_a_number_of_numpy() -> None:
    with primus.checkpoint(step=np.int64(7)):
        pass

    assert newest().step == 7


def test_a_pipe_in_the_folder_is_refused_and_not_waited_for() -> None:
    with pytest.raises(CheckpointError, match="pipe is no file"), primus.checkpoint(step=1) as path:
        os.mkfifo(path / "pipe")

    assert (steps(), left_over()) == ([], [])


def test_a_file_with_the_name_of_the_marker_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"primus\.json"), primus.checkpoint(step=1) as path:
        (path / "primus.json").write_text("{}")

    assert (steps(), left_over()) == ([], [])


def test_whoever_dies_at_any_moment_leaves_one_that_is_whole() -> None:
    write(100, "old")
    seen: set[int] = set()

    for at in range(1, 100):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(CRASHING), str(at)],
            check=False,
            env={**os.environ, "PYTHONPATH": ROOT},
        )
        found = newest()
        assert found.step in (100, 200)
        assert found.step == 100 or (found.path / "optimizer" / "state").read_text() == "new too"
        seen.add(found.step)
        if done.returncode == 0:
            break

    assert at > 10, "it was never there when something was to be lost"
    assert seen == {100, 200}


def test_what_an_earlier_attempt_left_half_written_goes(become: Become) -> None:
    become(1)
    names: list[str] = []
    write(1, meanwhile=lambda: names.extend(left_over()))
    half = Path("checkpoints", f"{names[0]}0")
    half.mkdir()
    (half / "weights").write_text("half")
    other = Path("checkpoints", ".writing-00000000-06f1-1-4711-1")
    other.mkdir()

    become(2)
    write(5)

    assert left_over() == [other.name]


def test_c41_an_attempt_that_was_replaced_writes_no_more(become: Become) -> None:
    become(1)
    write(10)

    def is_replaced() -> None:
        become(2)
        assert newest().step == 10
        become(1)

    with pytest.raises(SupersededError, match=r"attempt 2 of ads\.ctr\.w-0"):
        write(20, meanwhile=is_replaced)
    with pytest.raises(SupersededError):
        write(30)

    become(2)
    assert (newest().step, steps(), left_over()) == (10, [10], [])


def test_a_job_submitted_anew_takes_over_from_the_old_one_and_another_job_does_not(
    become: Become,
) -> None:
    become(9, uid="06f1")
    write(10)
    become(1, uid="06f2")
    write(20)
    become(1, uid="06f9", job="other")
    write(30)
    become(1, uid="06f2", replica="w-1")
    write(40)

    become(1, uid="06f2")
    write(50)

    become(9, uid="06f1")
    with pytest.raises(SupersededError):
        write(60)
    assert steps() == [10, 20, 30, 40, 50]


def test_a_stop_that_says_superseded_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = Path("stop.json")
    monkeypatch.setenv("PRIMUS_STOP_FILE", str(stop))

    with pytest.raises(SupersededError):
        write(1, meanwhile=lambda: stop.write_text('{"reason": "superseded", "graceMs": 0}'))

    stop.write_text('{"reason": "preempted", "graceMs": 1000}')
    write(2)
    assert newest().step == 2


def test_a_job_file_says_where_and_how_many(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PRIMUS_CHECKPOINT_PATH", str(tmp_path / "ckpt"))
    monkeypatch.setenv("PRIMUS_CHECKPOINT_KEEP", "1")

    write(1)
    write(2)

    assert [one.name for one in (tmp_path / "ckpt").glob("step-*")] == ["step-000000000002"]
    monkeypatch.delenv("PRIMUS_CHECKPOINT_PATH")
    monkeypatch.setenv("PRIMUS_WORKDIR", str(tmp_path / "work"))
    write(3)
    assert newest().path.parent == tmp_path / "work" / "checkpoints"


# What the executor hears and says.


def started(one: Fed, script: str) -> subprocess.Popen[bytes]:
    """Start a trainer that waits for a byte on its standard input where it reads one."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **one.server.environment(), "PYTHONPATH": ROOT},
    )
    one.processes.append(process)
    return process


def go_on(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.write(b"x")
    process.stdin.flush()


def test_the_executor_hears_of_a_checkpoint_and_of_phases() -> None:
    script = """
        import sys, primus
        with primus.phase("evaluation"):
            with primus.phase("export"):
                sys.stdin.read(1)
            sys.stdin.read(1)
        with primus.checkpoint(step=40) as folder:
            (folder / "weights").write_text("w")
        print(primus.latest_checkpoint().path)
    """

    async def main() -> None:
        async with fed(Grantor("rows", [])) as one:
            process = started(one, script)
            for phase in ("export", "evaluation"):
                await until(lambda: one.server.phase == phase)  # noqa: B023 waited for here
                go_on(process)
            out, _ = await anyio.to_thread.run_sync(process.communicate)
            await until(lambda: one.server.checkpoint is not None)
            noted = one.server.checkpoint
            assert noted is not None
            assert (noted.step, noted.path) == (40, out.decode().strip())
            assert one.server.phase == ""

    anyio.run(main)


def test_c63_m040_limits_stops_and_new_peers_come_as_complete_messages() -> None:
    script = """
        import json, os, sys
        from primus.link import Link
        for _ in range(2):
            link = Link(os.environ["PRIMUS_SOCKET"])
            while True:
                word = link.receive(lambda size: memoryview(bytearray(size)))
                print(json.dumps(word), flush=True)
                if word["op"] == "stopping":
                    break
    """

    async def main() -> list[dict[str, Any]]:  # as JSON has them
        async with fed(Grantor("rows", [])) as one:
            one.server.limits_near((Near("deadline", 60_000),))
            process = started(one, script)
            assert process.stdout is not None
            said = []
            acts: tuple[Callable[[], None], ...] = (
                lambda: None,
                lambda: None,
                lambda: one.server.limits_near(()),
                one.server.peers_changed,
                lambda: one.server.stopping("suspended", 30_000),
                lambda: None,
                lambda: None,
            )
            for act in acts:
                act()
                line = await anyio.to_thread.run_sync(process.stdout.readline)
                said.append(json.loads(line))
            return said

    said = anyio.run(main)

    assert [one["op"] for one in said] == [
        "welcome", "limits", "limits", "peers", "stopping", "welcome", "stopping",
    ]  # fmt: skip
    (near,) = said[1]["near"]
    assert near["reason"] == "deadline"
    assert 50_000 < near["leftMs"] <= 60_000
    assert said[2]["near"] == []
    assert (said[4]["reason"], said[4]["graceMs"]) == ("suspended", 30_000)


def test_a_marker_names_every_file_with_size_and_digest() -> None:
    write(1, "abc")

    marker = json.loads((newest().path / "primus.json").read_text())

    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert marker["files"] == {"model/weights": [3, digest]}
