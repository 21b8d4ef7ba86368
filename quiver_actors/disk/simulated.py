"""A disk in memory that knows what is durable: for tests of everything that writes through the disk seam.

Reads show everything that was written. `crash` gives the disk as a power loss (or a killed process) would leave it at this moment;
`crashes` has the rules. Nothing else ever becomes durable than what was synced.

Owner: any thread; each call is atomic. Files hold their bytes in memory; what was only allocated costs nothing.
"""

from __future__ import annotations

import errno
import io
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from random import Random

import xxhash

from quiver_actors.disk.crashes import (
    CrashMode,
    FileChange,
    FileImage,
    NameChange,
    ProtectFile,
    Resize,
    Write,
    apply_change,
    apply_changes,
    apply_names,
    bytes_after_crash,
    changed_size,
    split_synced,
    surviving_names,
)
from quiver_actors.disk.protocol import Buffer
from quiver_actors.errors import DiskError

BLOCK_BYTES = 4096
_UNLIMITED_BYTES = 1 << 50
_ROOT = "."
_UNUSED = Random(0)
"""Where nothing is left to chance."""


class _Directory:
    """Stands for every directory; what is in it follows from the names."""


_DIRECTORY = _Directory()


class _Inode:
    """One file: what the disk holds of it, and what was done to it since its last sync."""

    __slots__ = (
        "_live",
        "_misled",
        "allocated_bytes",
        "durable",
        "is_locked",
        "open_count",
        "pending",
        "read_only",
        "size",
    )

    def __init__(self, image: FileImage) -> None:
        self.durable = image
        self.pending: list[FileChange] = []
        self.size = image.size
        self.read_only = image.read_only
        self.allocated_bytes = _blocks(image.size)
        self.open_count = 0
        self.is_locked = False
        self._live: bytearray | None = None  # only while it may differ from the durable bytes
        self._misled = False

    def change(self, change: FileChange) -> None:
        if self._live is None:
            self._live = bytearray(self.durable.data)
        apply_change(self._live, change)
        self.size = changed_size(self.size, change)
        self.read_only = self.read_only or isinstance(change, ProtectFile)
        self.pending.append(change)

    def sync(self, count: int) -> None:
        """Make the first `count` pending changes durable."""
        self.durable = apply_changes(self.durable, self.pending[:count])
        del self.pending[:count]
        if not self.pending and not self._misled:
            self._live = None

    def forget_pending(self) -> None:
        """The cache takes what was written for clean: readers see it, and no later sync brings it to the disk."""
        self._misled = self._misled or bool(self.pending)
        self.pending.clear()

    def drop_cache(self, length: int, offset: int) -> bool:
        """Let readers of that range see what is durable; the size stays. False where changes wait for a sync."""
        if self.pending:
            return False
        if self._live is not None:
            end = min(offset + length, len(self._live))
            self._live[offset:end] = self.durable.data[offset:end].ljust(max(0, end - offset), b"\0")
        return True

    @property
    def data(self) -> bytes | bytearray:
        return self.durable.data if self._live is None else self._live

    def read(self, length: int, offset: int) -> bytes:
        end = min(offset + length, self.size)
        if len(self.data) <= offset < end:
            return _zeroes(end - offset)
        return bytes(self.data[offset:end]).ljust(max(0, end - offset), b"\0")

    def copy(self) -> _Inode:
        """The same file on another disk, not open."""
        copied = _Inode(self.durable)
        copied.pending = list(self.pending)
        copied.size, copied.read_only, copied.allocated_bytes = self.size, self.read_only, self.allocated_bytes
        copied._live = None if self._live is None else bytearray(self._live)
        copied._misled = self._misled
        return copied


@lru_cache(maxsize=8)
def _zeroes(length: int) -> bytes:
    """What was preallocated and never written, mostly in pieces of a few lengths: always the same object, which equals itself at once."""
    return bytes(length)


def _blocks(size_bytes: int) -> int:
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


