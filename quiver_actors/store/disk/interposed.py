"""A disk in front of another one: every call goes through one method, in which a subclass does what it is there for.

A subclass that only watches changes sets `sees_reads` to False: half of the calls of a start are reads, which cost more to describe than
to do.

Concurrency: the same as the inner disk's; a subclass protects its own state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from quiver_actors.store.disk.held import HeldFile
from quiver_actors.store.disk.protocol import Buffer, DirectoryLock, Disk, DiskFile

Result = TypeVar("Result")

MUTATING_KINDS = frozenset(
    [
        "create",
        "write",
        "allocate",
        "truncate",
        "fdatasync",
        "fsync",
        "make_read_only",
        "rename",
        "link",
        "unlink",
        "make_directory",
        "sync_directory",
        "lock",
    ]
)
"""Calls that change what is on the disk, or what of it is durable."""
SYNC_KINDS = frozenset(["fdatasync", "fsync", "sync_directory"])
READING_KINDS = frozenset(
    [
        "open_write",
        "open_read",
        "read",
        "reread",
        "is_cached",
        "size",
        "has_name",
        "list_directory",
        "exists",
        "file_id",
        "allocated_bytes",
        "free_bytes",
    ]
)
KINDS = MUTATING_KINDS | READING_KINDS


class Call(NamedTuple):
    """One call on a disk or a file of it; `kind` is the method's name."""

    kind: str
    path: str
    target: str = ""
    """The second path of a rename or link; empty for other calls."""
    file: InterposedFile | None = None
    """The open file of a call on a file; None for calls on the disk."""
    buffers: Sequence[Buffer] = ()
    """The bytes of a write, which go to `offset`; empty for other calls."""
    offset: int = 0
    """Where a write begins, or what is reserved by an allocation ends."""

    def __str__(self) -> str:
        where = f"{self.path} -> {self.target}" if self.target else self.path
        if self.kind == "write":
            return f"write {where} at {self.offset}, {sum(map(len, self.buffers))} bytes"
        return f"{self.kind} {where}"


