"""Object stores: the contract of storages (M088) against servers that speak like them."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import count
from pathlib import Path

import pytest

from primusd.errors import ConfigError
from primusd.shared_places import SharedPlace, check_place
from tests.contracts.place_contract import PlaceContract, name
from tests.contracts.storage_contract import StorageContract
from tests.services.stores import (
    AZURE_KEY,
    Store,
    running_azure,
    running_gcs,
    running_s3,
)

NUMBERS = count()
SERVERS: dict[str, Callable[[Path], AbstractContextManager[Store]]] = {
    "s3": running_s3,
    "gcs": running_gcs,
    "azure": running_azure,
}
pytestmark = pytest.mark.timeout(700)


@pytest.fixture(scope="module", params=list(SERVERS))
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Store]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "tests")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "tests")
        patch.setenv("AZURE_STORAGE_ACCOUNT_KEY", AZURE_KEY)
        with SERVERS[request.param](tmp_path_factory.mktemp("store")) as running:
            running.files.create_dir("bucket")
            yield running


class Prefix:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._path = f"bucket/contract{next(NUMBERS)}"
        self.url = store.url + self._path.removeprefix("bucket")
        self.options = store.options
        # The emulator of Google's hangs at a read from the middle of a large object.
        self.file_bytes = 100_000 if store.url.startswith("gs:") else 10_240_000

    def put(self, name: str, data: bytes) -> None:
        with self._store.files.open_output_stream(f"{self._path}/{name}") as file:
            file.write(data)

    def remove(self, name: str) -> None:
        self._store.files.delete_file(f"{self._path}/{name}")


class TestObjects(StorageContract):
    @pytest.fixture
    def place(self, store: Store) -> Prefix:
        return Prefix(store)

    def wait_for_another_time(self) -> None:
        # They tell whole seconds.
        second = int(time.time())
        while int(time.time()) == second:
            time.sleep(0.05)


class TestSharedPlace(PlaceContract):
    @pytest.fixture
    def shared(self, store: Store) -> SharedPlace:
        return SharedPlace(f"{store.url}/{name()}", store.options)


def test_a_place_in_a_bucket_that_is_not_there_is_told(store: Store) -> None:
    place = SharedPlace(f"{store.url.replace('bucket', 'nobucket')}/primus", store.options)

    with pytest.raises(ConfigError, match=r"history.url .*nobucket.* cannot be used"):
        check_place(place, "history.url", "one")
