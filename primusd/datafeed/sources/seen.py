"""Which files a stream knows, by folder: told apart by their paths, at a few bytes a folder."""

import posixpath
from collections.abc import Iterator

from primusd.datafeed.ledger.listed import Units
from primusd.datafeed.protocol import Unit

Key = tuple[str, str, str]
"""Number of the source, label of the moment, folder; of a moment all folders are one."""


def key_of(unit: Unit) -> Key:
    """Return the folder of a source that a unit lies in."""
    options = unit.options
    # Of a moment all folders are one: they are listed together.
    folder = "" if "part" in options else posixpath.dirname(unit.location)
    return options.get("source", "0"), options.get("part", ""), folder


class Seen:
    """Where among the units of a stream those of each folder stand.

    Attributes:
        furthest: By number of the source and label of the moment: the last path that is known.
    """

    def __init__(self) -> None:
        self.furthest: dict[tuple[str, str], str] = {}
        self._runs: dict[Key, list[tuple[int, int]]] = {}
        self._known = Units()

    def take_in(self, known: Units) -> None:
        """Note further units; those of before are the first of them."""
        first, self._known = len(self._known), known
        for number in range(first, len(known)):
            unit = known[number].unit
            key = key_of(unit)
            runs = self._runs.setdefault(key, [])
            if runs and runs[-1][1] == number:
                runs[-1] = (runs[-1][0], number + 1)
            else:
                runs.append((number, number + 1))
            part = key[:2]
            self.furthest[part] = max(self.furthest.get(part, ""), unit.location)

    def of(self, key: Key) -> Iterator[tuple[int, Unit]]:
        """Yield the units of a folder, with their numbers."""
        for first, end in self._runs.get(key, ()):
            for number in range(first, end):
                yield number, self._known[number].unit
