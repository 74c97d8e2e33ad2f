"""`import primus` is light, typed, and every public name has an example that runs."""

import doctest
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import primus
from primus import checkpoints, feed, phases, told, trainer

LOADED = """
import sys
before = set(sys.modules)
import primus
roots = {name.partition(".")[0] for name in set(sys.modules) - before}
print(sorted(root for root in roots if root not in sys.stdlib_module_names))
"""


def test_importing_it_loads_the_standard_library_only() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, check=True, cwd=Path.cwd()
    )

    assert done.stdout.strip() == "['primus']"


def test_what_reads_rows_and_what_writes_checkpoints_is_loaded_when_it_is_named() -> None:
    """Many trainers start at once on few cores: each pays only for what it uses."""
    script = (
        "import sys, primus; late = {'pathlib', 'primus.feed', 'primus.checkpoints'}\n"
        "print(late & set(sys.modules), {*primus.__all__} <= {*dir(primus)})\n"
        "from primus import checkpoint, dataset\n"
        "print(late - set(sys.modules), primus.checkpoint is checkpoint)\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=Path.cwd()
    )

    assert done.stdout.splitlines() == ["set() True", "set() True"]
    with pytest.raises(AttributeError, match="no attribute 'datasets'"):
        _ = primus.datasets  # type: ignore[attr-defined]  # that is the point


SAYS_THAT_IT_IS_READY = """
import os, sys
sys.path.append(sys.argv[1])
before = set(sys.modules)
import primus
primus.ready()
print(*sorted(set(sys.modules) - before))
"""


def test_what_says_that_it_is_ready_loads_next_to_nothing() -> None:
    """Sixteen that start at once on two cores wait eight times for what each of them loads."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", SAYS_THAT_IT_IS_READY, str(Path.cwd())],
        env={"PRIMUS_SOCKET": "/nowhere/trainer.sock"},
        capture_output=True,
        text=True,
        check=True,
    )

    ours = {"primus", "primus.dialling", "primus.stacks", "primus.trainer"}
    assert set(done.stdout.split()) == ours | {"_socket", "atexit", "faulthandler"}


def test_a_python_without_numpy_is_told_so_in_one_sentence() -> None:
    script = (
        "import sys; sys.path.append(sys.argv[1]); import primus\n"
        "try: primus.dataset('./rows.txt')\n"
        "except primus.FeedError as error: print(error)"
    )

    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script, str(Path.cwd())],
        capture_output=True,
        text=True,
        check=True,
    )

    assert f"numpy arrays, and {sys.executable} has no numpy: install it there" in done.stdout


@pytest.mark.parametrize(
    "module", [checkpoints, feed, phases, told, trainer], ids=lambda module: module.__name__
)
def test_every_example_in_the_docstrings_runs(
    module: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    found = doctest.testmod(module)  # type: ignore[arg-type]  # a module is an object here

    assert found.attempted > 0
    assert found.failed == 0


def test_every_public_function_has_a_docstring_with_an_example() -> None:
    for name in primus.__all__:
        thing = getattr(primus, name)
        assert thing.__doc__, name
        if callable(thing) and not isinstance(thing, type):
            assert ">>>" in thing.__doc__, name


def test_who_a_trainer_is_comes_from_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = {
        "generation": 3,
        "roles": {"chief": [{"index": 0, "host": "n1", "ports": {"main": 2}}]},
    }
    (tmp_path / "peers.json").write_text(json.dumps(document))
    monkeypatch.setenv("PRIMUS_ROLE", "worker")
    monkeypatch.setenv("PRIMUS_INDEX", "3")
    monkeypatch.setenv("PRIMUS_REPLICAS", "16")
    monkeypatch.setenv("PRIMUS_PEERS_FILE", str(tmp_path / "peers.json"))

    assert (primus.role(), primus.rank(), primus.world_size()) == ("worker", 3, 16)
    assert primus.peers()["chief"][0]["ports"]["main"] == 2


def test_a_stop_is_told_with_its_reason_and_the_time_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "stop.json"
    monkeypatch.setenv("PRIMUS_STOP_FILE", str(path))
    assert primus.stopping() is None

    path.write_text('{"reason": "preempted", "graceMs": 30000}')
    os.utime(path, (time.time() - 10, time.time() - 10))

    stop = primus.stopping()
    assert stop is not None
    assert stop.reason == "preempted"
    assert 15 <= stop.seconds_left <= 20.1


ASKS_FOR_STOPS = """
import os, signal, sys
import primus
primus.stopping()
child = os.fork()
signal.raise_signal(signal.SIGTERM)
if child == 0:
    os._exit(0)
