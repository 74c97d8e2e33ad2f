"""Loads pyarrow so that it keeps little of what was freed.

Its usual allocator held up to five times what was in use, which no bound of ours can see. Which one
it decodes with follows from its environment when it is loaded, and from nothing later.
"""

import contextlib
import ctypes
import os
import sys

POOL, SETTINGS = "ARROW_DEFAULT_MEMORY_POOL", "JE_ARROW_MALLOC_CONF"
LEAN = "narenas:1"
"""One arena for all threads: each keeps what was freed in it, and pages are freed by any thread."""
TIGHT = "narenas:1,dirty_decay_ms:0,muzzy_decay_ms:0"
M_MMAP_THRESHOLD, MAPPED_BYTES = -3, 128 << 10
TIGHT_BYTES = 64 << 20
"""Of memory; below, what an allocator keeps for a second would be a large part."""


def load_lean(memory_bytes: int) -> None:
    """Load pyarrow, all of it with the lean allocator unless the environment says which.

    Where it was loaded before, only what it decodes into can be changed.

    Args:
        memory_bytes: Of the first reader in this process. Where that is little, what was freed goes
            back to the system at once, which takes time: memory is cleared before it is used.
    """
    said = {}
    if "pyarrow" not in sys.modules and not {POOL, SETTINGS} & os.environ.keys():
        said = {POOL: "jemalloc", SETTINGS: TIGHT if memory_bytes < TIGHT_BYTES else LEAN}
    for name, value in said.items():
        # Not by `os.environ`: trainers are started with that meanwhile.
        os.putenv(name, value)
    import pyarrow as pa  # noqa: PLC0415 starts threads

    with contextlib.suppress(NotImplementedError):
        pa.set_memory_pool(pa.jemalloc_memory_pool())
    for name in said:
        os.unsetenv(name)
    if said and memory_bytes < TIGHT_BYTES:
        _trim_bytes()


def _trim_bytes() -> None:
    """Let large `bytes` go back to the system once they are freed; glibc keeps them by and by."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)