class SimFile:
    """One open file. See `protocol.DiskFile`."""

    def __init__(self, disk: SimDisk, inode: _Inode, path: str, *, is_writable: bool) -> None:
        self.path = path
        self._disk = disk
        self._inode = inode
        self._is_writable = is_writable
        self._is_open = True
        self._descriptor = -1

    def _check(self, operation: str, *, writes: bool = False) -> None:
        if not self._is_open or (writes and not self._is_writable):
            raise DiskError(operation, self.path, errno.EBADF)

    def write(self, buffers: Sequence[Buffer], offset: int) -> None:
        with self._disk.mutex:
            self._check("write", writes=True)
            data = b"".join(buffers)
            fitting = self._disk.reserve(self._inode, offset + len(data)) - offset
            if data[:fitting]:
                self._inode.change(Write(offset, data[:fitting]))
            if fitting < len(data):
                raise DiskError("write", self.path, self._disk.no_space_errno)

    def read(self, length: int, offset: int) -> bytes:
        with self._disk.mutex:
            self._check("read")
            return self._inode.read(length, offset)

    def is_cached(self) -> bool:
        return True

    def reread(self, length: int, offset: int) -> bytes | None:
        with self._disk.mutex:
            self._check("read")
            return self._inode.read(length, offset) if self._inode.drop_cache(length, offset) else None

    def allocate(self, size_bytes: int) -> None:
        with self._disk.mutex:
            self._check("fallocate", writes=True)
            before = self._inode.allocated_bytes
            if self._disk.reserve(self._inode, size_bytes) < size_bytes:
                self._inode.allocated_bytes = before
                raise DiskError("fallocate", self.path, self._disk.no_space_errno)
            self._inode.change(Resize(size_bytes, only_grows=True))

    def truncate(self, size_bytes: int) -> None:
        with self._disk.mutex:
            self._check("truncate", writes=True)
            self._inode.change(Resize(size_bytes, only_grows=False))
            self._inode.allocated_bytes = min(self._inode.allocated_bytes, _blocks(size_bytes))

    def fdatasync(self) -> None:
        self._sync("fdatasync")

    def fsync(self) -> None:
        self._sync("fsync")

    def _sync(self, operation: str) -> None:
        with self._disk.mutex:
            self._check(operation)
            covered = len(self._inode.pending)
        self._disk.pause_in_sync()
        with self._disk.mutex:
            self._inode.sync(covered)

    def fail_sync(self) -> None:
        """Do to the file what a sync that fails does on Linux: what was not synced before will never be."""
        with self._disk.mutex:
            self._inode.forget_pending()

    def make_read_only(self) -> None:
        with self._disk.mutex:
            self._check("chmod")
            self._inode.change(ProtectFile())

    def size(self) -> int:
        with self._disk.mutex:
            self._check("stat")
            return self._inode.size

    def fileno(self) -> int:
        """With `shows_descriptors`: of a file in memory with the bytes that can be read now; closed with this file."""
        if not self._disk.shows_descriptors:
            raise io.UnsupportedOperation(f"{self.path} is on a simulated disk: it has no descriptor")
        if self._descriptor < 0:
            self._descriptor = os.memfd_create(self.path.replace("/", "_"), os.MFD_CLOEXEC)
            os.write(self._descriptor, self.read(self.size(), 0))
            os.lseek(self._descriptor, 0, os.SEEK_SET)
        return self._descriptor

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        with self._disk.mutex:
            if self._is_open:
                self._is_open = False
                self._disk.closed(self._inode)


class SimLock:
    def __init__(self, inode: _Inode) -> None:
        self._inode: _Inode | None = inode

    def release(self) -> None:
        inode, self._inode = self._inode, None
        if inode is not None:
            inode.is_locked = False


