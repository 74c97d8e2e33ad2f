"""`docs/high-availability.md`, run as it stands, and the example of a head as it is installed."""

import os
import random
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.conftest import BIN
from tests.services.etcd import PLAIN, running_etcd
from tests.services.etcd_programs import need_etcd
from tests.services.processes import free_ports

ROOT = Path(__file__).parents[2]
HEADS = ROOT / "contrib" / "systemd" / "heads"
WAIT_S = 90


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder with a short path; whatever names it in its words is ended with it."""
    folder = Path(f"/tmp/pt-ha-{os.getpid()}")
    folder.mkdir()
    try:
        yield folder
    finally:
        end_all(folder)
        shutil.rmtree(folder, ignore_errors=True)


def end_all(folder: Path) -> None:
    """End what runs in a folder, until nothing does."""
    end = time.monotonic() + WAIT_S
    while pids := running_in(folder):
        assert time.monotonic() < end, f"still there: {pids}"
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.05)


def running_in(folder: Path) -> list[int]:
    """Return what has its working directory there, or names it among its words."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes()
            where = str((process / "cwd").readlink())
        except OSError:
            continue
        if str(folder).encode() in words or where.startswith(str(folder)):
            found.append(int(process.name))
    return found


def console(title: str) -> list[str]:
    """Return the commands of a section of the page."""
    page = (ROOT / "docs" / "high-availability.md").read_text(encoding="utf-8")
    section = page.split(f"## {title}\n")[1].split("\n## ")[0]
    return [line[2:] for line in re.findall(r"^\$ .*$", section, re.MULTILINE)]


def free_prefix() -> str:
    """Return what comes before 1, 2 and 3 in three ports that are free."""
    for prefix in random.sample(range(1_100, 1_900), 50):
        try:
            for number in (1, 2, 3):
                with socket.socket() as tried:
                    tried.bind(("127.0.0.1", prefix * 10 + number))
        except OSError:
            continue
        return str(prefix)
    raise AssertionError("no three ports in a row are free")


def test_the_commands_of_the_page_run_a_job_over_a_change_of_leader(home: Path) -> None:
    """C40: the page's block as it stands, but for folder and ports; then it looks at the lines."""
    program = Path(need_etcd(PLAIN)[0])
    client, peer = (f"127.0.0.1:{port}" for port in free_ports(2))
    script = "\n".join(console("Try it on one host"))
    for page, here in (
        ("/tmp/ha", str(home)),
        ("etcd://127.0.0.1", f"etcd://{client}"),
        ("127.0.0.1:808", f"127.0.0.1:{free_prefix()}"),
    ):
        assert page in script
        script = script.replace(page, here)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PRIMUS")},
        "PATH": f"{program.parent}:{BIN}:{os.environ['PATH']}",
        "ETCD_LISTEN_CLIENT_URLS": f"http://{client}",
        "ETCD_ADVERTISE_CLIENT_URLS": f"http://{client}",
        "ETCD_LISTEN_PEER_URLS": f"http://{peer}",
        "ETCD_INITIAL_ADVERTISE_PEER_URLS": f"http://{peer}",
        "ETCD_INITIAL_CLUSTER": f"default=http://{peer}",
    }

    done = subprocess.run(
        ["bash", "-e", "-c", f"{script}\nprimusctl logs ticks"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    said = re.findall(r"^worker-0 +(\d)$", done.stdout, re.MULTILINE)
    assert said == list("123456789"), done.stdout


def test_the_example_of_a_head_is_one_that_the_daemon_takes(home: Path) -> None:
    """With certificates of the script, in front of an etcd that wants them; C46 of its TLS."""
    made = subprocess.run(
        [ROOT / "contrib" / "tls" / "make-certs.sh", home / "tls", "head1,localhost,127.0.0.1"],
        capture_output=True,
        timeout=WAIT_S,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    tls = home / "tls"
    flags = (
        *("--cert-file", str(tls / "head1.pem"), "--key-file", str(tls / "head1.key")),
        *("--trusted-ca-file", str(tls / "ca.pem"), "--client-cert-auth"),
    )
    (port,) = free_ports(1)
    with running_etcd(home, *flags, scheme="https") as etcd:
        text = (HEADS / "primusd.toml").read_text(encoding="utf-8")
        urls = '["https://head1:2379", "https://head2:2379", "https://head3:2379"]'
        for page, here in (
            (urls, f'["https://{etcd.endpoints[0]}"]'),
            ("/etc/primus/tls", str(tls)),
            ("/shared/primus", str(home / "shared")),
            ("0.0.0.0:8080", f"127.0.0.1:{port}"),
            ("https://head1:8080", f"https://localhost:{port}"),
        ):
            assert page in text
            text = text.replace(page, here)
        (home / "primusd.toml").write_text(text, encoding="utf-8")
        shared = home / "shared"
        shared.mkdir()
        script = """
            primusd --config primusd.toml --state-dir s --run-dir r --no-node >primusd.log 2>&1 &
            until primusctl list; do sleep 0.2; done
            primusctl leader
            primusctl store
        """
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PRIMUS")},
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "PRIMUS_ADDRESS": f"https://localhost:{port}",
            "PRIMUS_TOKEN_FILE": str(home / "r" / "token"),
            "SSL_CERT_FILE": str(tls / "ca.pem"),
        }

        done = subprocess.run(
            ["bash", "-e", "-c", script],
            cwd=home,
            env=environment,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )

        log = (home / "primusd.log").read_text(errors="replace")
        assert done.returncode == 0, done.stdout + done.stderr + log
        assert "head1 leads" in done.stdout
        assert "4.0Gi" in done.stdout
        end_all(home / "s")
