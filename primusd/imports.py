"""Import all that a process needs in two thirds of the time that it would take by itself."""

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

NOWHERE = "/dev/null"
GARBAGE_THRESHOLDS = (10_000, 20, 20)
"""Of a daemon: frozen values make no cycles, and looking for some took a sixth of a busy one."""
AUTHORITIES = ("SSL_CERT_FILE", "SSL_CERT_DIR")


@contextmanager
def quick_imports() -> Iterator[None]:
    """Spare the imports in the block what costs time and is of no use to us.

    Nothing that modules make as they are read is garbage, so none is looked for, then or later.
    """
    gc.disable()
    _import_structlog()
    _import_aiohttp()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _import_structlog() -> None:
    """It would load rich, for tracebacks with all local variables: no secret is to be logged."""
    if "rich" in sys.modules:
        return
    sys.modules["rich"] = None  # type: ignore[assignment]  # what is None cannot be imported
    import structlog  # noqa: F401, PLC0415 - only now.

    del sys.modules["rich"]


def _import_aiohttp() -> None:
    """It would read every certificate authority of this host; who dials by TLS reads them then."""
    before = {name: os.environ.get(name) for name in AUTHORITIES}
    os.environ.update(dict.fromkeys(AUTHORITIES, NOWHERE))
    import aiohttp  # noqa: F401, PLC0415 - only now.

    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value
