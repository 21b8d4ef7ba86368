"""Counters of one subscriber: its deliveries, their outcomes, and the bundles that it has lost. Pure."""

from __future__ import annotations


class DeliveryCounts:
    """Counts since the subscriber was opened. None of them ever falls, for a counter that fell would be read as a restart by whoever takes
    its rate: of claims that were returned as many later ones are not counted.

    Attributes:
        delivered, redelivered: claims granted, and those of them that were not the first.
        acked, rejected, deferred: outcomes; `deferred` counts each time.
        expired: bundles whose lease ran out.
        dead_lettered: exhausted bundles that went to a dead letter topic.
        dropped: bundles that are lost: nobody gets them, and a gap notice says so.
    """

    def __init__(self) -> None:
        self.delivered = self.redelivered = self.acked = self.rejected = self.deferred = self.dropped = 0
        self.expired = self.dead_lettered = 0
        self._unseen = 0
        """How many claims were counted in `delivered` and were returned since."""

    def note_delivered(self, bundles: int, first_deliveries: int) -> None:
        """Count a grant of so many bundles, of which so many were never delivered before."""
        seen_before = min(bundles, self._unseen)
        self._unseen -= seen_before
        self.delivered += bundles - seen_before
        self.redelivered += bundles - first_deliveries

    def note_returned(self, bundles: int) -> None:
        """Take back so many deliveries: their consumer has returned the bundles."""
        self._unseen += bundles
