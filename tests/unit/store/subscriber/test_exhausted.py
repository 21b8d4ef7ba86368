"""Bundles that were delivered too often, cumulative acknowledgements, and windows in bytes."""

from __future__ import annotations

import itertools
from array import array

import numpy as np
import pytest

from quiver_actors.errors import UsageError
from quiver_actors.store.subscriber import losses, terms
from quiver_actors.store.subscriber.claim_order import NEWEST, OLDEST
from quiver_actors.store.subscriber.claims import SubscriberState
from quiver_actors.store.subscriber.grants import Grant
from quiver_actors.store.subscriber.progress import decode_progress, encode_progress
from quiver_actors.store.subscriber.seek import ack_through
from quiver_actors.store.subscriber.sizes import BundleSizes, OpenSizes
from tests.unit.store.subscriber.test_leases import ALICE, BOB, LEASE, finish, indexes, leased

# --- too many deliveries -------------------------------------------------------------------------------------------------------


def test_exhausted_bundle_waits_for_its_dead_letter_and_is_then_resolved() -> None:
    state = leased((0, 2), max_deliveries=2)
    for _ in range(2):
        assert indexes(state.claim(ALICE, 1, 0)) == [(0, 0)]
        state.release(ALICE)
    assert list(state.aside.exhausted) == [(0, 0)]
    assert terms.is_exhausted(state, 0, 0)
    assert state.delivery_count(0, 0) == 2
    assert (state.aside.blocked_count, state.claimable_count, state.progress.unresolved_count) == (1, 1, 2)
    assert indexes(state.claim(ALICE, 9, 0)) == [(0, 1)]
    version = state.progress.changes.version
    assert terms.bury(state, 0, 0)
    assert not terms.bury(state, 0, 0)
    assert state.progress.changes.version > version
    assert (state.aside.blocked_count, state.counts.dead_lettered, state.progress.unresolved_count) == (0, 1, 1)


def test_a_bundle_that_was_resolved_while_it_waited_for_its_dead_letter_gets_none() -> None:
    state = leased((0, 3), (1, 1), max_deliveries=1)
    state.claim(ALICE, 4)
    state.release(ALICE)
    ack_through(state, 0, 1, {})
    assert terms.next_exhausted(state) == (0, 2)
    losses.forget_segment(state, 1)
    assert terms.next_exhausted(state) is None, "neither of what was lost"
    assert terms.bury(state, 0, 2)
    assert (state.counts.dead_lettered, state.counts.acked, state.progress.unresolved_count) == (1, 2, 0)


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
    assert state.progress.is_complete(0)
    assert (state.counts.rejected, state.progress.unresolved_count, state.leases.claimed_count) == (1, 0, 0)


def test_exhausted_bundle_does_not_wait_for_the_delay_that_its_holder_asked_for() -> None:
    state = leased((0, 1), max_deliveries=1)
    (grant,) = state.claim(ALICE, 1, 0)
    assert state.resolve(ALICE, 0, grant.token, "defer", [0], 10, 0) == []
    assert (state.aside.waiting_count, state.aside.blocked_count, state.next_due_ns()) == (0, 1, None)
    assert list(state.aside.exhausted) == [(0, 0)]


def test_returned_bundle_was_not_delivered() -> None:
    state = leased((0, 1), max_deliveries=1)
    for _ in range(3):
        (grant,) = state.claim(ALICE, 1, 0)
        assert array("H", grant.counts).tolist() == [1]
        finish(state, ALICE, grant, "return")
    assert not state.aside.exhausted
    (grant,) = state.claim(ALICE, 1, 0)
    assert state.counts.delivered == 1


@pytest.mark.parametrize("way", ["release", "lease"])
def test_a_bundle_that_nobody_was_handed_was_not_delivered(way: str) -> None:
    state = leased((0, 4), max_deliveries=1, exhausted="drop")
    state.leases.owner(ALICE).tells_taken = True
    for taken in (1, 3):
        (grant,) = state.claim(ALICE, 4, 0)
        # What it does not hold is passed over, and so is what others say.
        state.leases.note_taken(grant.token, ALICE, 0, [taken, 0, 99] if taken == 1 else [taken])
        state.leases.note_taken(grant.token, BOB, 0, [2])
        state.leases.note_taken(grant.token, ALICE, 1, [2])
        if way == "release":
            state.release(ALICE)
            state.leases.owner(ALICE).tells_taken = True
        else:
            state.due(LEASE)
    assert state.counts.rejected == 3
    (grant,) = state.claim(BOB, 4, 0)
    assert indexes([grant]) == [(0, 2)]
    assert array("H", grant.counts).tolist() == [1]
    assert state.counts.delivered == 4, "the counter does not fall, and counts nothing twice"
    state.release(BOB)
    assert state.progress.is_complete(0), "what an owner holds that tells nothing counts as delivered"


def test_a_bundle_that_was_claimed_by_its_id_was_delivered() -> None:
    state = leased((0, 1), max_deliveries=1, exhausted="drop")
    state.leases.owner(ALICE).tells_taken = True
    state.claim_ref(ALICE, 0, 0, 0)
    state.release(ALICE)
    assert state.progress.is_complete(0)


