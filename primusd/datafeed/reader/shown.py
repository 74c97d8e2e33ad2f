"""The credentials that one stream's storages are shown, looked at now and then.

They may lie in files, so a thread of the storages looks, and what it found last is told.
"""

import contextlib
from collections.abc import Mapping

from primusd.datafeed.protocol import Credential, Unit
from primusd.datafeed.storage.base import StorageError
from primusd.datafeed.storage.pool import POOL
from primusd.datafeed.storage.schemes import credential_of, scheme_of, storage_options

LOOK_S = 5.0
"""Between two looks: one that was replaced is known to be so."""


class ShownCredentials:
    """What one reader shows; used by its thread and by who reports."""

    def __init__(self) -> None:
        """Know of no storage yet."""
        self._places: dict[str, tuple[str, Mapping[str, str]]] = {}
        self._found: tuple[Credential, ...] = ()
        self._due_s = 0.0

    def used(self, unit: Unit) -> None:
        """Note that a unit's storage is asked."""
        if unit.kind == "file" and scheme_of(unit.location):
            prefix, _, rest = unit.location.partition("://")
            place = f"{prefix}://{rest.partition('/')[0]}"
            if place not in self._places:
                self._places = {**self._places, place: (unit.location, storage_options(unit))}
                self._due_s = 0.0

    def told(self, now: float) -> tuple[Credential, ...]:
        """Return what was found by the last look, and have another one begun when it is time.

        Args:
            now: Seconds, by the clock of the feed.
        """
        if self._places and now >= self._due_s:
            self._due_s = now + LOOK_S
            POOL.submit(self._look)
        return self._found

    def _look(self) -> None:
        found: dict[Credential, None] = {}
        for location, options in self._places.values():
            with contextlib.suppress(StorageError):
                if (credential := credential_of(location, options)) is not None:
                    found[credential] = None
        self._found = tuple(found)
