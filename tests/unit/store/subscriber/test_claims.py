"""One subscriber: claims, outcomes, watermark, durable progress."""

from __future__ import annotations

from array import array

import pytest

from quiver_actors.errors import UsageError
from quiver_actors.store.subscriber import losses
from quiver_actors.store.subscriber.bitmap import full
from quiver_actors.store.subscriber.progress import (
    SegmentProgress,
    SubscriberProgress,
    decode_progress,
    encode_progress,
)
from tests.support.consumers import RememberingState as SubscriberState

ALICE, BOB = object(), object()


def subscriber(*segments: tuple[int, int]) -> SubscriberState:
    state = SubscriberState("sub")
    for segment_seq, bundle_count in segments:
        state.add_segment(segment_seq, bundle_count)
    return state


def resolve(
    state: SubscriberState,
    owner: object,
    segment_seq: int,
    outcome: str,
    *indexes: int,
    delay_ns: int = 0,
    now_ns: int = 0,
) -> list[int]:
    return state.resolve(owner, segment_seq, outcome, indexes, delay_ns, now_ns)


def restarted(state: SubscriberState, next_segment_seq: int, *segments: tuple[int, int]) -> SubscriberState:
    """What comes up after a restart from the state's progress file and those segment files."""
    fresh = SubscriberState("sub")
    fresh.progress.load(decode_progress(encode_progress(state.progress.snapshot(next_segment_seq))))
    for segment_seq, bundle_count in segments:
        fresh.add_segment(segment_seq, bundle_count)
    return fresh


def bit_indexes(progress: SubscriberProgress) -> dict[int, tuple[int, list[int]]]:
    """Resolved indexes by segment, beside the bundle counts."""
    found = {}
    for segment_seq, (count, bitmap) in progress.entries.items():
        bits = int.from_bytes(bitmap, "little")
        found[segment_seq] = (count, [index for index in range(count) if bits >> index & 1])
    return found


# --- claiming ----------------------------------------------------------------------------------------------------------


def test_claim_gives_oldest_first_across_segments() -> None:
    state = subscriber((3, 4), (5, 3))
    assert state.claim(ALICE, 2) == [(3, [0, 1])]
    assert state.claim(BOB, 4) == [(3, [2, 3]), (5, [0, 1])]
    assert state.claim(ALICE, 10) == [(5, [2])]
    assert state.claim(ALICE, 10) == []
    assert (state.leases.claimed_count, state.counts.delivered, state.pending_count) == (7, 7, 0)


@pytest.mark.parametrize("bundles", [0, -1])
def test_claim_without_credit_gives_nothing(bundles: int) -> None:
    state = subscriber((0, 4))
    assert state.claim(ALICE, bundles) == []
    assert (state.leases.claimed_count, state.counts.delivered) == (0, 0)


def test_claim_skips_what_is_resolved_already() -> None:
    state = SubscriberState("sub")
    progress = {0: SegmentProgress(6, bytes([0b101101]) + bytes(7))}
    state.progress.load(SubscriberProgress(oldest_incomplete_seg=0, entries=progress, trusted_watermark=True))
    state.add_segment(0, 6)
    assert state.pending_count == 2
    assert state.claim(ALICE, 10) == [(0, [1, 4])]


def test_released_bundles_come_before_newer_ones() -> None:
    state = subscriber((0, 4), (1, 4))
    state.claim(ALICE, 3)
    state.claim(BOB, 2)
    assert state.release(ALICE) == 3
    assert state.release(ALICE) == 0
    assert state.leases.claimed_count == 2
    assert state.claim(BOB, 10) == [(0, [0, 1, 2]), (1, [1, 2, 3])]


def test_released_bundles_do_not_include_resolved_or_foreign_ones() -> None:
    state = subscriber((0, 6))
    for owner in (ALICE, BOB) * 3:
        state.claim(owner, 1)
    assert resolve(state, ALICE, 0, "ack", 2) == []
    state.release(ALICE)
    assert state.claim(BOB, 10) == [(0, [0, 4])]


