"""Leases, fencing, orders, limits of deliveries, cumulative acks: one subscriber, time by hand."""

from __future__ import annotations

from array import array

import pytest

from quiver_actors.errors import AlreadyResolved, NotClaimed
from quiver_actors.store.subscriber import losses, terms
from quiver_actors.store.subscriber.claim_order import NEWEST, NEWEST_BACKFILL
from quiver_actors.store.subscriber.claims import NOTICE_LEASE_NS_MIN, SubscriberState
from quiver_actors.store.subscriber.grants import Grant, TokenSource
from quiver_actors.store.subscriber.leases import Leases
from quiver_actors.store.subscriber.seek import ack_through

ALICE, BOB = object(), object()


LEASE = 100


def leased(*segments: tuple[int, int], max_deliveries: int = 0, exhausted: str = "dead_letter") -> SubscriberState:
    state = SubscriberState("sub", tokens=TokenSource(1000))
    terms.set_terms(state, lease_ns=LEASE, max_deliveries=max_deliveries, exhausted=exhausted, now_ns=0)
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
    assert state.counts.redelivered == 3


def test_lease_that_runs_out_gives_the_bundles_to_another_and_fences_the_late_ack() -> None:
    state = leased((0, 2))
    (late,) = state.claim(ALICE, 2, 0)
    assert state.next_due_ns() == LEASE
    assert not state.due(LEASE - 1)
    assert state.due(LEASE)
    assert state.counts.expired == 2
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
    assert state.leases.extend(ALICE, [first.token, second.token, 5], 90) == (90 + LEASE, [second.token, 5])
    assert state.leases.extend(BOB, [first.token], 90)[1] == [first.token]
    assert not state.due(LEASE)
    assert state.due(90 + LEASE)
    assert state.leases.extend(ALICE, [first.token], 200)[1] == [first.token]


def test_leases_end_in_order_whatever_was_extended() -> None:
    state = leased((0, 1), (1, 1), (2, 1))
    grants = state.claim(ALICE, 3, 0)
    state.leases.extend(ALICE, [grants[0].token], 50)
    state.due(LEASE)
    assert indexes(state.claim(BOB, 3, LEASE)) == [(1, 0), (2, 0)]
    state.due(50 + LEASE)
    assert indexes(state.claim(BOB, 3, LEASE)) == [(0, 0)]


def test_new_terms_change_the_leases_of_what_is_held() -> None:
    state = leased((0, 1))
    state.claim(ALICE, 1, 0)
    terms.set_terms(state, lease_ns=1000, max_deliveries=0, exhausted="drop", now_ns=10)
    assert state.next_due_ns() == 1010
    terms.set_terms(state, lease_ns=1000, max_deliveries=5, exhausted="drop", now_ns=15)
    assert state.next_due_ns() == 1010, "the same lease as before begins at no other time"
    terms.set_terms(state, lease_ns=0, max_deliveries=0, exhausted="drop", now_ns=20)
    assert state.next_due_ns() is None


@pytest.mark.parametrize("outcome", ["ack", "reject", "defer", "return"])
@pytest.mark.parametrize("size", [1, 4, 5])
def test_saying_the_same_again_is_no_error(outcome: str, size: int) -> None:
    state = leased((0, 5))
    (grant,) = state.claim(ALICE, size, 0)
    for _ in range(2):
        assert finish(state, ALICE, grant, outcome) == []
    assert state.counts.acked + state.counts.rejected + state.counts.deferred == size


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
    assert state.leases.held(ALICE) == (2, 0)


def test_owner_that_is_gone_is_fenced_too() -> None:
    state = leased((0, 1))
    (late,) = state.claim(ALICE, 1, 0)
    state.release(ALICE)
    finish(state, BOB, state.claim(BOB, 1, 0)[0])
    assert finish(state, ALICE, late) == [("fenced", [0])]


def test_a_grant_that_loses_its_bundles_one_by_one_can_finish_the_rest() -> None:
    state = leased((0, 3))
    (grant,) = state.claim(ALICE, 3, 0)
    assert [losses.drop(state, 0, index, 1) for index in (0, 1)] == [[(0, 1)], [(1, 1)]]
    assert state.leases.held(ALICE) == (1, 0)
    assert finish(state, ALICE, grant) == [("already_resolved", [0, 1])]
    assert (state.counts.acked, state.counts.dropped, state.progress.is_complete(0)) == (1, 2, True)


