"""Leases, fencing, orders, limits of deliveries, cumulative acks: one subscriber, time by hand."""

from __future__ import annotations

from array import array

import numpy as np
import pytest

from quiver_actors.errors import AlreadyResolved, NotClaimed, UsageError
from quiver_actors.subscriber.claim_order import NEWEST, NEWEST_BACKFILL, OLDEST
from quiver_actors.subscriber.claims import SubscriberState
from quiver_actors.subscriber.grants import Grant, TokenSource
from quiver_actors.subscriber.leases import Leases
from quiver_actors.subscriber.progress import decode_progress, encode_progress
from quiver_actors.subscriber.sizes import BundleSizes

ALICE, BOB = object(), object()
LEASE = 100


def leased(*segments: tuple[int, int], max_deliveries: int = 0, exhausted: str = "dead_letter") -> SubscriberState:
    state = SubscriberState("sub", tokens=TokenSource(1000))
    state.set_terms(lease_ns=LEASE, max_deliveries=max_deliveries, exhausted=exhausted, now_ns=0)
    for segment_seq, bundle_count in segments:
        state.add_segment(segment_seq, bundle_count)
    return state


def finish(state: SubscriberState, owner: object, grant: Grant, outcome: str = "ack", now_ns: int = 0) -> object:
    return state.resolve(owner, grant.segment_seq, grant.token, outcome, list(grant.indexes), 0, now_ns)


def indexes(grants: list[Grant]) -> list[tuple[int, int]]:
    return [(grant.segment_seq, index) for grant in grants for index in grant.indexes]


# --- leases and tokens ---------------------------------------------------------------------------------------------------


def test_tokens_rise_and_counts_follow() -> None:
    state = leased((0, 3), (1, 2))
    first, second = state.claim(ALICE, 5, 10)
    assert first.token < second.token
    assert first.lease_until_ns == 10 + LEASE
    assert array("H", first.counts).tolist() == [1, 1, 1]
    finish(state, ALICE, first, "defer")
    (again,) = state.claim(BOB, 3, 11)
    assert again.token > second.token
    assert array("H", again.counts).tolist() == [2, 2, 2]
    assert state.redelivered == 3


def test_lease_that_runs_out_gives_the_bundles_to_another_and_fences_the_late_ack() -> None:
    state = leased((0, 2))
    (late,) = state.claim(ALICE, 2, 0)
    assert state.next_due_ns() == LEASE
    assert not state.due(LEASE - 1)
    assert state.due(LEASE)
    assert state.expired == 2
    (taken,) = state.claim(BOB, 1, LEASE)
    assert finish(state, ALICE, late) == [("fenced", [0]), ("lease_expired", [1])]
    assert finish(state, BOB, taken) == []
    assert finish(state, ALICE, late) == [("fenced", [0]), ("lease_expired", [1])]
    (rest,) = state.claim(BOB, 1, LEASE)
    assert finish(state, BOB, rest) == []
    assert finish(state, ALICE, late) == [("fenced", [0, 1])], "also when the whole segment is done"


def test_extend_keeps_claims_alive_and_names_those_that_ended() -> None:
    state = leased((0, 2), (1, 1))
    first, second = state.claim(ALICE, 3, 0)
    finish(state, ALICE, second)
    assert state.extend(ALICE, [first.token, second.token, 5], 90) == (90 + LEASE, [second.token, 5])
    assert state.extend(BOB, [first.token], 90)[1] == [first.token]
    assert not state.due(LEASE)
    assert state.due(90 + LEASE)
    assert state.extend(ALICE, [first.token], 200)[1] == [first.token]


def test_leases_end_in_order_whatever_was_extended() -> None:
    state = leased((0, 1), (1, 1), (2, 1))
    grants = state.claim(ALICE, 3, 0)
    state.extend(ALICE, [grants[0].token], 50)
    state.due(LEASE)
    assert indexes(state.claim(BOB, 3, LEASE)) == [(1, 0), (2, 0)]
    state.due(50 + LEASE)
    assert indexes(state.claim(BOB, 3, LEASE)) == [(0, 0)]


def test_new_terms_change_the_leases_of_what_is_held() -> None:
    state = leased((0, 1))
    state.claim(ALICE, 1, 0)
    state.set_terms(lease_ns=1000, max_deliveries=0, exhausted="drop", now_ns=10)
    assert state.next_due_ns() == 1010
    state.set_terms(lease_ns=1000, max_deliveries=5, exhausted="drop", now_ns=15)
    assert state.next_due_ns() == 1010, "the same lease as before begins at no other time"
    state.set_terms(lease_ns=0, max_deliveries=0, exhausted="drop", now_ns=20)
    assert state.next_due_ns() is None


