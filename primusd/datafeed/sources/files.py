"""The files that one source stands for: found in its storage, pinned, their format told."""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from primusd.datafeed.protocol import Unit
from primusd.datafeed.sources.telling import TOLD_BYTES, UntoldError, form_options
from primusd.datafeed.sources.walking import split_pattern, walk
from primusd.datafeed.storage.base import Entry, Storage, StorageError
from primusd.datafeed.storage.schemes import OPTION_PREFIX, scheme_of, storage_of
from primusd.errors import PrimusdError
from primusd.job.formats import FORMATS
from primusd.job.spec import Source, StreamSpec


class ListingError(PrimusdError):
    """A source cannot be listed.

    Attributes:
        permanent: Trying again does not help.
    """

    code = "ListingFailed"

    def __init__(self, message: str, *, permanent: bool = True, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.permanent = permanent


class NotThereError(ListingError):
    """A path names nothing, or no file: it may come later."""


class Said(Struct, frozen=True):
    """What a job file says of all files of a stream; "" nothing."""

    format: str = ""
    compression: str = ""
    on_empty: str = "skip"
    """`skip` or `fail`: files without a byte."""


def said_of(spec: StreamSpec) -> Said:
    """Return what a stream says of its files."""
    decoding = spec.decoding
    return Said(spec.format, decoding.options.get("compression", ""), decoding.on_empty)


def list_files(
    source: Source, format_name: str = "", compression: str = "", *, on_empty: str = "skip"
) -> list[Unit]:
    """Return the files of a source without times, sorted by path.

    Blocks: run it in a thread.

    Args:
        source: Its path is absolute, or a URL.
        format_name: Of `job.formats`; "" told from each file.
        compression: Likewise.
        on_empty: `skip` or `fail`: files without a byte.

    Raises:
        ListingError: A missing path, no permission, nothing matched, or no format can be told.
    """
    files = Files(source, Said(format_name, compression, on_empty))
    return [unit for part in files.parts() for unit in part]


def list_sources(
    sources: Sequence[Source],
    format_name: str = "",
    compression: str = "",
    *,
    on_empty: str = "skip",
) -> list[Unit]:
    """Return the units of all sources, source after source.

    Raises:
        ListingError: As `list_files`, of the first source that has a fault.
    """
    return [
        unit
        for source in sources
        for unit in list_files(source, format_name, compression, on_empty=on_empty)
    ]


class Files:
    """What a path, a folder or a glob of one storage stands for."""

    def __init__(
        self, source: Source, said: Said, *, options: Mapping[str, str] | None = None
    ) -> None:
        """Look at nothing yet.

        Args:
            source: Its path is absolute, or a URL, and no template any more.
            said: Of all its files.
            options: Further options of its units.

        Raises:
            ListingError: The path is none, or its storage cannot be had.
        """
        self.path = source.files.removeprefix("file://")
        self._source = source
        self._said = said
        self._options = {f"{OPTION_PREFIX}{key}": value for key, value in source.storage.items()}
        self._options |= options or {}
        self._empty: list[str] = []
        if not scheme_of(self.path) and not self.path.startswith("/"):
            raise ListingError(f"data source {source.files!r} is not an absolute path")
        if said.format and said.format not in FORMATS:
            raise ListingError(f"format {said.format!r} is not one of {', '.join(FORMATS)}")
        try:
            self._storage: Storage = storage_of(self.path, source.storage)
        except StorageError as error:
            raise self._failed(error) from error

    def parts(self, *, after: str = "") -> Iterator[list[Unit]]:
        """Yield the units folder by folder, sorted by path.

        Args:
            after: The location of a file: of its folder all files are listed, of folders before
                it none.

        Raises:
            ListingError: A path that cannot be listed, or a file of unknown format.
            NotThereError: There is no file with a byte.
        """
        unit_count = 0
        try:
            kind, lists = self._lists(after)
            for entries in lists:
                units = [unit for one in entries if (unit := self._unit(one)) is not None]
                unit_count += len(units)
                if self._empty and self._said.on_empty == "fail":
                    raise ListingError(
                        f"{self._empty[0]} has no byte ({len(self._empty)} such files); "
                        "onEmpty: skip leaves them out"
                    )
                yield units
        except StorageError as error:
            raise self._failed(error) from error
        if not unit_count and not after:
            raise NotThereError(_nothing(self.path, kind, len(self._empty)))

    def has_markers(self, names: Sequence[str]) -> str:
        """Return which of some files is not in the source's folder yet; "" none is missing.

        Raises:
            ListingError: Nobody can tell.
        """
        try:
            folder = self._folder()
            for name in names:
                if self._storage.find(f"{folder.rstrip('/')}/{name}") is None:
                    return f"{folder.rstrip('/')}/{name}"
        except StorageError as error:
            raise self._failed(error) from error
        return ""

    def _folder(self) -> str:
        """Return the folder that the source is about."""
        folder, pattern = split_pattern(self.path)
        if pattern or self.path.endswith("/"):
            return folder
        found = self._storage.find(folder)
        if found is not None and not found.is_folder:
            return folder.rpartition("/")[0]
        # A file that is not there yet would have an ending.
        name = folder.rpartition("/")[2]
        return folder.rpartition("/")[0] if found is None and "." in name else folder

    def _lists(self, after: str) -> tuple[str, Iterator[list[Entry]]]:
        """Return what the path is, and lists of entries that it stands for."""
        folder, pattern = split_pattern(self.path)
        exact = self._find(self.path.rstrip("/") or "/", is_pattern=bool(pattern))
        if exact is not None and not exact.is_folder:
            return "file", iter([[exact]])
        if exact is not None:
            below = ("**",) if self._source.is_recursive else ("*",)
            return "folder", walk(self._storage, exact.location or "/", below, after=after)
        if not pattern:
            raise StorageError(f"{self.path}: No such file or directory", kind="vanished")
        return "glob", walk(self._storage, folder, pattern, after=after)

    def _find(self, location: str, *, is_pattern: bool) -> Entry | None:
        try:
            return self._storage.find(location)
        except StorageError:
            if is_pattern:
                return None
            raise

    def _unit(self, entry: Entry) -> Unit | None:
        """Return the pinned unit of a file; None when it has no byte."""
        if not entry.byte_count:
            self._empty.append(entry.location)
            return None

        def head() -> bytes:
            count = min(TOLD_BYTES, entry.byte_count)
            return self._storage.open(entry.location).read(0, count)

        said = {"format": self._said.format, "compression": self._said.compression}
        try:
            form = form_options(entry.location, said, head)
        except UntoldError as error:
            raise ListingError(str(error)) from None
        return Unit("file", entry.location, entry.byte_count, entry.pin, form | self._options)

    def _failed(self, error: StorageError) -> ListingError:
        said = error.message.removeprefix(f"{self.path}: ")
        text = f"data source {self.path} cannot be listed: {said}"
        if error.kind == "vanished":
            return NotThereError(text)
        is_brief = error.kind in ("transient", "expired")
        return ListingError(text, permanent=not is_brief, hint=error.hint)


def _nothing(path: str, kind: str, empty: int) -> str:
    left_out = f" ({empty} without a byte)" if empty else ""
    match kind:
        case "glob":
            return f"data source {path} matches no file{left_out}"
        case "folder":
            return (
                f"data source {path} is a folder with no file in it{left_out}; "
                f"for files in its sub-folders write recursive: true, or {path.rstrip('/')}/**/*"
            )
        case _:
            return f"data source {path} has no byte"
