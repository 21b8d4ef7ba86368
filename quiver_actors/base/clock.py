"""Time as it is passed around: a clock is an argument, never a global.

`monotonic_ns` orders events and measures ages; `unix_ns` is only ever stored or shown.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Source of the present time: the real clock in a node, a simulated one in tests."""

    def monotonic_ns(self) -> int:
        """Nanoseconds since some fixed moment; never goes back."""

    def unix_ns(self) -> int:
        """Nanoseconds since the epoch, UTC; may jump."""


class SystemClock:
    """The machine's own clocks."""

    # The functions themselves: a push asks for the time four times.
    monotonic_ns = staticmethod(time.monotonic_ns)
    unix_ns = staticmethod(time.time_ns)
