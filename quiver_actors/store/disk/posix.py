"""The real file system behind the disk seam. Opens nothing through a symbolic link below its root."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Sequence

from quiver_actors.base.units import KIB
from quiver_actors.errors import DiskError
from quiver_actors.store.disk.held import HeldFile, lock_for_reader
from quiver_actors.store.disk.links import link_count
from quiver_actors.store.disk.memory import is_in_memory
from quiver_actors.store.disk.protocol import NO_SPACE_ERRNOS, Buffer
from quiver_actors.store.disk.waiting_lock import wait_for_lock
from quiver_actors.store.disk.writeback import start_writeback

_IOVECS_MAX = 1024
_WRITEBACK_BYTES_MIN = 64 * KIB
"""The fewest bytes that are worth a request of their own to the disk: less waits for the next sync (docs/performance.md)."""
_FILE_MODE = 0o640
_LOCK_TRIES = 10
_LOCK_PAUSE_SECONDS = 0.002
_DIRECTORY_MODE = 0o700
_CLOSED = (1 << 31) - 1
"""Stands for the descriptor of a closed file: the kernel never gives it, and so refuses every call with EBADF."""


def _disk_error(operation: str, path: str, error: OSError) -> DiskError:
    return DiskError(operation, path, error.errno or 0)


class PosixFile:
    """One open descriptor. See `protocol.DiskFile`."""

    def __init__(self, descriptor: int, path: str) -> None:
        self._descriptor = descriptor
        self.path = path
        self._is_syncing = False
        """Whether an fdatasync is under way, in another thread."""

    def write(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Write all buffers at `offset` by pwritev, in as many calls as that takes."""
        try:
            for first in range(0, len(buffers), _IOVECS_MAX):
                group = buffers[first : first + _IOVECS_MAX]
                wanted = sum(map(len, group))
                written = os.pwritev(self._descriptor, group, offset)
                if written < wanted:
                    self._write_rest(b"".join(group), written, offset)
                if self._is_syncing and wanted >= _WRITEBACK_BYTES_MIN:
                    # The sync that covers these bytes comes after this one: until then the disk can have them already.
                    start_writeback(self._descriptor, offset, wanted)
                offset += wanted
        except OSError as error:
            raise _disk_error("write", self.path, error) from error

    def _write_rest(self, joined: bytes, written: int, offset: int) -> None:
        """Finish a short write; the kernel says why it stopped at the next call."""
        rest = memoryview(joined)
        while written < len(joined):
            count = os.pwrite(self._descriptor, rest[written:], offset + written)
            if count == 0:
                raise OSError(errno.EIO, "write made no progress")
            written += count

    def read(self, length: int, offset: int) -> bytes:
        """Read by pread until `length` bytes are there or the file ends."""
        try:
            data = os.pread(self._descriptor, length, offset)
            while 0 < len(data) < length:
                more = os.pread(self._descriptor, length - len(data), offset + len(data))
                if not more:
                    break
                data += more
            return data
        except OSError as error:
            raise _disk_error("read", self.path, error) from error

    def is_cached(self) -> bool:
        """Whether the page cache holds any page of the file."""
        return is_in_memory(self._descriptor, self.size(), 0)

    def reread(self, length: int, offset: int) -> bytes | None:
        """Drop the file's clean pages from the page cache and read from the disk; None if pages stay in memory."""
        length = min(length, max(0, self.size() - offset))
        try:
            # The kernel drops the pages that it takes for clean, also where a sync has failed before.
            os.posix_fadvise(self._descriptor, offset, length, os.POSIX_FADV_DONTNEED)
        except OSError as error:
            raise _disk_error("read", self.path, error) from error
        return None if is_in_memory(self._descriptor, length, offset) else self.read(length, offset)

    def allocate(self, size_bytes: int, start: int = 0, *, length_bytes: int = 0) -> None:
        """Reserve blocks by posix_fallocate; a full disk raises DiskError with ENOSPC here."""
        try:
            if length_bytes > os.fstat(self._descriptor).st_size:
                os.ftruncate(self._descriptor, length_bytes)
            # On a file system without fallocate the C library reads and writes bytes of the range: whoever writes there meanwhile loses.
            os.posix_fallocate(self._descriptor, start, size_bytes - start)
        except OSError as error:
            raise _disk_error("fallocate", self.path, error) from error

    def truncate(self, size_bytes: int) -> None:
        """Set the size of the file by ftruncate."""
        try:
            os.ftruncate(self._descriptor, size_bytes)
        except OSError as error:
            raise _disk_error("truncate", self.path, error) from error

    def fdatasync(self) -> None:
        """Make the written bytes durable by fdatasync, beside writes of the owner."""
        self._is_syncing = True
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise _disk_error("fdatasync", self.path, error) from error
        finally:
            self._is_syncing = False

    def fsync(self) -> None:
        """Make the bytes and metadata of the file durable by fsync."""
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise _disk_error("fsync", self.path, error) from error

    def make_read_only(self) -> None:
        """Set mode 0440; a file system without modes, or without room for the change, leaves the mode as it is."""
        try:
            os.fchmod(self._descriptor, 0o440)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, *NO_SPACE_ERRNOS):
                raise _disk_error("chmod", self.path, error) from error

    def size(self) -> int:
        """Return the size of the file from fstat."""
        try:
            return os.fstat(self._descriptor).st_size
        except OSError as error:
            raise _disk_error("stat", self.path, error) from error

    def has_name(self) -> bool:
        """Whether the file's link count is above 0."""
        try:
            return link_count(self._descriptor) > 0
        except OSError as error:
            raise _disk_error("stat", self.path, error) from error

    def reopen(self) -> PosixFile:
        """Open the same file once more through /proc, for reading, whatever its name is now."""
        try:
            # A duplicate would share the position, the access mode and the locks of this one.
            descriptor = os.open(f"/proc/self/fd/{self._descriptor}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise _disk_error("open", self.path, error) from error
        return PosixFile(descriptor, self.path)

    def fileno(self) -> int:
        """Return the descriptor, which the file keeps owning; -1 once it is closed."""
        return self._descriptor if self._descriptor != _CLOSED else -1

    def close(self) -> None:
        """Close the descriptor without a sync. Idempotent."""
        descriptor, self._descriptor = self._descriptor, _CLOSED
        if descriptor != _CLOSED:
            os.close(descriptor)


class PosixLock:
    """An flock on an open file: the kernel drops it when the process ends, however it ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        """Give up the lock by closing its descriptor. Idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class PosixDisk:
    """Files below one root directory, which must exist. See `protocol.Disk`.

    Args:
        directory_mode: the mode of directories that are made.
    """

    def __init__(self, root: str, *, directory_mode: int = _DIRECTORY_MODE) -> None:
        self._directory_mode = directory_mode
        try:
            self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise _disk_error("open", root, error) from error

    def close(self) -> None:
        """Close the descriptor of the root directory; open files stay open. Idempotent."""
        descriptor, self._root = self._root, -1
        if descriptor >= 0:
            os.close(descriptor)

    def create(self, path: str) -> PosixFile:
        """Create an empty file with O_EXCL, after removing a writable file of that name; EACCES for a read-only one."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        try:
            return self._open("create", path, flags)
        except DiskError as error:
            if error.errno != errno.EEXIST:
                raise
        if self._is_read_only(path):
            raise DiskError("create", path, errno.EACCES)
        self.unlink(path)
        return self._open("create", path, flags)

    def _is_read_only(self, path: str) -> bool:
        """Whether the file at the path is read-only: a sealed file is not replaced, not even by root."""
        try:
            mode = os.stat(path, dir_fd=self._root, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return False
        except OSError as error:
            raise _disk_error("create", path, error) from error
        return stat.S_ISREG(mode) and not mode & stat.S_IWUSR

    def open_write(self, path: str) -> PosixFile:
        """Open an existing file for reading and writing, without following a link."""
        return self._open("open", path, os.O_RDWR)

    def open_read(self, path: str) -> PosixFile:
        """Open an existing file for reading, marked as a file that a reader of the own user has."""
        file = self._open("open", path, os.O_RDONLY)
        # It may be deleted meanwhile: whoever reads it here, a command too, is one of the own user's readers.
        lock_for_reader(file.fileno())
        return file

    def _open(self, operation: str, path: str, flags: int) -> PosixFile:
        try:
            descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, _FILE_MODE, dir_fd=self._root)
        except OSError as error:
            raise _disk_error(operation, path, error) from error
        return PosixFile(descriptor, path)

    def rename(self, source: str, target: str) -> None:
        """Give a file another name by renameat; both paths are below the root."""
        try:
            os.rename(source, target, src_dir_fd=self._root, dst_dir_fd=self._root)
        except OSError as error:
            raise _disk_error("rename", f"{source} to {target}", error) from error

    def link(self, source: str, target: str) -> None:
        """Give a file a second name by linkat, without following a link."""
        try:
            os.link(source, target, src_dir_fd=self._root, dst_dir_fd=self._root, follow_symlinks=False)
        except OSError as error:
            raise _disk_error("link", f"{source} to {target}", error) from error

    def unlink(self, path: str) -> None:
        """Remove a name; nothing happens if there is none."""
        try:
            os.unlink(path, dir_fd=self._root)
        except FileNotFoundError:
            return
        except OSError as error:
            raise _disk_error("unlink", path, error) from error

    def make_directory(self, path: str, *, needs_parent: bool = False) -> None:
        """Create a directory and, unless it needs its parent, its missing parents, each made durable in its own parent."""
        parent, _, _ = path.rpartition("/")
        if self.exists(path):
            return
        if parent and not needs_parent:
            self.make_directory(parent)
        try:
            os.mkdir(path, self._directory_mode, dir_fd=self._root)
        except FileExistsError:
            return
        except OSError as error:
            raise _disk_error("mkdir", path, error) from error
        self.sync_directory(parent or ".")

    def list_directory(self, path: str) -> list[str]:
        """Return the sorted names in a directory; empty if the directory is missing."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=self._root)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _disk_error("list", path, error) from error
        try:
            return sorted(os.listdir(descriptor))
        except OSError as error:
            raise _disk_error("list", path, error) from error
        finally:
            os.close(descriptor)

    def sync_directory(self, path: str) -> None:
        """Make the names of a directory durable by fsync."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._root)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise _disk_error("fsync", path, error) from error

    def exists(self, path: str) -> bool:
        """Whether anything has the name; a link counts itself."""
        try:
            os.stat(path, dir_fd=self._root, follow_symlinks=False)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise _disk_error("stat", path, error) from error
        return True

    def file_id(self, path: str) -> tuple[int, int] | None:
        """Return device and inode of what has the name; None if nothing has it."""
        try:
            found = os.stat(path, dir_fd=self._root, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _disk_error("stat", path, error) from error
        return found.st_dev, found.st_ino

    def allocated_bytes(self, path: str) -> int:
        """Return the bytes of the file's blocks; 0 if there is no such file."""
        try:
            return os.stat(path, dir_fd=self._root, follow_symlinks=False).st_blocks * 512
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise _disk_error("stat", path, error) from error

    def keep(self, path: str) -> HeldFile | None:
        """Open a handle on a file that is about to lose its name; None if that is impossible."""
        try:
            return HeldFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=self._root))
        except OSError:
            return None

    def free_bytes(self, path: str) -> int:
        """Return the bytes that this process could still allocate in the directory's file system."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._root)
            try:
                found = os.fstatvfs(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise _disk_error("statvfs", path, error) from error
        return found.f_bavail * found.f_frsize

    def lock(self, path: str, wait_seconds: float = 0.0) -> PosixLock | None:
        """Take an flock on the file, which is created if needed; None if another process holds it for longer than that."""
        file = self._open("lock", path, os.O_RDWR | os.O_CREAT)
        try:
            taken = wait_for_lock(file.fileno(), wait_seconds) if wait_seconds else _lock(file.fileno())
        except OSError as error:
            file.close()
            raise _disk_error("flock", path, error) from error
        if not taken:
            file.close()
            return None
        return PosixLock(file.fileno())


def _lock(descriptor: int) -> bool:
    """Lock it. One failed try proves no holder: whoever only looks whether the lock is free holds it for a moment."""
    for _ in range(_LOCK_TRIES):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(_LOCK_PAUSE_SECONDS)
    return False
