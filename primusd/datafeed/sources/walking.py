"""Which files of a storage a pattern means, folder by folder, in the order of their full paths.

Left out: names that begin with `.` or `_` (also of folders that `**` walks through), and what is
still being copied. A pattern that names them has them. `**` stands for any number of folders;
links to folders are not walked by it.
"""

import fnmatch
import re
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

from primusd.datafeed.storage.base import Entry, Storage
from primusd.datafeed.storage.pool import POOL, answer

PATTERN = re.compile(r"[*?\[]")
COPYING = "._COPYING_"
"""How `hdfs dfs -put` calls a file that is not whole yet."""
FOLDERS_AHEAD = 8
"""How many folders are listed at once."""


def walk(
    storage: Storage, folder: str, parts: Sequence[str], *, after: str = ""
) -> Iterator[list[Entry]]:
    """Yield what lies in one folder after another and matches, each sorted.

    Files and folders of one folder come in the order of their full paths, so a folder with both
    is yielded in several lists.

    Args:
        storage: Of the folder.
        folder: Where the pattern begins.
        parts: The pattern's names; the last one is of files.
        after: A path: folders that lie wholly before it are not listed.

    Raises:
        StorageError: A folder cannot be listed.
    """
    return _Walk(storage, tuple(parts), after).walk(folder.rstrip("/"), frozenset({0}))


def split_pattern(location: str) -> tuple[str, tuple[str, ...]]:
    """Return the folder before the first name with `*`, `?` or `[` in it, and the names after."""
    head, separator, path = location.rpartition("://") if "://" in location else ("", "", location)
    root = f"{head}{separator}"
    if separator:
        authority, _, path = path.partition("/")
        root += authority
    names = [name for name in path.split("/") if name]
    fixed = next((i for i, name in enumerate(names) if PATTERN.search(name)), len(names))
    return "/".join((root, *names[:fixed])) or "/", tuple(names[fixed:])


class _Walk:
    def __init__(self, storage: Storage, parts: tuple[str, ...], after: str) -> None:
        # A last `**` means the files of all folders.
        self._parts = (*parts, "*") if parts[-1] == "**" else parts
        self._storage = storage
        self._after = after
        self._coming: dict[str, Future[list[Entry]]] = {}

    def walk(self, folder: str, states: frozenset[int]) -> Iterator[list[Entry]]:
        states = self._closed(states)
        files: list[Entry] = []
        found = [one for one in self._entries(folder, states) if not self._is_before(one)]
        found.sort(key=_order)
        deeper = deque(
            (one, to) for one in found if one.is_folder and (to := self._next(one, states))
        )
        for one in found:
            if not one.is_folder:
                files += [one] * self._is_wanted(one.name, states, of_file=True)
            elif deeper and deeper[0][0] is one:
                if files:
                    yield files
                    files = []
                self._look_ahead(deeper)
                _, to = deeper.popleft()
                yield from self.walk(one.location, to)
        yield files

    def _entries(self, folder: str, states: frozenset[int]) -> list[Entry]:
        coming = self._coming.pop(folder, None)
        if coming is None:
            coming = POOL.submit(self._list, folder, states)
        return answer(coming)

    def _list(self, folder: str, states: frozenset[int]) -> list[Entry]:
        def is_wanted(name: str) -> bool:
            return self._is_wanted(name, states, of_file=True) or self._is_wanted(name, states)

        return self._storage.entries(folder or "/", is_wanted)

    def _look_ahead(self, folders: Sequence[tuple[Entry, frozenset[int]]]) -> None:
        for one, states in list(folders)[:FOLDERS_AHEAD]:
            if len(self._coming) < FOLDERS_AHEAD and one.location not in self._coming:
                listing = POOL.submit(self._list, one.location, self._closed(states))
                self._coming[one.location] = listing

    def _closed(self, states: frozenset[int]) -> frozenset[int]:
        """Return the places in the pattern, and those that an empty `**` leads on to."""
        found = set(states)
        for state in sorted(states):
            at = state
            while at < len(self._parts) and self._parts[at] == "**":
                at += 1
                found.add(at)
        return frozenset(found)

    def _is_wanted(self, name: str, states: frozenset[int], *, of_file: bool = False) -> bool:
        last = len(self._parts) - 1
        for state in states:
            part = self._parts[state]
            if of_file and state == last and part != "**" and matches(name, part):
                return True
            if not of_file and (state < last or part == "**") and matches(name, part):
                return True
        return False

    def _next(self, folder: Entry, states: frozenset[int]) -> frozenset[int]:
        """Return the places in the pattern below a folder; none: nothing there can match."""
        found = set()
        for state in states:
            part = self._parts[state]
            if part == "**":
                if not folder.is_link and matches(folder.name, part):
                    found.add(state)
            elif state < len(self._parts) - 1 and matches(folder.name, part):
                found.add(state + 1)
        return frozenset(found)

    def _is_before(self, entry: Entry) -> bool:
        """Return whether all of a folder lies before the place where the walk begins."""
        if not self._after or not entry.is_folder:
            return False
        below = f"{entry.location}/"
        return below < self._after and not self._after.startswith(below)


def matches(name: str, pattern: str) -> bool:
    """Return whether a name is meant: hidden ones only by a pattern that begins like them."""
    if name.startswith((".", "_")) and pattern[:1] not in (".", "_"):
        return False
    if name.endswith(COPYING):
        return False
    return fnmatch.fnmatchcase(name, pattern)


def _order(entry: Entry) -> str:
    # As their full paths sort: those in a folder have a slash behind its name.
    return f"{entry.location}/" if entry.is_folder else entry.location
