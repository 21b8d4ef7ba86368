"""A bundle that is shown and claimed at once, and the general way: the same grants and the same state, whatever else happens between."""

from __future__ import annotations

import random
from array import array
from typing import Any

import pytest

from quiver_actors.store.subscriber import losses
from quiver_actors.store.subscriber.claims import SubscriberState
from quiver_actors.store.subscriber.grants import ONCE, TokenSource
from quiver_actors.store.subscriber.lone_claims import claim_shown
from quiver_actors.store.subscriber.seek import ack_through
from quiver_actors.store.subscriber.sizes import OpenSizes

_SEEDS = 40
_STEPS = 200
_LEASE_NS = 50
OWNERS = ("alice", "bob")


class Side:
    """One subscriber, and the bundles of the open segment."""

    def __init__(self, *, is_short: bool, lease_ns: int) -> None:
        self.state = SubscriberState("s", tokens=TokenSource(1))
        self.state.leases.set_lease(lease_ns, 0)
        self.sizes = OpenSizes()
        self.segment_seq = 0
        self.taken = 0
        self._is_short = is_short

    def show(self, size_bytes: int, owner: str, now_ns: int) -> list[tuple[object, ...]]:
        """Show another bundle, and claim what there is."""
        state, sizes, index = self.state, self.sizes, self.sizes.bundle_count
        live = claim_shown(state, self.segment_seq, index, size_bytes, owner, now_ns) if self._is_short else None
        sizes.ends.append(sizes.ends[-1] + size_bytes)
        if live is not None:
            self.taken += 1
            return [(self.segment_seq, [live.start], live.token, ONCE, live.lease_until_ns)]
        state.grow_segment(self.segment_seq, index + 1, sizes)
        notice = state.gaps.next_untold()
        before = notice.position if notice is not None else None
        return [(seq, list(found), *rest) for seq, found, *rest in state.claim(owner, 100, now_ns, before=before)]

    def seal(self) -> None:
        """The open segment is sealed, and the next one begins."""
        if self.sizes.bundle_count:
            self.state.add_segment(self.segment_seq, self.sizes.bundle_count, self.sizes.ends[-1])
            self.segment_seq, self.sizes = self.segment_seq + 1, OpenSizes()

    def picture(self) -> dict[str, Any]:
        """Everything that shows in what the subscriber says and does."""
        state = self.state
        progress, leases = state.progress, state.leases
        return {
            "segments": {seq: _of_segment(states) for seq, states in progress.segments.items()},
            "unresolved": progress.unresolved_count,
            "claimable": state.claimable_count,
            "file": progress.snapshot(self.segment_seq),
            "dirty": progress.changes.is_dirty,
            "held": [leases.held(owner) for owner in OWNERS],
            "claimed": leases.claimed_count,
            "counts": vars(state.counts),
            "due": (state.next_due_ns(), state.attention.next_due_ns()),
            "oldest": state.order.oldest(),
            "notices": [(notice.position, notice.bundle_count, notice.owner) for notice in state.gaps],
        }


def _of_segment(states: Any) -> tuple[object, ...]:
    count = states.bundle_count
    each = [(*states.at(index), states.count(index)) for index in range(count)]
    sums = states.claimed_count, states.deferred_count, states.blocked_count, states.resolved_count
    return states.is_open, each, sums, states.bitmap(), states.sizes.of(range(count))


def step(side: Side, kind: str, rng: random.Random, now_ns: int) -> object:
    """Do the same to either side; what comes of it."""
    state, owner = side.state, rng.choice(OWNERS)
    if kind == "show":
        return side.show(rng.randrange(1, 5000), owner, now_ns)
    if kind == "resolve":
        token = rng.randrange(max(1, state.leases.tokens.next - 4), state.leases.tokens.next + 1)
        segment_seq = max(0, side.segment_seq - rng.choice((0, 0, 0, 1)))
        outcome, delay_ns = rng.choice(("ack", "ack", "ack", "reject", "defer", "return")), rng.choice((0, 30))
        indexes = array("I", range(side.sizes.bundle_count + 3))
        return state.resolve(owner, segment_seq, token, outcome, indexes, delay_ns, now_ns)
    if kind == "release":
        return state.release(owner)
    if kind == "due":
        return state.due(now_ns)
    if kind == "seal":
        side.seal()
    elif kind == "lose" and side.sizes.bundle_count:
        first = rng.randrange(side.sizes.bundle_count)
        for run in losses.drop(state, side.segment_seq, first, 1):
            state.gaps.add(side.segment_seq, *run, -1, "damaged", state.progress.changes.version)
    elif kind == "tell" and (notice := state.gaps.next_untold()) is not None:
        state.give_gap(notice, owner, now_ns)
        state.gaps.ack(notice.notice)
    elif kind == "pass":
        index = side.sizes.bundle_count + rng.randrange(-1, 3)
        ack_through(state, side.segment_seq, max(0, index), {side.segment_seq: max(0, index) + 1})
    elif kind == "limit":
        state.aside.max_deliveries = rng.choice((0, 2))
    return None


@pytest.mark.parametrize("seed", range(_SEEDS))
def test_both_ways_leave_the_same_claims(seed: int) -> None:
    rng, now_ns = random.Random(seed), 0
    kinds = ("show", "resolve", "release", "due", "seal", "lose", "tell", "pass", "limit")
    weights = (12, rng.choice((6, 16)), 1, 2, rng.choice((0, 0.3)), 0.3, 1, 0.2, 0.2)
    short, general = (Side(is_short=is_short, lease_ns=_LEASE_NS if seed % 2 else 0) for is_short in (True, False))
    for side in (short, general):
        side.sizes.ends.extend(100 * (index + 1) for index in range(seed % 4))
        side.state.grow_segment(0, seed % 4, side.sizes)
    for number in range(_STEPS):
        now_ns += rng.choice((0, 1, 20))
        (kind,), choices = rng.choices(kinds, weights), rng.random()
        found = [step(side, kind, random.Random(choices), now_ns) for side in (short, general)]
        assert found[0] == found[1], (number, kind)
        assert short.picture() == general.picture(), (number, kind)
    assert general.taken == 0
    assert short.taken > 0


def test_a_bundle_behind_others_or_of_a_segment_that_nothing_was_claimed_of_goes_the_general_way() -> None:
    side = Side(is_short=True, lease_ns=0)
    assert claim_shown(side.state, 0, 0, 10, "alice", 0) is None, "nothing of the segment is known"
    for _ in range(4):
        side.show(10, "alice", 0)
    assert side.taken, "there is room for the states of more bundles by now"
    assert claim_shown(side.state, 0, 5, 10, "alice", 0) is None, "bundle 4 was not shown"
    side.sizes.ends.append(side.sizes.ends[-1] + 10)
    side.state.grow_segment(0, 5, side.sizes)
    assert claim_shown(side.state, 0, 5, 10, "alice", 0) is None, "bundle 4 is pending"
    side.state.claim("alice", 1)
    side.state.add_segment(0, 5)
    assert claim_shown(side.state, 0, 5, 10, "alice", 0) is None, "the segment is sealed"
