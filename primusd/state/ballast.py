"""Room kept back on the disk of the state: given up when it is full, so that jobs end in order."""

import os
from pathlib import Path

BALLAST_BYTES = 64 << 20


class Ballast:
    """A file that holds room; without it no new job is taken."""

    def __init__(self, path: Path, *, byte_count: int = BALLAST_BYTES) -> None:
        self._path = path
        self._byte_count = byte_count
        self._is_given_up = False

    @property
    def is_given_up(self) -> bool:
        """Whether the disk was full and there is no room yet to take the ballast again."""
        return self._is_given_up

    def take(self) -> bool:
        """Hold the room, if twice as much is free; return whether it is held."""
        if self._path.exists() and self._path.stat().st_size == self._byte_count:
            self._is_given_up = False
            return True
        space = os.statvfs(self._path.parent)
        if space.f_bavail * space.f_frsize < 2 * self._byte_count:
            return False
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, self._byte_count)
        except OSError:
            self._path.unlink()
            return False
        finally:
            os.close(fd)
        self._is_given_up = False
        return True

    def give_up(self) -> None:
        """Let go of the room; nothing happens where there was none to hold."""
        try:
            self._path.unlink()
        except FileNotFoundError:
            return
        self._is_given_up = True
