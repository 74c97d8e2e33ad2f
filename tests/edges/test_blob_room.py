"""Shipped files: those of jobs whose record is gone are dropped, and all stay within a bound."""

import hashlib
import os
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from msgspec.structs import replace

from primusd.api.blob_room import UNUSED_KEEP_MS, BlobRoom, drop_unused, stored_bytes
from primusd.config import Config
from primusd.config.settings import Blobs
from primusd.core import World
from primusd.ctl.failures import ApiError
from primusd.shared_places import SharedPlace
from tests.edges.api_server import Server, serve

MIB = 1 << 20
HOUR_S = 3_600


def serving(folder: Path, *, bytes_max: int = 3 * MIB) -> AbstractContextManager[Server]:
    return serve(folder, Config(blobs=Blobs(bytes_max=bytes_max, file_bytes_max=2 * MIB)))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path) as running:
        running.node()
        yield running


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def send(server: Server, content: bytes) -> None:
    path = f"/api/v1/blobs/{digest_of(content)}"
    server.client.send(path, lambda: iter([content]), len(content))


def ship(server: Server, content: bytes, *, name: str = "hello") -> str:
    """Submit a job that ships a content, and return its uid."""
    file = {"path": "a", "digest": digest_of(content), "bytes": len(content), "mode": "0644"}
    return str(server.submit(name=name, files=[{**file, "unpack": False}])["uid"])


def refusal(server: Server, content: bytes) -> ApiError:
    with pytest.raises(ApiError) as caught:
        send(server, content)
    return caught.value


def folder_of(server: Server) -> Path:
    return server.state / "blobs" / "sha256"


def age(server: Server, content: bytes, *, hours: float = 2) -> None:
    path = folder_of(server) / digest_of(content).removeprefix("sha256:")
    then_s = time.time() - hours * HOUR_S
    os.utime(path, (then_s, then_s))


def test_what_finds_no_room_is_refused_in_one_sentence(server: Server) -> None:
    for number in range(2):
        send(server, bytes([number]) * MIB)

    full = refusal(server, bytes([9]) * (MIB + 1))
    send(server, bytes([7]) * MIB)

    assert full.code == "StoreFull"
    assert "blobs.bytes_max is 3Mi" in str(full)
    assert stored_bytes(folder_of(server)) == 3 * MIB


def test_a_file_larger_than_all_may_be_is_too_large(tmp_path: Path) -> None:
    with serving(tmp_path, bytes_max=MIB) as server:
        too_large = refusal(server, b"x" * (MIB + 1))

    assert (too_large.status, too_large.code) == (413, "TooLarge")


