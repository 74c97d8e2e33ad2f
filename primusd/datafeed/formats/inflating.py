"""Compressed files decompressed as they are read, with a bound on what that takes of memory."""

import io
import lzma
from typing import Any, Protocol

import pyarrow as pa
import zstandard

from primusd.datafeed.formats.base import OpenFile
from primusd.errors import PrimusdError

READ_BYTES = 64 << 10
ZSTD_HEADER_BYTES = 18
"""The longest header of a frame."""
KEPT_BYTES = {"gz": 1 << 20, "bz2": 5 << 20, "lz4": 9 << 20, "zst": 1 << 20, "xz": 66 << 20}
"""What decompressing takes at most; zst has its window too."""
CODECS = {"gz": "gzip", "bz2": "bz2", "zst": "zstd", "lz4": "lz4"}
"""As pyarrow calls them."""


class WindowError(PrimusdError):
    """A file whose compression looks further back than memory allows."""

    code = "WindowTooLarge"


class Inflating(Protocol):
    """A file that is decompressed as it is read."""

    def read(self, byte_count: int) -> bytes:
        """Return some of the next bytes, at most so many; none at its end."""
        ...


def inflating(file: OpenFile, compression: str, *, memory_bytes: int) -> Inflating:
    """Return a file decompressed as it is read.

    Args:
        file: The compressed one.
        compression: One of `job.formats.COMPRESSIONS`.
        memory_bytes: Half of it is what the decompressor may look back.

    Raises:
        WindowError: It looks further back; of xz that is told by the first read.
    """
    if compression == "xz":
        return _Xz(file, memory_bytes // 2)
    if compression == "zst":
        _check_window(file.pread(0, ZSTD_HEADER_BYTES), memory_bytes // 2)
    # Any: the stubs know the codecs by name only.
    codec: Any = CODECS[compression]
    stream: Inflating = pa.CompressedInputStream(file.arrow(), codec)
    return stream


def kept_bytes(file: OpenFile, compression: str, *, memory_bytes: int) -> int:
    """Return what decompressing a file keeps of memory."""
    found = KEPT_BYTES[compression]
    if compression == "zst":
        found += _window_bytes(file.pread(0, ZSTD_HEADER_BYTES))
    return min(found, memory_bytes // 2)


def _window_bytes(head: bytes) -> int:
    try:
        return zstandard.get_frame_parameters(head).window_size
    except zstandard.ZstdError:
        # Whoever reads it says what is wrong.
        return 0


def _check_window(head: bytes, most: int) -> None:
    found = _window_bytes(head)
    if found > most:
        raise _too_far(found)


def _too_far(window_bytes: int) -> WindowError:
    return WindowError(
        f"it was compressed with a window of {window_bytes >> 20} MiB, and half of memory may be "
        f"looked back; set memory to {2 * window_bytes >> 20}Mi"
    )


class _Xz:
    """One xz stream after the other, as `xz` itself reads a file."""

    def __init__(self, file: OpenFile, most: int) -> None:
        self._file = file
        self._most = most
        self._at = 0
        self._decompressor = self._fresh()

    def read(self, byte_count: int) -> bytes:
        """Return some of the next bytes.

        Raises:
            EOFError: The file was cut off.
            LZMAError: It is damaged.
            WindowError: It looks back further than memory allows.
        """
        while True:
            data = b""
            if self._decompressor.eof:
                # Zeros may pad one stream from the next.
                data = (self._decompressor.unused_data or self._more()).lstrip(b"\0")
                if not data and self._at >= self._file.size:
                    return b""
                if data:
                    self._decompressor = self._fresh()
            elif self._decompressor.needs_input:
                data = self._more()
                if not data:
                    raise EOFError("it was cut off")
            if found := self._decompressed(data, byte_count):
                return found

    def _decompressed(self, data: bytes, byte_count: int) -> bytes:
        if self._decompressor.eof:
            return b""
        try:
            return self._decompressor.decompress(data, byte_count)
        except lzma.LZMAError as error:
            if "Memory usage limit" in str(error):
                raise WindowError(
                    f"decompressing it takes more than {self._most >> 20} MiB, half of memory; "
                    "xz -9 needs memory: 160Mi"
                ) from error
            raise

    def _more(self) -> bytes:
        data = self._file.pread(self._at, READ_BYTES)
        self._at += len(data)
        return data

    def _fresh(self) -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(lzma.FORMAT_AUTO, memlimit=self._most)


class Readable(io.RawIOBase):
    """The same as Python's files are."""

    def __init__(self, stream: Inflating) -> None:
        super().__init__()
        self._stream = stream

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:  # any writable buffer, as its base has it
        """Read some bytes."""
        data = self._stream.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)
