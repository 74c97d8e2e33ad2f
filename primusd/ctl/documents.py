"""Reading the documents that come from the API: plain mappings, absent keys included."""

from primusd.ctl.client import Json


def mapping(document: Json, key: str) -> Json:
    """Return a part of a document that is an object; {} where it is absent."""
    value = document.get(key)
    return value if isinstance(value, dict) else {}


def mappings(document: Json, key: str) -> list[Json]:
    """Return the objects of a list in a document."""
    value = document.get(key)
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def text(document: Json, key: str) -> str:
    """Return a text of a document; "" where it is absent."""
    value = document.get(key)
    return "" if value is None else str(value)


def count(document: Json, key: str) -> int | None:
    """Return a count of a document, None where it is absent."""
    value = document.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
