"""Files as a look sees them: read only, each with the name that people know it by, its size taken once.

A running node goes on writing meanwhile. What is appended behind the size taken at the opening does not exist for the look; a file
that is renamed or deleted stays readable through its open descriptor; one that is gone before it is opened is `Vanished`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from quiver_actors.base.checksum import crc32_of_range
from quiver_actors.errors import DiskError
from quiver_actors.store.disk.protocol import UNREADABLE_ERRNOS, Disk, DiskFile

CHUNK_BYTES = 1 << 20
SECTOR_BYTES = 4096
_NO_ACCESS = frozenset([errno.EACCES, errno.EPERM])


class Vanished(DiskError):
    """The file was there when its directory was listed, and is no more."""

    def __init__(self, path: str) -> None:
        super().__init__("open", path, errno.ENOENT)


class Source:
    """One open file. `path` is for messages.

    Sectors that the disk does not give back read as zeroes and are remembered in `bad_sectors`, so that a look goes on behind them.
    """

    def __init__(self, file: DiskFile, path: str) -> None:
        self._file = file
        self.bad_sectors: set[int] = set()
        """Offsets at which the sectors start that the disk did not give back."""
        self.path = path
        self.size_bytes = file.size()

    @property
    def name(self) -> str:
        """Name of the file without its directory."""
        return self.path.rpartition("/")[2]

    def read(self, length: int, offset: int) -> bytes:
        """Up to `length` bytes at `offset`, fewer at the end of the file. Raises DiskError."""
        length = max(0, min(length, self.size_bytes - offset))
        try:
            return self._file.read(length, offset)
        except DiskError as error:
            if error.errno not in UNREADABLE_ERRNOS:
                raise
        first = offset - offset % SECTOR_BYTES
        sectors = b"".join(self._sector(start) for start in range(first, offset + length, SECTOR_BYTES))
        return sectors[offset - first : offset - first + length]

    def _sector(self, start: int) -> bytes:
        size = min(SECTOR_BYTES, self.size_bytes - start)
        try:
            return self._file.read(size, start)
        except DiskError as error:
            if error.errno not in UNREADABLE_ERRNOS:
                raise
            self.bad_sectors.add(start)
            return bytes(size)

    def chunks(self, end: int) -> Iterator[bytes]:
        """Bytes `[0, end)` in pieces."""
        for offset in range(0, end, CHUNK_BYTES):
            yield self.read(min(CHUNK_BYTES, end - offset), offset)

    def is_zero(self, end: int) -> bool:
        """Whether all of `[0, end)` is zero; stops at the first piece that is not."""
        return not any(chunk.strip(b"\0") for chunk in self.chunks(end))

    def crc32(self, end: int) -> int:
        """CRC-32 of the bytes `[0, end)`."""
        return crc32_of_range(self.read, 0, end)


class Tree:
    """A disk, with a name for its root in messages (empty: paths are shown as they are on the disk).

    `note_look` is called with the size of each file, once the look at it is over.
    """

    def __init__(self, disk: Disk, label: str, note_look: Callable[[int], None] | None = None) -> None:
        self.disk = disk
        self.label = label
        self.note_look = note_look or (lambda _: None)
        self._prefix = f"{label.rstrip('/')}/" if label else ""

    def named(self, path: str) -> str:
        """The path as people know it."""
        return self._prefix + path if path not in ("", ".") else self.label or "."

    def path_of(self, named: str) -> str:
        """The path on the disk of what people know as `named`."""
        return named.removeprefix(self._prefix)

    @contextmanager
    def open(self, path: str) -> Iterator[Source]:
        """Open a file of the disk for one look.

        Raises:
            Vanished: it is not there any more.
            DiskError: it cannot be opened or read.
        """
        try:
            file = self.disk.open_read(path)
        except DiskError as error:
            if error.errno == errno.ENOENT:
                raise Vanished(path) from error
            raise
        try:
            source = Source(file, self.named(path))
            yield source
            self.note_look(source.size_bytes)
        finally:
            file.close()

    def is_directory(self, path: str) -> bool:
        """Whether the path is a directory; a link counts as none."""
        try:
            return bool(self.disk.list_directory(path)) or self._is_empty_directory(path)
        except DiskError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                return False
            raise

    def _is_empty_directory(self, path: str) -> bool:
        """Whether a path whose listing gave nothing is an empty directory, not a missing one."""
        return path in ("", ".") or self.disk.exists(path)


def is_about_access(error: DiskError) -> bool:
    """Whether the error says only that this user has no access, and nothing of what is stored."""
    return error.errno in _NO_ACCESS
