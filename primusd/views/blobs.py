"""Where a shipped file lies: by its content."""

import re
from pathlib import Path

from primusd.errors import MalformedError

_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")


def blob_path(folder: Path, digest: str) -> Path:
    """Return the file that holds a content.

    Raises:
        MalformedError: The digest has another form.
    """
    match = _DIGEST.fullmatch(digest)
    if match is None:
        raise MalformedError(
            f"{digest[:80]!r} is no digest", hint="sha256: and 64 hexadecimal digits"
        )
    return folder / "sha256" / match[1]
