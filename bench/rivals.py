"""Environments in which rivals are measured: made once, kept outside of the clone.

python -m bench.rivals              # all of them; a bench makes what it needs by itself
python -m bench.rivals --lock       # the lock files anew, after `NEEDS` changed
"""

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).parent / "locks"
INSTALL_S = 1200.0
RUN_S = 120.0
NEEDS = {
    "replicas": ("ray==2.60.0", "submitit==1.5.4"),
    "torch": ("torch", "numpy", "pyarrow", "datasets", "webdataset"),
    "mosaic": ("torch", "numpy", "pyarrow", "mosaicml-streaming"),
    "ray": ("ray[data]", "aiohttp", "numpy", "pyarrow"),
    "tensorflow": ("tensorflow-cpu", "numpy", "pyarrow"),
    "dlrover": (
        *("dlrover==0.6.1", "protobuf<7", "grpcio", "setuptools<81", "kubernetes", "pyyaml"),
    ),
}
# CUDA that nothing here needs: torch imports and runs on CPUs without it.
LEFT_OUT = (
    "cuda-bindings",
    "nvidia-cuda-cccl",
    "nvidia-cusolver",
    "nvidia-nvjitlink",
    "nvidia-nvtx",
    "triton",
)
UV = Path(sys.executable).parent / "uv"
_absent: dict[str, str] = {}


class RivalAbsentError(Exception):
    """A rival cannot be installed or run here; the text says why."""


def rival_python(name: str) -> Path:
    """Return the Python of an environment with what `bench/locks/<name>.txt` pins.

    Raises:
        RivalAbsentError: It cannot be made.
    """
    if name in _absent:
        raise RivalAbsentError(_absent[name])
    folder = _place(name)
    python = folder / "bin" / "python"
    if (folder / "complete").exists():
        return python
    install = [UV, "pip", "install", "-q", "--system-certs", "--compile-bytecode", "--no-deps"]
    try:
        for command in (
            [UV, "venv", "-q", "--clear", "--python", sys.executable, folder],
            [*install, "--python", python, "--require-hashes", "-r", _pins(name)],
        ):
            _run(command, INSTALL_S)
    except RivalAbsentError as error:
        _absent[name] = f"{name} does not install: {error}"
        raise RivalAbsentError(_absent[name]) from error
    (folder / "complete").touch()
    return python


def rival_says(name: str, module: str, *arguments: object, run_s: float = RUN_S) -> list[float]:
    """Return the numbers in the last line that a rival's own program prints.

    Args:
        name: Of its environment.
        module: The file's name in this folder, without `.py`.
        arguments: Of the program.
        run_s: What it may take.

    Raises:
        RivalAbsentError: It cannot be installed, or does not run here.
    """
    script = Path(__file__).parent / f"{module}.py"
    lines = _run([rival_python(name), script, *map(str, arguments)], run_s).strip().splitlines()
    try:
        return [float(word) for word in lines[-1].split()]
    except (IndexError, ValueError) as error:
        raise RivalAbsentError(f"{name} printed no figures: {lines[-1:]}") from error


def _run(command: Sequence[str | Path], run_s: float) -> str:
    """Return what a command prints; it and all that it started is over then."""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(FOLDER.parents[1])},
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=run_s)
        except subprocess.TimeoutExpired as error:
            raise RivalAbsentError(f"not done within {run_s:.0f} s") from error
        finally:
            _end_group(process.pid)
    if process.returncode:
        told = [line for line in err.splitlines() if line.strip()] or ["it says nothing"]
        raise RivalAbsentError(f"exit code {process.returncode}: {told[-1].strip()[:200]}")
    return out


def _end_group(group: int) -> None:
    # Loaders leave workers behind that nobody waits for.
    try:
        os.killpg(group, 9)
    except ProcessLookupError:
        return


def _place(name: str) -> Path:
    digest = hashlib.sha256(_pins(name).read_bytes() + sys.version.encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "primusd-bench" / f"{name}-{digest}"


def lock(name: str) -> None:
    """Write a lock file anew; nothing in it names an address."""
    command = [UV, "pip", "compile", "-q", "--system-certs", "--universal", "--no-header"]
    left_out = [f"--no-emit-package={package}" for package in LEFT_OUT]
    subprocess.run(
        [*command, "--python-version=3.11", "--generate-hashes", *left_out, "-o", _pins(name), "-"],
        input="\n".join(NEEDS[name]),
        text=True,
        check=True,
    )


def _pins(name: str) -> Path:
    return FOLDER / f"{name}.txt"


def main(words: Sequence[str]) -> int:
    """Make all environments, or all lock files; return the exit code."""
    absent = 0
    for name in NEEDS:
        began = time.monotonic()
        try:
            if "--lock" in words:
                lock(name)
            else:
                rival_python(name)
        except RivalAbsentError as error:
            absent += 1
            print(error, file=sys.stderr)
            continue
        print(f"{name} {time.monotonic() - began:.0f} s", flush=True)
    return 1 if absent else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
