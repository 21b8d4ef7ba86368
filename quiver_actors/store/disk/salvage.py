"""Reading what is left of a file on a disk that does not give all of it back."""

from __future__ import annotations

from quiver_actors.errors import DiskError
from quiver_actors.store.disk.protocol import UNREADABLE_ERRNOS, Disk, DiskFile

SMALL_FILE_BYTES_MAX = 1 << 30
_SECTOR_BYTES = 4096


class SalvageReader:
    """Reads a file of which the disk does not give every sector back: the others read as zeroes, and so as damaged."""

    def __init__(self, file: DiskFile) -> None:
        self._file = file
        self.size_bytes = file.size()

    def read(self, length: int, offset: int) -> bytes:
        """Read like a DiskFile, but return zeroes for sectors that the disk cannot read."""
        try:
            return self._file.read(length, offset)
        except DiskError as error:
            if error.errno not in UNREADABLE_ERRNOS:
                raise
        end = min(offset + length, self.size_bytes)
        first = offset - offset % _SECTOR_BYTES
        sectors = (self._sector(start) for start in range(first, end, _SECTOR_BYTES))
        return b"".join(sectors)[offset - first : end - first]

    def _sector(self, start: int) -> bytes:
        size = min(_SECTOR_BYTES, self.size_bytes - start)
        try:
            return self._file.read(size, start).ljust(size, b"\0")
        except DiskError as error:
            if error.errno not in UNREADABLE_ERRNOS:
                raise
            return bytes(size)


def read_small(disk: Disk, path: str) -> bytes:
    """The content of a small file (core, cursor, progress, and so on); sectors that the disk does not give back are zeroes."""
    file = disk.open_read(path)
    try:
        source = SalvageReader(file)
        return source.read(min(source.size_bytes, SMALL_FILE_BYTES_MAX), 0)
    finally:
        file.close()
