"""Local files as a source: a path, a folder or a glob becomes pinned units in name order.

Left out: names that begin with `.` or `_` (also of folders that `**` walks through) and files
without a byte. A folder stands for the files directly in it; `**` walks down. Links to files are
followed, links to folders are not walked by `**`. A path that exists is taken as it is, also when
it has the characters of a pattern in it.
"""

import errno
import fnmatch
import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from primusd.datafeed.formats.base import (
    COMPRESSED_SUFFIXES,
    FORMATS,
    HEAD_BYTES,
    OTHER_SUFFIXES,
    TRANSIENT_ERRNOS,
    format_of_name,
)
from primusd.datafeed.protocol import Unit
from primusd.errors import PrimusdError
from primusd.job.spec import Source

PATTERN = re.compile(r"[*?\[]")


class ListingError(PrimusdError):
    """A source cannot be listed.

    Attributes:
        permanent: Trying again does not help.
    """

    code = "ListingFailed"

    def __init__(self, message: str, *, permanent: bool = True, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.permanent = permanent


def list_sources(sources: Sequence[Source], format_name: str) -> list[Unit]:
    """Return the units of all sources, source after source.

    Raises:
        ListingError: As `list_files`, of the first source that has a fault.
    """
    return [unit for source in sources for unit in list_files(source, format_name)]


def list_files(source: Source, format_name: str) -> list[Unit]:
    """Return the files of a source, sorted by path, each pinned by its size and time of change.

    Blocks: run it in a thread.

    Args:
        source: Its path is absolute.
        format_name: `text` or `parquet`; "" told from each file's name.

    Raises:
        ListingError: A missing path, no permission, nothing matched, or no format can be told.
    """
    path = source.files.removeprefix("file://")
    if not path.startswith("/"):
        raise ListingError(f"data source {source.files!r} is not an absolute path")
    if format_name and format_name not in FORMATS:
        raise ListingError(f"format {format_name!r} is not one of {', '.join(FORMATS)}")
    try:
        names, found = _matches(path)
    except OSError as error:
        raise _failed(path, error) from error
    units = [unit for name in sorted(names) if (unit := _unit(name, format_name)) is not None]
    if not units:
        raise ListingError(_nothing(path, found, len(names)))
    return units


def _matches(path: str) -> tuple[list[str], str]:
    """Return the files that a path, a folder or a glob names, and which of the three it is."""
    try:
        mode = Path(path).stat().st_mode
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        if not PATTERN.search(path):
            raise
        return list(_glob(path)), "glob"
    if stat.S_ISDIR(mode):
        return [entry.path for entry in _entries(path) if entry.is_file()], "folder"
    if not stat.S_ISREG(mode):
        raise ListingError(f"data source {path} is neither a file nor a folder")
    return [path], "file"


def _glob(pattern: str) -> Iterator[str]:
    parts = [part for part in pattern.split("/") if part]
    fixed = next(index for index, part in enumerate(parts) if PATTERN.search(part))
    folder = "/" + "/".join(parts[:fixed])
    if not Path(folder).is_dir():
        Path(folder).stat()
        return
    # `a/**/**/b` names a file once, however many ways lead to it.
    yield from dict.fromkeys(_walk(folder, tuple(parts[fixed:])))


def _walk(folder: str, parts: tuple[str, ...]) -> Iterator[str]:
    part, rest = parts[0], parts[1:]
    if part == "**":
        yield from _walk(folder, rest or ("*",))
        for entry in _entries(folder):
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(entry.path, parts)
        return
    for entry in _entries(folder, part):
        if rest and entry.is_dir():
            yield from _walk(entry.path, rest)
        elif not rest and entry.is_file():
            yield entry.path


def _entries(folder: str, pattern: str = "*") -> list[os.DirEntry[str]]:
    """Return what a folder has, but hidden names; a pattern that names them has them."""
    with os.scandir(folder) as found:
        return [
            entry
            for entry in found
            if fnmatch.fnmatchcase(entry.name, pattern)
            and (pattern[:1] in "._" or not entry.name.startswith((".", "_")))
        ]


def _unit(path: str, format_name: str) -> Unit | None:
    """Return the pinned unit of a file; None when it has no byte."""
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        raise ListingError(
            f"the name of {os.fsencode(path)!r} is not valid UTF-8; rename the file"
        ) from None
    try:
        found = Path(path).stat()
        if not found.st_size:
            return None
        name = format_name or _told_format(path)
        if not os.access(path, os.R_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
    except OSError as error:
        raise _failed(path, error) from error
    return Unit("file", path, found.st_size, str(found.st_mtime_ns), {"format": name})


def _told_format(path: str) -> str:
    name = format_of_name(path)
    if name:
        return name
    if path.lower().endswith(COMPRESSED_SUFFIXES):
        raise ListingError(
            f"{path} is compressed, which this build does not read yet; uncompress it first"
        )
    if path.lower().endswith(OTHER_SUFFIXES):
        raise ListingError(
            f"{path} is of a format that this build does not read yet; "
            "with format: text its lines come as they are"
        )
    with Path(path).open("rb") as file:
        head = file.read(HEAD_BYTES)
    raise ListingError(
        f"the name of {path} tells no format, and it begins with {head!r}; "
        f"set format: {' or '.join(FORMATS)}"
    )


def _failed(path: str, error: OSError) -> ListingError:
    where = error.filename if isinstance(error.filename, str) else path
    return ListingError(
        f"data source {path} cannot be listed: {where}: {error.strerror or error}",
        permanent=error.errno not in TRANSIENT_ERRNOS,
    )


def _nothing(path: str, found: str, empty: int) -> str:
    left_out = f" ({empty} without a byte)" if empty else ""
    match found:
        case "glob":
            return f"data source {path} matches no file{left_out}"
        case "folder":
            return (
                f"data source {path} is a folder with no file in it{left_out}; "
                f"for files in its sub-folders write {path.rstrip('/')}/**/*"
            )
        case _:
            return f"data source {path} has no byte"
