"""Progress in bundles that cannot be claimed yet joins what consumers resolve, and neither hides the other."""

from __future__ import annotations

import pytest

from quiver_actors.errors import UsageError
from quiver_actors.store.subscriber.bitmap import bitmap_of, full
from quiver_actors.store.subscriber.progress import SegmentProgress, SubscriberProgress
from quiver_actors.store.subscriber.registry import SubscriberRegistry
from quiver_actors.store.subscriber.seek import ack_through
from quiver_actors.store.subscriber.sizes import OpenSizes
from tests.support.consumers import RememberingState as SubscriberState
from tests.unit.store.subscriber.test_claims import ALICE, BOB, bit_indexes, resolve, restarted


def opened(*segments: tuple[int, int]) -> SubscriberState:
    """A subscriber of segments that are not sealed, as (number, how many bundles can be claimed)."""
    state = SubscriberState("sub")
    for segment_seq, bundle_count in segments:
        grow(state, segment_seq, bundle_count)
    return state


def grow(state: SubscriberState, segment_seq: int, bundle_count: int) -> None:
    sizes = OpenSizes()
    sizes.ends.extend(range(10, 10 * bundle_count + 1, 10))
    state.grow_segment(segment_seq, bundle_count, sizes)


def loaded(segment_seq: int, bundle_count: int, *resolved: int) -> SubscriberState:
    """A subscriber whose file names these bundles of one segment as resolved."""
    bits = sum(1 << index for index in resolved)
    entry = SegmentProgress(bundle_count, bitmap_of(bits, bundle_count))
    state = SubscriberState("sub")
    state.progress.load(
        SubscriberProgress(oldest_incomplete_seg=segment_seq, entries={segment_seq: entry}, trusted_watermark=True)
    )
    return state


# --- the progress of an open segment ------------------------------------------------------------------------------------------


def test_progress_of_an_open_segment_joins_what_was_passed_behind_its_end_and_hides_nothing_before() -> None:
    state = opened((7, 3))
    assert state.progress.pass_unsealed(7, 6) == 3, "those that can be claimed are not passed by this"
    state.claim(ALICE, 2)
    resolve(state, ALICE, 7, "ack", 1)
    assert bit_indexes(state.progress.snapshot(7)) == {7: (6, [1, 3, 4, 5])}
    assert restarted(state, 7, (7, 8)).claim(BOB, 99) == [(7, [0, 2, 6, 7])]
    grow(state, 7, 8)
    assert bit_indexes(state.progress.snapshot(7)) == {7: (8, [1, 3, 4, 5])}, "also once all of them can be claimed"
    assert state.claim(BOB, 99) == [(7, [2, 6, 7])]


def test_progress_of_an_open_segment_does_not_name_bundles_that_nobody_was_shown() -> None:
    """A restart announces shown bundles that are not there as lost: what is behind the last resolved one may never have been durable."""
    state = loaded(7, 10, 1, 4)
    grow(state, 7, 3)
    assert bit_indexes(state.progress.snapshot(7)) == {7: (5, [1, 4])}
    shown = restarted(state, 7).progress.awaited.shown_count(7)
    assert shown == 4, "before the last resolved one"


def test_everything_through_a_bundle_behind_the_end_is_resolved_and_stays_so() -> None:
    state = opened((7, 3))
    state.claim(ALICE, 1)
    ack_through(state, 7, 4, {7: 6})
    assert state.leases.claimed_count == 0
    assert bit_indexes(state.progress.snapshot(7)) == {7: (5, [0, 1, 2, 3, 4])}
    assert restarted(state, 7, (7, 6)).claim(BOB, 99) == [(7, [5])]


@pytest.mark.parametrize("steps", [(4, 6), (6,), (3, 4, 5, 6), (3, 100)])
def test_bundles_that_were_resolved_before_they_came_are_not_given_beside_those_that_are_held(
    steps: tuple[int, ...],
) -> None:
    state = opened((7, 2))
    assert state.claim(ALICE, 1) == [(7, [0])]
    state.progress.pass_unsealed(7, 4)
    for bundle_count in steps:
        grow(state, 7, bundle_count)
    last = steps[-1]
    assert state.progress.unresolved_count == last - 2
    assert state.claim(BOB, 1_000) == [(7, [1, *range(4, last)])]
    assert resolve(state, ALICE, 7, "ack", 0) == []
    assert resolve(state, BOB, 7, "ack", 1, *range(4, last)) == []
    assert state.progress.unresolved_count == 0
    state.add_segment(7, last)
    assert state.progress.is_complete(7)


# --- the seal of an open segment ----------------------------------------------------------------------------------------------


def test_bundles_that_come_with_the_seal_are_owed() -> None:
    state = opened((7, 2))
    state.claim(ALICE, 2)
    resolve(state, ALICE, 7, "ack", 0, 1)
    state.add_segment(7, 5)
    assert not state.progress.is_complete(7)
    assert state.progress.unresolved_count == 3
    assert state.claim(BOB, 99) == [(7, [2, 3, 4])]


