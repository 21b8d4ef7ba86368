"""The number of bundles that a worker may send over one connection. The total only rises, so a repeated message does no harm."""

from __future__ import annotations


class CreditLine:
    """The credit of one connection. Used under the lock of the consumer's exchange."""

    def __init__(self, prefetch: int) -> None:
        """
        Args:
            prefetch: bundles that the worker may send ahead.
        """
        self._prefetch = prefetch
        self._total = 0
        self._taken = 0
        """Bundles that left the inbox since credit was last given."""
        self._is_stopped = False
        self.is_held = True
        """Whether the worker is told of no credit yet: the subscription may still fail, and what a worker sends counts as delivered."""

    def take(self, bundles: int) -> bool:
        """Note bundles that have left the inbox; True: enough of them for credit to be given. Below zero: so many came back."""
        self._taken += bundles
        return 2 * self._taken >= self._prefetch

    def give(self) -> int:
        """Return the total that the worker is to be told now; 0 once stopped."""
        self._total = 0 if self._is_stopped else self._total + self._taken
        self._taken = 0
        return self._total

    def release(self) -> None:
        """Give credit from now on, on every connection."""
        self.is_held = False

    def stop(self) -> None:
        """Give no credit any more, on any connection."""
        self._is_stopped = True

    def begin(self) -> None:
        """Begin anew: the worker has registered the subscriber on this connection."""
        self._total = self._prefetch

    def lose(self) -> None:
        """Forget what was taken: the connection is lost."""
        self._taken = 0
