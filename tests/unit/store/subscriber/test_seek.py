"""Moving a subscriber, against a model of plain sets."""

from __future__ import annotations

import random

import pytest

from quiver_actors.store.subscriber import terms
from quiver_actors.store.subscriber.gaps import GapLedger, decode_gaps
from quiver_actors.store.subscriber.progress import decode_progress, encode_progress
from quiver_actors.store.subscriber.registry import SubscriberRegistry
from quiver_actors.store.subscriber.seek import before_position, plan_seek

SEGMENTS = {3: 10, 4: 70, 6: 1, 7: 130}
"""Sealed ones; 5 is gone, 8 is open with OPEN bundles."""
OPEN = 20
STORED = {**SEGMENTS, 8: OPEN}
EVERYTHING = {(seq, index) for seq, count in STORED.items() for index in range(count)}

Bundle = tuple[int, int]


class Model:
    """A registry with one subscriber that is owed everything, and what must be true of it."""

    def __init__(self) -> None:
        self.registry = SubscriberRegistry()
        self.registry.register("s", (0, 0))
        for seq, count in SEGMENTS.items():
            self.registry.add_segment(seq, count, 1000)
        self.resolved: set[Bundle] = set()
        self.announced: set[Bundle] = set()
        """Bundles announced as lost by notices that stand."""

    def ack(self, chance: random.Random, share: float) -> None:
        state = self.registry.get("s")
        for grant in state.claim("me", 10_000):
            acked = [index for index in grant.indexes if chance.random() < share]
            assert state.resolve("me", grant.segment_seq, grant.token, "ack", acked, 0, 0) == []
            self.resolved |= {(grant.segment_seq, index) for index in acked}
        state.release("me")

    def seek(self, position: Bundle) -> None:
        plan = plan_seek(self.registry.get("s"), STORED, before_position(position, STORED), 8)
        before = {bundle for bundle in EVERYTHING if bundle < position}
        owed = EVERYTHING - self.resolved - self.announced
        assert plan.skipped_count == len(owed & before)
        assert plan.again_count == len((self.resolved | self.announced) - before)
        self.registry.seek("s", plan)
        self.announced = (owed | self.announced) & before
        self.resolved &= before

    def check(self) -> None:
        state = self.registry.get("s")
        done = self.resolved | self.announced
        for seq, count in STORED.items():
            bits = int.from_bytes(state.progress.resolved_bitmap(seq, count), "little")
            assert {index for index in range(count) if bits >> index & 1} == {index for s, index in done if s == seq}
        assert announced_by(state.gaps) == self.announced
        assert state.claimable_count == len([bundle for bundle in EVERYTHING - done if bundle[0] != 8])

    def restart(self) -> None:
        """Restart from the subscriber's files."""
        state = self.registry.get("s")
        progress = decode_progress(encode_progress(state.progress.snapshot(8)))
        gaps = decode_gaps(state.gaps.encode(0))
        self.registry = SubscriberRegistry()
        self.registry.load("s", progress, gaps)
        for seq, count in SEGMENTS.items():
            self.registry.add_segment(seq, count, 1000)


def announced_by(gaps: GapLedger) -> set[Bundle]:
    runs = [(gap.segment_seq, gap.bundle_index_first, gap.bundle_count) for gap in gaps]
    found = [(seq, index) for seq, first, count in runs for index in range(first, first + count)]
    assert len(found) == len(set(found)), "announced twice"
    return set(found)


@pytest.mark.parametrize("seed", range(30))
def test_any_moves_end_where_a_new_subscriber_would_stand_and_announce_what_they_skip(seed: int) -> None:
    chance, model = random.Random(seed), Model()
    ends = [(0, 0), (4, 0), (4, 35), (5, 0), (6, 0), (7, 129), (8, 0), (8, 7), (8, OPEN)]
    for _ in range(8):
        model.ack(chance, chance.choice([0, 0.3, 1]))
        model.seek(chance.choice(ends))
        model.check()
        if chance.random() < 0.3:
            # What was withdrawn is in the file until the progress is durable: as the flush that follows a seek writes it.
            state = model.registry.get("s")
            state.gaps.mark_flushed(state.gaps.changes.version)
            model.restart()
            model.check()


def test_claims_end_and_late_acknowledgements_are_refused() -> None:
    model = Model()
    state = model.registry.get("s")
    (grant,) = state.claim("me", 5)
    model.seek((0, 0))
    state = model.registry.get("s")
    assert state.leases.claimed_count == 0
    ((code, indexes),) = state.resolve("me", 3, grant.token, "ack", [0, 1, 2, 3, 4], 0, 0)
    assert (code, indexes) == ("not_claimed", [0, 1, 2, 3, 4])
    assert next(iter(state.claim("other", 1))).indexes[0] == 0


def test_an_owner_that_tells_what_its_caller_was_handed_still_does_so_afterwards() -> None:
    """What nobody was handed does not count as delivered: else a seek would bring bundles near their limit of deliveries."""
    model = Model()
    before = model.registry.get("s")
    before.leases.owner("me").tells_taken = True
    before.leases.owner("other").tells_taken = False
    model.seek((3, 2))
    state = model.registry.get("s")
    terms.set_terms(state, lease_ns=0, max_deliveries=3, exhausted="drop", now_ns=0)
    for owner, count in (("me", 0), ("other", 1)):
        state.claim(owner, 1)
        state.release(owner)
        assert state.delivery_count(3, 2) == count, owner


def test_what_somebody_was_told_of_is_owed_again_and_not_announced_twice() -> None:
    model = Model()
    model.seek((4, 0))
    state = model.registry.get("s")
    (notice,) = state.gaps
    assert announced_by(state.gaps) == {(3, index) for index in range(10)}
    state.gaps.ack(notice.notice)
    plan = plan_seek(state, STORED, before_position((3, 5), STORED), 8)
    assert (plan.skipped_count, plan.skipped, plan.again_count, plan.withdrawn) == (0, {}, 5, [notice])
    assert model.registry.seek("s", plan) == []
    state = model.registry.get("s")
    assert (list(state.gaps), state.gaps.untold_count) == ([], 0)
    assert state.claim("me", 1)[0].indexes == range(5, 6)


def test_progress_under_way_does_not_count_for_the_new_position() -> None:
    model = Model()
    model.ack(random.Random(1), 1)
    (_, version, _) = model.registry.flushes.dirty(8)[0]
    model.seek((0, 0))
    model.registry.flushes.mark_flushed("s", version)
    assert model.registry.flushes.is_dirty
    assert model.registry.deletable(SEGMENTS) == []


def test_losses_are_announced_to_those_who_come_later() -> None:
    model = Model()
    model.registry.give_up(4, 70, "damaged", lambda first, count: -1, [(10, 5), (70, 0)])
    model.registry.register("late", (0, 0))
    model.registry.register("latest", (8, 0))
    late = [(gap.bundle_index_first, gap.bundle_count) for gap in model.registry.get("late").gaps]
    assert late == [(10, 5), (70, 0)]
    assert not len(model.registry.get("latest").gaps)
    assert model.registry.get("late").claimable_count == sum(SEGMENTS.values()) - 5
