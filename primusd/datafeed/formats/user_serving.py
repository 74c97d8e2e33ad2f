"""The inside of a process that runs code of the user's: it answers through pipes until they end."""

import ctypes
import importlib
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from primusd.datafeed.formats.user_process import LENGTH_BYTES

PR_SET_PDEATHSIG = 1
TEXT_CHARS_MAX = 600
_LOADING = ("<frozen importlib", importlib.__file__, str(Path(__file__).parent))


def serve(answer: Callable[[bytes, bytes, BinaryIO], None]) -> None:
    """Answer requests until there are no more.

    Args:
        answer: Is given a request's head and body, and where answers go (`send`).
    """
    # With its reader this process has nothing to live for.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    _bound(int(sys.argv[1]))
    # What the user's code prints must not end up among the answers.
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    requests = os.fdopen(os.dup(0), "rb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    while lengths := requests.read(2 * LENGTH_BYTES):
        head = requests.read(int.from_bytes(lengths[:LENGTH_BYTES], "little"))
        body = requests.read(int.from_bytes(lengths[LENGTH_BYTES:], "little"))
        answer(head, body, answers)


def _bound(memory_bytes: int) -> None:
    """Let allocations beyond a bound fail, with an error that can be told."""
    if memory_bytes:
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))


def send(out: BinaryIO, head: bytes, batch: pa.RecordBatch | None = None) -> None:
    """Send an answer, and rows with it."""
    body = memoryview(b"")
    if batch is not None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        body = memoryview(sink.getvalue())
    lengths = len(head).to_bytes(LENGTH_BYTES, "little")
    lengths += len(body).to_bytes(LENGTH_BYTES, "little")
    for view in (memoryview(lengths + head), body):
        left = view
        while left:
            left = left[out.write(left) :]


def load(name: str, folder: str) -> Any:
    """Return what `module:name` names: of the user's folder, else of this Python."""
    if folder and folder not in sys.path:
        sys.path.insert(0, folder)
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def told(error: BaseException) -> str:
    """Return the last lines of a traceback, in one: of the user's files, not of what loads them."""
    frames = [
        one
        for one in traceback.extract_tb(error.__traceback__)
        if not one.filename.startswith(_LOADING)
    ]
    lines = [*traceback.format_list(frames[-3:]), *traceback.format_exception_only(error)]
    return "".join(lines).strip().replace("\n", "; ")[-TEXT_CHARS_MAX:]
