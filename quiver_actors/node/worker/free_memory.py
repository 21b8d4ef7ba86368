"""Gives memory back to the system that the C allocator keeps after a peak: a backlog that was once there must not count for ever.

Owner: the loop thread. A call takes about 0.1 ms for each megabyte that is free, so it is made seldom.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from quiver_actors.base.units import SECOND_NS

TRIM_INTERVAL_NS = 60 * SECOND_NS


class FreeMemory:
    """Trims the heap of this process once an interval. Does nothing where the C library cannot."""

    def __init__(self) -> None:
        self._trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
        self._trim_at_ns = 0

    def sweep(self, now_ns: int) -> bool:
        """Trim if the interval is over. Returns whether it was."""
        if now_ns < self._trim_at_ns or self._trim is None:
            return False
        self._trim_at_ns = now_ns + TRIM_INTERVAL_NS
        self._trim(0)
        return True
