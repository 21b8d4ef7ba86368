"""The one seam to the file system: what a disk offers and what survives a crash after each call.

Everything durable goes through a `Disk`; no other module calls fsync, rename or unlink. Paths are relative to the disk's
root, with `/` between parts. Every failing call raises `DiskError` with the call, the path and the errno.

What may be assumed after a power loss:
- bytes of a file: only those written before the last `fdatasync` or `fsync` of that file that returned;
- a name (created, linked, renamed, unlinked): only after `sync_directory` of its directory returned;
- a rename over an existing name is atomic: one of the two files has the name, never none.
After a process is killed, everything that was written is there: the kernel has it.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Sequence
from typing import Protocol

from quiver_actors.errors import DiskError

Buffer = bytes | bytearray | memoryview

NO_SPACE_ERRNOS = frozenset([errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
"""There is no room, on the disk, for the user, or below RLIMIT_FSIZE: the same call may succeed later."""
UNREADABLE_ERRNOS = frozenset([errno.EIO, errno.EBADMSG, errno.EUCLEAN])
"""Of a read: the disk does not give these bytes back, or knows that they are wrong. They count as damaged."""


class DiskFile(Protocol):
    """One open file. Owned by one thread at a time; `fdatasync` may run beside writes of the owner."""

    path: str

    def write(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Write all buffers one after another at `offset`, however many calls that takes."""

    def read(self, length: int, offset: int) -> bytes:
        """Read up to `length` bytes; fewer only at the end of the file."""

    def is_cached(self) -> bool:
        """Whether memory holds anything of the file, so that a read may show what the disk never got."""

    def reread(self, length: int, offset: int) -> bytes | None:
        """As `read`, but from the disk itself, and so for all reads that follow. None where that is impossible: bytes of it wait to be
        written, somebody else uses them, or the file system is one that keeps files in memory."""

    def allocate(self, size_bytes: int) -> None:
        """Reserve blocks for `[0, size_bytes)`, zero-filled where unwritten, growing the file to it; ENOSPC comes here."""

    def truncate(self, size_bytes: int) -> None: ...

    def fdatasync(self) -> None: ...

    def fsync(self) -> None: ...

    def make_read_only(self) -> None:
        """Mode 0440 where the file system keeps modes and has room for it; silently nothing where not."""

    def size(self) -> int: ...

    def fileno(self) -> int:
        """The real descriptor, for mapping and passing on; only on disks that have one."""

    def close(self) -> None:
        """Idempotent. Never syncs."""


class DirectoryLock(Protocol):
    """Held until it is released or its process is gone."""

    def release(self) -> None: ...


class Disk(Protocol):
    """The calls to a file system, below one root: paths are relative to it, and one that ends in a link is refused. Each raises
    DiskError, which has the call, the path and the errno."""

    def create(self, path: str) -> DiskFile:
        """A new, empty file for reading and writing. One that has the name goes first: its sync may have failed, and nothing is written to
        such a file again. A read-only one stays: EACCES."""

    def open_write(self, path: str) -> DiskFile: ...

    def open_read(self, path: str) -> DiskFile: ...

    def rename(self, source: str, target: str) -> None: ...

    def link(self, source: str, target: str) -> None:
        """Give a file a second name. EEXIST where the name is taken: of two that want it exactly one succeeds."""

    def unlink(self, path: str) -> None: ...

    def make_directory(self, path: str) -> None:
        """Create it and its parents where missing, each made durable in its own parent."""

    def list_directory(self, path: str) -> list[str]:
        """Names in it, sorted; empty where the directory is missing."""

    def sync_directory(self, path: str) -> None: ...

    def exists(self, path: str) -> bool: ...

    def allocated_bytes(self, path: str) -> int:
        """Bytes of blocks that the file takes, which may be more or less than its size."""

    def free_bytes(self, path: str) -> int:
        """Bytes that this process could still allocate in that directory."""

    def lock(self, path: str) -> DirectoryLock | None:
        """Take the exclusive lock of that file (created if needed); None when another process holds it."""


def write_atomically(disk: Disk, path: str, content: bytes) -> None:
    """Replace the file at `path` by `content`: `.tmp`, fdatasync, rename. The caller syncs the directory."""
    temporary = path + ".tmp"
    file = disk.create(temporary)
    try:
        file.write([content], 0)
        file.fdatasync()
    except DiskError:
        file.close()
        # Tried again, it is tried with another file: one whose sync has failed is not to be trusted.
        with contextlib.suppress(DiskError):
            disk.unlink(temporary)
        raise
    file.close()
    disk.rename(temporary, path)


def read_whole(disk: Disk, path: str, size_bytes_max: int) -> bytes:
    """The file's content, at most `size_bytes_max` bytes of it."""
    file = disk.open_read(path)
    try:
        return file.read(min(file.size(), size_bytes_max), 0)
    finally:
        file.close()
