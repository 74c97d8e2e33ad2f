"""What the suites of contracts share: a real etcd per worker and version."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.services.etcd import PLAIN, Etcd, running_etcd
from tests.services.etcd_programs import BUILT

VERSIONS = [PLAIN, *(pytest.param(one, marks=pytest.mark.soak) for one in BUILT)]


@pytest.fixture(scope="session")
def etcd_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Etcd]]:
    """Gives the one server of a version; each test takes a cluster name of its own."""
    running: dict[str, Etcd] = {}
    with ExitStack() as held:

        def start(version: str) -> Etcd:
            if version not in running:
                folder = tmp_path_factory.mktemp("etcd")
                running[version] = held.enter_context(running_etcd(folder, version=version))
            return running[version]

        yield start


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def etcd(etcd_of: Callable[[str], Etcd], version: str) -> Etcd:
    return etcd_of(version)
