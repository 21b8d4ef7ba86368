"""The short way of a new bundle of an open log to its consumer: when it is taken, and what it leaves to the general way."""

from __future__ import annotations

import pytest

from quiver_actors.store.subscriber.claims import SubscriberState
from quiver_actors.store.subscriber.grants import TokenSource
from quiver_actors.store.subscriber.lone_claims import claim_shown
from quiver_actors.store.subscriber.sizes import OpenSizes

SIZE_BYTES = 100


def with_open_segment(pending: int, lease_ns: int = 0) -> SubscriberState:
    """A subscriber of an open segment with three bundles, of which all but the last ones are claimed, and room for the states of more."""
    state, sizes = SubscriberState("s", tokens=TokenSource(1)), OpenSizes()
    state.leases.set_lease(lease_ns, 0)
    sizes.ends.extend(SIZE_BYTES * (index + 1) for index in range(10))
    for bundles in (2, 3):
        state.grow_segment(0, bundles, sizes)
        if bundles <= 3 - pending:
            state.claim("alice", 10, 1)
    return state


@pytest.mark.parametrize("lease_ns", [0, 50])
def test_the_next_bundle_is_claimed_where_all_before_it_are(lease_ns: int) -> None:
    state = with_open_segment(0, lease_ns)
    live = claim_shown(state, 0, 3, SIZE_BYTES, "alice", 5)
    assert live is not None
    assert (live.segment_seq, live.start, live.stop) == (0, 3, 4)
    assert state.leases.claimed_count == 4
    if lease_ns:
        assert live.lease_until_ns == 5 + lease_ns
        assert state.attention.next_due_ns() == 1 + lease_ns


def test_nothing_is_claimed_in_front_of_another_bundle_that_is_pending() -> None:
    state = with_open_segment(1)
    assert claim_shown(state, 0, 3, SIZE_BYTES, "alice", 5) is None
    assert state.leases.claimed_count == 2


def test_a_bundle_behind_one_that_was_not_shown_is_left() -> None:
    state = with_open_segment(0)
    assert claim_shown(state, 0, 4, SIZE_BYTES, "alice", 5) is None
    assert claim_shown(state, 1, 0, SIZE_BYTES, "alice", 5) is None, "nothing is known of that segment"
    assert state.leases.claimed_count == 3


def test_a_bundle_whose_state_has_no_room_is_left() -> None:
    state = with_open_segment(0)
    assert claim_shown(state, 0, 3, SIZE_BYTES, "alice", 5) is not None
    assert claim_shown(state, 0, 4, SIZE_BYTES, "alice", 5) is None
    assert state.leases.claimed_count == 4
