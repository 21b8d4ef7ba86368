"""A subscription without a node that says what is owed: all bundles of `Stored` that it was given and that are not resolved."""

from __future__ import annotations

from quiver_actors.base.model import BundleId
from tests.unit.forward.stored import SealedSegments, Stored


class Owing(SealedSegments):
    """See `table_rows.OrderedSource`."""

    subscriber = "lake"
    order = "oldest"

    def pending_in_range(self, start: BundleId, end: BundleId, timeout: float = 10.0) -> int:
        return sum(start <= stored.bundle_id < end and _is_owed(stored) for stored in self.all)

    def add(self, *stored: Stored) -> None:
        self.all += stored
        self.waiting += stored


def _is_owed(stored: Stored) -> bool:
    return stored.resolution not in ("ack", "reject")