def test_what_no_job_ships_makes_room(server: Server) -> None:
    shipped, unused = b"a" * MIB, b"b" * MIB
    for content in (shipped, unused):
        send(server, content)
    ship(server, shipped)
    age(server, shipped)
    age(server, unused)

    send(server, b"c" * (3 * MIB // 2))

    assert server.client.exists(f"/api/v1/blobs/{digest_of(shipped)}")
    assert not server.client.exists(f"/api/v1/blobs/{digest_of(unused)}")


def test_what_was_sent_or_asked_for_waits_for_its_job(server: Server) -> None:
    young, asked = b"a" * MIB, b"b" * MIB
    for content in (young, asked):
        send(server, content)
    age(server, young, hours=0.9)
    age(server, asked)
    assert server.client.exists(f"/api/v1/blobs/{digest_of(asked)}")

    assert refusal(server, b"c" * (3 * MIB // 2)).code == "StoreFull"

    ship(server, young, name="one")
    ship(server, asked, name="two")


def test_files_of_a_job_whose_record_is_gone_are_dropped(server: Server) -> None:
    content = b"a" * MIB
    send(server, content)
    uid = ship(server, content)
    server.run_job(uid)
    server.end_attempts(uid)
    age(server, content)
    room = BlobRoom(folder_of(server), bytes_max=lambda: MIB, world=lambda: server.world)
    kept = server._portal.call(room.sweep)

    server.client.call("DELETE", f"/api/v1/namespaces/default/jobs/{uid}")
    server.until(lambda: uid not in server.world.jobs)

    assert kept == 0
    assert server._portal.call(room.sweep) == 1
    assert list(folder_of(server).iterdir()) == []


def test_nothing_is_dropped_while_a_job_cannot_be_loaded(server: Server) -> None:
    content = b"a" * MIB
    send(server, content)
    age(server, content)
    admission = replace(server.world.admission, wedged={"06h2jj0tgvp0hesf": "our bug"})
    world = World(admission)
    room = BlobRoom(folder_of(server), bytes_max=lambda: MIB, world=lambda: world)

    assert server._portal.call(room.sweep) == 0


def test_uploads_at_once_share_the_room(server: Server) -> None:
    """Room is set aside before the bytes come: two that fit alone do not both come in."""
    codes: list[str] = []
    meet = threading.Barrier(2)

    def upload(content: bytes) -> None:
        def parts() -> Iterator[bytes]:
            yield content[: MIB // 2]
            meet.wait(timeout=5)
            yield content[MIB // 2 :]

        try:
            path = f"/api/v1/blobs/{digest_of(content)}"
            server.client.send(path, parts, len(content))
        except (ApiError, OSError, threading.BrokenBarrierError) as error:
            meet.abort()
            codes.append(getattr(error, "code", "cut"))

    threads = [threading.Thread(target=upload, args=(bytes([n]) * (2 * MIB),)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert codes
    assert stored_bytes(folder_of(server)) <= 3 * MIB
    send(server, b"z" * MIB)


def test_uploads_that_nobody_goes_on_with_are_removed(tmp_path: Path) -> None:
    for name in ("old", "new", ".incoming-old", ".incoming-new"):
        (tmp_path / name).write_bytes(b"x" * 10)
    now_ms = 1_900_000_000_000
    for name, age_ms in (("old", 1), ("new", -1), (".incoming-old", 1), (".incoming-new", -1)):
        then_s = (now_ms - UNUSED_KEEP_MS - age_ms) / 1000
        os.utime(tmp_path / name, (then_s, then_s))

    assert drop_unused(tmp_path, {"none"}, now_ms=now_ms) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == [".incoming-new", "new"]
    assert stored_bytes(tmp_path) == 10
    assert drop_unused(tmp_path / "none", set(), now_ms=now_ms) == 0


def serving_head(
    folder: Path, place: SharedPlace, *, bytes_max: int = 1 << 30
) -> AbstractContextManager[Server]:
    folder.mkdir()
    return serve(folder, Config(blobs=Blobs(bytes_max=bytes_max)), shared=place)


def test_what_one_head_took_another_one_has(tmp_path: Path) -> None:
    place = SharedPlace(f"file://{tmp_path}/shared", {})
    with (
        serving_head(tmp_path / "a", place) as one,
        serving_head(tmp_path / "b", place) as other,
    ):
        for server in (one, other):
            server.node()
        send(one, b"a content")
        digest = digest_of(b"a content")

        assert other.client.exists(f"/api/v1/blobs/{digest}")
        # A submit that goes to another head than the file went to, and asks nobody before.
        ship(other, b"a content")
        with pytest.raises(ApiError, match="PUT /api/v1/blobs/"):
            ship(other, b"another content", name="other")

    assert place.size(f"sha256/{digest.removeprefix('sha256:')}") == len(b"a content")


def test_the_bound_is_for_all_that_heads_share(tmp_path: Path) -> None:
    place = SharedPlace(f"file://{tmp_path}/shared", {})
    with (
        serving_head(tmp_path / "a", place, bytes_max=3 * MIB) as one,
        serving_head(tmp_path / "b", place, bytes_max=3 * MIB) as other,
    ):
        send(one, b"a" * 2 * MIB)

        assert refusal(other, b"b" * 2 * MIB).code == "StoreFull"


def test_a_place_that_is_away_refuses_the_file_and_a_later_try_is_taken(tmp_path: Path) -> None:
    (tmp_path / "shared").write_text("no folder")
    place = SharedPlace(f"file://{tmp_path}/shared", {})
    with serving_head(tmp_path / "a", place) as server:
        server.node()
        refused = refusal(server, b"a")
        assert (refused.status, refused.code) == (503, "StoreUnavailable")
        assert "blobs.url" in refused.hint
        (tmp_path / "shared").unlink()

        send(server, b"a")

        ship(server, b"a")
