"""What a node is told by its flags and its bootstrap file, and how its host is called."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from primusd.config import Config, Directories, Loaded
from primusd.config.settings import Listen
from primusd.errors import ConfigError
from primusd.executor.preparing import address_towards, host_name
from primusd.node.bootstrap import NodeBootstrap, hold_node_lock
from primusd.node.main import read_settings
from primusd.startup import ca_of

BOOTSTRAP = NodeBootstrap("b", "c1", ("unix:/nowhere",), "key")


@pytest.fixture
def bootstrap(tmp_path: Path) -> Path:
    path = tmp_path / "b.json"
    path.write_bytes(msgspec.json.encode(BOOTSTRAP))
    return path


def flags(folder: Path, *more: str) -> list[str]:
    return ["--state-dir", str(folder / "other"), *more]


def test_a_node_takes_what_its_flags_say(tmp_path: Path, bootstrap: Path) -> None:
    told = ["--name", "b", "--ports", "12000-12009", "--cpu", "3", "--memory", "4Gi"]
    told += ["--label", "zone=x", "--label", "disk=", "--bootstrap", str(bootstrap)]

    found = read_settings(flags(tmp_path, *told))

    assert found.state == tmp_path / "other"
    assert (found.local.ports, found.local.cpu_milli) == ((12_000, 12_009), 3_000)
    assert found.local.memory_bytes == 4 << 30
    assert found.local.labels == {"zone": "x", "disk": ""}


@pytest.mark.parametrize(
    ("content", "name", "sentence"),
    [
        (None, "b", "no such file or directory"),
        (b"\x00\xff", "b", "malformed"),
        (b'{"name": "b"}', "b", "missing required field"),
        (msgspec.json.encode(BOOTSTRAP), "other", "holds the key of b"),
    ],
)
def test_a_bootstrap_file_that_cannot_be_used_is_told_at_once(
    tmp_path: Path, content: bytes | None, name: str, sentence: str
) -> None:
    path = tmp_path / "file.json"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(ConfigError) as caught:
        read_settings(flags(tmp_path, "--bootstrap", str(path), "--name", name))

    assert sentence in caught.value.message.lower()
    assert str(path) in caught.value.message


@pytest.mark.parametrize("label", ["zone", "=x", ""])
def test_a_label_without_its_value_is_told(tmp_path: Path, label: str) -> None:
    with pytest.raises(ConfigError, match="KEY=VALUE"):
        read_settings(flags(tmp_path, "--label", label))


def test_a_second_node_in_the_directory_of_the_first_is_told(
    tmp_path: Path, bootstrap: Path
) -> None:
    (tmp_path / "other").mkdir()
    lock = hold_node_lock(tmp_path / "other")
    assert lock is not None
    command = [sys.executable, "-m", "primusd", "node", "--bootstrap", str(bootstrap)]
    try:
        done = subprocess.run(
            [*command, *flags(tmp_path)], capture_output=True, text=True, timeout=20, check=False
        )
    finally:
        os.close(lock)

    assert done.returncode == 3
    assert f"(pid {os.getpid()})" in done.stderr
    assert "--state-dir" in done.stderr


def test_a_name_that_stands_for_the_loopback_is_no_use_to_other_hosts() -> None:
    assert host_name(["unix:/run/p.sock", "http://127.0.0.1:8080"], name="localhost") == "localhost"
    assert host_name(["unix:/run/p.sock"], name="no-such-name.invalid") == "127.0.0.1"
    assert host_name(["http://192.0.2.1:1"], name="192.0.2.7") == "192.0.2.7"


def test_the_address_towards_a_head_is_the_one_that_the_kernel_takes() -> None:
    assert address_towards("unix:/run/p.sock") == ""
    assert address_towards("http://127.0.0.1:8080") == ""
    assert address_towards("http://no-such-name.invalid:8080") == ""
    assert address_towards("http://host:port") == ""
    if found := address_towards("http://192.0.2.1:8080"):
        with socket.socket(type=socket.SOCK_DGRAM) as ours:
            ours.bind((found, 0))


def test_only_certificates_are_given_out_and_never_the_key_beside_them(tmp_path: Path) -> None:
    one = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----"
    path = tmp_path / "both.pem"
    path.write_text(
        f"-----BEGIN PRIVATE KEY-----\nabc\n-----END PRIVATE KEY-----\n{one}\n\n{one}\n"
    )
    config = Config(listen=Listen(tls_cert=str(path), tls_key=str(path)))
    folders = Directories(tmp_path, tmp_path, tmp_path)

    assert ca_of(Loaded(config, {}, folders, None)) == f"{one}\n{one}"
    assert ca_of(Loaded(Config(), {}, folders, None)) is None
