"""Moving a known subscriber to another position: what it skips by that, and what it is owed again. Pure.

Afterwards it stands where a new one that starts there would: everything before counts as resolved, everything from there on is owed, as
far as it is stored. What was owed before and is skipped is dropped, and a gap notice says so. A notice of bundles that were dropped and
are still stored is withdrawn: they are owed again, or are skipped again, with a new notice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from quiver_actors.base.ranges import Runs
from quiver_actors.store.subscriber import bitmap as bitmaps
from quiver_actors.store.subscriber.claims import SubscriberState
from quiver_actors.store.subscriber.gaps import GapNotice
from quiver_actors.store.subscriber.outcomes import PASSED
from quiver_actors.store.subscriber.progress import SegmentProgress, SubscriberProgress
from quiver_actors.store.subscriber.progress_state import Position

WITHDRAWABLE = "dropped"
"""The only reason whose notices can be withdrawn: bundles that were lost for another one are not there any more."""


class SeekPlan(NamedTuple):
    """Effect of a seek on one subscriber."""

    progress: SubscriberProgress
    """The subscriber's progress afterwards."""
    skipped: dict[int, Runs]
    """The bundles that it was owed and does not get, by segment."""
    withdrawn: list[GapNotice]
    skipped_count: int
    """How many bundles it was owed until now and skips; those of withdrawn notices are not counted."""
    again_count: int
    """How many bundles were resolved or lost, and are owed again."""


def before_position(position: Position, stored: Mapping[int, int]) -> dict[int, SegmentProgress]:
    """The bundles of the stored segments (bundle counts by number) that lie before a position."""
    found = {}
    for segment_seq, bundle_count in stored.items():
        count = bundle_count if segment_seq < position[0] else min(position[1], bundle_count)
        if segment_seq <= position[0] and count:
            found[segment_seq] = SegmentProgress(count, bitmaps.full(count))
    return found


def archived_of(state: SubscriberState) -> dict[int, int]:
    """Bundle counts of the archived segments that a subscriber has not resolved, by number, rising."""
    segments = state.progress.segments
    return {seq: segments[seq].bundle_count for seq in state.progress.archived.among(segments)}


def plan_seek(
    state: SubscriberState,
    stored: Mapping[int, int],
    before: Mapping[int, SegmentProgress],
    floor: int,
    going: Mapping[int, int] = {},
) -> SeekPlan:
    """
    Args:
        stored: bundle counts of all segments whose bundles can be had, sealed or not, by number; those of `archived_of` too.
        going: those of segments that everybody has completed and whose files may be gone at any moment.
        before: which of those bundles lie before the new position.
        floor: no segment that is not stored and at or above this one may be taken for complete.
    """
    entries = {seq: SegmentProgress(count, bitmaps.full(count)) for seq, count in _gone(state, stored, going).items()}
    skipped: dict[int, Runs] = {}
    withdrawn: list[GapNotice] = []
    skipped_count = again_count = 0
    for segment_seq, bundle_count in sorted(stored.items()):
        resolved = bitmaps.bits_of(state.progress.resolved_bitmap(segment_seq, bundle_count))
        passed = bitmaps.bits_of(before[segment_seq].bitmap) if segment_seq in before else 0
        skipped_count += (passed & ~resolved).bit_count()
        found = [gap for gap in state.gaps if gap.segment_seq == segment_seq and gap.bundle_count]
        for gap in found:
            if gap.reason == WITHDRAWABLE and _run(gap) & ~passed:
                withdrawn.append(gap)
                if not gap.is_told:  # else somebody knows of those before the position
                    resolved &= ~_run(gap)
            else:
                # It stands: these are not owed, whatever the position.
                resolved &= ~(_run(gap) & ~passed)
        again_count += (resolved & ~passed).bit_count()
        again_count += sum((_run(gap) & ~passed).bit_count() for gap in withdrawn if gap in found and not gap.is_told)
        if passed != (1 << bundle_count) - 1:
            floor = min(floor, segment_seq)
        if passed:
            entries[segment_seq] = SegmentProgress(bundle_count, bitmaps.bitmap_of(passed, bundle_count))
        if runs := bitmaps.unresolved_runs(bitmaps.bitmap_of(resolved | ~passed, bundle_count), bundle_count):
            skipped[segment_seq] = runs
    archived = [seq for seq in archived_of(state) if seq not in entries or not entries[seq].is_complete]
    for segment_seq in archived:
        # Nothing on the disk says how many bundles it has.
        entries.setdefault(segment_seq, SegmentProgress(stored[segment_seq], bitmaps.bitmap_of(0, stored[segment_seq])))
    entries = {seq: entry for seq, entry in entries.items() if seq >= floor}
    progress = SubscriberProgress(
        oldest_incomplete_seg=floor,
        entries=entries,
        trusted_watermark=True,
        archived=state.progress.archived.segments_of(archived, entries),
    )
    return SeekPlan(progress, skipped, withdrawn, skipped_count, again_count)


def _gone(state: SubscriberState, stored: Mapping[int, int], going: Mapping[int, int]) -> dict[int, int]:
    """Bundle counts, as far as they matter, of complete segments that cannot be had any more and may still be heard of."""
    found = dict(going)
    for gap in state.gaps:
        if gap.segment_seq not in stored and state.progress.is_complete(gap.segment_seq):
            end = gap.bundle_index_first + gap.bundle_count
            found[gap.segment_seq] = max(end, found.get(gap.segment_seq, 0))
    return found


def _run(gap: GapNotice) -> int:
    """The bundles of a notice as bits."""
    return ((1 << gap.bundle_count) - 1) << gap.bundle_index_first


def ack_through(state: SubscriberState, segment_seq: int, bundle_index: int, unsealed: Mapping[int, int]) -> None:
    """Resolve everything up to and including that bundle, whoever holds it.

    Args:
        unsealed: bundle counts of segments up to that one that were not added yet.
    """
    for seq in sorted(seq for seq in state.progress.segments if seq <= segment_seq):
        states = state.progress.segments[seq]
        stop = states.bundle_count if seq < segment_seq else min(bundle_index + 1, states.bundle_count)
        state.counts.acked += state.resolve_span(seq, states, 0, stop, PASSED).bundles
    for seq, bundle_count in unsealed.items():
        passed = bundle_count if seq < segment_seq else min(bundle_index + 1, bundle_count)
        state.counts.acked += state.progress.pass_unsealed(seq, passed)
