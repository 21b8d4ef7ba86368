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
from quiver_actors.store.disk.held import HeldFile

Buffer = bytes | bytearray | memoryview

NO_SPACE_ERRNOS = frozenset([errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
"""Errors by which the disk says that it has no room, for anybody, for this user, or below RLIMIT_FSIZE: the call may succeed later."""
UNREADABLE_ERRNOS = frozenset([errno.EIO, errno.EBADMSG, errno.EUCLEAN])
"""Errors by which the disk says that it cannot return the bytes of a read, or that they are wrong. Such bytes count as damaged."""


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
        """Read like `read`, but from the disk itself; later reads then give the disk's bytes too. None where that is impossible: bytes of
        the file wait to be written, another process uses them, or the file system keeps its files in memory."""

    def allocate(self, size_bytes: int, start: int = 0, *, length_bytes: int = 0) -> None:
        """Reserve blocks for `[start, size_bytes)`, zero-filled where unwritten; ENOSPC comes here. The file grows to `size_bytes`, or to
        `length_bytes` with a hole at its end. It may run beside writes of the owner below `start`: nothing there is touched."""

    def truncate(self, size_bytes: int) -> None:
        """Set the size of the file; a larger size adds a hole that reads as zeroes."""

    def fdatasync(self) -> None:
        """Make all bytes that were written before, and the size needed to read them, durable on return."""

    def fsync(self) -> None:
        """Make the bytes and all metadata of the file durable on return; its name needs `Disk.sync_directory`."""

    def make_read_only(self) -> None:
        """Set mode 0440 where the file system keeps modes and has room for the change; elsewhere do nothing, without an error."""

    def size(self) -> int:
        """Return the size of the file in bytes."""

    def has_name(self) -> bool:
        """Whether any name leads to the file; without one its bytes are gone when it is closed."""

    def reopen(self) -> DiskFile:
        """Open the same file once more, for reading, whatever its name is now."""

    def fileno(self) -> int:
        """The real descriptor, for mapping and passing on; only on disks that have one."""

    def close(self) -> None:
        """Close the file. Idempotent. Never syncs."""


class DirectoryLock(Protocol):
    """An exclusive lock, held until `release` or until its process ends."""

    def release(self) -> None:
        """Give up the lock. Idempotent."""


class Disk(Protocol):
    """File system calls below one root directory: paths are relative to it, and a path that ends in a link is refused. Each raises
    DiskError, which has the call, the path and the errno."""

    def create(self, path: str) -> DiskFile:
        """Create an empty file for reading and writing. A file that has the name is removed first: its sync may have failed, and nothing is
        written to such a file again. A read-only file stays: EACCES."""

    def open_write(self, path: str) -> DiskFile:
        """Open an existing file for reading and writing; ENOENT if there is none."""

    def open_read(self, path: str) -> DiskFile:
        """Open an existing file for reading; ENOENT if there is none."""

    def rename(self, source: str, target: str) -> None:
        """Give a file another name, in one step; a file that has that name is replaced. Durable after `sync_directory`."""

    def link(self, source: str, target: str) -> None:
        """Give a file a second name. EEXIST where the name is taken: of two callers that want it exactly one succeeds."""

    def unlink(self, path: str) -> None:
        """Remove a name; nothing happens if there is none. Durable after `sync_directory`."""

    def make_directory(self, path: str, *, needs_parent: bool = False) -> None:
        """Create it and its parents where missing, each made durable in its own parent.

        Args:
            needs_parent: create no parent: ENOENT where it is missing.
        """

    def list_directory(self, path: str) -> list[str]:
        """Names in the directory, sorted; empty where the directory is missing."""

    def sync_directory(self, path: str) -> None:
        """Make the names of a directory durable on return."""

    def exists(self, path: str) -> bool:
        """Whether anything has the name; a link counts itself, not its target."""

    def file_id(self, path: str) -> tuple[int, int] | None:
        """Device and inode of the file or directory that has the name now; None where nothing has it. No other file has the same pair as
        long as this one exists."""

    def allocated_bytes(self, path: str) -> int:
        """Bytes of blocks that the file takes, which may be more or less than its size."""

    def keep(self, path: str) -> HeldFile | None:
        """Return a handle on the file at that path, which is about to be unlinked. Later the handle says which users have the file open,
        and can empty it. None if there is no such file, or the disk cannot tell."""

    def free_bytes(self, path: str) -> int:
        """Bytes that this process could still allocate in that directory."""

    def lock(self, path: str, wait_seconds: float = 0.0) -> DirectoryLock | None:
        """Take the exclusive lock of that file (created if needed); None when another process holds it, and has held it for as long."""


def write_atomically(disk: Disk, path: str, content: bytes) -> None:
    """Replace the file at `path` by `content`: `.tmp`, fdatasync, rename. The caller syncs the directory."""
    temporary = path + ".tmp"
    file = disk.create(temporary)
    try:
        file.write([content], 0)
        file.fdatasync()
    except DiskError:
        file.close()
        # Another attempt takes a new file: a file whose sync has failed is not to be trusted.
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
