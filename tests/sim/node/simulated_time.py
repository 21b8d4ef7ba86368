"""Time that moves only when the scheduler says so, for a whole process, which also has always the same number.

`install` must be called before anything of quiver_actors is imported: some modules take `monotonic_ns` by name. So a simulation always runs
in a process of its own (`python -m tests.sim.node`).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

_START_NS = 1_000_000_000_000
_PID = 4242
_UNIX_START_NS = 1_700_000_000_000_000_000


class SimulatedTime:
    """Both clocks. The wall clock may jump; the monotonic one never does."""

    def __init__(self) -> None:
        self.now_ns = _START_NS
        self.unix_offset_ns = _UNIX_START_NS - _START_NS
        self.while_asleep: Callable[[], None] | None = None
        """What the others do while somebody sleeps; None: nobody may."""

    def advance(self, duration_ns: int) -> None:
        self.now_ns += duration_ns

    def monotonic_ns(self) -> int:
        return self.now_ns

    def unix_ns(self) -> int:
        return self.now_ns + self.unix_offset_ns

    def sleep(self, seconds: float, /) -> None:
        if self.while_asleep is None:
            raise AssertionError(f"something sleeps for {seconds} s in a simulation, which has one thread")
        self.while_asleep()


def install() -> SimulatedTime:
    """Replace the clocks and the number of this process."""
    loaded = [name for name in sys.modules if name.split(".")[0] == "quiver_actors"]
    if loaded:
        raise RuntimeError(f"simulated time comes too late: {loaded[0]} is imported already")
    simulated = SimulatedTime()
    time.monotonic_ns = simulated.monotonic_ns
    time.monotonic = lambda: simulated.monotonic_ns() / 1e9
    time.time_ns = simulated.unix_ns
    time.time = lambda: simulated.unix_ns() / 1e9
    time.sleep = simulated.sleep  # type: ignore[assignment]
    # Which core a producer without a key begins with follows from the number of its process.
    os.getpid = lambda: _PID
    return simulated
