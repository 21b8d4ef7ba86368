"""What a subscriber has resolved of segments that were not added yet: loaded from its file, skipped, or lost. Pure.

Owner: one `ProgressState`.
"""

from __future__ import annotations

from collections.abc import Mapping

from quiver_actors.base.ranges import Runs
from quiver_actors.store.subscriber import bitmap as bitmaps
from quiver_actors.store.subscriber.bundle_states import BundleStates
from quiver_actors.store.subscriber.progress import SegmentProgress

_NOTHING = SegmentProgress(0, b"")


class Awaited:
    """The progress of segments that were not added, by number."""

    def __init__(self, entries: Mapping[int, SegmentProgress]) -> None:
        self.entries = dict(entries)
        self._loaded = entries
        """The progress as it was when this object was made; it does not change."""

    def add(self, segment_seq: int, bundle_count: int, bits: int) -> None:
        """Count the bundles of `bits` as resolved in a segment of at least so many bundles."""
        known = self.entries.get(segment_seq, _NOTHING)
        count = max(bundle_count, known.bundle_count)
        bits |= bitmaps.bits_of(known.bitmap)
        self.entries[segment_seq] = SegmentProgress(count, bitmaps.bitmap_of(bits, count))

    def pop(self, segment_seq: int) -> SegmentProgress:
        """Take a segment out, as far as anybody knows it."""
        return self.entries.pop(segment_seq, _NOTHING)

    def segments_without(self, known: Mapping[int, object]) -> list[int]:
        """Segments that the progress names and that are not `known`, ascending.

        After recovery has added all sealed segments, such a one below the open segment does not exist any more: it must be
        forgotten (with a gap notice if that names bundles), or it holds the watermark for ever.
        """
        return sorted(self.entries.keys() - known.keys())

    def bitmap(self, segment_seq: int) -> bytes:
        """The resolved bundles, as far as they are known."""
        return self.entries.get(segment_seq, _NOTHING).bitmap

    def bundle_count(self, segment_seq: int) -> int:
        """How many bundles the segment has at least; 0 if nothing is known of it."""
        return self.entries.get(segment_seq, _NOTHING).bundle_count

    def shown_count(self, segment_seq: int) -> int:
        """How many bundles of the segment were certainly shown to subscribers when the progress was made durable: it names an unresolved
        bundle only if that can be read."""
        known = self._loaded.get(segment_seq, _NOTHING)
        unresolved = ~bitmaps.bits_of(known.bitmap) & ((1 << known.bundle_count) - 1)
        return unresolved.bit_length()

    def is_complete(self, segment_seq: int) -> bool:
        """Whether the progress says that the whole segment is resolved."""
        progress = self.entries.get(segment_seq)
        return progress is not None and progress.is_complete

    def unresolved_runs(self, segment_seq: int, bundle_count: int) -> Runs:
        """Unresolved runs of a segment of so many bundles; with 0, a last run of unknown length as well."""
        count = max(self.bundle_count(segment_seq), bundle_count)
        runs: Runs = bitmaps.unresolved_runs(self.bitmap(segment_seq), count)
        return runs if bundle_count else [*runs, (count, 0)]

    def unresolved_between(self, segment_seq: int, first: int, stop: int) -> Runs:
        """Unresolved runs of the bundles from `first` up to and without `stop`."""
        bits = bitmaps.bits_of(self.bitmap(segment_seq)) >> first
        packed = bitmaps.bitmap_of(bits, stop - first)
        return [(first + start, count) for start, count in bitmaps.unresolved_runs(packed, stop - first)]

    def unresolved_count(self, segment_seq: int, first: int, bundle_count: int) -> int:
        """How many of the first so many bundles, from `first` on, are not resolved."""
        resolved = bitmaps.bits_of(bitmaps.resized(self.bitmap(segment_seq), bundle_count))
        return bundle_count - first - (resolved >> first).bit_count()

    def behind(self, segment_seq: int, states: BundleStates | None) -> SegmentProgress:
        """The progress in a segment that is not sealed: of the bundles that can be claimed (None: none can), and of those behind them."""
        awaited = self.entries.get(segment_seq, _NOTHING)
        if states is None or not awaited.bundle_count:
            return awaited if states is None else SegmentProgress(states.bundle_count, states.bitmap())
        behind = bitmaps.bits_of(awaited.bitmap) >> states.bundle_count << states.bundle_count
        # Without the unresolved ones at the end: nobody was shown them, and no crash may make a loss of them.
        count = max(states.bundle_count, behind.bit_length())
        bits = bitmaps.bits_of(states.bitmap()) | behind
        return SegmentProgress(count, bitmaps.bitmap_of(bits, count))