def test_without_a_limit_of_deliveries_nothing_is_told_and_all_count() -> None:
    state = leased((0, 1))
    state.leases.owner(ALICE).tells_taken = True
    state.claim(ALICE, 1, 0)
    state.due(LEASE)
    assert array("H", state.claim(BOB, 1, LEASE)[0].counts).tolist() == [2]


def test_the_count_of_deliveries_does_not_fall_when_bundles_are_returned() -> None:
    """Prometheus takes a counter that falls for one that began anew, and adds all of it once more."""
    state = leased((0, 10))
    (grant,) = state.claim(ALICE, 10, 0)
    state.resolve(ALICE, 0, grant.token, "ack", [0, 1], 0, 0)
    before = state.counts.delivered
    state.resolve(ALICE, 0, grant.token, "return", list(range(2, 10)), 0, 0)
    assert state.counts.delivered == before == 10
    state.claim(BOB, 5, 0)
    assert state.counts.delivered == 10
    state.claim(BOB, 5, 0)
    state.release(BOB)
    state.claim(ALICE, 8, 0)
    assert state.counts.delivered == 18


@pytest.mark.parametrize(
    ("max_deliveries", "exhausted", "counts"),
    [(0, "dead_letter", (1, 0, 0)), (1, "block", (0, 1, 0)), (1, "drop", (0, 0, 1)), (1, "dead_letter", (0, 1, 0))],
)
def test_what_waits_for_a_letter_that_is_not_wanted_any_more_goes_by_the_new_terms(
    max_deliveries: int, exhausted: str, counts: tuple[int, int, int]
) -> None:
    """Regression: the bundle belonged to nobody until the next start of the worker."""
    state = leased((0, 2), max_deliveries=1)
    (grant,) = state.claim(ALICE, 2, 0)
    finish(state, ALICE, grant, "defer")
    moving = state.aside.exhausted.popleft()
    terms.set_terms(state, lease_ns=LEASE, max_deliveries=max_deliveries, exhausted=exhausted, now_ns=0)
    assert (state.claimable_count, state.aside.blocked_count - 1, state.counts.rejected) == counts
    terms.wait_again(state, *moving)
    assert (state.claimable_count, state.aside.blocked_count, state.counts.rejected) == tuple(
        2 * count for count in counts
    )
    assert len(state.claim(BOB, 2, 0)) == counts[0]
    assert len(state.aside.exhausted) == (2 if (max_deliveries, exhausted) == (1, "dead_letter") else 0)


def test_a_bundle_of_which_no_letter_can_be_made_is_kept_for_whoever_knows_its_id() -> None:
    state = leased((0, 1), max_deliveries=1)
    (grant,) = state.claim(ALICE, 1, 0)
    finish(state, ALICE, grant, "defer")
    state.aside.exhausted.popleft()
    terms.block(state, 0, 0)
    assert (state.aside.blocked_count, state.claimable_count) == (1, 0)
    finish(state, BOB, state.claim_ref(BOB, 0, 0, 0))
    assert (state.aside.blocked_count, state.counts.acked) == (0, 1)
    terms.block(state, 0, 0)
    assert (state.aside.blocked_count, state.progress.unresolved_count) == (0, 0)


def test_a_blocked_bundle_that_is_returned_is_blocked() -> None:
    """Regression: anybody could claim the bundle again, beyond its number of deliveries."""
    state = leased((0, 1), max_deliveries=1, exhausted="block")
    state.claim(ALICE, 1, 0)
    state.release(ALICE)
    finish(state, BOB, state.claim_ref(BOB, 0, 0, 0), "return")
    assert state.aside.blocked_count == 1
    assert not state.claim(ALICE, 1, 0)


def test_terms_that_make_no_sense_change_nothing() -> None:
    state = leased((0, 1))
    with pytest.raises(UsageError, match="exhausted 'burn' is unknown"):
        terms.set_terms(state, lease_ns=5, max_deliveries=1, exhausted="burn", now_ns=0)
    with pytest.raises(UsageError):
        terms.set_terms(state, lease_ns=-1, max_deliveries=1, exhausted="drop", now_ns=0)
    assert state.leases.lease_ns == LEASE


# --- cumulative --------------------------------------------------------------------------------------------------------------------


def test_ack_through_resolves_whatever_the_state_and_survives_a_restart() -> None:
    state = leased((0, 3), (1, 4))
    first, _ = state.claim(ALICE, 4, 0)
    finish(state, ALICE, Grant(0, [1], first.token, b"", 0), "reject")
    ack_through(state, 1, 1, {})
    assert state.progress.completed.take_new() == [0]
    assert (state.leases.claimed_count, state.counts.acked, state.progress.unresolved_count) == (0, 4, 2)
    assert state.leases.held(ALICE) == (0, 0)
    assert finish(state, ALICE, Grant(0, [0, 2], first.token, b"", 0)) == [], "acked is acked"
    version = state.progress.changes.version
    ack_through(state, 0, 2, {})
    ack_through(state, 1, 1, {})
    assert state.progress.changes.version == version
    again = SubscriberState("sub")
    again.progress.load(decode_progress(encode_progress(state.progress.snapshot(2))))
    again.add_segment(1, 4)
    assert indexes(again.claim(ALICE, 9)) == [(1, 2), (1, 3)]


