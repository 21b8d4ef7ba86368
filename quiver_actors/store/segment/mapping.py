"""A segment file in the memory of a reader.

The mapping is private and is never written to with anything but what it already shows. That gives it `freeze`: a frozen range is memory of
this process alone, so what is damaged in the file later does not reach it. All other ranges show the file as it is at each moment, without
a copy.
"""

from __future__ import annotations

import mmap
import os

from quiver_actors.errors import DiskError, Truncated

_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
"""The mapping takes memory for frozen pages only, so the kernel must not set aside memory for the whole file."""
_COPY_BYTES = 1 << 20


class SegmentMapping:
    """One mapped segment file. It lives as long as this object, or anything that was made from `memory`.

    Args:
        descriptor: the open file; the caller closes it.
        size_bytes: how much of it to map, from its start.
        segment_seq: the segment's number, for messages.
        is_log: it is a log, which its seal may make shorter at any moment: what is left of it is mapped.

    Raises:
        Truncated: the file is shorter than that, so reading the mapping would kill this process; or it is empty.
        DiskError: it cannot be mapped.
    """

    __slots__ = ("_mapping", "memory")

    def __init__(self, descriptor: int, size_bytes: int, segment_seq: int, *, is_log: bool = False) -> None:
        try:
            if is_log:
                self._mapping = _map_log(descriptor, size_bytes)
            else:
                found_bytes = os.fstat(descriptor).st_size
                if found_bytes < size_bytes:
                    raise Truncated(f"segment {segment_seq} has {found_bytes} bytes: {size_bytes} were announced")
                self._mapping = _map(descriptor, size_bytes)
        except ValueError as error:
            # Nothing of ours is empty: somebody has cut the file off.
            raise Truncated(f"the file of segment {segment_seq} is empty: {size_bytes} bytes were announced") from error
        except OSError as error:
            raise DiskError("mmap", f"segment {segment_seq}", error.errno or 0) from error
        self.memory = memoryview(self._mapping).toreadonly()
        """The whole file. Nobody can change it through this view."""

    def freeze(self, start: int, end: int) -> None:
        """Keep `[start, end)` as it is now. Costs a copy of the pages that it touches."""
        for offset in range(start, end, _COPY_BYTES):
            stop = min(end, offset + _COPY_BYTES)
            # The kernel copies a page of a private mapping when it is written to; the bytes stay what they are.
            self._mapping[offset:stop] = self._mapping[offset:stop]


def _map(descriptor: int, size_bytes: int) -> mmap.mmap:
    return mmap.mmap(descriptor, size_bytes, mmap.MAP_PRIVATE | _NO_RESERVE, mmap.PROT_READ | mmap.PROT_WRITE)


def _map_log(descriptor: int, size_bytes: int) -> mmap.mmap:
    """Map what there is of a log. Its seal makes it shorter once, perhaps between the look at its size and the mapping."""
    try:
        return _map(descriptor, min(size_bytes, os.fstat(descriptor).st_size))
    except ValueError:
        return _map(descriptor, min(size_bytes, os.fstat(descriptor).st_size))
