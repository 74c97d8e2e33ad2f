"""What a place must do that all heads reach, wherever it is: one suite, run for each storage."""

import hashlib
import os
from pathlib import Path
from uuid import uuid4

import anyio
import pytest

from primusd.api.shared_blobs import SharedBlobs
from primusd.errors import ConfigError, NotFoundError
from primusd.shared_places import SharedPlace, check_place
from primusd.state.places import PlaceError
from primusd.state.shared_archive import SharedArchive
from tests.edges.test_archive import archived, entry

HOUR_MS = 3_600_000


class PlaceContract:
    """Subclasses have a fixture `shared`, an empty place."""

    def test_files_are_written_read_listed_and_removed(
        self, shared: SharedPlace, tmp_path: Path
    ) -> None:
        assert shared.items("a") == []
        assert shared.folders("a") == []
        assert shared.size("a/x") == -1
        with pytest.raises(PlaceError, match="is not there"):
            shared.read("a/x")
        large = os.urandom(300_000)
        (tmp_path / "large").write_bytes(large)

        shared.write("a/x", b"first")
        shared.write("a/x", b"second")
        shared.write("a/b/y", b"")
        shared.upload("a/z", tmp_path / "large")
        shared.download("a/z", tmp_path / "copy")

        assert shared.read("a/x") == b"second"
        assert shared.read("a/b/y") == b""
        assert (tmp_path / "copy").read_bytes() == large
        found = [(one.name, one.byte_count) for one in shared.items("a")]
        assert found == [("x", 6), ("z", 300_000)]
        assert shared.folders("a") == ["b"]
        shared.remove("a/x")
        shared.remove("a/x")
        assert shared.size("a/x") == -1

    def test_it_is_checked_and_is_of_one_cluster(self, shared: SharedPlace) -> None:
        check_place(shared, "blobs.url", "one")
        check_place(shared, "blobs.url", "one")

        with pytest.raises(ConfigError, match="belongs to cluster one, this is two"):
            check_place(shared, "blobs.url", "two")
        assert [one.name for one in shared.items("")] == ["cluster"]

    def test_two_heads_add_to_one_history_and_both_read_all_of_it(
        self, shared: SharedPlace
    ) -> None:
        first, second = (SharedArchive(shared, home=home * 32) for home in "ab")
        first.append(archived(*(entry(number) for number in range(1, 6))))
        # It does not know yet that it was replaced, and archives what the new one does, too.
        second.append(archived(*(entry(number) for number in range(4, 9))))
        first.append(archived(entry(6)))
        second.append(archived(entry(9, day=1)))
        first.append(archived(*(entry(number, day=1) for number in range(10, 12))))

        for head in (first, second, SharedArchive(shared, home="c")):
            assert [one.revision for one in head.read()] == list(range(1, 12))
            assert [one.revision for one in head.read(7)] == [7, 8, 9, 10, 11]
        second.keep_base({"": (9, b"x")}, kind=".all", revision=9, at_ms=entry(9, day=1).at_ms)
        (base,) = first.bases()
        assert (base.revision, base.has_jobs, dict(base.parts())) == (9, True, {"": (9, b"x")})

        now_ms = entry(1, day=1).at_ms + 2 * HOUR_MS
        removed = first.prune(now_ms=now_ms, keep_ms=HOUR_MS, bytes_max=1 << 30)
        assert len(removed) == 2
        assert [one.revision for one in second.read()] == [9, 10, 11]

    def test_a_content_that_one_head_took_is_fetched_by_another(
        self, shared: SharedPlace, tmp_path: Path
    ) -> None:
        content = os.urandom(200_000)
        digest = hashlib.sha256(content).hexdigest()
        (tmp_path / "here").write_bytes(content)

        async def play() -> None:
            first, second = SharedBlobs(shared), SharedBlobs(shared)
            assert await first.size(digest) == -1
            await first.send(digest, tmp_path / "here")
            await second.learn([digest])
            assert second.is_known(digest)
            assert await second.byte_count() == len(content)
            await second.fetch(digest, tmp_path / "there" / digest)
            assert (tmp_path / "there" / digest).read_bytes() == content

            # What is another content than its name says is not kept.
            shared.write(f"sha256/{digest}", b"damaged")
            with pytest.raises(NotFoundError, match="is another content"):
                await second.fetch(digest, tmp_path / "again" / digest)
            assert list((tmp_path / "again").iterdir()) == []

            # It goes an hour after it was seen first that no job ships it.
            for now_ms, shipped, gone in (
                (0, set(), 0),
                (2 * HOUR_MS, {digest}, 0),
                (3 * HOUR_MS, set(), 0),
                (4 * HOUR_MS + 1, set(), 1),
            ):
                dropped = await second.drop_unused(shipped, now_ms=now_ms, keep_ms=HOUR_MS)
                assert dropped == gone
            assert await second.size(digest) == -1
            with pytest.raises(NotFoundError, match="is not in this store"):
                await second.fetch(digest, tmp_path / "there" / "x")

        anyio.run(play)


def name() -> str:
    """Return the name of a folder that no test had before."""
    return f"place-{uuid4().hex[:12]}"