@pytest.mark.parametrize("outcome", ["ack", "reject", "defer", "return"])
@pytest.mark.parametrize("size", [1, 4, 5])
def test_saying_the_same_again_is_no_error(outcome: str, size: int) -> None:
    state = leased((0, 5))
    (grant,) = state.claim(ALICE, size, 0)
    for _ in range(2):
        assert finish(state, ALICE, grant, outcome) == []
    assert state.acked + state.rejected + state.deferred == size


def test_saying_something_else_afterwards_is_refused() -> None:
    state = leased((0, 5))
    (grant,) = state.claim(ALICE, 2, 0)
    finish(state, ALICE, grant, "reject")
    assert finish(state, ALICE, grant, "ack") == [("already_resolved", [0, 1])]
    (grant,) = state.claim(ALICE, 2, 0)
    finish(state, ALICE, grant, "defer")
    assert finish(state, ALICE, grant, "ack") == [("not_claimed", [2, 3])]


def test_token_of_another_process_or_of_nobody_is_not_claimed() -> None:
    state = leased((0, 5))
    (grant,) = state.claim(ALICE, 2, 0)
    for token in (0, 999, grant.token + 1, (1 << 64) - 1):
        assert state.resolve(ALICE, 0, token, "ack", [0], 0, 0) == [("not_claimed", [0])]
    assert state.resolve(BOB, 0, grant.token, "ack", [0], 0, 0) == [("not_claimed", [0])]
    assert state.resolve(ALICE, 7, grant.token, "ack", [0], 0, 0) == [("not_claimed", [0])]
    for outcome in ("ack", "defer"):
        assert state.resolve(ALICE, 0, grant.token, outcome, [-1, 5, 3], 0, 0) == [("not_claimed", [-1, 5, 3])]
    assert state.held(ALICE) == (2, 0)


def test_owner_that_is_gone_is_fenced_too() -> None:
    state = leased((0, 1))
    (late,) = state.claim(ALICE, 1, 0)
    state.release(ALICE)
    finish(state, BOB, state.claim(BOB, 1, 0)[0])
    assert finish(state, ALICE, late) == [("fenced", [0])]


def test_a_grant_that_loses_its_bundles_one_by_one_can_finish_the_rest() -> None:
    state = leased((0, 3))
    (grant,) = state.claim(ALICE, 3, 0)
    assert [state.drop(0, index, 1) for index in (0, 1)] == [[(0, 1)], [(1, 1)]]
    assert state.held(ALICE) == (1, 0)
    assert finish(state, ALICE, grant) == [("already_resolved", [0, 1])]
    assert (state.acked, state.dropped, state.is_complete(0)) == (1, 2, True)


def test_tokens_rise_from_one_process_to_the_next() -> None:
    """They began anywhere: a destination that shuts out late writers by them shut out everybody after a restart, or let the late one in."""
    taken = [source.take() for source in (TokenSource() for _ in range(20)) for _ in range(3)]
    assert taken == sorted(set(taken))


def test_of_many_tokens_that_ended_the_oldest_is_forgotten() -> None:
    leases = Leases(TokenSource(0))
    for token in range(1, (1 << 16) + 2):
        leases.note_ended(token, given_up=False)
    assert [leases.has_ended(token) for token in (1, 2, (1 << 16) + 1)] == [False, True, True]


def test_a_notice_goes_to_another_when_its_consumer_is_silent_for_a_lease() -> None:
    state = leased((0, 1))
    notice = state.gaps.add(0, 0, 1, -1, "evicted", state.version)
    state.give_gap(notice, ALICE, 10)
    assert state.next_due_ns() == 10 + LEASE
    assert not state.due(9 + LEASE)
    assert state.due(10 + LEASE)
    assert state.gaps.next_untold() is notice
    state.set_terms(lease_ns=0, max_deliveries=0, exhausted="drop", now_ns=200)
    state.give_gap(notice, BOB, 200)
    assert state.next_due_ns() is None
    state.release(BOB)
    assert state.gaps.next_untold() is notice


# --- orders ----------------------------------------------------------------------------------------------------------------


