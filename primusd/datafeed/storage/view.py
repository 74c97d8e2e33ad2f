"""A file object with a place of its own, for decoders that read and seek."""

import io

from primusd.datafeed.storage.base import OpenFile


class FileView(io.RawIOBase):
    """What pyarrow reads where it cannot have a descriptor."""

    def __init__(self, file: OpenFile) -> None:
        self._file = file
        self._at = 0

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def seekable(self) -> bool:
        """Say that any place in it can be read."""
        return True

    def tell(self) -> int:
        """Return its place."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """Return the next bytes, all that are left by default."""
        count = self._file.size - self._at if size is None or size < 0 else size
        data = self._file.pread(self._at, count)
        self._at += len(data)
        return data

    def readall(self) -> bytes:
        """Return all that is left."""
        return self.read()
