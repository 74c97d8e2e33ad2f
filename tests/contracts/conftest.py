"""What the suites of contracts share: a real etcd per worker."""

from collections.abc import Iterator

import pytest

from tests.services.etcd import Etcd, running_etcd


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """One server for all tests of a worker; each test takes a cluster name of its own."""
    with running_etcd(tmp_path_factory.mktemp("etcd")) as running:
        yield running