def test_newest_first_across_segments_and_with_what_comes_back() -> None:
    state = leased((0, 2), (1, 3))
    assert indexes(state.claim(ALICE, 4, 0, order=NEWEST)) == [(1, 2), (1, 1), (1, 0), (0, 1)]
    state.add_segment(2, 1)
    state.release(ALICE)
    assert indexes(state.claim(BOB, 9, 0, order=NEWEST)) == [(2, 0), (1, 2), (1, 1), (1, 0), (0, 1), (0, 0)]


def test_counts_of_newest_stand_beside_their_bundles() -> None:
    state = leased((0, 4))
    finish(state, ALICE, state.claim(ALICE, 2, 0)[0], "defer")
    (grant,) = state.claim(ALICE, 4, 0, order=NEWEST)
    assert list(grant.indexes) == [3, 2, 1, 0]
    assert array("H", grant.counts).tolist() == [1, 1, 2, 2]


@pytest.mark.parametrize("at_once", [1, 3, 10, 20])
def test_backfill_gives_the_oldest_their_share(at_once: int) -> None:
    state = leased((0, 1000))
    given: list[int] = []
    while len(given) < 60:
        grants = state.claim(ALICE, at_once, 0, order=NEWEST_BACKFILL, backfill_ratio=3)
        given += [index for _, index in indexes(grants)]
    old = sum(index < 500 for index in given[:60])
    assert abs(old - 18) <= 3
    assert len(set(given)) == len(given)


def test_a_reader_of_ranges_who_claims_nothing_leaves_no_hints_behind() -> None:
    """One for each segment that there had ever been, for as long as the worker lived."""
    state = leased()
    for segment_seq in range(3000):
        state.add_segment(segment_seq, 2)
        state.ack_through(segment_seq, 1, {})
    assert len(state._order) < 1100
    state.add_segment(3000, 2)
    assert indexes(state.claim(ALICE, 10, 0)) == [(3000, 0), (3000, 1)]


def test_what_is_claimed_by_its_id_and_given_back_again_and_again_leaves_no_hints_behind() -> None:
    state = leased((0, 2))
    for _ in range(3000):
        finish(state, ALICE, state.claim_ref(ALICE, 0, 1, 0), "defer")
    assert len(state._order) < 1100
    assert indexes(state.claim(ALICE, 10, 0)) == [(0, 0), (0, 1)]


def test_both_orders_together_give_everything_once() -> None:
    state = leased((0, 50), (1, 50))
    given: list[tuple[int, int]] = []
    for number in range(40):
        given += indexes(state.claim(number, 3, 0, order=NEWEST if number % 2 else "oldest"))
    assert sorted(given) == [(seq, index) for seq in (0, 1) for index in range(50)]


def test_claims_of_newest_do_not_pile_up_hints() -> None:
    state = leased((0, 10))
    for _ in range(10_000):
        finish(state, ALICE, state.claim(ALICE, 1, 0, order=NEWEST)[0], "defer")
    assert len(state._order) < 3000
    assert state.claim(BOB, 10, 0)[0].indexes == range(10)


def test_claims_of_oldest_do_not_pile_up_hints_for_newest() -> None:
    state = leased((0, 10))
    state.claim(ALICE, 1, 0, order=NEWEST)
    for _ in range(3000):
        finish(state, BOB, state.claim(BOB, 1, 0)[0], "defer")
    assert len(state._order) < 3000
    assert indexes(state.claim(BOB, 10, 0, order=NEWEST)) == [(0, index) for index in range(8, -1, -1)]


def test_newest_first_passes_over_what_was_given_up_meanwhile() -> None:
    state = leased((0, 2), (1, 1), (2, 1))
    assert indexes(state.claim(ALICE, 1, 0, order=NEWEST)) == [(2, 0)]
    state.forget_segment(1)
    assert indexes(state.claim(BOB, 9, 0, order=NEWEST)) == [(0, 1), (0, 0)]


# --- claims by reference -----------------------------------------------------------------------------------------------------


