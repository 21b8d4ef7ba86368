"""Bundles that a subscriber loses: of a segment that was deleted, cannot be read, or will never be sealed.

Pure functions over one `SubscriberState`, which owns all of it; called on the loop thread. What is lost is resolved as dropped, whoever
holds it, and the runs that each function returns are what a gap notice must name.
"""

from __future__ import annotations

from collections.abc import Iterable

from quiver_actors.base.ranges import Runs
from quiver_actors.store.subscriber import bitmap as bitmaps
from quiver_actors.store.subscriber.bundle_states import BundleStates
from quiver_actors.store.subscriber.claims import SubscriberState
from quiver_actors.store.subscriber.gaps import GapNotice
from quiver_actors.store.subscriber.outcomes import DROPPED


def forget_segment(state: SubscriberState, segment_seq: int, *, file_is_gone: bool = False) -> Runs:
    """The segment was deleted, or cannot be read: what was unresolved of it is resolved as dropped.

    Args:
        file_is_gone: its unlink is durable, so that no restart can find the file again and it needs no progress entry.
            Without that the entry stays until the watermark has passed it.

    Returns:
        The dropped bundles as (first index, count), ascending: what a gap notice must name. Empty for a complete one.
    """
    runs: Runs = []
    states = state.progress.segments.get(segment_seq)
    if states is not None:
        runs = _drop_span(state, segment_seq, states, 0, states.bundle_count)
    elif not state.progress.is_complete(segment_seq):
        runs = state.progress.give_up_awaited(segment_seq)
        state.counts.dropped += sum(count for _, count in runs)
    # With a notice of some of its bundles, a restart must still be able to tell what became of the others.
    if file_is_gone and not state.gaps.covers(segment_seq):
        state.progress.file_is_gone(segment_seq)
    return runs


def lose_unsealed(state: SubscriberState, segment_seq: int, bundle_count: int) -> Runs:
    """A segment that was not added will never be: note what is lost of it, as notices that were loaded are.

    Args:
        bundle_count: 0 if nobody knows.

    Returns:
        What is new of it, as (first index, count), count 0 for nobody knows how many.
    """
    if state.progress.is_complete(segment_seq) or state.gaps.has_open_end(segment_seq):
        return []
    runs = state.progress.awaited.unresolved_runs(segment_seq, bundle_count)
    if runs:
        state.progress.changes.note()
    for first, count in runs:
        state.gaps.add(segment_seq, first, count, -1, "damaged", state.progress.changes.version)
        state.progress.load_lost(segment_seq, first, count)
        state.counts.dropped += count
    return runs


def lose_archived(state: SubscriberState, lost: Iterable[tuple[int, int, int, str]]) -> list[GapNotice]:
    """The archive will never have these bundles of archived segments that were just added: note what the subscriber was owed of them.

    Args:
        lost: as (segment, first bundle, count, reason); count 0: all of a segment that was not added, nobody knows how many.
    """
    notices = []
    for segment_seq, first, count, reason in lost:
        if not count and not state.progress.is_complete(segment_seq):
            runs = [(0, 0)]
            state.progress.load_lost(segment_seq, 0, 0)
            state.progress.changes.note()
        else:
            runs = drop(state, segment_seq, first, count)
        version = state.progress.changes.version
        notices += [state.gaps.add(segment_seq, *run, -1, reason, version) for run in runs]
    return notices


def lose_behind(state: SubscriberState, segment_seq: int, bundle_count: int, shown_count: int) -> Runs:
    """A segment that was not added has fewer bundles than subscribers were shown before a crash: note those behind its end.

    Returns:
        What this subscriber was owed of them, as (first index, count).
    """
    if state.progress.is_complete(segment_seq) or state.gaps.has_open_end(segment_seq):
        return []
    runs = state.progress.awaited.unresolved_between(segment_seq, bundle_count, shown_count)
    if runs:
        state.progress.changes.note()
    for first, count in runs:
        state.gaps.add(segment_seq, first, count, -1, "damaged", state.progress.changes.version)
        state.counts.dropped += count
    return runs


def drop(state: SubscriberState, segment_seq: int, first: int, count: int) -> Runs:
    """Drop bundles that are lost of a segment that was added: like `forget_segment`, for these only."""
    states = state.progress.segments.get(segment_seq)
    if states is None:
        return []
    return _drop_span(state, segment_seq, states, first, min(first + count, states.bundle_count))


def _drop_span(state: SubscriberState, segment_seq: int, states: BundleStates, start: int, stop: int) -> Runs:
    bits = bitmaps.bits_of(states.bitmap()) >> start
    size = stop - start
    packed = bitmaps.bitmap_of(bits, size)
    runs = [(start + first, count) for first, count in bitmaps.unresolved_runs(packed, size)]
    if runs:
        ended = state.resolve_span(segment_seq, states, start, stop, DROPPED)
        state.counts.dropped += ended.bundles
        for token, _ in ended.claimed:
            state.leases.note_ended(token, given_up=True)
    return runs
