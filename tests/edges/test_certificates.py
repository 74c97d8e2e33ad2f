"""`contrib/tls/make-certs.sh`, with openssl's own judgement of what it makes."""

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "contrib" / "tls" / "make-certs.sh"

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl")


def make(folder: Path, *hosts: str, days: str = "30") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SCRIPT, "tls", *hosts],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "DAYS": days},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def openssl(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["openssl", *words], cwd=folder, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout


def test_each_host_has_a_certificate_for_its_names_that_the_authority_signed(
    tmp_path: Path,
) -> None:
    done = make(tmp_path, "head1,10.0.0.1,*.pool.example", "head2,fd00::2")

    assert done.returncode == 0, done.stderr
    for host in ("head1", "head2"):
        purposes = ("sslserver", "sslclient")
        for purpose in purposes:
            checked = ("verify", "-CAfile", "tls/ca.pem", "-purpose", purpose)
            assert "OK" in openssl(tmp_path, *checked, f"tls/{host}.pem")
        assert (tmp_path / "tls" / f"{host}.key").stat().st_mode & 0o077 == 0
    shown = openssl(tmp_path, "x509", "-in", "tls/head1.pem", "-noout", "-ext", "subjectAltName")
    assert "DNS:head1, IP Address:10.0.0.1, DNS:*.pool.example" in shown
    shown = openssl(tmp_path, "x509", "-in", "tls/head2.pem", "-noout", "-ext", "subjectAltName")
    assert "IP Address:FD00:0:0:0:0:0:0:2" in shown
    assert sorted(path.name for path in (tmp_path / "tls").iterdir()) == [
        "ca.key", "ca.pem", "head1.key", "head1.pem", "head2.key", "head2.pem",
    ]  # fmt: skip


def test_a_host_that_comes_later_is_signed_by_the_same_authority(tmp_path: Path) -> None:
    make(tmp_path, "head1")
    authority = (tmp_path / "tls" / "ca.pem").read_text()

    done = make(tmp_path, "head4")

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "tls" / "ca.pem").read_text() == authority
    assert "OK" in openssl(tmp_path, "verify", "-CAfile", "tls/ca.pem", "tls/head4.pem")


@pytest.mark.parametrize(
    ("hosts", "told", "code"),
    [
        ((), "make-certs.sh FOLDER HOST", 2),
        (("head1; rm -rf x",), "no name of a host", 1),
        (("../head1",), "no name of a host", 1),
        (("ca",), "no name of a host", 1),
        (("head1,,10.0.0.1",), "no list of names", 1),
        (("head1,a b",), "no list of names", 1),
    ],
)
def test_what_is_no_host_is_refused_and_nothing_is_made(
    tmp_path: Path, hosts: tuple[str, ...], told: str, code: int
) -> None:
    done = make(tmp_path, *hosts)

    assert (done.returncode, told in done.stderr) == (code, True), done.stderr
    assert not (tmp_path / "tls").exists()


def test_a_certificate_that_is_there_is_kept(tmp_path: Path) -> None:
    make(tmp_path, "head1")
    before = (tmp_path / "tls" / "head1.pem").read_bytes()

    done = make(tmp_path, "head1")

    assert "move it away to renew it" in done.stderr
    assert done.returncode == 1
    assert (tmp_path / "tls" / "head1.pem").read_bytes() == before


def test_an_authority_without_its_key_cannot_sign_and_is_kept(tmp_path: Path) -> None:
    make(tmp_path, "head1")
    (tmp_path / "tls" / "ca.key").unlink()
    before = (tmp_path / "tls" / "ca.pem").read_bytes()

    done = make(tmp_path, "head2")

    assert "ca.key" in done.stderr
    assert (tmp_path / "tls" / "ca.pem").read_bytes() == before


def test_days_that_are_no_number_are_refused(tmp_path: Path) -> None:
    assert "number of days" in make(tmp_path, "head1", days="1y").stderr
