"""The calls that the journal and the data directory make on the file system: the seam at which tests inject faults.

All paths are absolute; every call may raise OSError. DuckDB's own files are written by DuckDB and do not pass here,
but what publishes and removes them (fsync, rename, unlink) does.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Sequence

MODE = 0o640  # of every file of the log, less what the process's umask takes
FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
"""The errors by which a file system refuses a write for want of room, or of the process's share of it."""
NO_DESCRIPTOR = frozenset((errno.EMFILE, errno.ENFILE))
"""The errors by which a file is not opened because the process, or the system, has too many open."""


def _full_sync(fd: int) -> None:
    fcntl.fcntl(fd, getattr(fcntl, "F_FULLFSYNC"))  # noqa: B009 - not every platform's module has it


# On macOS fsync leaves the bytes in the drive's cache; there F_FULLFSYNC is what the others' fsync is.
_sync = _full_sync if hasattr(fcntl, "F_FULLFSYNC") else os.fsync
_sync_data = _full_sync if hasattr(fcntl, "F_FULLFSYNC") else getattr(os, "fdatasync", os.fsync)


class FileOps:
    """The real file system."""

    def create(self, path: str) -> int:
        """Create a file that must not exist yet; its descriptor, open for reading and writing."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE)

    def open(self, path: str) -> int:
        """Open a file for reading and writing; it is created empty if it is not there."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, MODE)

    def close(self, fd: int) -> None:
        os.close(fd)

    def write(self, fd: int, parts: Sequence[bytes], offset: int) -> int:
        """Write the parts one behind the other with a single system call; how many bytes were taken."""
        return os.pwritev(fd, parts, offset)

    def allocate(self, fd: int, offset: int, length: int) -> bool:
        """Make room, as zeros, in `offset`..`offset + length`; False when this platform cannot."""
        allocate = getattr(os, "posix_fallocate", None)
        if allocate is None:
            return False
        try:
            allocate(fd, offset, length)
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                return False
            raise
        return True

    def truncate(self, fd: int, length: int) -> None:
        os.ftruncate(fd, length)

    def restrict(self, path: str) -> None:
        """Take from a file that someone else made what `create` and `open` do not give: it is as private as theirs."""
        os.chmod(path, os.stat(path).st_mode & MODE)

    def sync_data(self, fd: int) -> None:
        """Make what was written to the file durable, with the metadata that reading it back needs."""
        _sync_data(fd)

    def sync(self, fd: int) -> None:
        """Make the file durable with all its metadata."""
        _sync(fd)

    def rename(self, source: str, target: str) -> None:
        """Give the file its name, replacing what had that name."""
        os.replace(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def sync_directory(self, path: str) -> None:
        """Make creations, renames and removals in the directory durable."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _sync(fd)
        finally:
            os.close(fd)

    def sync_file(self, path: str) -> None:
        """Make a file that someone else wrote durable."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _sync(fd)
        finally:
            os.close(fd)