def test_claim_by_reference_takes_pending_deferred_and_blocked() -> None:
    state = leased((0, 4), max_deliveries=1, exhausted="block")
    assert state.claim_ref(ALICE, 0, 2, 0).indexes == range(2, 3)
    with pytest.raises(NotClaimed):
        state.claim_ref(BOB, 0, 2, 0)
    state.release(ALICE)
    assert state.blocked_count == 1
    assert indexes(state.claim(BOB, 9, 0)) == [(0, 0), (0, 1), (0, 3)]
    grant = state.claim_ref(ALICE, 0, 2, 0)
    assert array("H", grant.counts).tolist() == [2]
    assert state.blocked_count == 0
    finish(state, ALICE, grant)
    with pytest.raises(AlreadyResolved):
        state.claim_ref(ALICE, 0, 2, 0)
    with pytest.raises(NotClaimed):
        state.claim_ref(ALICE, 0, 4, 0)
    with pytest.raises(NotClaimed):
        state.claim_ref(ALICE, 1, 0, 0)
    state.ack_through(0, 3, {})
    with pytest.raises(AlreadyResolved):
        state.claim_ref(ALICE, 0, 4, 0)


def test_delay_of_a_bundle_that_was_claimed_by_reference_and_deferred_again_counts_anew() -> None:
    state = leased((0, 1))
    (grant,) = state.claim(ALICE, 1, 0)
    state.resolve(ALICE, 0, grant.token, "defer", [0], 10, 0)
    grant = state.claim_ref(ALICE, 0, 0, 5)
    state.resolve(ALICE, 0, grant.token, "defer", [0], 50, 5)
    assert not state.due(10)
    assert state.claim(ALICE, 1, 10) == []
    assert state.due(55)
    assert len(state.claim(ALICE, 1, 55)) == 1


def test_delay_of_a_bundle_that_was_claimed_by_reference_and_finished_wakes_nobody() -> None:
    state = leased((0, 2))
    (grant,) = state.claim(ALICE, 1, 0)
    state.resolve(ALICE, 0, grant.token, "defer", [0], 10, 0)
    finish(state, ALICE, state.claim_ref(ALICE, 0, 0, 5))
    state.snapshot(1)  # after which only the bitmap of the segment is kept
    assert state.next_due_ns() == 10
    assert not state.due(10)
    assert indexes(state.claim(BOB, 9, 10)) == [(0, 1)]


# --- too many deliveries -------------------------------------------------------------------------------------------------------


def test_exhausted_bundle_waits_for_its_dead_letter_and_is_then_resolved() -> None:
    state = leased((0, 2), max_deliveries=2)
    for _ in range(2):
        assert indexes(state.claim(ALICE, 1, 0)) == [(0, 0)]
        state.release(ALICE)
    assert list(state.exhausted) == [(0, 0)]
    assert state.is_exhausted(0, 0)
    assert state.delivery_count(0, 0) == 2
    assert (state.blocked_count, state.claimable_count, state.unresolved_count) == (1, 1, 2)
    assert indexes(state.claim(ALICE, 9, 0)) == [(0, 1)]
    version = state.version
    assert state.bury(0, 0)
    assert not state.bury(0, 0)
    assert state.version > version
    assert (state.blocked_count, state.dead_lettered, state.unresolved_count) == (0, 1, 1)


@pytest.mark.parametrize("way", ["defer", "release", "lease"])
def test_exhausted_bundle_is_dropped_however_it_came_back(way: str) -> None:
    state = leased((0, 1), max_deliveries=1, exhausted="drop")
    (grant,) = state.claim(ALICE, 1, 0)
    if way == "defer":
        finish(state, ALICE, grant, "defer")
    elif way == "release":
        state.release(ALICE)
    else:
        state.due(LEASE)
    assert state.is_complete(0)
    assert (state.rejected, state.unresolved_count, state.claimed_count) == (1, 0, 0)


def test_exhausted_bundle_does_not_wait_for_the_delay_that_its_holder_asked_for() -> None:
    state = leased((0, 1), max_deliveries=1)
    (grant,) = state.claim(ALICE, 1, 0)
    assert state.resolve(ALICE, 0, grant.token, "defer", [0], 10, 0) == []
    assert (state.waiting_count, state.blocked_count, state.next_due_ns()) == (0, 1, None)
    assert list(state.exhausted) == [(0, 0)]


def test_returned_bundle_was_not_delivered() -> None:
    state = leased((0, 1), max_deliveries=1)
    for _ in range(3):
        (grant,) = state.claim(ALICE, 1, 0)
        assert array("H", grant.counts).tolist() == [1]
        finish(state, ALICE, grant, "return")
    assert not state.exhausted
    (grant,) = state.claim(ALICE, 1, 0)
    assert state.delivered == 1


