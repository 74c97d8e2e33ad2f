"""Object stores for tests: servers that speak like S3, Google's and Azure's, each a process."""

import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from tests.environments.build import find_python
from tests.environments.build import folder as environment_folder
from tests.services.build import need_modules
from tests.services.processes import Service, free_ports

# The account that Azurite has by itself; its key is no secret.
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
BUILD_WITHIN_S = 600


class Store:
    """A running server, and a client that may write.

    Attributes:
        url: Of a bucket in it.
        options: That a job file gives for it.
        files: A client; paths begin with `bucket`.
        service: The process.
    """

    def __init__(
        self, url: str, options: dict[str, str], files: fs.FileSystem, service: Service
    ) -> None:
        self.url = url
        self.options = options
        self.files = files
        self.service = service


@contextmanager
def running_s3(folder: Path) -> Iterator[Store]:
    """Start moto's server."""
    (port,) = free_ports(1)
    service = Service("moto", (_tool("moto_server"), "-H", "127.0.0.1", "-p", str(port)), folder)
    endpoint = f"http://127.0.0.1:{port}"
    options = {"endpoint": endpoint, "region": "us-east-1"}
    with _running(service, endpoint):
        files = fs.S3FileSystem(
            endpoint_override=endpoint, region="us-east-1", allow_bucket_creation=True
        )
        yield Store("s3://bucket", options, files, service)


@contextmanager
def running_gcs(folder: Path) -> Iterator[Store]:
    """Start gcp-storage-emulator."""
    (port,) = free_ports(1)
    words = ("start", "--host", "127.0.0.1", "--port", str(port), "--in-memory")
    service = Service("gcs", (_tool("gcp-storage-emulator"), *words), folder)
    endpoint = f"http://127.0.0.1:{port}"
    with _running(service, endpoint):
        files = fs.GcsFileSystem(
            endpoint_override=f"127.0.0.1:{port}",
            scheme="http",
            anonymous=True,
            project_id="p",
            retry_time_limit=timedelta(seconds=10),
        )
        yield Store("gs://bucket", {"endpoint": endpoint, "anonymous": "true"}, files, service)


@contextmanager
def running_azure(folder: Path) -> Iterator[Store]:
    """Start Azurite."""
    (port,) = free_ports(1)
    program = need_modules("azurite") / "azurite" / "dist" / "src" / "blob" / "main.js"
    words = ("--silent", "--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry")
    place = ("--blobHost", "127.0.0.1", "--blobPort", str(port))
    service = Service("azurite", ("node", str(program), *words, *place), folder)
    endpoint = f"http://127.0.0.1:{port}"
    with _running(service, endpoint):
        # By name: the stubs spell these words otherwise.
        host = f"127.0.0.1:{port}"
        places: dict[str, Any] = {f"{kind}_storage_authority": host for kind in ("blob", "dfs")}
        places |= {f"{kind}_storage_scheme": "http" for kind in ("blob", "dfs")}
        files = fs.AzureFileSystem(AZURE_ACCOUNT, account_key=AZURE_KEY, **places)
        url = f"abfs://bucket@{AZURE_ACCOUNT}.dfs.core.windows.net"
        yield Store(url, {"endpoint": endpoint}, files, service)


@contextmanager
def _running(service: Service, endpoint: str) -> Iterator[None]:
    try:
        service.start()
        service.until("an answer", lambda: _answers(endpoint))
        yield
    finally:
        service.kill()


def _answers(endpoint: str) -> bool:
    try:
        urllib.request.urlopen(endpoint, timeout=5).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def _tool(name: str) -> str:
    """Return a program of the environment `stores`; a missing one fails the test in CI."""
    found = find_python("stores", wait_s=BUILD_WITHIN_S)
    if found:
        return str(Path(found).parent / name)
    place = environment_folder("stores")
    missing = f"no environment stores in {place}: run python tests/environments/build.py"
    if os.environ.get("CI"):
        pytest.fail(missing)
    pytest.skip(missing)