def test_tokens_rise_from_one_process_to_the_next() -> None:
    """Regression: tokens began anywhere, so a destination that fences by them shut everybody out after a restart, or let late writers
    in."""
    taken = [source.take() for source in (TokenSource() for _ in range(20)) for _ in range(3)]
    assert taken == sorted(set(taken))


def test_of_many_tokens_that_ended_the_oldest_is_forgotten() -> None:
    leases = Leases(TokenSource(0), lambda live, first, stop: None)
    for token in range(1, (1 << 16) + 2):
        leases.note_ended(token, given_up=False)
    assert [leases.has_ended(token) for token in (1, 2, (1 << 16) + 1)] == [False, True, True]


def test_a_notice_goes_to_another_when_its_consumer_is_silent_for_a_lease() -> None:
    state = leased((0, 1))
    notice = state.gaps.add(0, 0, 1, -1, "evicted", state.progress.changes.version)
    state.give_gap(notice, ALICE, 10)
    assert state.next_due_ns() == 10 + NOTICE_LEASE_NS_MIN, "a lease of a few nanoseconds is too short to tell it"
    assert not state.due(9 + NOTICE_LEASE_NS_MIN)
    assert state.due(10 + NOTICE_LEASE_NS_MIN)
    long = 2 * NOTICE_LEASE_NS_MIN
    terms.set_terms(state, lease_ns=long, max_deliveries=0, exhausted="drop", now_ns=100)
    state.give_gap(notice, ALICE, 100)
    assert state.next_due_ns() == 100 + long
    assert state.due(100 + long)
    assert state.gaps.next_untold() is notice
    terms.set_terms(state, lease_ns=0, max_deliveries=0, exhausted="drop", now_ns=200)
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
        ack_through(state, segment_seq, 1, {})
    assert len(state.order) < 1100
    state.add_segment(3000, 2)
    assert indexes(state.claim(ALICE, 10, 0)) == [(3000, 0), (3000, 1)]


def test_what_is_claimed_by_its_id_and_given_back_again_and_again_leaves_no_hints_behind() -> None:
    state = leased((0, 2))
    for _ in range(3000):
        finish(state, ALICE, state.claim_ref(ALICE, 0, 1, 0), "defer")
    assert len(state.order) < 1100
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
    assert len(state.order) < 3000
    assert state.claim(BOB, 10, 0)[0].indexes == range(10)


def test_claims_of_oldest_do_not_pile_up_hints_for_newest() -> None:
    state = leased((0, 10))
    state.claim(ALICE, 1, 0, order=NEWEST)
    for _ in range(3000):
        finish(state, BOB, state.claim(BOB, 1, 0)[0], "defer")
    assert len(state.order) < 3000
    assert indexes(state.claim(BOB, 10, 0, order=NEWEST)) == [(0, index) for index in range(8, -1, -1)]


def test_newest_first_passes_over_what_was_given_up_meanwhile() -> None:
    state = leased((0, 2), (1, 1), (2, 1))
    assert indexes(state.claim(ALICE, 1, 0, order=NEWEST)) == [(2, 0)]
    losses.forget_segment(state, 1)
    assert indexes(state.claim(BOB, 9, 0, order=NEWEST)) == [(0, 1), (0, 0)]


# --- claims by reference -----------------------------------------------------------------------------------------------------


def test_claim_by_reference_takes_pending_deferred_and_blocked() -> None:
    state = leased((0, 4), max_deliveries=1, exhausted="block")
    assert state.claim_ref(ALICE, 0, 2, 0).indexes == range(2, 3)
    with pytest.raises(NotClaimed):
        state.claim_ref(BOB, 0, 2, 0)
    state.release(ALICE)
    assert state.aside.blocked_count == 1
    assert indexes(state.claim(BOB, 9, 0)) == [(0, 0), (0, 1), (0, 3)]
    grant = state.claim_ref(ALICE, 0, 2, 0)
    assert array("H", grant.counts).tolist() == [2]
    assert state.aside.blocked_count == 0
    finish(state, ALICE, grant)
    with pytest.raises(AlreadyResolved):
        state.claim_ref(ALICE, 0, 2, 0)
    with pytest.raises(NotClaimed):
        state.claim_ref(ALICE, 0, 4, 0)
    with pytest.raises(NotClaimed):
        state.claim_ref(ALICE, 1, 0, 0)
    ack_through(state, 0, 3, {})
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
    state.progress.snapshot(1)  # after which only the bitmap of the segment is kept
    assert state.next_due_ns() == 10
    assert not state.due(10)
    assert indexes(state.claim(BOB, 9, 10)) == [(0, 1)]
