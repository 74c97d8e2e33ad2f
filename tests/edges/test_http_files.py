"""Files of a web server, read through fsspec: with ranges and without, and on its bad days."""

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from primusd.ctl.failures import CtlError
from primusd.ctl.packing import ship
from primusd.datafeed.formats.base import open_pinned
from primusd.datafeed.sources.files import ListingError, NotThereError, list_files
from primusd.datafeed.storage.base import ReadError
from primusd.job.spec import Source
from primusd.jobfile import parse, write_yaml

DATA = bytes(range(256)) * 2_000


class Site(ThreadingHTTPServer):
    """Serves `/a.txt`; says how, and how often it fails."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Page)
        self.data = DATA
        self.tag = "one"
        self.has_ranges = True
        self.failures = 0
        self.status = 503

    def handle_error(self, *_args: Any) -> None:
        """Say nothing of clients that went away."""


class Page(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Site

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, *_args: Any) -> None:
        """Say nothing."""

    def _answer(self) -> None:
        if self.server.failures:
            self.server.failures -= 1
            self.send_error(self.server.status)
            return
        if self.path != "/a.txt":
            self.send_error(404)
            return
        data, status = self.server.data, 200
        if self.server.has_ranges and (asked := self.headers.get("Range")):
            first, last = asked.removeprefix("bytes=").split("-")
            data, status = data[int(first) : int(last) + 1], 206
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", self.server.tag)
        if self.server.has_ranges:
            self.send_header("Accept-Ranges", "bytes")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join(10)


def url(site: Site, name: str = "a.txt") -> str:
    return f"http://127.0.0.1:{site.server_address[1]}/{name}"


@pytest.mark.parametrize("has_ranges", [True, False])
def test_a_file_is_pinned_by_its_tag_and_read_from_any_place(
    site: Site, *, has_ranges: bool
) -> None:
    site.has_ranges = has_ranges

    (unit,) = list_files(Source(url(site)))
    file = open_pinned(unit)

    assert (unit.byte_count, unit.pin, unit.options["format"]) == (len(DATA), "one", "text")
    assert file.pread(300_000, 1000) == DATA[300_000:301_000]
    assert file.pread(0, len(DATA)) == DATA
    site.tag = "two"
    with pytest.raises(ReadError, match="it was written again"):
        file.pread(100_000, 10)


def test_a_server_that_fails_is_asked_again_and_one_that_refuses_is_not(site: Site) -> None:
    site.failures = 10
    with pytest.raises(ListingError) as caught:
        list_files(Source(url(site)))
    site.failures = 0
    assert not caught.value.permanent
    (unit,) = list_files(Source(url(site)))
    file = open_pinned(unit)

    site.failures = 2
    assert file.pread(0, 10) == DATA[:10]

    site.failures, site.status = 10, 403
    with pytest.raises(ListingError) as denied:
        list_files(Source(url(site)))
    site.failures = 0
    assert denied.value.permanent
    with pytest.raises(NotThereError):
        list_files(Source(url(site, "b.txt")))


def test_a_server_that_is_away_is_waited_for(site: Site) -> None:
    address = url(site)
    site.shutdown()
    site.server_close()

    with pytest.raises(ListingError) as caught:
        list_files(Source(address))

    assert not caught.value.permanent


class Blobs:
    """What the client sends to."""

    def __init__(self) -> None:
        self.sent: dict[str, bytes] = {}

    def exists(self, path: str) -> bool:
        return path in self.sent

    def send(self, path: str, parts: Callable[[], Iterator[bytes]], byte_count: int) -> None:
        self.sent[path] = b"".join(parts())
        assert len(self.sent[path]) == byte_count


def test_a_file_that_is_shipped_may_be_a_url_and_is_sent_like_one_of_this_host(
    site: Site, tmp_path: Path
) -> None:
    text = f"name: x\nfiles: ['{url(site)}']\nroles: {{worker: {{command: [cat, a.txt]}}}}\n"
    spec = parse(text.encode()).spec
    assert url(site) in write_yaml(spec)
    blobs = Blobs()

    shipped = ship(spec, tmp_path, blobs, lambda _: None)  # type: ignore[arg-type] # as much of a client as is asked for

    (file,) = shipped.files
    assert (file.path, file.byte_count, file.url) == ("a.txt", len(DATA), "")
    assert blobs.sent == {f"/api/v1/blobs/{file.digest}": DATA}
    missing = parse(text.replace("a.txt'", "b.txt'").encode()).spec
    with pytest.raises(CtlError, match=r"b\.txt"):
        ship(missing, tmp_path, blobs, lambda _: None)  # type: ignore[arg-type] # likewise
