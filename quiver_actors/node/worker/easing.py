"""The delay of commits and deliveries of one engine while the worker is under pressure, so that each carries more.

Owner: the engine's host, on the loop thread. Without pressure nothing waits.
"""

from __future__ import annotations

from time import monotonic_ns

from quiver_actors.base.units import MILLISECOND_NS
from quiver_actors.store.retention.pressure import Pressure

LOW_PRIORITY_NS = 500 * MILLISECOND_NS
"""How long deliveries of a topic of negative priority wait while the worker defers what can wait."""


class Easing:
    """Delays commits and deliveries by what the worker's pressure asks for.

    Attributes:
        pressure: the worker's.
        due_ns: monotonic time when something has been delayed long enough; None: nothing is delayed.
    """

    def __init__(self, pressure: Pressure) -> None:
        self.pressure = pressure
        self.due_ns: int | None = None
        self._delivered_ns = 0

    def delays_commit(self, since_ns: int) -> bool:
        """Whether a group commit waits for more pushes.

        Args:
            since_ns: since when the oldest push waits that the commit would acknowledge (monotonic); 0: none waits.
        """
        now_ns, until_ns = monotonic_ns(), since_ns + self.pressure.window_ns
        return bool(since_ns) and self._delays(until_ns, now_ns)

    def delays_delivery(self, priority: int) -> bool:
        """Whether deliveries wait for more bundles, so that each message and wake-up carries more of them.

        Args:
            priority: the topic's.
        """
        coalesce_ns = self.pressure.coalesce_ns
        if self.pressure.defers and priority < 0:
            coalesce_ns = LOW_PRIORITY_NS
        if not coalesce_ns:
            return False
        now_ns = monotonic_ns()
        if self._delays(self._delivered_ns + coalesce_ns, now_ns):
            return True
        self._delivered_ns = now_ns
        return False

    def take_due_ns(self) -> int | None:
        """`due_ns`, which begins anew: whatever still waits says so again."""
        due_ns, self.due_ns = self.due_ns, None
        return due_ns

    def _delays(self, until_ns: int, now_ns: int) -> bool:
        if now_ns >= until_ns:
            return False
        self.due_ns = until_ns if self.due_ns is None else min(self.due_ns, until_ns)
        return True