class SimDisk:
    """See the module, and `protocol.Disk`.

    Args:
        capacity_bytes: blocks that all files together may take, None for no limit.
        no_space_errno: what running out of it is called: ENOSPC or EDQUOT.
        pause_in_sync: called in the middle of each sync of a file, where other threads may write: only what was written before
            the sync began becomes durable by it.
        shows_descriptors: files have one, for who hands them on to other processes.

    A file that was made read-only cannot be opened for writing again, as for any user but root.
    """

    def __init__(
        self,
        *,
        capacity_bytes: int | None = None,
        no_space_errno: int = errno.ENOSPC,
        pause_in_sync: Callable[[], None] = lambda: None,
        shows_descriptors: bool = False,
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.no_space_errno = no_space_errno
        self.pause_in_sync = pause_in_sync
        self.shows_descriptors = shows_descriptors
        self.mutex = threading.RLock()  # the end of a forgotten file comes at any moment, also inside of a call
        self._durable: dict[str, object] = {_ROOT: _DIRECTORY}
        self._pending: list[NameChange] = []
        self._names: dict[str, object] = dict(self._durable)
        self._open_inodes: dict[int, _Inode] = {}

    # --- crashes ---------------------------------------------------------------------------------------------------------

    def crash(self, mode: CrashMode, seed: int = 0) -> SimDisk:
        """The disk as the next process finds it after a crash now. The same arguments give the same disk; this one is left alone.

        Nothing is open or locked on it. After a power loss nothing is pending either; after a mere kill (KEEP) all that was
        pending still is, and the next crash may take it.
        """
        if mode is CrashMode.KEEP:
            return self.copy()
        with self.mutex:
            is_chance = mode is not CrashMode.DROP and self.has_pending
            random = Random(f"{mode.value} {seed}") if is_chance else _UNUSED  # to make one takes longer than the rest
            names = apply_names(self._durable, surviving_names(self._pending, mode, random))
            left = self._like_this()
            kept, files = left._durable, dict[int, _Inode]()
            for path in sorted(names):
                node = names[path]
                if _parent(path) not in kept:  # parents come first
                    continue
                if isinstance(node, _Inode):
                    # One file may have two names.
                    found = files.get(id(node))
                    node = found or files.setdefault(id(node), _crashed(node, mode, random))
                kept[path] = node
        left._names = dict(kept)
        return left

    @property
    def has_pending(self) -> bool:
        """Whether anything of what is to be seen would not survive every crash."""
        with self.mutex:
            return bool(self._pending) or any(node.pending for _, node in self._files())

    def copy(self) -> SimDisk:
        """The same disk at the same moment, with all that is pending, but nothing open or locked."""
        with self.mutex:
            nodes = [*self._durable.values(), *self._names.values()]
            nodes += [node for change in self._pending for _, node in change.names if node is not None]
            distinct = {id(node): node for node in nodes}
            copies = {key: node.copy() if isinstance(node, _Inode) else node for key, node in distinct.items()}
            twin = self._like_this()
            twin._durable = {path: copies[id(node)] for path, node in self._durable.items()}
            twin._names = {path: copies[id(node)] for path, node in self._names.items()}
            twin._pending = [change.mapped(copies) for change in self._pending]
        return twin

    def _like_this(self) -> SimDisk:
        return SimDisk(
            capacity_bytes=self.capacity_bytes,
            no_space_errno=self.no_space_errno,
            shows_descriptors=self.shows_descriptors,
        )

    def contents(self) -> dict[str, bytes]:
        """Every file and its bytes, as a reader sees them now. Trailing zeroes count."""
        with self.mutex:
            return {path: node.read(node.size, 0) for path, node in sorted(self._files())}

    def fingerprint(self) -> int:
        """64 bits that are equal for disks that show the same to a reader, in any process."""
        digest = xxhash.xxh3_64()
        with self.mutex:
            for path in sorted(self._names):
                node = self._names[path]
                digest.update(path.encode())
                if isinstance(node, _Inode):
                    data = node.data
                    if data[-1:] == b"\0":
                        data = data.rstrip(b"\0")
                    digest.update(b"\0%d %d %d\0" % (node.size, node.read_only, len(data)))
                    digest.update(data)
        return digest.intdigest()

    def _files(self) -> Iterator[tuple[str, _Inode]]:
        return ((path, node) for path, node in self._names.items() if isinstance(node, _Inode))

    # --- space -----------------------------------------------------------------------------------------------------------

    @property
    def used_bytes(self) -> int:
        """Blocks of all files that have a name or are open."""
        held = {*self._names.values(), *self._open_inodes.values()}
        return sum([node.allocated_bytes for node in held if isinstance(node, _Inode)])

    def reserve(self, inode: _Inode, size_bytes: int) -> int:
        """Take blocks so that the file holds `[0, size_bytes)`; returns the size up to which it can. For `SimFile`."""
        wanted = _blocks(size_bytes)
        if wanted <= inode.allocated_bytes:
            return size_bytes
        if self.capacity_bytes is not None:
            free = max(0, self.capacity_bytes - self.used_bytes)
            wanted = min(wanted, inode.allocated_bytes + free // BLOCK_BYTES * BLOCK_BYTES)
        inode.allocated_bytes = wanted
        return min(size_bytes, wanted)

    # --- the seam --------------------------------------------------------------------------------------------------------

    def create(self, path: str) -> SimFile:
        with self.mutex:
            if self._node(path) is not None:
                self._check_writable("create", self._inode("create", path), path)
                self._change_names(((path, None),), _parent(path))
            return self._open(self._new_file("create", path), path, is_writable=True)

    def _new_file(self, operation: str, path: str) -> _Inode:
        self._check_parent(operation, path, path)
        inode = _Inode(FileImage())
        self._change_names(((path, inode),), _parent(path))
        return inode

    def open_write(self, path: str) -> SimFile:
        with self.mutex:
            inode = self._inode("open", path)
            self._check_writable("open", inode, path)
            return self._open(inode, path, is_writable=True)

    def open_read(self, path: str) -> SimFile:
        with self.mutex:
            return self._open(self._inode("open", path), path, is_writable=False)

    def _open(self, inode: _Inode, path: str, *, is_writable: bool) -> SimFile:
        inode.open_count += 1
        self._open_inodes[id(inode)] = inode
        return SimFile(self, inode, path, is_writable=is_writable)

    def closed(self, inode: _Inode) -> None:
        """One descriptor less. For `SimFile`."""
        inode.open_count -= 1
        if not inode.open_count:
            del self._open_inodes[id(inode)]

    def rename(self, source: str, target: str) -> None:
        with self.mutex:
            operation, both = "rename", f"{source} to {target}"
            if self._node(source) is None:
                raise DiskError(operation, both, errno.ENOENT)
            self._check_parent(operation, target, both)
            if self._node(source) is _DIRECTORY:
                self._rename_directory(_normal(source), _normal(target), both)
                return
            inode = self._inode(operation, source)
            if self._node(target) is _DIRECTORY:
                raise DiskError(operation, both, errno.EISDIR)
            if source != target:
                self._change_names(((source, None), (target, inode)), _parent(target))

    def _rename_directory(self, source: str, target: str, both: str) -> None:
        """With everything below it, in one step."""
        if self._node(target) is not None:
            raise DiskError("rename", both, errno.EEXIST)
        inside = [(path, node) for path, node in self._names.items() if path == source or path.startswith(source + "/")]
        gone = [(path, None) for path, _ in inside]
        come = [(target + path.removeprefix(source), node) for path, node in inside]
        self._change_names((*gone, *come), _parent(target))

    def link(self, source: str, target: str) -> None:
        with self.mutex:
            operation, both = "link", f"{source} to {target}"
            inode = self._inode(operation, source)
            self._check_parent(operation, target, both)
            if self._node(target) is not None:
                raise DiskError(operation, both, errno.EEXIST)
            self._change_names(((target, inode),), _parent(target))

    def unlink(self, path: str) -> None:
        with self.mutex:
            if self._node(path) is not None:
                self._inode("unlink", path)
                self._change_names(((path, None),), _parent(path))

    def make_directory(self, path: str) -> None:
        with self.mutex:
            missing = [part for part in [*_parents(path), path] if self._node(part) is None]
        for part in missing:
            with self.mutex:
                self._change_names(((part, _DIRECTORY),), _parent(part))
            self.sync_directory(_parent(part))

    def list_directory(self, path: str) -> list[str]:
        with self.mutex:
            node = self._node(path)
            if node is not None and node is not _DIRECTORY:
                raise DiskError("list", path, errno.ENOTDIR)
            inside = "" if (directory := _normal(path)) == _ROOT else directory + "/"
            found = [name[len(inside) :] for name in self._names if name.startswith(inside) and name != _ROOT]
            return sorted(name for name in found if "/" not in name)

    def sync_directory(self, path: str) -> None:
        with self.mutex:
            self._check_directory("fsync", path)
            synced, self._pending = split_synced(self._pending, _normal(path))
            if synced:
                self._durable = apply_names(self._durable, synced)

    def exists(self, path: str) -> bool:
        with self.mutex:
            return self._node(path) is not None

    def is_directory(self, path: str) -> bool:
        """Beside the seam, for tests that look around."""
        with self.mutex:
            return self._node(path) is _DIRECTORY

    def allocated_bytes(self, path: str) -> int:
        with self.mutex:
            node = self._node(path)
            return node.allocated_bytes if isinstance(node, _Inode) else 0

    def free_bytes(self, path: str) -> int:
        with self.mutex:
            self._check_directory("statvfs", path)
            if self.capacity_bytes is None:
                return _UNLIMITED_BYTES
            return max(0, self.capacity_bytes - self.used_bytes)

    def lock(self, path: str) -> SimLock | None:
        with self.mutex:
            if self._node(path) is None:
                self._new_file("lock", path)
            inode = self._inode("lock", path)
            if inode.is_locked:
                return None
            inode.is_locked = True
            return SimLock(inode)

    # --- names -----------------------------------------------------------------------------------------------------------

    def _node(self, path: str) -> object | None:
        return self._names.get(_normal(path))

    def _inode(self, operation: str, path: str) -> _Inode:
        node = self._node(path)
        if isinstance(node, _Inode):
            return node
        raise DiskError(operation, path, errno.ENOENT if node is None else errno.EISDIR)

    def _check_directory(self, operation: str, path: str) -> None:
        node = self._node(path)
        if node is not _DIRECTORY:
            raise DiskError(operation, path, errno.ENOENT if node is None else errno.ENOTDIR)

    def _check_parent(self, operation: str, path: str, shown: str) -> None:
        parent = self._names.get(_parent(path))
        if parent is not _DIRECTORY:
            raise DiskError(operation, shown, errno.ENOENT if parent is None else errno.ENOTDIR)

    def _check_writable(self, operation: str, inode: _Inode, path: str) -> None:
        if inode.read_only:
            raise DiskError(operation, path, errno.EACCES)

    def _change_names(self, names: tuple[tuple[str, object | None], ...], directory: str) -> None:
        change = NameChange(tuple([(_normal(path), node) for path, node in names]), directory)
        for path, node in change.names:
            if node is None:
                self._names.pop(path, None)
            else:
                self._names[path] = node
        self._pending.append(change)


def _crashed(inode: _Inode, mode: CrashMode, random: Random) -> _Inode:
    return _Inode(bytes_after_crash(inode.durable, inode.pending, mode, random))


@lru_cache(maxsize=4096)
def _normal(path: str) -> str:
    return path.strip("/").removeprefix("./") or _ROOT


@lru_cache(maxsize=4096)
def _parent(path: str) -> str:
    """The directory that a name stands in."""
    return _normal(path).rpartition("/")[0] or _ROOT


@lru_cache(maxsize=4096)
def _parents(path: str) -> tuple[str, ...]:
    """All directories above a path, outermost first, without the root."""
    parts = _normal(path).split("/")
    return tuple("/".join(parts[:count]) for count in range(1, len(parts)))
