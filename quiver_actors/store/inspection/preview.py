"""A disk that only pretends to change: what is written stays in memory, above a real disk that is read. For dry runs.

The very code that changes a directory runs over it and comes to the same result, so a plan cannot differ from what would be done.
Memory: what is written, not what is there. One thread.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from quiver_actors.errors import DiskError
from quiver_actors.store.disk.protocol import Buffer, Disk, DiskFile


class _Content:
    """What a file holds: some of a file of the real disk, and what was written above it, the later piece on top."""

    def __init__(self, base_path: str | None) -> None:
        self.base_path = base_path
        self.base_end: int | None = None
        """How much of the real file still shows; None for all of it."""
        self.size: int | None = None
        """The size in bytes; None as long as it is the real file's."""
        self.pieces: list[tuple[int, bytearray]] = []

    def write(self, data: bytes, offset: int) -> None:
        if self.pieces and self.pieces[-1][0] + len(self.pieces[-1][1]) == offset:
            self.pieces[-1][1].extend(data)
        else:
            self.pieces.append((offset, bytearray(data)))


class PreviewFile:
    """One open file. See `store.disk.protocol.DiskFile`."""

    def __init__(self, base: DiskFile | None, content: _Content, path: str) -> None:
        self.path = path
        self._base = base
        self._content = content

    def size(self) -> int:
        """Return the size that the file would have."""
        if self._content.size is not None:
            return self._content.size
        return self._base.size() if self._base is not None else 0

    def write(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Keep the bytes in memory, over those of the real file."""
        data = b"".join(buffers)
        self._content.size = max(self.size(), offset + len(data))
        self._content.write(data, offset)

    def read(self, length: int, offset: int) -> bytes:
        """Read what the file would hold: the real bytes with the changes over them."""
        found = bytearray(max(0, min(length, self.size() - offset)))
        if self._base is not None:
            end = self._content.base_end
            shown = len(found) if end is None else max(0, min(len(found), end - offset))
            data = self._base.read(shown, offset)
            found[: len(data)] = data
        for start, piece in self._content.pieces:
            first, last = max(start, offset), min(start + len(piece), offset + len(found))
            if first < last:
                found[first - offset : last - offset] = piece[first - start : last - start]
        return bytes(found)

    def is_cached(self) -> bool:
        """Whether the page cache holds pages of the real file; False once the file was changed."""
        return self._is_untouched and self._base is not None and self._base.is_cached()

    def reread(self, length: int, offset: int) -> bytes | None:
        """Read from the real disk if the file is unchanged, else as `read` does."""
        if self._base is None or not self._is_untouched:
            return self.read(length, offset)
        # The real file's answer decides whether a log is sealed as it is: asking for it changes nothing on the disk.
        return self._base.reread(min(length, max(0, self.size() - offset)), offset)

    @property
    def _is_untouched(self) -> bool:
        return not self._content.pieces and self._content.base_end is None

    def allocate(self, size_bytes: int, start: int = 0, *, length_bytes: int = 0) -> None:
        """Raise the size that the file would have; no blocks are reserved."""
        self._content.size = max(self.size(), size_bytes, length_bytes)

    def truncate(self, size_bytes: int) -> None:
        """Cut the size that the file would have; the real file stays."""
        content = self._content
        if self._base is not None:
            content.base_end = min(size_bytes, self.size() if content.base_end is None else content.base_end)
        content.pieces = [(start, piece[: size_bytes - start]) for start, piece in content.pieces if start < size_bytes]
        content.size = size_bytes

    def fdatasync(self) -> None:
        """Do nothing: no file here is ever durable."""

    def fsync(self) -> None:
        """Do nothing: no file here is ever durable."""

    def has_name(self) -> bool:
        """Always true."""
        return True

    def make_read_only(self) -> None:
        """Do nothing: file modes are not pretended."""

    def reopen(self) -> PreviewFile:
        """Raises DiskError with EBADF: nobody reads a log of a preview while it is open."""
        raise DiskError("open", self.path, errno.EBADF)

    def fileno(self) -> int:
        """Raises DiskError with EBADF: a file of a preview has no descriptor to pass on."""
        raise DiskError("fileno", self.path, errno.EBADF)

    def close(self) -> None:
        """Close the real file, if there is one."""
        if self._base is not None:
            self._base.close()


class NoLock:
    """Stands for a lock: whoever previews has made sure by other means that nobody holds it."""

    def release(self) -> None:
        """Do nothing: no lock was taken."""


class PreviewDisk:
    """A `store.disk.protocol.Disk` that reads a real disk and keeps in memory what is written."""

    def __init__(self, base: Disk) -> None:
        self._base = base
        self._files: dict[str, _Content | None] = {}
        """The files that differ from the real disk, by path; None for a file that is gone."""
        self._directories: set[str] = set()

    def create(self, path: str) -> PreviewFile:
        """Create an empty file in memory; a real file of that name is hidden."""
        content = self._files[path] = _Content(None)
        content.size = 0
        return PreviewFile(None, content, path)

    def open_write(self, path: str) -> PreviewFile:
        """Open a file for reading and for writes that stay in memory."""
        content = self._content(path)
        file = self._open(content, path)
        self._files[path] = content
        return file

    def open_read(self, path: str) -> PreviewFile:
        """Open a file as it would be after the changes so far."""
        return self._open(self._content(path), path)

    def _content(self, path: str) -> _Content:
        if path not in self._files:
            return _Content(path)
        content = self._files[path]
        if content is None:
            raise DiskError("open", path, errno.ENOENT)
        return content

    def _open(self, content: _Content, path: str) -> PreviewFile:
        base = self._base.open_read(content.base_path) if content.base_path is not None else None
        return PreviewFile(base, content, path)

    def rename(self, source: str, target: str) -> None:
        """Give a file another name in memory; ENOENT if there is no such file."""
        if not self.exists(source):
            raise DiskError("rename", f"{source} to {target}", errno.ENOENT)
        if source == target:
            return
        self._files[target] = self._content(source)
        self._files[source] = None

    def link(self, source: str, target: str) -> None:
        """Give a file a second name in memory; EEXIST if the name is taken."""
        if self.exists(target):
            raise DiskError("link", f"{source} to {target}", errno.EEXIST)
        self._files[target] = self._files[source] = self._content(source)

    def unlink(self, path: str) -> None:
        """Hide a name; the real file stays."""
        self._files[path] = None

    def make_directory(self, path: str, *, needs_parent: bool = False) -> None:
        """Note a directory in memory; ENOENT if its parent is needed and missing."""
        parent = path.rpartition("/")[0]
        if needs_parent and parent and not self.exists(parent):
            raise DiskError("mkdir", path, errno.ENOENT)
        self._directories.add(path)

    def list_directory(self, path: str) -> list[str]:
        """Return the sorted names that the directory would have."""
        prefix = "" if path in ("", ".") else f"{path}/"
        names = set(self._base.list_directory(path))
        for changed, content in self._files.items():
            parent, _, name = changed.rpartition("/")
            if (f"{parent}/" if parent else "") == prefix:
                names.discard(name) if content is None else names.add(name)
        made = (directory.removeprefix(prefix) for directory in self._directories if directory.startswith(prefix))
        return sorted(names | {name for name in made if name and "/" not in name})

    def sync_directory(self, path: str) -> None:
        """Do nothing: no name here is ever durable."""

    def exists(self, path: str) -> bool:
        """Whether the name would exist after the changes so far."""
        if path in self._files:
            return self._files[path] is not None
        return path in self._directories or self._base.exists(path)

    def file_id(self, path: str) -> tuple[int, int] | None:
        """Return device and inode of the real file behind a name; a new file has device -1 and a number of its own."""
        if path not in self._files:
            return self._base.file_id(path)
        content = self._files[path]
        if content is None:
            return None
        # What is only pretended has no device.
        return self._base.file_id(content.base_path) if content.base_path is not None else (-1, id(content))

    def allocated_bytes(self, path: str) -> int:
        """Return the bytes of the real file's blocks, and the size of a file that is only in memory."""
        content = self._files.get(path)
        if content is not None and content.base_path is None:
            return content.size or 0
        return self._base.allocated_bytes(content.base_path if content and content.base_path else path)

    def keep(self, path: str) -> None:
        """Return None: no file here loses its name."""
        return

    def free_bytes(self, path: str) -> int:
        """Return the bytes that are free on the real disk."""
        return self._base.free_bytes(path)

    def lock(self, path: str, wait_seconds: float = 0.0) -> NoLock:
        """Return a lock that holds nothing: a preview changes nothing."""
        return NoLock()


@contextmanager
def quiet_log() -> Iterator[None]:
    """Log nothing of what a recovery or a rescue logs: the caller says it in its own words."""
    log, handler = logging.getLogger("quiver"), logging.NullHandler()
    propagated, log.propagate = log.propagate, False
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.propagate = propagated