signalled = os.WTERMSIG(os.waitpid(child, 0)[1])
print(primus.stopping().reason, signalled == signal.SIGTERM, flush=True)
os.unlink(os.environ["PRIMUS_STOP_FILE"])
signal.raise_signal(signal.SIGTERM)
"""


def test_c63_who_asks_for_stops_outlives_their_signal_and_no_other(tmp_path: Path) -> None:
    """Neither one that comes without a stop, nor one to a process that it forked."""
    path = tmp_path / "stop.json"
    path.write_text('{"reason": "preempted", "graceMs": 30000}')

    done = subprocess.run(
        [sys.executable, "-c", ASKS_FOR_STOPS],
        env=os.environ | {"PRIMUS_STOP_FILE": str(path)},
        capture_output=True,
        text=True,
        check=False,
        cwd=Path.cwd(),
    )

    assert done.stdout == "preempted True\n", done.stderr
    assert done.returncode == -signal.SIGTERM


def test_who_never_asks_for_stops_ends_at_their_signal(tmp_path: Path) -> None:
    """Writing a checkpoint looks for a successor, and is no question of the program's own."""
    script = (
        "import signal, primus\n"
        "with primus.checkpoint(step=1) as folder: (folder / 'm').write_text('m')\n"
        "primus.latest_checkpoint()\n"
        "signal.raise_signal(signal.SIGTERM)\n"
    )
    path = tmp_path / "stop.json"
    path.write_text('{"reason": "preempted", "graceMs": 30000}')
    known = {"PRIMUS_STOP_FILE": str(path), "PRIMUS_CHECKPOINT_PATH": str(tmp_path / "kept")}

    done = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | known, check=False, cwd=Path.cwd()
    )

    assert done.returncode == -signal.SIGTERM
    assert (tmp_path / "kept").is_dir()


def test_a_limit_that_is_near_is_told_and_is_no_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "warn.json"
    monkeypatch.setenv("PRIMUS_WARN_FILE", str(path))
    assert primus.warned() is None

    path.write_text('{"reason": "deadline", "leftMs": 600000}')

    warned = primus.warned()
    assert warned is not None
    assert warned.reason == "deadline"
    assert 590 < warned.seconds_left <= 600
    assert primus.stopping() is None
    path.unlink()
    assert primus.warned() is None


@pytest.mark.parametrize("name", ["", "x" * 129])
def test_a_phase_has_a_name(name: str) -> None:
    with pytest.raises(primus.PrimusError), primus.phase(name):
        pass


def test_reporting_without_an_executor_does_nothing_and_does_not_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIMUS_SOCKET", str(tmp_path / "gone.sock"))

    primus.report(step=1, loss=0.5)
    primus.ready()


def test_a_metric_that_is_no_number_is_refused() -> None:
    with pytest.raises((TypeError, ValueError)):
        primus.report(step=1, loss="low")  # type: ignore[arg-type]  # that is the point


def test_the_image_that_executors_are_forked_from_loads_no_library_that_starts_threads() -> None:
    server = "primusd.datafeed.delivery.server"
    script = f"import sys, {server}; print({{'numpy', 'pyarrow'}} & set(sys.modules))"

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=Path.cwd()
    )

    assert done.stdout.strip() == "set()"
