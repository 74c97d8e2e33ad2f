"""Listening sockets: right before anybody can connect, never stolen, never in the way."""

import os
import socket
import stat
import threading
from pathlib import Path

import pytest

from primusd.errors import ConfigError
from primusd.listeners import AddressInUseError, listen_tcp, listen_unix


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.sock"


def test_a_unix_socket_is_only_its_owners_before_it_listens(path: Path) -> None:
    modes: list[int] = []
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            try:
                with socket.socket(socket.AF_UNIX) as probe:
                    probe.connect(str(path))
                modes.append(stat.S_IMODE(path.stat().st_mode))
            except OSError:
                continue

    watcher = threading.Thread(target=look)
    watcher.start()
    listener = listen_unix(path, group="no-such-group")
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    done.set()
    watcher.join()

    assert listener.is_unix
    assert set(modes) <= {0o600}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    listener.socket.close()


def test_c67_a_dead_socket_is_replaced_and_a_live_one_is_not(path: Path) -> None:
    first = listen_unix(path, group="")
    with pytest.raises(AddressInUseError, match="another process answers"):
        listen_unix(path, group="")
    first.socket.close()
    assert path.exists()

    second = listen_unix(path, group="")

    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    second.socket.close()


def test_a_file_in_its_place_is_left_alone_and_told(path: Path) -> None:
    path.write_text("precious")

    with pytest.raises(ConfigError, match="cannot be made"):
        listen_unix(path, group="")
    assert path.read_text() == "precious"


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file or directory") as caught:
        listen_unix(tmp_path / "nowhere" / "s.sock", group="")
    assert "--socket or --run-dir" in caught.value.hint


def test_a_taken_port_is_told_from_an_address_that_is_not_ours() -> None:
    first = listen_tcp("127.0.0.1:0")
    assert first.address.startswith("127.0.0.1:")

    with pytest.raises(AddressInUseError, match="is in use"):
        listen_tcp(first.address)
    with pytest.raises(ConfigError, match="cannot be listened at"):
        listen_tcp("192.0.2.1:8080")
    with pytest.raises(ConfigError, match="cannot be listened at"):
        listen_tcp("no-such-host.invalid:8080")
    first.socket.close()


def test_sockets_are_not_inherited(path: Path) -> None:
    for listener in (listen_unix(path, group=""), listen_tcp("127.0.0.1:0")):
        assert not os.get_inheritable(listener.socket.fileno())
        listener.socket.close()