def test_ack_through_reaches_into_segments_that_are_not_sealed_yet() -> None:
    state = leased((0, 2))
    ack_through(state, 2, 0, {1: 3, 2: 2})
    assert state.progress.unresolved_in_unsealed(1, 3) == 0
    assert state.progress.unresolved_in_unsealed(2, 5) == 4
    version = state.progress.changes.version
    ack_through(state, 2, 0, {1: 3, 2: 2})
    assert (state.progress.changes.version, state.counts.acked) == (version, 6), "saying it again changes nothing"
    state.add_segment(1, 3)
    assert state.progress.is_complete(1)
    assert state.progress.completed.durable([1]) == []
    state.progress.completed.mark_flushed(state.progress.changes.version)
    assert state.progress.completed.durable([1]) == [1]
    state.add_segment(2, 5)
    assert indexes(state.claim(ALICE, 9)) == [(2, index) for index in range(1, 5)]


def test_bundles_that_are_given_up_while_held_cannot_be_acked_any_more() -> None:
    state = leased((0, 3), (1, 1))
    grant, _ = state.claim(ALICE, 4, 0)
    finish(state, ALICE, Grant(0, [1], grant.token, b"", 0))
    assert losses.forget_segment(state, 0) == [(0, 1), (2, 1)]
    assert state.leases.held(ALICE) == (1, 0)
    assert finish(state, ALICE, Grant(0, [0, 2], grant.token, b"", 0)) == [("already_resolved", [0, 2])]


def test_window_in_bytes_stops_a_claim() -> None:
    state = SubscriberState("sub")
    state.add_segment(0, 10, 1000)
    state.add_segment(1, 10, 10_000)
    assert indexes(state.claim(ALICE, 20, size_limit_bytes=350)) == [(0, 0), (0, 1), (0, 2)]
    assert state.leases.held(ALICE) == (3, 300)
    assert len(indexes(state.claim(BOB, 20, size_limit_bytes=2700))) == 9
    assert indexes(state.claim(BOB, 20, order=NEWEST, size_limit_bytes=2700)) == [(1, 9), (1, 8)]


SIZES = [10, 10, 1000, 30, 500, 5, 5, 200]


def state_with_sizes(*, is_open: bool = False) -> SubscriberState:
    state = SubscriberState("s", sizes_of=lambda _: BundleSizes(1, np.array(SIZES, dtype=np.int64)))
    if is_open:
        sizes = OpenSizes()
        sizes.ends.extend(itertools.accumulate(SIZES))
        state.grow_segment(0, len(SIZES), sizes)
    else:
        state.add_segment(0, len(SIZES), sum(SIZES))
    return state


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("order", [OLDEST, NEWEST])
def test_window_in_bytes_goes_by_the_size_of_each_bundle(order: str, is_open: bool) -> None:
    state = state_with_sizes(is_open=is_open)
    expected = list(range(len(SIZES))) if order == OLDEST else list(range(len(SIZES)))[::-1]
    for limit in (20, 1000, 1019, 10_000):
        grants = state.claim(ALICE, 99, order=order, size_limit_bytes=limit)
        found = [index for grant in grants for index in grant.indexes]
        fitting = [count for count in range(9) if sum(SIZES[index] for index in expected[:count]) <= limit]
        assert found == expected[: fitting[-1]]
        assert state.leases.held(ALICE) == (len(found), sum(SIZES[index] for index in found))
        for grant in grants:
            # One by one in a scattered order: what is held stays exact.
            for index in sorted(grant.indexes, key=lambda index: index * 5 % 8):
                state.resolve(ALICE, 0, grant.token, "return", [index], 0, 0)
                found.remove(index)
                assert state.leases.held(ALICE) == (len(found), sum(SIZES[index] for index in found))


def test_bytes_held_are_given_back_whole_whoever_ends_the_claims() -> None:
    state = state_with_sizes()
    state.claim(ALICE, 99, size_limit_bytes=10_000)
    losses.drop(state, 0, 0, 3)
    assert 0 < state.leases.held(ALICE)[1] < sum(SIZES)
    ack_through(state, 0, 7, {})
    assert state.leases.held(ALICE) == (0, 0)


def test_pending_in_a_range() -> None:
    state = leased((0, 3), (1, 4), (2, 2))
    finish(state, ALICE, state.claim(ALICE, 1, 0)[0])
    assert state.progress.unresolved_between((0, 0), None) == 8
    assert state.progress.unresolved_between((0, 2), (2, 1)) == 1 + 4 + 1
    assert state.progress.unresolved_between((1, 1), (1, 3)) == 2
    assert state.progress.unresolved_between((3, 0), None) == 0
    assert state.progress.unresolved_between((0, 3), (1, 0)) == 0, (
        "behind the last of one and before the first of the next"
    )
