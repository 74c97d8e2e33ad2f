"""What every storage must do, whoever has the bytes: one suite, run for each implementation."""

from pathlib import Path, PurePosixPath
from typing import Protocol

import pytest

from primusd.datafeed.formats.base import open_pinned
from primusd.datafeed.protocol import Unit
from primusd.datafeed.sources.files import ListingError, NotThereError, list_files
from primusd.datafeed.storage.base import ReadError
from primusd.datafeed.storage.schemes import storage_of
from primusd.job.spec import Source


class Place(Protocol):
    """A folder in some storage that a test may fill."""

    url: str
    options: dict[str, str]
    file_bytes: int
    """The length of a large file."""

    def put(self, name: str, data: bytes) -> None:
        """Write a file, over one that is there."""

    def remove(self, name: str) -> None:
        """Take a file away."""


class StorageContract:
    """Subclasses have a fixture `place`, an empty folder."""

    def units(self, place: Place, pattern: str = "", *, is_recursive: bool = False) -> list[Unit]:
        source = Source(place.url + pattern, storage=place.options, is_recursive=is_recursive)
        return list_files(source, "text")

    def names(self, place: Place, pattern: str = "", *, is_recursive: bool = False) -> list[str]:
        found = self.units(place, pattern, is_recursive=is_recursive)
        return [unit.location.removeprefix(place.url) for unit in found]

    def fill(self, place: Place, *names: str) -> None:
        for name in names:
            place.put(name, b"row of " + name.encode() + b"\n")

    def test_a_folder_a_glob_and_a_file_are_found_in_the_order_of_their_paths(
        self, place: Place
    ) -> None:
        """M071, M072."""
        self.fill(place, "b/2.txt", "b/1.txt", "a.txt", "b.txt", "b/c/3.txt", "z.csv")
        self.fill(place, "b/_SUCCESS", "b/.x.txt", "b/y.txt._COPYING_", "b/_temporary/4.txt")
        place.put("b/empty.txt", b"")

        assert self.names(place, "/b/") == ["/b/1.txt", "/b/2.txt"]
        assert self.names(place, "/b", is_recursive=True) == ["/b/1.txt", "/b/2.txt", "/b/c/3.txt"]
        assert self.names(place, "/*.txt") == ["/a.txt", "/b.txt"]
        assert self.names(place, "/**/*.txt") == [
            *("/a.txt", "/b.txt", "/b/1.txt", "/b/2.txt", "/b/c/3.txt")
        ]
        assert self.names(place, "/?/[12].txt") == ["/b/1.txt", "/b/2.txt"]
        assert self.names(place, "/b/c/3.txt") == ["/b/c/3.txt"]
        assert self.names(place, "/b/_temporary/*") == ["/b/_temporary/4.txt"]

    @pytest.mark.parametrize("name", ["a b.txt", "per%20cent.txt", "日本語.txt", "plus+&=.txt"])
    def test_nasty_names_arrive_unchanged(self, place: Place, name: str) -> None:
        """C76."""
        self.fill(place, name)

        (unit,) = self.units(place, "/*")

        assert PurePosixPath(unit.location).name == name
        assert open_pinned(unit).pread(0, 100) == b"row of " + name.encode() + b"\n"
        assert self.units(place, f"/{name}") == [unit]

    def test_what_is_not_there_may_come_later_and_says_where_it_should_be(
        self, place: Place
    ) -> None:
        self.fill(place, "a.txt")

        for pattern in ("/none.txt", "/none/*.txt", "/*.parquet"):
            with pytest.raises(NotThereError) as caught:
                self.units(place, pattern)
            assert place.url in caught.value.message
            assert isinstance(caught.value, ListingError)

    def test_any_bytes_can_be_read_from_any_place(self, place: Place) -> None:
        data = (bytes(range(256)) * 40_000)[: place.file_bytes]
        size = len(data)
        place.put("a.txt", data)
        (unit,) = self.units(place, "/a.txt")

        file = open_pinned(unit)

        assert file.size == size
        for offset, count in ((0, 10), (size // 2, 3), (size - 5, 100), (size, 1)):
            assert file.pread(offset, count) == data[offset : offset + count]
        far, near = size * 9 // 10, size // 100
        file.prefetch([(100, 50), (far, near)])
        assert file.pread(far + 10, near - 20) == data[far + 10 : far + near - 10]
        step = size // 10 - 1
        assert b"".join(file.pread(at, step) for at in range(0, size, step)) == data
        view = file.arrow()
        view.seek(size // 3)
        assert view.read(1000) == data[size // 3 : size // 3 + 1000]

    def test_a_file_that_is_another_one_than_was_listed_is_named(self, place: Place) -> None:
        for change in (b"other row of it\n", b"x\n"):
            place.put("a.txt", b"row of a.txt...\n")
            (unit,) = self.units(place, "/a.txt")
            self.wait_for_another_time()
            place.put("a.txt", change)

            with pytest.raises(ReadError) as caught:
                open_pinned(unit).pread(0, 16)

            assert (caught.value.kind, unit.location in caught.value.message) == ("changed", True)

    def test_a_file_that_is_gone_is_named(self, place: Place) -> None:
        self.fill(place, "a.txt")
        (unit,) = self.units(place, "/a.txt")
        place.remove("a.txt")

        with pytest.raises(ReadError) as caught:
            open_pinned(unit)

        assert caught.value.kind == "vanished"

    def test_a_small_file_is_written_whole_with_its_folders_and_over_another(
        self, place: Place
    ) -> None:
        storage = storage_of(place.url, place.options)
        folder = f"{place.url}/new/deep"
        for data in (b"first", b"the second one"):
            storage.write(f"{folder}/a b.json.gz", data)

            entry = storage.find(f"{folder}/a b.json.gz")
            assert entry is not None
            assert entry.byte_count == len(data)
            assert storage.open(entry.location).read(0, 100) == data
        assert [one.name for one in storage.entries(folder, lambda _: True)] == ["a b.json.gz"]

    def test_a_file_of_this_host_is_sent_there_and_removed_again(
        self, place: Place, tmp_path: Path
    ) -> None:
        storage = storage_of(place.url, place.options)
        location = f"{place.url}/sent/b c.zst"
        for data in ((bytes(range(256)) * 40_000)[: place.file_bytes], b""):
            (tmp_path / "here").write_bytes(data)

            storage.upload(location, tmp_path / "here")

            entry = storage.find(location)
            assert entry is not None
            assert entry.byte_count == len(data)
            # One of the emulators does not answer to a read of nothing.
            assert not data or storage.open(location).read(0, len(data)) == data
        storage.remove(location)
        assert storage.find(location) is None
        storage.remove(location)
        storage.remove(f"{place.url}/never/there")

    def wait_for_another_time(self) -> None:
        """Wait until the storage's clock shows another time of change."""
