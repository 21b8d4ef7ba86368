"""The files of a simulated disk: what each holds, what of that is durable, who has it open or locked."""

from __future__ import annotations

import errno
import io
import itertools
import os
from collections.abc import Sequence
from functools import lru_cache
from random import Random
from typing import TYPE_CHECKING

from quiver_actors.errors import DiskError
from quiver_actors.store.disk.held import HeldFile, Holder
from quiver_actors.store.disk.protocol import Buffer
from tests.disks.crashes import (
    CrashMode,
    FileChange,
    FileImage,
    ProtectFile,
    Resize,
    Write,
    apply_change,
    apply_changes,
    bytes_after_crash,
    changed_size,
)
from tests.disks.shown_file import ShownFile

if TYPE_CHECKING:
    from tests.disks.simulated import SimDisk

BLOCK_BYTES = 4096


IDS = itertools.count(1)


class Directory:
    """One directory; what is in it follows from the names."""

    __slots__ = ("id",)

    def __init__(self) -> None:
        self.id = next(IDS)


class Inode:
    """One file: what the disk holds of it, and what was done to it since its last sync."""

    __slots__ = (
        "_live",
        "_misled",
        "_shown",
        "allocated_bytes",
        "durable",
        "guests",
        "id",
        "is_locked",
        "open_count",
        "pending",
        "read_only",
        "size",
    )

    def __init__(self, image: FileImage) -> None:
        self.id = next(IDS)
        self.durable = image
        self.pending: list[FileChange] = []
        self.size = image.size
        self.read_only = image.read_only
        self.allocated_bytes = blocks_of(image.size)
        self.open_count = 0
        self.is_locked = False
        self.guests: set[object] = set()
        """Those of other users who have it open, whatever becomes of the node's processes."""
        self._live: bytearray | None = None  # only while it may differ from the durable bytes
        self._misled = False
        self._shown: ShownFile | None = None

    def change(self, change: FileChange) -> None:
        if self._shown is not None:
            self._shown.change(change)
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
            return zeroes(end - offset)
        return bytes(self.data[offset:end]).ljust(max(0, end - offset), b"\0")

    def flip_bit(self, offset: int, bit: int) -> None:
        """A bit of what is durable becomes the other one, for everybody who looks: readers of the disk, and mappings of descriptors."""
        damaged = bytearray(self.durable.data)
        damaged[offset] ^= 1 << bit
        self.durable = self.durable._replace(data=bytes(damaged))
        if self._live is not None:
            self._live[offset] ^= 1 << bit
        if self._shown is not None:
            self._shown.write(self.read(1, offset), offset)

    def open_shown(self, name: str) -> int:
        """A new descriptor of a file in memory that shows this one, also when a bit of it flips later."""
        if self._shown is None:
            self._shown = ShownFile(name, self.read(self.size, 0))
        return self._shown.open()

    def is_shown_by(self, descriptor: int) -> bool:
        return self._shown is not None and self._shown.is_same(descriptor)

    @property
    def has_reader(self) -> bool:
        """Whether a process of the own user, not the node's, has it open or mapped."""
        return self._shown is not None and self._shown.is_locked

    def empty(self) -> None:
        """Free its blocks, under everybody who has it open or mapped: they read zeroes."""
        shown = self._shown
        if shown is not None:
            shown.write(bytes(self.size), 0)
        self.change(Write(0, bytes(self.size)))
        self._shown, self.allocated_bytes = shown, 0

    def copy(self, *, outlives: bool) -> Inode:
        """Return the same file on another disk, not open.

        Args:
            outlives: it is the disk of the same machine: those of other processes who have the file have it there too.
        """
        copied = Inode(self.durable)
        copied.pending = list(self.pending)
        copied.size, copied.read_only, copied.allocated_bytes = self.size, self.read_only, self.allocated_bytes
        copied._live = None if self._live is None else bytearray(self._live)
        copied._misled = self._misled
        if outlives:
            copied.guests, copied._shown = self.guests, self._shown
        return copied


@lru_cache(maxsize=8)
def zeroes(length: int) -> bytes:
    """What was preallocated and never written, mostly in pieces of a few lengths: always the same object, which equals itself at once."""
    return bytes(length)


def blocks_of(size_bytes: int) -> int:
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


class SimFile:
    """One open file. See `protocol.DiskFile`."""

    def __init__(self, disk: SimDisk, inode: Inode, path: str, *, is_writable: bool) -> None:
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

    def allocate(self, size_bytes: int, start: int = 0, *, length_bytes: int = 0) -> None:
        with self._disk.mutex:
            self._check("fallocate", writes=True)
            before = self._inode.allocated_bytes
            if self._disk.reserve(self._inode, size_bytes) < size_bytes:
                self._inode.allocated_bytes = before
                raise DiskError("fallocate", self.path, self._disk.no_space_errno)
            self._inode.change(Resize(max(size_bytes, length_bytes), only_grows=True))

    def truncate(self, size_bytes: int) -> None:
        with self._disk.mutex:
            self._check("truncate", writes=True)
            self._inode.change(Resize(size_bytes, only_grows=False))
            self._inode.allocated_bytes = min(self._inode.allocated_bytes, blocks_of(size_bytes))

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

    def has_name(self) -> bool:
        with self._disk.mutex:
            self._check("stat")
            return self._disk.is_named(self._inode)

    def reopen(self) -> SimFile:
        with self._disk.mutex:
            self._check("open")
            return self._disk.opened(self._inode, self.path, is_writable=False)

    def fileno(self) -> int:
        """Return, with `shows_descriptors`, a descriptor of a memory file with the bytes readable now; it is closed with this file."""
        if not self._disk.shows_descriptors:
            raise io.UnsupportedOperation(f"{self.path} is on a simulated disk: it has no descriptor")
        if self._descriptor < 0:
            with self._disk.mutex:
                self._descriptor = self._inode.open_shown(self.path.replace("/", "_"))
        return self._descriptor

    def __del__(self) -> None:
        # A process that is killed closes nothing; the kernel does.
        self._hide()

    def _hide(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def close(self) -> None:
        self._hide()
        with self._disk.mutex:
            if self._is_open:
                self._is_open = False
                self._disk.closed(self._inode)


class SimHeldFile(HeldFile):
    """What a worker keeps of a file that loses its name. The own user's readers count only beside guests: what they have is in memory."""

    def __init__(self, disk: SimDisk, inode: Inode) -> None:
        super().__init__(-1)
        self._disk = disk
        self._inode = inode

    @property
    def size_bytes(self) -> int:
        return self._inode.allocated_bytes

    @property
    def has_other_name(self) -> bool:
        return self._disk.name_count(self._inode) > (self.path is not None)

    def holder(self) -> Holder:
        if not self._inode.guests:
            return Holder.NOBODY
        return Holder.READERS if self._inode.has_reader else Holder.GUESTS

    def empty(self) -> None:
        with self._disk.mutex:
            self._inode.empty()

    def close(self) -> None:
        """Do nothing: the disk does not count it."""


class SimLock:
    def __init__(self, inode: Inode) -> None:
        self._inode: Inode | None = inode

    def release(self) -> None:
        inode, self._inode = self._inode, None
        if inode is not None:
            inode.is_locked = False


def crashed(inode: Inode, mode: CrashMode, random: Random) -> Inode:
    """Return the file as a crash leaves it."""
    return Inode(bytes_after_crash(inode.durable, inode.pending, mode, random))
