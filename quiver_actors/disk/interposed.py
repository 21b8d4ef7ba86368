"""A disk in front of another one: every call goes through one method, in which a subclass does what it is there for.

Who only looks after changes sets `sees_reads` to False: half of the calls of a start are reads, which cost more to describe than to do.

Concurrency: as that of the inner disk; what a subclass keeps is its own to protect.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from quiver_actors.disk.protocol import Buffer, DirectoryLock, Disk, DiskFile

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
        "list_directory",
        "exists",
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
    """Of a rename or link."""
    file: InterposedFile | None = None
    """Of calls on a file."""
    buffers: Sequence[Buffer] = ()
    """Of a write, at `offset`."""
    offset: int = 0

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
        call = Call("write", self.path, file=self, buffers=buffers, offset=offset)
        self._disk.around(call, lambda: self.inner.write(buffers, offset))

    def read(self, length: int, offset: int) -> bytes:
        if not self._disk.sees_reads:
            return self.inner.read(length, offset)
        return self._disk.around(Call("read", self.path, file=self), lambda: self.inner.read(length, offset))

    def is_cached(self) -> bool:
        if not self._disk.sees_reads:
            return self.inner.is_cached()
        return self._disk.around(Call("is_cached", self.path, file=self), self.inner.is_cached)

    def reread(self, length: int, offset: int) -> bytes | None:
        if not self._disk.sees_reads:
            return self.inner.reread(length, offset)
        return self._disk.around(Call("reread", self.path, file=self), lambda: self.inner.reread(length, offset))

    def allocate(self, size_bytes: int) -> None:
        self._disk.around(Call("allocate", self.path, file=self), lambda: self.inner.allocate(size_bytes))

    def truncate(self, size_bytes: int) -> None:
        self._disk.around(Call("truncate", self.path, file=self), lambda: self.inner.truncate(size_bytes))

    def fdatasync(self) -> None:
        self._disk.around(Call("fdatasync", self.path, file=self), self.inner.fdatasync)

    def fsync(self) -> None:
        self._disk.around(Call("fsync", self.path, file=self), self.inner.fsync)

    def make_read_only(self) -> None:
        self._disk.around(Call("make_read_only", self.path, file=self), self.inner.make_read_only)

    def size(self) -> int:
        if not self._disk.sees_reads:
            return self.inner.size()
        return self._disk.around(Call("size", self.path, file=self), self.inner.size)

    def fileno(self) -> int:
        return self.inner.fileno()

    def close(self) -> None:
        self.inner.close()


class InterposedDisk:
    """See the module. A subclass overrides `around`. See also `protocol.Disk`."""

    sees_reads = True
    """`around` is told of calls that change nothing too."""

    def __init__(self, inner: Disk) -> None:
        self.inner = inner

    def around(self, call: Call, proceed: Callable[[], Result]) -> Result:
        """Do the call by `proceed()`, or not."""
        return proceed()

    def _opened(self, call: Call, proceed: Callable[[], DiskFile]) -> InterposedFile:
        is_told = self.sees_reads or call.kind in MUTATING_KINDS
        return InterposedFile(self, self.around(call, proceed) if is_told else proceed())

    def create(self, path: str) -> InterposedFile:
        return self._opened(Call("create", path), lambda: self.inner.create(path))

    def open_write(self, path: str) -> InterposedFile:
        return self._opened(Call("open_write", path), lambda: self.inner.open_write(path))

    def open_read(self, path: str) -> InterposedFile:
        return self._opened(Call("open_read", path), lambda: self.inner.open_read(path))

    def rename(self, source: str, target: str) -> None:
        self.around(Call("rename", source, target), lambda: self.inner.rename(source, target))

    def link(self, source: str, target: str) -> None:
        self.around(Call("link", source, target), lambda: self.inner.link(source, target))

    def unlink(self, path: str) -> None:
        self.around(Call("unlink", path), lambda: self.inner.unlink(path))

    def make_directory(self, path: str) -> None:
        self.around(Call("make_directory", path), lambda: self.inner.make_directory(path))

    def list_directory(self, path: str) -> list[str]:
        if not self.sees_reads:
            return self.inner.list_directory(path)
        return self.around(Call("list_directory", path), lambda: self.inner.list_directory(path))

    def sync_directory(self, path: str) -> None:
        self.around(Call("sync_directory", path), lambda: self.inner.sync_directory(path))

    def exists(self, path: str) -> bool:
        if not self.sees_reads:
            return self.inner.exists(path)
        return self.around(Call("exists", path), lambda: self.inner.exists(path))

    def allocated_bytes(self, path: str) -> int:
        if not self.sees_reads:
            return self.inner.allocated_bytes(path)
        return self.around(Call("allocated_bytes", path), lambda: self.inner.allocated_bytes(path))

    def free_bytes(self, path: str) -> int:
        if not self.sees_reads:
            return self.inner.free_bytes(path)
        return self.around(Call("free_bytes", path), lambda: self.inner.free_bytes(path))

    def lock(self, path: str) -> DirectoryLock | None:
        return self.around(Call("lock", path), lambda: self.inner.lock(path))
