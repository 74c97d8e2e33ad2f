"""The contract of storages (M088), for those that need no service."""

import subprocess
from itertools import count
from pathlib import Path

import fsspec
import pytest

from primusd.datafeed.storage.base import StorageError
from primusd.datafeed.storage.schemes import storage_of
from tests.contracts.storage_contract import StorageContract

NUMBERS = count()


class Local:
    def __init__(self, folder: Path) -> None:
        self.options: dict[str, str] = {}
        self.file_bytes = 10_240_000
        self.url = str(folder)

    def put(self, name: str, data: bytes) -> None:
        path = Path(self.url) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def remove(self, name: str) -> None:
        (Path(self.url) / name).unlink()


class Memory:
    def __init__(self) -> None:
        self.options: dict[str, str] = {}
        self.file_bytes = 10_240_000
        self.url = f"memory:///contract{next(NUMBERS)}"
        self._fs = fsspec.filesystem("memory")

    def put(self, name: str, data: bytes) -> None:
        self._fs.pipe_file(f"{self.url}/{name}", data)

    def remove(self, name: str) -> None:
        self._fs.rm_file(f"{self.url}/{name}")


class TestLocal(StorageContract):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Local:
        return Local(tmp_path)


class TestAnyByFsspec(StorageContract):
    @pytest.fixture
    def place(self) -> Memory:
        return Memory()


@pytest.mark.root
def test_a_full_disk_leaves_the_positions_that_were_there(tmp_path: Path) -> None:
    """A staging folder on a disk that fills up keeps what it had, and no part of what it lacks."""
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(tmp_path)]
    if subprocess.run(command, check=False).returncode:
        pytest.skip("this container may not mount")
    try:
        storage = storage_of(str(tmp_path))
        storage.write(f"{tmp_path}/clicks/positions.json", b"before")

        with pytest.raises(StorageError, match="No space left on device"):
            storage.write(f"{tmp_path}/clicks/positions.json", b"x" * 200_000)

        assert [one.name for one in (tmp_path / "clicks").iterdir()] == ["positions.json"]
        assert (tmp_path / "clicks/positions.json").read_bytes() == b"before"
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)