def test_segment_added_late_is_still_oldest_first() -> None:
    state = subscriber((4, 2), (6, 2))
    state.claim(ALICE, 1)
    state.add_segment(5, 2)
    assert state.claim(ALICE, 10) == [(4, [1]), (5, [0, 1]), (6, [0, 1])]


def test_work_is_shared_without_overlap() -> None:
    state = subscriber((0, 1000), (1, 1000))
    owners = [object() for _ in range(8)]
    seen: list[tuple[int, int]] = []
    for turn in range(1000):
        for segment_seq, indexes in state.claim(owners[turn % 8], 2):
            seen += [(segment_seq, index) for index in indexes]
    assert seen == [(segment_seq, index) for segment_seq in (0, 1) for index in range(1000)]


# --- resolving ---------------------------------------------------------------------------------------------------------


def test_resolve_counts_by_outcome() -> None:
    state = subscriber((0, 20))
    state.claim(ALICE, 20)
    assert resolve(state, ALICE, 0, "ack", *range(10)) == []
    assert resolve(state, ALICE, 0, "reject", 11, 10) == []
    assert resolve(state, ALICE, 0, "defer", 12, 13, 14, delay_ns=5) == []
    assert (state.counts.acked, state.counts.rejected, state.counts.deferred, state.counts.delivered) == (10, 2, 3, 20)
    assert (state.leases.claimed_count, state.aside.waiting_count, state.progress.unresolved_count) == (5, 3, 8)
    assert (state.pending_count, state.claimable_count) == (3, 0)


@pytest.mark.parametrize("outcome", ["ack", "reject", "defer"])
def test_resolve_returns_what_the_owner_does_not_hold(outcome: str) -> None:
    state = subscriber((0, 8))
    state.claim(ALICE, 3)
    state.claim(BOB, 3)
    assert resolve(state, ALICE, 0, outcome, 0, 3, 7, 8, -1, 2, 2, 1 << 40) == [3, 7, 8, -1, 2, 1 << 40]
    assert resolve(state, BOB, 0, outcome, 3, 4, 5, 6, 7) == [6, 7]
    assert resolve(state, ALICE, 0, outcome, 0, 2) == [0, 2], "finished once is finished"
    assert state.leases.claimed_count == 1


def test_resolve_by_a_stranger_or_of_an_unknown_segment_changes_nothing() -> None:
    state = subscriber((0, 8))
    state.claim(ALICE, 8)
    version = state.progress.changes.version
    assert resolve(state, BOB, 0, "ack", *range(8)) == list(range(8))
    assert resolve(state, ALICE, 1, "ack", 0) == [0]
    assert resolve(state, ALICE, 0, "ack") == []
    assert (state.progress.changes.version, state.counts.acked, state.leases.claimed_count) == (version, 0, 8)


def test_resolve_after_release_is_refused() -> None:
    state = subscriber((0, 2))
    state.claim(ALICE, 2)
    state.release(ALICE)
    assert resolve(state, ALICE, 0, "ack", 0, 1) == [0, 1]
    assert state.claim(BOB, 2) == [(0, [0, 1])]
    state.claim(ALICE, 1)
    assert resolve(state, ALICE, 0, "ack", 0, 1) == [0, 1], (
        "a released owner that claims again gets none of its old claims"
    )


@pytest.mark.parametrize("outcome", ["release", "drop", "", "ACK"])
def test_resolve_with_an_unknown_outcome_is_refused_whole(outcome: str) -> None:
    state = subscriber((0, 2))
    state.claim(ALICE, 2)
    with pytest.raises(UsageError, match="expected one of ack, reject, defer"):
        resolve(state, ALICE, 0, outcome, 0)
    assert state.leases.claimed_count == 2