def test_the_count_of_deliveries_does_not_fall_when_bundles_are_returned() -> None:
    """Prometheus takes a counter that falls for one that began anew, and adds all of it once more."""
    state = leased((0, 10))
    (grant,) = state.claim(ALICE, 10, 0)
    state.resolve(ALICE, 0, grant.token, "ack", [0, 1], 0, 0)
    before = state.delivered
    state.resolve(ALICE, 0, grant.token, "return", list(range(2, 10)), 0, 0)
    assert state.delivered == before == 10
    state.claim(BOB, 5, 0)
    assert state.delivered == 10
    state.claim(BOB, 5, 0)
    state.release(BOB)
    state.claim(ALICE, 8, 0)
    assert state.delivered == 18


@pytest.mark.parametrize(
    ("max_deliveries", "exhausted", "counts"),
    [(0, "dead_letter", (1, 0, 0)), (1, "block", (0, 1, 0)), (1, "drop", (0, 0, 1)), (1, "dead_letter", (0, 1, 0))],
)
def test_what_waits_for_a_letter_that_is_not_wanted_any_more_goes_by_the_new_terms(
    max_deliveries: int, exhausted: str, counts: tuple[int, int, int]
) -> None:
    """It was nobody's until the next start of the worker."""
    state = leased((0, 2), max_deliveries=1)
    (grant,) = state.claim(ALICE, 2, 0)
    finish(state, ALICE, grant, "defer")
    moving = state.exhausted.popleft()
    state.set_terms(lease_ns=LEASE, max_deliveries=max_deliveries, exhausted=exhausted, now_ns=0)
    assert (state.claimable_count, state.blocked_count - 1, state.rejected) == counts
    state.wait_again(*moving)
    assert (state.claimable_count, state.blocked_count, state.rejected) == tuple(2 * count for count in counts)
    assert len(state.claim(BOB, 2, 0)) == counts[0]
    assert len(state.exhausted) == (2 if (max_deliveries, exhausted) == (1, "dead_letter") else 0)


def test_a_bundle_of_which_no_letter_can_be_made_is_kept_for_whoever_knows_its_id() -> None:
    state = leased((0, 1), max_deliveries=1)
    (grant,) = state.claim(ALICE, 1, 0)
    finish(state, ALICE, grant, "defer")
    state.exhausted.popleft()
    state.block(0, 0)
    assert (state.blocked_count, state.claimable_count) == (1, 0)
    finish(state, BOB, state.claim_ref(BOB, 0, 0, 0))
    assert (state.blocked_count, state.acked) == (0, 1)
    state.block(0, 0)
    assert (state.blocked_count, state.unresolved_count) == (0, 0)


def test_a_blocked_bundle_that_is_returned_is_blocked() -> None:
    """It could be claimed again by anybody, beyond its number of deliveries."""
    state = leased((0, 1), max_deliveries=1, exhausted="block")
    state.claim(ALICE, 1, 0)
    state.release(ALICE)
    finish(state, BOB, state.claim_ref(BOB, 0, 0, 0), "return")
    assert state.blocked_count == 1
    assert not state.claim(ALICE, 1, 0)


def test_terms_that_make_no_sense_change_nothing() -> None:
    state = leased((0, 1))
    with pytest.raises(UsageError, match="exhausted 'burn' is unknown"):
        state.set_terms(lease_ns=5, max_deliveries=1, exhausted="burn", now_ns=0)
    with pytest.raises(UsageError):
        state.set_terms(lease_ns=-1, max_deliveries=1, exhausted="drop", now_ns=0)
    assert state.lease_ns == LEASE


# --- cumulative --------------------------------------------------------------------------------------------------------------------


def test_ack_through_resolves_whatever_the_state_and_survives_a_restart() -> None:
    state = leased((0, 3), (1, 4))
    first, _ = state.claim(ALICE, 4, 0)
    finish(state, ALICE, Grant(0, [1], first.token, b"", 0), "reject")
    state.ack_through(1, 1, {})
    assert state.completed_since() == [0]
    assert (state.claimed_count, state.acked, state.unresolved_count) == (0, 4, 2)
    assert state.held(ALICE) == (0, 0)
    assert finish(state, ALICE, Grant(0, [0, 2], first.token, b"", 0)) == [], "acked is acked"
    version = state.version
    state.ack_through(0, 2, {})
    state.ack_through(1, 1, {})
    assert state.version == version
    again = SubscriberState("sub")
    again.load(decode_progress(encode_progress(state.snapshot(2))))
    again.add_segment(1, 4)
    assert indexes(again.claim(ALICE, 9)) == [(1, 2), (1, 3)]


