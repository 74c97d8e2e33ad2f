"""Fetches real services that tests talk to, by Maven or npm, outside the clone.

    python -m tests.services.build             # all of them; `make test` does so by itself
    python -m tests.services.build --lock      # the hashes anew, after a pom here changed

A service of Java is a pom beside this file, `hdfs.xml`, and the hashes of every jar it brings,
`hdfs.sha256`; one of Node a folder with `package.json` and its lock file, which has the hashes.
What was fetched lies in `~/.cache/primusd-tests/<digest of both>/<name>`, complete once `.ok` is in
it. Whoever fetches holds the lock beside it, so that tests can wait for a fetch under way.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.environments.build import cache, is_being_built, make_all

HERE = Path(__file__).parent
JAVA = tuple(sorted(one.stem for one in HERE.glob("*.xml")))
NODE = tuple(sorted(one.parent.name for one in HERE.glob("*/package.json")))
NODE_FILES = ("package.json", "package-lock.json")
FETCH_WITHIN_S = 600


def need_jars(name: str) -> Path:
    """Return the folder with a service's jars, after waiting for a fetch under way.

    Missing jars, or no Java, fail the test in CI, and are a reason to skip it elsewhere.
    """
    return _need(name, "java", "default-jre-headless")


def need_modules(name: str) -> Path:
    """Return the `node_modules` of a service, likewise."""
    return _need(name, "node", "nodejs") / "node_modules"


def _need(name: str, program: str, package: str) -> Path:
    place = folder(name)
    end = time.monotonic() + FETCH_WITHIN_S
    while not (place / ".ok").exists() and is_being_built(place) and time.monotonic() < end:
        time.sleep(0.2)
    missing = ""
    if not (place / ".ok").exists():
        missing = f"{name} is not in {place}: run python -m tests.services.build"
    elif not shutil.which(program):
        missing = f"{name} needs {program}: apt-get install {package}"
    if missing and os.environ.get("CI"):
        pytest.fail(missing)
    if missing:
        pytest.skip(missing)
    return place


def folder(name: str) -> Path:
    """Return where a service is or will be; other hashes are another place."""
    if name in NODE:
        told = b"".join((HERE / name / file).read_bytes() for file in NODE_FILES)
    else:
        told = _pom(name).read_bytes() + _hashes(name).read_bytes()
    return cache() / hashlib.sha256(told).hexdigest()[:16] / name


def fetch(name: str) -> None:
    """Fetch a service, unless it is there; whoever calls holds its lock."""
    place = folder(name)
    if (place / ".ok").exists():
        return
    shutil.rmtree(place, ignore_errors=True)
    if name in NODE:
        _install_modules(name, place)
    else:
        _copy_jars(name, place)
        wanted, found = _hashes(name).read_text(), _told(place)
        if wanted != found:
            raise SystemExit(f"the jars of {name} are not those that were pinned:\n{found}")
    (place / ".ok").touch()


def _install_modules(name: str, place: Path) -> None:
    _need_programs(("node", "npm"), ("nodejs", "npm"))
    place.mkdir(parents=True)
    for file in NODE_FILES:
        shutil.copy(HERE / name / file, place)
    flags = ["--ignore-scripts", "--omit=optional", "--no-audit", "--no-fund", "--silent"]
    subprocess.run(["npm", "ci", *flags], cwd=place, stdin=subprocess.DEVNULL, check=True)


def _copy_jars(name: str, place: Path) -> None:
    _need_programs(("mvn", "java"), ("maven", "default-jre-headless"))
    command = [
        "mvn",
        "-B",
        "-q",
        "-Dstyle.color=never",
        "-f",
        str(_pom(name)),
        "dependency:copy-dependencies",
    ]
    flags = ["-DincludeScope=runtime", f"-DoutputDirectory={place}"]
    subprocess.run([*command, *flags], stdin=subprocess.DEVNULL, check=True)


def _need_programs(programs: tuple[str, ...], packages: tuple[str, ...]) -> None:
    if all(shutil.which(program) for program in programs):
        return
    if os.geteuid() or not shutil.which("apt-get"):
        raise SystemExit(f"{' and '.join(programs)} missing: apt-get install {' '.join(packages)}")
    install = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *packages]
    if subprocess.run(install, check=False).returncode:
        subprocess.run(["apt-get", "update", "-q"], check=True)
        subprocess.run(install, check=True)


def _told(place: Path) -> str:
    """Return what `sha256sum *.jar` prints."""
    lines = []
    for jar in sorted(place.glob("*.jar")):
        with jar.open("rb") as file:
            lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {jar.name}\n")
    return "".join(lines)


def _pom(name: str) -> Path:
    return HERE / f"{name}.xml"


def _hashes(name: str) -> Path:
    return HERE / f"{name}.sha256"


def main() -> None:
    """Do what the command line says."""
    if "--lock" in sys.argv:
        for name in JAVA:
            place = cache() / "lock" / name
            shutil.rmtree(place, ignore_errors=True)
            _copy_jars(name, place)
            _hashes(name).write_text(_told(place))
        return
    make_all({name: folder(name) for name in (*JAVA, *NODE)}, fetch)


if __name__ == "__main__":
    main()
