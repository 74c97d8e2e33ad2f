"""DNS labels, which the names of jobs, roles and streams are."""

import re
import unicodedata

LABEL_MAX = 63
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", re.ASCII)


def is_label(text: str) -> bool:
    """Return whether the text is a DNS label by its characters; its length is not looked at."""
    return _LABEL.fullmatch(text) is not None


def nearest_label(text: str) -> str:
    """Return the nearest DNS label of a text, at most 63 characters; "" when nothing is left."""
    bare = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    simple = re.sub(r"[^a-z0-9]+", "-", bare.lower()).strip("-")
    return simple[:LABEL_MAX].rstrip("-")