def test_seal_with_fewer_bundles_than_could_be_claimed_is_refused() -> None:
    state = opened((7, 3))
    with pytest.raises(UsageError, match=r"segment 7 has 2 bundles: 3 of it were announced"):
        state.add_segment(7, 2)
    assert state.claim(ALICE, 99) == [(7, [0, 1, 2])], "nothing was changed"


# --- the oldest bundle ----------------------------------------------------------------------------------------------------------


def test_oldest_unresolved_bundle_is_behind_an_open_segment_that_is_resolved_so_far() -> None:
    state = opened((3, 2), (5, 1), (4, 3))
    state.claim(ALICE, 99)
    resolve(state, ALICE, 3, "ack", 0, 1)
    resolve(state, ALICE, 4, "ack", 0)
    assert state.progress.oldest_unresolved() == (4, 1)
    resolve(state, ALICE, 4, "ack", 1, 2)
    assert state.progress.oldest_unresolved() == (5, 0)
    resolve(state, ALICE, 5, "ack", 0)
    assert state.progress.oldest_unresolved() is None
    grow(state, 3, 3)
    assert state.progress.oldest_unresolved() == (3, 2)


# --- another number -------------------------------------------------------------------------------------------------------------


def test_a_segment_with_another_number_keeps_what_is_resolved_of_it() -> None:
    state = loaded(5, 3, 1)
    version = state.progress.changes.version
    state.progress.renumber(5, 8, 3)
    assert state.progress.changes.version > version, "the file must say so before the other number is forgotten"
    state.add_segment(8, 3)
    assert state.claim(ALICE, 99) == [(8, [0, 2])]


@pytest.mark.parametrize("is_below", [True, False])
def test_a_complete_segment_with_another_number_stays_complete(is_below: bool) -> None:
    state = loaded(5, 3)
    state.progress.completed.counts[6] = 4
    segment_seq, bundle_count = (4, 2) if is_below else (6, 4)
    version = state.progress.changes.version
    state.progress.renumber(segment_seq, 8, bundle_count)
    assert state.progress.changes.version > version
    assert (6 in state.progress.completed.counts) == is_below, "the former number may be given to another segment"
    assert 8 in state.progress.snapshot(9).entries
    fresh = restarted(state, 9, (5, 3), (8, bundle_count))
    assert fresh.progress.is_complete(8)
    assert fresh.claim(ALICE, 99) == [(5, [0, 1, 2])]


def test_another_number_of_a_segment_that_nothing_is_known_of_changes_nothing() -> None:
    state = loaded(5, 3, 1)
    version = state.progress.changes.version
    state.progress.renumber(7, 8, 2)
    assert state.progress.changes.version == version
    state.add_segment(8, 2)
    assert state.claim(ALICE, 99) == [(8, [0, 1])]


# --- bundles that a crash has taken ---------------------------------------------------------------------------------------------


def test_bundles_behind_the_end_of_a_log_are_announced_to_those_who_were_owed_them() -> None:
    """One file proves that bundles 0..9 were shown; the log has only four after the crash."""
    registry = SubscriberRegistry()
    entry = SegmentProgress(10, bitmap_of(0b1, 10))
    ahead = SegmentProgress(10, bitmap_of(-1 << 6, 10))
    done = SegmentProgress(10, full(10))
    for name, progress in {"proof": entry, "ahead": ahead, "done": done}.items():
        registry.load(name, SubscriberProgress(oldest_incomplete_seg=7, entries={7: progress}, trusted_watermark=True))
    registry.load("past", SubscriberProgress(oldest_incomplete_seg=8, entries={}, trusted_watermark=True))
    told = registry.load("told", SubscriberProgress(oldest_incomplete_seg=7, entries={}, trusted_watermark=True))
    told.gaps.add(7, 2, 0, -1, "damaged", 0)
    assert registry.lose_behind(7, 4) == [("proof", 4, 6), ("ahead", 4, 2)]
    found = {state.subscriber: [(gap.bundle_index_first, gap.bundle_count) for gap in state.gaps] for state in registry}
    assert found == {"proof": [(4, 6)], "ahead": [(4, 2)], "done": [], "past": [], "told": [(2, 0)]}
    dirty = {state.subscriber for state in registry if state.progress.changes.is_dirty}
    assert dirty == {"proof", "ahead"}, "a notice goes with progress that counts its bundles"
    assert [state.counts.dropped for state in registry] == [6, 2, 0, 0, 0]


def test_a_log_with_all_that_was_shown_loses_nothing() -> None:
    registry = SubscriberRegistry()
    entry = SegmentProgress(4, bitmap_of(0b1, 4))
    registry.load("sub", SubscriberProgress(oldest_incomplete_seg=7, entries={7: entry}, trusted_watermark=True))
    assert registry.lose_behind(7, 4) == []
    assert not len(registry.get("sub").gaps)
