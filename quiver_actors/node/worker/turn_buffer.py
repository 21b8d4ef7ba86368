"""Private memory that the spans of one turn are copied into, out of memory that a producer can still change.

Owner: the push side of one engine. A span is valid until `clear()`. The buffer is reused, so that its pages stay mapped and, at
its usual size, stay in the processor's cache between copy, checksum and write; a big bundle makes it grow for a while.
"""

from __future__ import annotations

import numpy as np

USUAL_BYTES = 1 << 20


class TurnBuffer:
    """Private memory for the spans of one turn of one engine."""

    __slots__ = ("_peak", "_used", "_usual_bytes", "_view")

    def __init__(self, usual_bytes: int = USUAL_BYTES) -> None:
        self._usual_bytes = usual_bytes
        self._view = _allocate(usual_bytes)
        self._used = 0
        self._peak = 0
        """Most bytes used at once since the last `trim()`."""

    @property
    def capacity_bytes(self) -> int:
        """Size of the buffer."""
        return len(self._view)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was copied into the buffer in this turn."""
        return self._used == 0

    def fits(self, size_bytes: int) -> bool:
        """True if a span of that size can be copied now: there is room, or nothing stands in the way of growing."""
        return self._used == 0 or self._used + size_bytes <= len(self._view)

    def copy(self, source: memoryview) -> memoryview:
        """Copy a span that fits; gives the writable copy."""
        start = self._used
        end = start + len(source)
        if end > len(self._view):
            assert start == 0, "a span that does not fit would move the spans before it"
            self._view = _allocate(end)
        span = self._view[start:end]
        span[:] = source
        self._used = end
        if end > self._peak:
            self._peak = end
        return span

    def clear(self) -> None:
        """All spans have been written: their memory is used again."""
        self._used = 0

    def trim(self) -> bool:
        """Go back to the usual size if nothing since the last call needed more; whether it has that size."""
        if self._used == 0:
            if len(self._view) > self._usual_bytes >= self._peak:
                self._view = _allocate(self._usual_bytes)
            self._peak = 0
        return len(self._view) <= self._usual_bytes


def _allocate(size_bytes: int) -> memoryview:
    # Not a bytearray: that would write zeroes over every page first.
    return np.empty(size_bytes, dtype=np.uint8).data
