"""Faults that keep the segments of one engine from being looked at now, and when a look is tried again. Pure.

Owner: the engine's `Repair`, on the loop thread.
"""

from __future__ import annotations

from quiver_actors.base.clock import Clock
from quiver_actors.base.units import SECOND_NS
from quiver_actors.store.engine.events import Event, Faulted

FAULT_RETRY_NS_FIRST = SECOND_NS // 4
FAULT_RETRY_NS_MAX = 10 * SECOND_NS
"""The first and the longest wait before a segment that could not be looked at is looked at again; each wait doubles the last."""


class Faults:
    """Whether segments can be looked at now.

    Attributes:
        fault: why a segment cannot be looked at now, empty while all can be.
        resumes_ns: monotonic time before which no segment is looked at.
    """

    def __init__(self, clock: Clock) -> None:
        self.fault = ""
        self.resumes_ns = 0
        self._clock = clock
        self._retry_ns = 0
        """The last wait, in nanoseconds; 0 if there was none."""

    @property
    def is_waiting(self) -> bool:
        """Whether no segment is to be looked at now."""
        return self._clock.monotonic_ns() < self.resumes_ns

    def note_fault(self, fault: str) -> list[Event]:
        """Note a fault that keeps a segment from being looked at, and look again, later each time."""
        self._retry_ns = min(2 * self._retry_ns or FAULT_RETRY_NS_FIRST, FAULT_RETRY_NS_MAX)
        self.resumes_ns = self._clock.monotonic_ns() + self._retry_ns
        is_new, self.fault = not self.fault, fault
        return [Faulted(fault)] if is_new else []

    def note_sight(self) -> list[Event]:
        """Note that a segment could be looked at: a fault, if there was one, is over."""
        had_fault, self.fault, self._retry_ns, self.resumes_ns = self.fault, "", 0, 0
        return [Faulted("")] if had_fault else []
