"""Counts what retention has deleted, and what was lost by it, by reason."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

LOSS_REASONS = ("evicted", "expired", "dropped", "damaged")
"""Why bundles were lost, as gap notices spell it: `drop_oldest` at the size cap, `max_age`, an operator, the disk."""
EVICTION_REASONS = ("processed", "size", "expired", "evicted", "dropped")
"""Why a segment's file was deleted."""


@dataclass(slots=True)
class Loss:
    """Losses for one reason. A bundle that several subscribers lose counts once, and so does its segment."""

    segments: int = 0
    bundles: int = 0
    rows: int = 0
    size_bytes: int = 0


@dataclass(slots=True)
class Losses:
    """Counters since the engine was opened."""

    by_reason: dict[str, Loss] = field(default_factory=lambda: {reason: Loss() for reason in LOSS_REASONS})
    evictions: dict[str, int] = field(default_factory=lambda: dict.fromkeys(EVICTION_REASONS, 0))
    """How many files were deleted, by reason."""
    throttled: int = 0
    """Pushes that had to wait for room, or were refused for want of it."""

    def note(
        self, reason: str, runs: Iterable[tuple[int, int]], bundle_count: int, row_count: int, size_bytes: int
    ) -> None:
        """Count a segment that was lost, wholly or in part.

        Rows and bytes of a part are counted with the segment's mean; a part of unknown size counts no bundles.

        Args:
            runs: what each subscriber loses, as (first index, count); they may overlap.
            bundle_count, row_count, size_bytes: those of the whole segment.
        """
        lost = {index for first, count in runs for index in range(first, first + count)}
        loss = self.by_reason[reason]
        if not lost and bundle_count:
            return
        loss.segments += 1
        loss.bundles += len(lost)
        if bundle_count:
            loss.rows += row_count * len(lost) // bundle_count
            loss.size_bytes += size_bytes * len(lost) // bundle_count