class InterposedFile:
    """One open file of an `InterposedDisk`. See `protocol.DiskFile`."""

    def __init__(self, disk: InterposedDisk, inner: DiskFile) -> None:
        self.path = inner.path
        self.inner = inner
        self._disk = disk

    def write(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Call `DiskFile.write` of the inner file through `around`."""
        call = Call("write", self.path, file=self, buffers=buffers, offset=offset)
        self._disk.around(call, lambda: self.inner.write(buffers, offset))

    def read(self, length: int, offset: int) -> bytes:
        """Call `DiskFile.read` of the inner file, through `around` if reads are seen."""
        if not self._disk.sees_reads:
            return self.inner.read(length, offset)
        return self._disk.around(Call("read", self.path, file=self), lambda: self.inner.read(length, offset))

    def is_cached(self) -> bool:
        """Call `DiskFile.is_cached` of the inner file, through `around` if reads are seen."""
        if not self._disk.sees_reads:
            return self.inner.is_cached()
        return self._disk.around(Call("is_cached", self.path, file=self), self.inner.is_cached)

    def reread(self, length: int, offset: int) -> bytes | None:
        """Call `DiskFile.reread` of the inner file, through `around` if reads are seen."""
        if not self._disk.sees_reads:
            return self.inner.reread(length, offset)
        return self._disk.around(Call("reread", self.path, file=self), lambda: self.inner.reread(length, offset))

    def allocate(self, size_bytes: int, start: int = 0, *, length_bytes: int = 0) -> None:
        """Call `DiskFile.allocate` of the inner file through `around`."""
        call = Call("allocate", self.path, file=self, offset=size_bytes)
        self._disk.around(call, lambda: self.inner.allocate(size_bytes, start, length_bytes=length_bytes))

    def truncate(self, size_bytes: int) -> None:
        """Call `DiskFile.truncate` of the inner file through `around`."""
        self._disk.around(Call("truncate", self.path, file=self), lambda: self.inner.truncate(size_bytes))

    def fdatasync(self) -> None:
        """Call `DiskFile.fdatasync` of the inner file through `around`."""
        self._disk.around(Call("fdatasync", self.path, file=self), self.inner.fdatasync)

    def fsync(self) -> None:
        """Call `DiskFile.fsync` of the inner file through `around`."""
        self._disk.around(Call("fsync", self.path, file=self), self.inner.fsync)

    def make_read_only(self) -> None:
        """Call `DiskFile.make_read_only` of the inner file through `around`."""
        self._disk.around(Call("make_read_only", self.path, file=self), self.inner.make_read_only)

    def size(self) -> int:
        """Call `DiskFile.size` of the inner file, through `around` if reads are seen."""
        if not self._disk.sees_reads:
            return self.inner.size()
        return self._disk.around(Call("size", self.path, file=self), self.inner.size)

    def has_name(self) -> bool:
        """Call `DiskFile.has_name` of the inner file, through `around` if reads are seen."""
        if not self._disk.sees_reads:
            return self.inner.has_name()
        return self._disk.around(Call("has_name", self.path, file=self), self.inner.has_name)

    def reopen(self) -> InterposedFile:
        """Call `DiskFile.reopen` of the inner file directly, and interpose the new one."""
        return InterposedFile(self._disk, self.inner.reopen())

    def fileno(self) -> int:
        """Call `DiskFile.fileno` of the inner file directly: it is no call on the disk."""
        return self.inner.fileno()

    def close(self) -> None:
        """Call `DiskFile.close` of the inner file directly: it is no call on the disk."""
        self.inner.close()


class InterposedDisk:
    """A `protocol.Disk` that sends each call to `inner` through `around`, which a subclass overrides."""

    sees_reads = True
    """Whether calls that change nothing also go through `around`."""

    def __init__(self, inner: Disk) -> None:
        self.inner = inner

    def around(self, call: Call, proceed: Callable[[], Result]) -> Result:
        """Carry out the call with `proceed()`. A subclass may leave it out, fail it, or do more."""
        return proceed()

    def _opened(self, call: Call, proceed: Callable[[], DiskFile]) -> InterposedFile:
        is_told = self.sees_reads or call.kind in MUTATING_KINDS
        return InterposedFile(self, self.around(call, proceed) if is_told else proceed())

    def create(self, path: str) -> InterposedFile:
        """Call `Disk.create` of the inner disk through `around`."""
        return self._opened(Call("create", path), lambda: self.inner.create(path))

    def open_write(self, path: str) -> InterposedFile:
        """Call `Disk.open_write` of the inner disk, through `around` if reads are seen."""
        return self._opened(Call("open_write", path), lambda: self.inner.open_write(path))

    def open_read(self, path: str) -> InterposedFile:
        """Call `Disk.open_read` of the inner disk, through `around` if reads are seen."""
        return self._opened(Call("open_read", path), lambda: self.inner.open_read(path))

    def rename(self, source: str, target: str) -> None:
        """Call `Disk.rename` of the inner disk through `around`."""
        self.around(Call("rename", source, target), lambda: self.inner.rename(source, target))

    def link(self, source: str, target: str) -> None:
        """Call `Disk.link` of the inner disk through `around`."""
        self.around(Call("link", source, target), lambda: self.inner.link(source, target))

    def unlink(self, path: str) -> None:
        """Call `Disk.unlink` of the inner disk through `around`."""
        self.around(Call("unlink", path), lambda: self.inner.unlink(path))

    def make_directory(self, path: str, *, needs_parent: bool = False) -> None:
        """Call `Disk.make_directory` of the inner disk through `around`."""
        call = Call("make_directory", path)
        self.around(call, lambda: self.inner.make_directory(path, needs_parent=needs_parent))

    def list_directory(self, path: str) -> list[str]:
        """Call `Disk.list_directory` of the inner disk, through `around` if reads are seen."""
        if not self.sees_reads:
            return self.inner.list_directory(path)
        return self.around(Call("list_directory", path), lambda: self.inner.list_directory(path))

    def sync_directory(self, path: str) -> None:
        """Call `Disk.sync_directory` of the inner disk through `around`."""
        self.around(Call("sync_directory", path), lambda: self.inner.sync_directory(path))

    def exists(self, path: str) -> bool:
        """Call `Disk.exists` of the inner disk, through `around` if reads are seen."""
        if not self.sees_reads:
            return self.inner.exists(path)
        return self.around(Call("exists", path), lambda: self.inner.exists(path))

    def file_id(self, path: str) -> tuple[int, int] | None:
        """Call `Disk.file_id` of the inner disk, through `around` if reads are seen."""
        if not self.sees_reads:
            return self.inner.file_id(path)
        return self.around(Call("file_id", path), lambda: self.inner.file_id(path))

    def allocated_bytes(self, path: str) -> int:
        """Call `Disk.allocated_bytes` of the inner disk, through `around` if reads are seen."""
        if not self.sees_reads:
            return self.inner.allocated_bytes(path)
        return self.around(Call("allocated_bytes", path), lambda: self.inner.allocated_bytes(path))

    def keep(self, path: str) -> HeldFile | None:
        """Call `Disk.keep` of the inner disk directly: it is no call on the disk."""
        return self.inner.keep(path)

    def free_bytes(self, path: str) -> int:
        """Call `Disk.free_bytes` of the inner disk, through `around` if reads are seen."""
        if not self.sees_reads:
            return self.inner.free_bytes(path)
        return self.around(Call("free_bytes", path), lambda: self.inner.free_bytes(path))

    def lock(self, path: str, wait_seconds: float = 0.0) -> DirectoryLock | None:
        """Call `Disk.lock` of the inner disk through `around`."""
        return self.around(Call("lock", path), lambda: self.inner.lock(path, wait_seconds))