def test_ack_through_reaches_into_segments_that_are_not_sealed_yet() -> None:
    state = leased((0, 2))
    state.ack_through(2, 0, {1: 3, 2: 2})
    assert state.unresolved_in_unsealed(1, 3) == 0
    assert state.unresolved_in_unsealed(2, 5) == 4
    version = state.version
    state.ack_through(2, 0, {1: 3, 2: 2})
    assert (state.version, state.acked) == (version, 6), "saying it again changes nothing"
    state.add_segment(1, 3)
    assert state.is_complete(1)
    assert state.durably_complete([1]) == []
    state.mark_flushed(state.version)
    assert state.durably_complete([1]) == [1]
    state.add_segment(2, 5)
    assert indexes(state.claim(ALICE, 9)) == [(2, index) for index in range(1, 5)]


def test_bundles_that_are_given_up_while_held_cannot_be_acked_any_more() -> None:
    state = leased((0, 3), (1, 1))
    grant, _ = state.claim(ALICE, 4, 0)
    finish(state, ALICE, Grant(0, [1], grant.token, b"", 0))
    assert state.forget_segment(0) == [(0, 1), (2, 1)]
    assert state.held(ALICE) == (1, 0)
    assert finish(state, ALICE, Grant(0, [0, 2], grant.token, b"", 0)) == [("already_resolved", [0, 2])]


def test_window_in_bytes_stops_a_claim() -> None:
    state = SubscriberState("sub")
    state.add_segment(0, 10, 1000)
    state.add_segment(1, 10, 10_000)
    assert indexes(state.claim(ALICE, 20, size_limit_bytes=350)) == [(0, 0), (0, 1), (0, 2)]
    assert state.held(ALICE) == (3, 300)
    assert len(indexes(state.claim(BOB, 20, size_limit_bytes=2700))) == 9
    assert indexes(state.claim(BOB, 20, order=NEWEST, size_limit_bytes=2700)) == [(1, 9), (1, 8)]


SIZES = [10, 10, 1000, 30, 500, 5, 5, 200]


@pytest.mark.parametrize("order", [OLDEST, NEWEST])
def test_window_in_bytes_goes_by_the_size_of_each_bundle(order: str) -> None:
    state = SubscriberState("s", sizes_of=lambda _: BundleSizes(1, np.array(SIZES, dtype=np.int64)))
    state.add_segment(0, len(SIZES), sum(SIZES))
    expected = list(range(len(SIZES))) if order == OLDEST else list(range(len(SIZES)))[::-1]
    for limit in (20, 1000, 1019, 10_000):
        grants = state.claim(ALICE, 99, order=order, size_limit_bytes=limit)
        found = [index for grant in grants for index in grant.indexes]
        fitting = [count for count in range(9) if sum(SIZES[index] for index in expected[:count]) <= limit]
        assert found == expected[: fitting[-1]]
        assert state.held(ALICE) == (len(found), sum(SIZES[index] for index in found))
        for grant in grants:
            # One by one in a scattered order: what is held stays exact.
            for index in sorted(grant.indexes, key=lambda index: index * 5 % 8):
                state.resolve(ALICE, 0, grant.token, "return", [index], 0, 0)
                found.remove(index)
                assert state.held(ALICE) == (len(found), sum(SIZES[index] for index in found))


def test_bytes_held_are_given_back_whole_whoever_ends_the_claims() -> None:
    state = SubscriberState("s", sizes_of=lambda _: BundleSizes(1, np.array(SIZES, dtype=np.int64)))
    state.add_segment(0, len(SIZES), sum(SIZES))
    state.claim(ALICE, 99, size_limit_bytes=10_000)
    state.drop(0, 0, 3)
    assert 0 < state.held(ALICE)[1] < sum(SIZES)
    state.ack_through(0, 7, {})
    assert state.held(ALICE) == (0, 0)


def test_pending_in_a_range() -> None:
    state = leased((0, 3), (1, 4), (2, 2))
    finish(state, ALICE, state.claim(ALICE, 1, 0)[0])
    assert state.unresolved_between((0, 0), None) == 8
    assert state.unresolved_between((0, 2), (2, 1)) == 1 + 4 + 1
    assert state.unresolved_between((1, 1), (1, 3)) == 2
    assert state.unresolved_between((3, 0), None) == 0
    assert state.unresolved_between((0, 3), (1, 0)) == 0, "behind the last of one and before the first of the next"