@pytest.mark.parametrize("indexes", [range(64), [*range(63, -1, -1)], [*range(0, 64, 3)], [7], [*range(10)] * 2])
def test_resolve_takes_any_sequence_of_indexes(indexes: list[int]) -> None:
    """Packed u32 arrays come off the wire, lists from tests and tools."""
    wire = memoryview(array("I", indexes).tobytes()).cast("I")
    for given in (indexes, tuple(indexes), array("I", indexes), wire):
        state = subscriber((0, 64))
        state.claim(ALICE, 64)
        state.resolve(ALICE, 0, "ack", given, 0, 0)
        remaining = [(0, [index for index in range(64) if index not in indexes])]
        state.release(ALICE)
        assert state.claim(BOB, 64) == ([] if state.progress.is_complete(0) else remaining)


def test_million_acks_out_of_order_leave_exactly_the_unacked() -> None:
    """No limit on holes: redelivered after a restart is what was not acked, no more and no less."""
    segments = [(seq, 50_000) for seq in range(20)]
    state = subscriber(*segments)
    state.claim(ALICE, 1_000_000)
    for segment_seq, count in segments:
        # 7 and the count share no divisor, so this visits every index in a scattered order; every 100th is left out.
        indexes = [index * 7 % count for index in range(count)]
        state.resolve(ALICE, segment_seq, "ack", [index for index in indexes if index % 100], 0, 0)
    assert state.counts.acked == 990_000
    fresh = restarted(state, 20, *segments)
    assert fresh.claim(BOB, 1_000_000) == [(seq, list(range(0, 50_000, 100))) for seq in range(20)]


# --- deferring ---------------------------------------------------------------------------------------------------------


def test_deferred_without_delay_is_next_again() -> None:
    state = subscriber((0, 4))
    state.claim(ALICE, 3)
    assert resolve(state, ALICE, 0, "defer", 1) == []
    assert state.next_due_ns() is None
    assert state.claim(ALICE, 10) == [(0, [1, 3])]


def test_deferred_never_blocks_newer_and_comes_back_when_due() -> None:
    state = subscriber((0, 4))
    state.claim(ALICE, 2)
    resolve(state, ALICE, 0, "defer", 0, delay_ns=100, now_ns=1000)
    resolve(state, ALICE, 0, "defer", 1, delay_ns=50, now_ns=1000)
    assert state.next_due_ns() == 1050
    assert state.claim(BOB, 10) == [(0, [2, 3])]
    assert not state.due(1049)
    assert state.claim(BOB, 10) == []
    assert state.due(1050)
    assert (state.claimable_count, state.aside.waiting_count) == (1, 1)
    assert state.claim(BOB, 10) == [(0, [1])]
    assert state.next_due_ns() == 1100
    assert state.due(5000)
    assert state.claim(BOB, 10) == [(0, [0])]
    assert (state.next_due_ns(), state.due(9000)) == (None, False)


def test_deferred_bundles_outlive_their_owner_with_their_delay() -> None:
    state = subscriber((0, 3))
    state.claim(ALICE, 3)
    resolve(state, ALICE, 0, "defer", 0, 2, delay_ns=10)
    state.release(ALICE)
    assert state.claim(BOB, 10) == [(0, [1])]
    assert state.due(10)
    assert state.claim(BOB, 10) == [(0, [0, 2])]


def test_interleaved_delays_wake_only_their_own_bundles() -> None:
    state = subscriber((0, 10))
    state.claim(ALICE, 10)
    resolve(state, ALICE, 0, "defer", *range(0, 10, 2), delay_ns=10)
    resolve(state, ALICE, 0, "defer", *range(1, 10, 2), delay_ns=20)
    assert state.due(10)
    assert state.claim(BOB, 100) == [(0, [0, 2, 4, 6, 8])]
    assert state.due(20)
    assert state.claim(BOB, 100) == [(0, [1, 3, 5, 7, 9])]


# --- segments ----------------------------------------------------------------------------------------------------------


def test_segment_complete_is_reported_once() -> None:
    state = subscriber((0, 2), (1, 2))
    state.claim(ALICE, 4)
    resolve(state, ALICE, 1, "ack", 0, 1)
    resolve(state, ALICE, 0, "reject", 1)
    assert state.progress.completed.take_new() == [1]
    assert state.progress.completed.take_new() == []
    assert (state.progress.is_complete(0), state.progress.is_complete(1), state.progress.is_complete(2)) == (
        False,
        True,
        False,
    )
    resolve(state, ALICE, 0, "ack", 0)
    assert state.progress.completed.take_new() == [0]


