"""Reading a log of a former process, and whether the disk has what is read.

Where a sync has failed before, memory may show bytes that the disk never got and that no later sync of that file would write. So what comes
out of memory is read again from the disk itself and compared. A file of which all of that holds can become a segment as it is; any
other one is written anew: also one with bytes that a killed process had not synced yet.
"""

from __future__ import annotations

from dataclasses import dataclass

from quiver_actors.errors import DiskError
from quiver_actors.store.disk.protocol import DiskFile

_WINDOW_BYTES = 2 << 20
"""Memory holds files in pieces of up to this size, which it lets go of as a whole."""


@dataclass(slots=True)
class Trust:
    """How far what was read of a file is what the disk has."""

    is_proven: bool = True
    kept_offset: int = 0
    kept: bytes = b""
    """Bytes at that offset that only memory had."""

    def restore(self, data: bytes, offset: int) -> bytes:
        """The same bytes, with what was read first where the disk has given something else."""
        start, end = max(offset, self.kept_offset), min(offset + len(data), self.kept_offset + len(self.kept))
        if start >= end:
            return data
        kept = self.kept[start - self.kept_offset : end - self.kept_offset]
        return data[: start - offset] + kept + data[end - offset :]


class LogSource:
    """One log file, open for reading. `trust` tells about all bytes that were read so far."""

    def __init__(self, file: DiskFile) -> None:
        self.trust = Trust()
        self.size_bytes = file.size()
        self._file = file
        self._checked: set[int] = set()
        # Not synced first: a file whose sync has failed is never synced again, and only its former owner knew.
        self._is_cached = file.is_cached()

    def read(self, length: int, offset: int) -> bytes:
        """Read like `DiskFile.read`, after comparing what memory holds of these bytes with the disk."""
        if self._is_cached:
            first = offset - offset % _WINDOW_BYTES
            for window in range(first, min(offset + length, self.size_bytes), _WINDOW_BYTES):
                self._check(window)
        return self.trust.restore(self._file.read(length, offset), offset)

    def _check(self, offset: int) -> None:
        if offset in self._checked or not self.trust.is_proven:
            return
        self._checked.add(offset)
        shown = self._file.read(_WINDOW_BYTES, offset)
        try:
            is_same = self._file.reread(_WINDOW_BYTES, offset) == shown
        except DiskError:
            is_same = False
        if not is_same:
            self.trust.is_proven, self.trust.kept_offset, self.trust.kept = False, offset, shown
