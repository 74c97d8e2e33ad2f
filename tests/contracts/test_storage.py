"""The contract of storages (M088), for those that need no service."""

from itertools import count
from pathlib import Path

import fsspec
import pytest

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