def test_segment_added_twice_changes_nothing() -> None:
    state = subscriber((0, 2), (1, 2))
    state.claim(ALICE, 3)
    resolve(state, ALICE, 0, "ack", 0, 1)
    state.add_segment(0, 2)
    state.add_segment(1, 2)
    assert state.claim(ALICE, 10) == [(1, [1])]
    with pytest.raises(UsageError, match="with 2 bundles, not 3"):
        state.add_segment(1, 3)


def test_what_an_operator_sees_of_a_subscriber() -> None:
    state = subscriber((0, 2), (1, 2))
    state.claim(ALICE, 3)
    resolve(state, ALICE, 0, "ack", 0)
    assert repr(state) == "<SubscriberState sub claimed=2 <ProgressState floor=0 incomplete=2 unresolved=3 version=1>>"


def test_segment_without_bundles_is_complete() -> None:
    state = subscriber((0, 0), (1, 1))
    assert state.progress.is_complete(0)
    assert state.progress.watermark(2) == 1


def test_forget_incomplete_segment_drops_what_was_left_and_names_it() -> None:
    state = subscriber((0, 10), (1, 3))
    state.claim(ALICE, 5)
    state.claim(BOB, 2)
    resolve(state, ALICE, 0, "ack", 0, 3)
    resolve(state, BOB, 0, "defer", 6, delay_ns=100)
    assert losses.forget_segment(state, 0) == [(1, 2), (4, 6)]
    assert (
        state.counts.dropped,
        state.leases.claimed_count,
        state.aside.waiting_count,
        state.progress.unresolved_count,
    ) == (
        8,
        0,
        0,
        3,
    )
    assert state.progress.completed.take_new() == [0]
    assert resolve(state, ALICE, 0, "ack", 1, 2) == [1, 2], "its claims are gone"
    assert not state.due(1000)
    assert state.release(ALICE) == 0
    assert losses.forget_segment(state, 0) == [], "exactly one notice"
    assert state.claim(ALICE, 100) == [(1, [0, 1, 2])]


def test_forget_complete_segment_is_no_change() -> None:
    state = subscriber((0, 1))
    state.claim(ALICE, 1)
    resolve(state, ALICE, 0, "ack", 0)
    version = state.progress.changes.version
    assert losses.forget_segment(state, 0) == []
    assert (state.progress.changes.version, state.counts.dropped) == (version, 0)
    assert state.progress.is_complete(0)


def test_forget_segment_that_only_the_progress_knows() -> None:
    """A segment file that vanished while nobody looked holds the watermark until it is announced as lost."""
    progress = {2: SegmentProgress(5, bytes([0b00101]) + bytes(7)), 3: SegmentProgress(2, full(2))}
    state = SubscriberState("sub")
    state.progress.load(SubscriberProgress(oldest_incomplete_seg=2, entries=progress, trusted_watermark=True))
    state.add_segment(4, 1)
    assert state.progress.awaited.segments_without({}) == [2, 3]
    assert state.progress.watermark(5) == 2
    assert losses.forget_segment(state, 2) == [(1, 1), (3, 2)]
    assert losses.forget_segment(state, 3) == []
    assert (
        state.progress.awaited.segments_without({}),
        state.counts.dropped,
        state.progress.watermark(5),
    ) == ([], 3, 4)


def test_damaged_segment_stays_dropped_after_a_restart_that_finds_it_again() -> None:
    state = subscriber((0, 2), (1, 4))
    state.claim(ALICE, 1)
    assert losses.forget_segment(state, 1) == [(0, 4)]
    fresh = restarted(state, 2, (0, 2), (1, 4))
    assert fresh.claim(BOB, 100) == [(0, [0, 1])]
    assert losses.forget_segment(fresh, 1) == []
