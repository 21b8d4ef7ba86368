"""Sharing out the cap: single decisions, and whole histories of children that see their words late, die, stop and come back."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from quiver_actors.supervisor.coordinator import (
    CLAIM_NS,
    PASSED_OVER_NS,
    PATIENCE_NS,
    Decision,
    Evictions,
    Holding,
    Limits,
    decide,
    limits_of,
    share_out,
)
from quiver_actors.supervisor.figures import NO_LIMIT, EvictionClass
from quiver_actors.supervisor.spec import MILLISECOND_NS, SECOND_NS

MIB = 1 << 20
STEP = 33 * MIB
UNIT = STEP // 8
CAP = 2048 * MIB
NOW = 1000 * SECOND_NS


def holding(index: int, used: int = 0, **rest: int) -> Holding:
    return Holding(index=index, used_bytes=used, **{"step_bytes": STEP, "seen_bytes": used, **rest})  # type: ignore[arg-type]


def settled(holdings: list[Holding], budget: int = CAP, rounds: int = 20) -> dict[int, int]:
    """Quotas after every child has seen its own, several times."""
    quotas: dict[int, int] = {}
    for _ in range(rounds):
        quotas = share_out(NOW, budget, holdings, quotas)
        holdings = [_with(each, seen_bytes=quotas[each.index]) for each in holdings]
    return quotas


def _with(each: Holding, **changes: int) -> Holding:
    values = {name: getattr(each, name) for name in each.__struct_fields__}
    return Holding(**{**values, **changes})


def test_idle_children_share_half_of_the_cap_and_the_rest_stays_free() -> None:
    assert settled([holding(n) for n in range(4)]) == dict.fromkeys(range(4), CAP // 8)


def test_a_hot_child_gets_all_but_what_the_idle_ones_use() -> None:
    used = {0: 1900 * MIB, 1: STEP, 2: STEP, 3: 0}
    holdings = [
        holding(n, used[n], wanted_bytes=STEP if n == 0 else 0, waiting_since_ns=NOW * (n == 0)) for n in range(4)
    ]
    quotas = settled(holdings)
    assert quotas[0] >= used[0] + STEP
    assert sum(quotas.values()) <= CAP


def test_what_a_child_has_not_noticed_yet_is_not_given_away() -> None:
    wants = holding(0, 1000 * MIB, wanted_bytes=600 * MIB, waiting_since_ns=NOW)
    late = holding(1, 0, seen_bytes=1000 * MIB)
    quotas = share_out(NOW, CAP, [wants, late], {0: 1000 * MIB, 1: 1000 * MIB})
    assert quotas[1] < 1000 * MIB, "lowered at once"
    assert quotas[0] <= CAP - 1000 * MIB, "but not handed on"
    quotas = share_out(NOW, CAP, [wants, _with(late, seen_bytes=quotas[1])], quotas)
    assert quotas[0] >= 1600 * MIB


def test_what_is_free_is_given_away_once() -> None:
    late = holding(2, 0, seen_bytes=CAP - STEP)
    waiting = [holding(n, 0, wanted_bytes=STEP, waiting_since_ns=NOW) for n in (0, 1)]
    quotas = share_out(NOW, CAP, [*waiting, late], {2: CAP - STEP})
    assert sorted((quotas[0], quotas[1])) == [0, STEP], "all that the third child does not have"


def test_a_coordinator_that_starts_in_the_middle_grants_at_once_what_is_in_use() -> None:
    assert share_out(NOW, CAP, [holding(0, CAP - STEP)], {})[0] >= CAP - STEP


def test_over_the_cap_nobody_may_grow_and_grants_still_sum_to_the_cap() -> None:
    holdings = [holding(0, 3 * CAP), holding(1, CAP, wanted_bytes=STEP, waiting_since_ns=1)]
    quotas = settled(holdings)
    assert sum(quotas.values()) <= CAP
    assert all(quotas[each.index] <= each.used_bytes for each in holdings)


def test_those_who_wait_are_served_in_the_order_in_which_they_began() -> None:
    left = CAP - 2 * STEP
    first = holding(0, left, wanted_bytes=0)
    waiting = [holding(n, 0, wanted_bytes=STEP, waiting_since_ns=NOW - n) for n in (1, 2, 3)]
    quotas = settled([first, *waiting])
    assert [quotas[n] >= STEP for n in (1, 2, 3)] == [False, True, True], "the two that wait longest"


def test_a_wish_that_does_not_fit_lets_others_pass_only_for_a_while() -> None:
    full = holding(0, CAP - 2 * STEP)
    big = holding(1, 0, wanted_bytes=5 * STEP, waiting_since_ns=NOW - PATIENCE_NS // 2)
    small = holding(2, 0, wanted_bytes=STEP, waiting_since_ns=NOW)
    assert settled([full, big, small])[2] >= STEP
    patient = _with(big, waiting_since_ns=NOW - 2 * PATIENCE_NS)
    assert settled([full, patient, small])[2] < STEP


def test_without_a_cap_there_is_no_limit() -> None:
    decision = decide(NOW, None, 0, [holding(0, 5 * CAP)], {}, True)
    assert decision.quotas == {0: NO_LIMIT}
    assert not decision.is_over


def test_over_begins_at_the_soft_limit_and_ends_well_below() -> None:
    limits = limits_of(CAP, STEP)
    assert limits.low_bytes < limits.soft_bytes < limits.hard_bytes == CAP

    def over(used: int, before: bool) -> bool:
        return decide(NOW, limits, 0, [holding(0, used)], {0: used}, before).is_over

    assert not over(limits.soft_bytes, False)
    assert over(limits.soft_bytes + 1, False)
    assert over(limits.low_bytes + 1, True)
    assert not over(limits.low_bytes, True)
    flips, state = 0, False
    for turn in range(100):
        now = over(limits.soft_bytes + (STEP // 2 if turn % 2 else -STEP // 2), state)
        flips, state = flips + (now != state), now
    assert flips == 1


# --- claims --------------------------------------------------------------------------------------------------------------


def over_by(size_bytes: int, shortage_bytes: int = 0) -> tuple[Limits, Decision]:
    limits = limits_of(CAP, STEP)
    used = limits.low_bytes + size_bytes
    return limits, Decision(quotas={}, used_bytes=used, is_over=True, shortage_bytes=shortage_bytes)


def evictable(index: int, kind: int, oldest: int, **rest: int) -> Holding:
    return holding(index, STEP, evictable_class=kind, evictable_oldest_unix_ns=oldest, evictable_bytes=STEP, **rest)


def test_the_oldest_of_the_first_class_is_claimed_up_to_the_next_ones_oldest() -> None:
    limits, decision = over_by(10 * STEP)
    holdings = [
        evictable(0, EvictionClass.PROCESSED, 300),
        evictable(1, EvictionClass.PROCESSED, 100),
        evictable(2, EvictionClass.UNPROCESSED, 5),
    ]
    claim = Evictions().decide(NOW, limits, decision, holdings)
    assert claim is not None
    assert (claim.index, claim.eviction_class, claim.through_unix_ns) == (1, EvictionClass.PROCESSED, 300)
    assert claim.size_bytes == 10 * STEP


def test_open_and_claimed_data_goes_only_where_pushes_would_wait() -> None:
    for kind in (EvictionClass.OPEN, EvictionClass.CLAIMED):
        limits, decision = over_by(STEP)
        assert Evictions().decide(NOW, limits, decision, [evictable(0, kind, 1)]) is None
        limits, decision = over_by(STEP, shortage_bytes=STEP)
        claim = Evictions().decide(NOW, limits, decision, [evictable(0, kind, 1)])
        assert claim is not None
        assert claim.eviction_class == kind


def test_one_claim_stands_until_it_is_done_then_the_next_oldest_is_asked() -> None:
    limits, decision = over_by(10 * STEP)
    evictions = Evictions()
    holdings = [evictable(0, EvictionClass.PROCESSED, 1), evictable(1, EvictionClass.PROCESSED, 2)]
    first = evictions.decide(NOW, limits, decision, holdings)
    assert first is not None
    assert evictions.decide(NOW + MILLISECOND_NS, limits, decision, holdings) == first
    done = [evictable(0, EvictionClass.PROCESSED, 9, claim_done=first.number), holdings[1]]
    second = evictions.decide(NOW + 2 * MILLISECOND_NS, limits, decision, done)
    assert second is not None
    assert (second.index, second.number) == (1, first.number + 1)


def test_busy_and_stopped_children_are_passed_over() -> None:
    limits, decision = over_by(10 * STEP)
    evictions = Evictions()
    silent = evictable(0, EvictionClass.PROCESSED, 1, is_responsive=False)
    busy = evictable(1, EvictionClass.PROCESSED, 2)
    other = evictable(2, EvictionClass.PROCESSED, 3)
    first = evictions.decide(NOW, limits, decision, [silent, busy, other])
    assert first is not None
    assert first.index == 1
    second = evictions.decide(NOW + CLAIM_NS, limits, decision, [silent, busy, other])
    assert second is not None
    assert second.index == 2
    assert evictions.expired == 1
    later = NOW + CLAIM_NS + PASSED_OVER_NS
    done = _with(other, claim_done=second.number)
    third = evictions.decide(later, limits, decision, [silent, busy, done])
    assert third is not None
    assert third.index == 1


def test_nobody_is_asked_before_everybody_has_looked_since_it_matters() -> None:
    limits, decision = over_by(10 * STEP)
    evictions = Evictions()
    busy = evictable(0, EvictionClass.UNPROCESSED, 900, beat_ns=NOW + 1)
    calm = holding(1, STEP, beat_ns=NOW - 50 * MILLISECOND_NS)
    assert evictions.decide(NOW, limits, decision, [busy, calm]) is None
    looked = evictable(1, EvictionClass.UNPROCESSED, 5, beat_ns=NOW + 10)
    claim = evictions.decide(NOW + 20, limits, decision, [busy, looked])
    assert claim is not None
    assert claim.index == 1, "the oldest was the calm one's"
    silent = _with(calm, is_responsive=False)
    assert Evictions().decide(NOW, limits, decision, [busy, silent]) is not None, (
        "one that does not answer is not waited for"
    )


def test_what_a_silent_child_could_still_take_counts_as_taken_once_somebody_waits() -> None:
    limits = limits_of(CAP, STEP)
    silent = holding(0, 0, seen_bytes=CAP // 2)
    busy = holding(1, CAP // 2, wanted_bytes=STEP, waiting_since_ns=NOW)
    quotas = {0: CAP // 2, 1: CAP // 2}
    assert not decide(NOW, limits, 0, [silent, busy], quotas, False).is_over, "it may give it back in a moment"
    silent = _with(silent, is_silent=True, is_responsive=False)
    decision = decide(NOW, limits, 0, [silent, busy], quotas, False)
    assert decision.is_over
    assert decision.shortage_bytes == STEP
    assert not decide(NOW, limits, 0, [silent, _with(busy, wanted_bytes=0, waiting_since_ns=0)], quotas, False).is_over


def test_what_is_being_deleted_is_not_claimed_again() -> None:
    limits, decision = over_by(2 * STEP)
    going = evictable(0, EvictionClass.PROCESSED, 1, doomed_bytes=2 * STEP)
    assert Evictions().decide(NOW, limits, decision, [going]) is None


# --- histories -----------------------------------------------------------------------------------------------------------


@dataclass
class Child:
    """A worker in name only: its disk, and the words as it and the supervisor see them."""

    used: int = 0
    seen: int = 0
    """Published, and what it lives within."""
    published_used: int = 0
    wanted: int = 0
    since: int = 0
    is_alive: bool = True
    is_late: bool = False
    """Goes on with what it has, and does not look at its words: in the middle of a long turn."""

    def look(self, quota_bytes: int) -> None:
        """Take a turn like a worker: publish what it has before it sees the quota that it lives within."""
        if self.is_alive and not self.is_late:
            self.published_used = self.used
            self.seen = quota_bytes

    def grow(self, size: int, now: int) -> None:
        if not self.is_alive:
            return
        if self.used + size <= self.seen:
            self.used += size
            self.wanted = self.since = 0
        else:
            self.wanted, self.since = size, self.since or now

    def holding(self, index: int, quota_bytes: int) -> Holding:
        if not self.is_alive:
            return Holding(index=index, used_bytes=self.used, is_responsive=False)
        return Holding(
            index=index,
            used_bytes=self.published_used,
            seen_bytes=self.seen,
            wanted_bytes=self.wanted,
            waiting_since_ns=self.since,
            step_bytes=STEP,
            is_responsive=not self.is_late,
        )


_LIKELY = ["grow"] * 8 + ["shrink"] + ["decide"] * 6 + ["late"] * 2 + ["in time"] * 2
ACTS = st.tuples(st.sampled_from([*_LIKELY, "die", "start", "new coordinator"]), st.integers(0, 3), st.integers(1, 8))


@settings(max_examples=100, deadline=None)
@given(st.lists(ACTS, min_size=60, max_size=150), st.integers(16, 40))
def test_no_history_brings_the_disk_over_the_cap_or_the_grants_past_it(
    acts: list[tuple[str, int, int]], steps: int
) -> None:
    cap, now = steps * UNIT, NOW
    children = [Child() for _ in range(4)]
    quotas = dict.fromkeys(range(4), 0)
    is_over = False
    for act, index, amount in acts:
        child = children[index]
        now += 20 * MILLISECOND_NS
        if act == "grow":
            child.grow(amount * UNIT, now)
        elif act == "shrink" and child.is_alive:
            child.used = max(0, child.used - amount * UNIT)
        elif act == "die":
            child.is_alive, child.wanted, child.since = False, 0, 0
        elif act == "start" and not child.is_alive:
            child.is_alive, child.is_late = True, False
            child.look(quotas[index])
        elif act in ("late", "in time"):
            child.is_late = act == "late"
        elif act in ("decide", "new coordinator"):
            # A coordinator has no memory but the words: any of them may be a new one.
            holdings = [each.holding(n, quotas[n]) for n, each in enumerate(children)]
            decision = decide(now, limits_of(cap, STEP), 0, holdings, quotas, is_over if act == "decide" else False)
            quotas, is_over = dict(decision.quotas), decision.is_over
            for n, each in enumerate(children):
                each.look(quotas[n])
        assert sum(quotas.values()) <= cap
        assert sum(each.used for each in children) <= cap


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 12), min_size=4, max_size=4), st.integers(0, 3))
def test_who_wants_gets_it_within_two_rounds_wherever_the_headroom_is(used_steps: list[int], hot: int) -> None:
    """A round is a look of the coordinator and one of each child: 20 ms busy, 100 ms at the most."""
    children = [Child(used=steps * STEP, published_used=steps * STEP) for steps in used_steps]
    cap = (sum(used_steps) + 3) * STEP
    quotas = dict.fromkeys(range(4), 0)
    now = NOW

    def a_round() -> None:
        nonlocal quotas
        holdings = [each.holding(n, quotas[n]) for n, each in enumerate(children)]
        quotas = dict(decide(now, limits_of(cap, STEP), 0, holdings, quotas, False).quotas)
        for n, each in enumerate(children):
            each.look(quotas[n])

    for _ in range(3):
        a_round()
    children[hot].grow(3 * STEP, now)
    for _ in range(2):
        a_round()
    children[hot].grow(3 * STEP, now)
    assert children[hot].used == (used_steps[hot] + 3) * STEP
