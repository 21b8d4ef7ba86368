"""The real file system behind the disk seam. Opens nothing through a symbolic link below its root."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Sequence

from quiver_actors.disk.memory import is_in_memory
from quiver_actors.disk.protocol import NO_SPACE_ERRNOS, Buffer
from quiver_actors.disk.writeback import start_writeback
from quiver_actors.errors import DiskError
from quiver_actors.units import KIB

_IOVECS_MAX = 1024
_WRITEBACK_BYTES_MIN = 64 * KIB
"""Less is not worth a request of its own to the disk: what comes until the next sync goes with it (docs/performance.md)."""
_FILE_MODE = 0o640
_DIRECTORY_MODE = 0o700


def _disk_error(operation: str, path: str, error: OSError) -> DiskError:
    return DiskError(operation, path, error.errno or 0)


class PosixFile:
    """One open descriptor. See `protocol.DiskFile`."""

    def __init__(self, descriptor: int, path: str) -> None:
        self._descriptor = descriptor
        self.path = path
        self._is_syncing = False
        """An fdatasync is under way, in another thread."""

    def write(self, buffers: Sequence[Buffer], offset: int) -> None:
        try:
            for first in range(0, len(buffers), _IOVECS_MAX):
                offset = self._write_group(buffers[first : first + _IOVECS_MAX], offset)
        except OSError as error:
            raise _disk_error("write", self.path, error) from error

    def _write_group(self, buffers: Sequence[Buffer], offset: int) -> int:
        wanted = sum(map(len, buffers))
        written = os.pwritev(self._descriptor, buffers, offset)
        if written < wanted:
            self._write_rest(b"".join(buffers), written, offset)
        if self._is_syncing and wanted >= _WRITEBACK_BYTES_MIN:
            # The sync that covers these bytes comes after this one: until then the disk can have them already.
            start_writeback(self._descriptor, offset, wanted)
        return offset + wanted

    def _write_rest(self, joined: bytes, written: int, offset: int) -> None:
        """Finish a short write; the kernel says why it stopped at the next call."""
        rest = memoryview(joined)
        while written < len(joined):
            count = os.pwrite(self._descriptor, rest[written:], offset + written)
            if count == 0:
                raise OSError(errno.EIO, "write made no progress")
            written += count

    def read(self, length: int, offset: int) -> bytes:
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
        return is_in_memory(self._descriptor, self.size(), 0)

    def reread(self, length: int, offset: int) -> bytes | None:
        length = min(length, max(0, self.size() - offset))
        try:
            # What is taken for clean is let go of, also where a sync has failed before.
            os.posix_fadvise(self._open_descriptor(), offset, length, os.POSIX_FADV_DONTNEED)
        except OSError as error:
            raise _disk_error("read", self.path, error) from error
        return None if is_in_memory(self._descriptor, length, offset) else self.read(length, offset)

    def allocate(self, size_bytes: int) -> None:
        try:
            os.posix_fallocate(self._descriptor, 0, size_bytes)
        except OSError as error:
            raise _disk_error("fallocate", self.path, error) from error

    def truncate(self, size_bytes: int) -> None:
        try:
            os.ftruncate(self._descriptor, size_bytes)
        except OSError as error:
            raise _disk_error("truncate", self.path, error) from error

    def fdatasync(self) -> None:
        self._is_syncing = True
        try:
            os.fdatasync(self._open_descriptor())
        except OSError as error:
            raise _disk_error("fdatasync", self.path, error) from error
        finally:
            self._is_syncing = False

    def fsync(self) -> None:
        try:
            os.fsync(self._open_descriptor())
        except OSError as error:
            raise _disk_error("fsync", self.path, error) from error

    def _open_descriptor(self) -> int:
        """What these calls need for an EBADF: a negative number is a ValueError to them."""
        if self._descriptor < 0:
            raise OSError(errno.EBADF, "the file is closed")
        return self._descriptor

    def make_read_only(self) -> None:
        try:
            os.fchmod(self._descriptor, 0o440)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, *NO_SPACE_ERRNOS):
                raise _disk_error("chmod", self.path, error) from error

    def size(self) -> int:
        try:
            return os.fstat(self._descriptor).st_size
        except OSError as error:
            raise _disk_error("stat", self.path, error) from error

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class PosixLock:
    """An flock on an open file: the kernel drops it when the process ends, however it ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class PosixDisk:
    """Files below one root directory, which must exist. See `protocol.Disk`.

    Args:
        directory_mode: of directories that are made.
    """

    def __init__(self, root: str, *, directory_mode: int = _DIRECTORY_MODE) -> None:
        self._directory_mode = directory_mode
        try:
            self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise _disk_error("open", root, error) from error

    def close(self) -> None:
        descriptor, self._root = self._root, -1
        if descriptor >= 0:
            os.close(descriptor)

    def create(self, path: str) -> PosixFile:
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
        """What was sealed is not replaced, not even by root."""
        try:
            mode = os.stat(path, dir_fd=self._root, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return False
        except OSError as error:
            raise _disk_error("create", path, error) from error
        return stat.S_ISREG(mode) and not mode & stat.S_IWUSR

    def open_write(self, path: str) -> PosixFile:
        return self._open("open", path, os.O_RDWR)

    def open_read(self, path: str) -> PosixFile:
        return self._open("open", path, os.O_RDONLY)

    def _open(self, operation: str, path: str, flags: int) -> PosixFile:
        try:
            descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, _FILE_MODE, dir_fd=self._root)
        except OSError as error:
            raise _disk_error(operation, path, error) from error
        return PosixFile(descriptor, path)

    def rename(self, source: str, target: str) -> None:
        try:
            os.rename(source, target, src_dir_fd=self._root, dst_dir_fd=self._root)
        except OSError as error:
            raise _disk_error("rename", f"{source} to {target}", error) from error

    def link(self, source: str, target: str) -> None:
        try:
            os.link(source, target, src_dir_fd=self._root, dst_dir_fd=self._root, follow_symlinks=False)
        except OSError as error:
            raise _disk_error("link", f"{source} to {target}", error) from error

    def unlink(self, path: str) -> None:
        try:
            os.unlink(path, dir_fd=self._root)
        except FileNotFoundError:
            return
        except OSError as error:
            raise _disk_error("unlink", path, error) from error

    def make_directory(self, path: str) -> None:
        parent, _, _ = path.rpartition("/")
        if self.exists(path):
            return
        if parent:
            self.make_directory(parent)
        try:
            os.mkdir(path, self._directory_mode, dir_fd=self._root)
        except FileExistsError:
            return
        except OSError as error:
            raise _disk_error("mkdir", path, error) from error
        self.sync_directory(parent or ".")

    def list_directory(self, path: str) -> list[str]:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=self._root)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _disk_error("list", path, error) from error
        try:
            return sorted(os.listdir(descriptor))
        finally:
            os.close(descriptor)

    def sync_directory(self, path: str) -> None:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._root)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise _disk_error("fsync", path, error) from error

    def exists(self, path: str) -> bool:
        try:
            os.stat(path, dir_fd=self._root, follow_symlinks=False)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise _disk_error("stat", path, error) from error
        return True

    def allocated_bytes(self, path: str) -> int:
        try:
            return os.stat(path, dir_fd=self._root, follow_symlinks=False).st_blocks * 512
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise _disk_error("stat", path, error) from error

    def free_bytes(self, path: str) -> int:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._root)
            try:
                found = os.fstatvfs(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise _disk_error("statvfs", path, error) from error
        return found.f_bavail * found.f_frsize

    def lock(self, path: str) -> PosixLock | None:
        file = self._open("lock", path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        except OSError as error:
            file.close()
            raise _disk_error("flock", path, error) from error
        return PosixLock(file.fileno())
