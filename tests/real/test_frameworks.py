"""Each framework forms its cluster from what primusd gives its trainers (A13, A14, C14, C68, M011).

Each runs in an environment of its own, which `tests/environments/build.py` makes once.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.environments.build import find_python, folder
from tests.real.conftest import with_kill

EXAMPLES = Path(__file__).parents[2] / "examples"
BUILD_WITHIN_S = 600
END_WITHIN_S = 200
pytestmark = pytest.mark.timeout(BUILD_WITHIN_S + 200)


def python(name: str) -> str:
    """Return the Python of a framework's environment.

    A missing one fails the test in CI, and is a reason to skip it elsewhere.
    """
    found = find_python(name, wait_s=BUILD_WITHIN_S)
    if found:
        return found
    missing = f"no environment {name} in {folder(name)}: run python tests/environments/build.py"
    if os.environ.get("CI"):
        pytest.fail(missing)
    pytest.skip(missing)


def submit(head: Any, example: str, *flags: str) -> str:
    """Submit an example's job file and return the job's name."""
    head.start()
    said = head.ctl("submit", str(EXAMPLES / example), *flags).stdout
    return str(said.split()[0])


def command(role: str, *argv: str) -> tuple[str, str]:
    """Return the flags that replace a role's command."""
    return "--set", f"roles.{role}.command={json.dumps(argv)}"


def lines(head: Any, name: str) -> list[str]:
    """Return what the trainers of a job printed, each line behind its replica."""
    return list(head.ctl("logs", name).stdout.splitlines())


def said(head: Any, name: str, pattern: str) -> list[str]:
    """Return what each replica's line that matches says, by replica."""
    found = []
    for line in lines(head, name):
        replica, _, text = line.partition(" ")
        if match := re.fullmatch(pattern, text.strip()):
            found.append(" ".join((replica, *match.groups())))
    return sorted(found)


def succeed(head: Any, name: str) -> None:
    """Wait until a job has succeeded."""
    head.until(
        "it ends", lambda: head.phase(name) in ("Succeeded", "Failed"), within_s=END_WITHIN_S
    )
    assert head.phase(name) == "Succeeded", "\n".join(lines(head, name))


def test_M011_torch_trains_one_model_in_two_processes(head: Any) -> None:
    name = submit(head, "torch/torch.yaml", *command("worker", python("torch"), "train.py"))

    succeed(head, name)

    assert said(head, name, r"rank (\d of 2), run .*\.1, from step 0") == [
        "worker-0 0 of 2",
        "worker-1 1 of 2",
    ]
    ends = said(head, name, r"rank \d ends: loss 0\.0\d+, weights ({.*})")
    assert len({line.split(maxsplit=1)[1] for line in ends}) == 1, "both found the same weights"
    assert set(head.attempts(name).values()) == {1}


def test_C14_torch_forms_its_cluster_again_after_one_worker_died(head: Any) -> None:
    argv = (python("torch"), "train.py", "--steps", "400", "--pause", "0.02")
    name = submit(head, "torch/torch.yaml", *command("worker", *argv))
    head.until(
        "it has a checkpoint",
        lambda: bool(said(head, name, r"step (100), .*")),
        within_s=END_WITHIN_S,
    )

    for pid in head.trainers("worker-1"):
        with_kill(pid)
    succeed(head, name)

    assert head.attempts(name) == {"worker-0": 2, "worker-1": 2}
    begins = said(head, name, r"rank (\d) of 2, run .*(\.\d), from step (\d+)")
    (resumed,) = {line.split()[3] for line in begins if line.split()[2] == ".2"}
    assert int(resumed) >= 100, "training went on from the checkpoint"
    assert [line.split()[:3] for line in begins if line.split()[3] == resumed] == [
        ["worker-0", "0", ".2"],
        ["worker-1", "1", ".2"],
    ]
    assert len(said(head, name, r"rank \d (ends): .*")) == 2


def test_A13_tensorflow_mirrors_its_variables_on_two_workers(head: Any) -> None:
    argv = (python("tensorflow"), "multiworker.py")
    name = submit(head, "tensorflow/multiworker.yaml", *command("worker", *argv))

    succeed(head, name)

    assert said(head, name, r"worker (\d of 2)") == ["worker-0 0 of 2", "worker-1 1 of 2"]
    ends = said(head, name, r"ends: weights ([\d.]+ [\d.]+)")
    assert [line.split()[0] for line in ends] == ["worker-0", "worker-1"]
    assert len({tuple(line.split()[1:]) for line in ends}) == 1


def test_A14_C14_a_lost_worker_comes_back_alone_and_the_job_is_done_when_its_chief_is(
    head: Any,
) -> None:
    argv = (python("tensorflow"), "parameter_server.py", "--steps", "3000")
    flags = [flag for role in ("chief", "ps", "worker") for flag in command(role, *argv)]
    name = submit(head, "tensorflow/parameter-server.yaml", *flags)
    head.until(
        "steps are done",
        lambda: bool(said(head, name, r"step (\d+), .*")),
        within_s=END_WITHIN_S,
    )

    for pid in head.trainers("worker-1"):
        with_kill(pid)
    succeed(head, name)

    assert head.attempts(name) == {"chief-0": 1, "ps-0": 1, "worker-0": 1, "worker-1": 2}
    begun = ["chief-0 chief 0", "ps-0 ps 0", "worker-0 worker 0", *2 * ["worker-1 worker 1"]]
    assert said(head, name, r"((?:chief|ps|worker) \d)") == begun
    assert said(head, name, r"3000 steps by (\d) workers") == ["chief-0 2"]
    helpers = ("ps-0", "worker-0", "worker-1")
    assert not [pid for replica in helpers for pid in head.trainers(replica)]


def test_M011_jax_divides_the_rows_among_its_processes(head: Any) -> None:
    name = submit(head, "jax/jax.yaml", *command("worker", python("jax"), "train.py"))

    succeed(head, name)

    assert said(head, name, r"process (\d of 2), 2 devices") == [
        "worker-0 0 of 2",
        "worker-1 1 of 2",
    ]
    ends = said(head, name, r"ends: weights ([\d.]+ [\d.]+)")
    assert len(ends) == 2
    assert len({tuple(line.split()[1:]) for line in ends}) == 1
