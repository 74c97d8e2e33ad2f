"""A job file in the making: values at paths, and where each came from."""

from typing import Any

from primusd.compat.original import Path


class Draft:
    """Grows a document of mappings, field by field."""

    def __init__(self) -> None:
        # Any: fields of a document are of every type.
        self.document: dict[str, Any] = {}
        self.sources: dict[Path, Path] = {}

    def put(self, path: Path, value: object, source: Path) -> None:
        """Set a field; mappings on the way are made."""
        target = self.document
        for part in path[:-1]:
            target = target.setdefault(str(part), {})
        target[str(path[-1])] = value
        self.sources[path] = source

    def roles(self) -> dict[str, dict[str, object]]:
        """Return the roles put so far."""
        roles: dict[str, dict[str, object]] = self.document.get("roles", {})
        return roles
