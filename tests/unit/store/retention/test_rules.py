"""What becomes of a segment: every combination of facts, against the order that the documents promise."""

from __future__ import annotations

import itertools

import pytest

from quiver_actors.base.policies import DROP_OLDEST, POLICIES
from quiver_actors.store.retention.rules import RULES, Facts, Outcome, Verdict, class_of, judge
from quiver_actors.supervisor.figures import EvictionClass

CLASSES = (0, *EvictionClass)
ALL_FACTS = [
    Facts(is_processed, is_held, is_expired, in_spool, policy, claimed, is_young, is_unarchived)
    for is_processed, is_held, is_expired, in_spool, is_young, is_unarchived in itertools.product(
        (False, True), repeat=6
    )
    for policy in POLICIES
    for claimed in CLASSES
    if not (in_spool and not is_processed)
]


def expected(facts: Facts) -> Outcome:
    """The promises in the order of docs/retention.md, written down another way."""
    if facts.is_unarchived:
        return Outcome(Verdict.KEEP)
    if facts.is_expired and not facts.is_held:
        return Outcome(Verdict.DELETE if facts.is_processed else Verdict.DROP, "expired")
    if facts.is_processed:
        if not facts.in_spool and not facts.is_young:
            return Outcome(Verdict.DELETE, "processed")
        return Outcome(Verdict.DELETE, "size") if facts.claimed_class else Outcome(Verdict.KEEP)
    reach = {
        EvictionClass.UNPROCESSED: not facts.is_held,
        EvictionClass.OPEN: not facts.is_held,
        EvictionClass.CLAIMED: True,
    }
    goes = (
        facts.policy == DROP_OLDEST and reach.get(EvictionClass(facts.claimed_class), False)
        if facts.claimed_class
        else False
    )
    return Outcome(Verdict.DROP, "evicted") if goes else Outcome(Verdict.KEEP)


@pytest.mark.parametrize("facts", ALL_FACTS, ids=str)
def test_every_combination_ends_as_promised(facts: Facts) -> None:
    assert judge(facts) == expected(facts)


def test_every_rule_decides_something_and_the_last_one_everything() -> None:
    deciding = {next(rule.name for rule in RULES if rule.applies(facts)) for facts in ALL_FACTS}
    assert deciding == {rule.name for rule in RULES}
    assert all(RULES[-1].applies(facts) for facts in ALL_FACTS)


def test_without_drop_oldest_nothing_that_somebody_needs_goes_for_want_of_space() -> None:
    for facts in ALL_FACTS:
        if facts.policy != DROP_OLDEST and not facts.is_processed and not facts.is_expired:
            assert judge(facts).verdict is Verdict.KEEP


@pytest.mark.parametrize("facts", [f for f in ALL_FACTS if not f.is_expired and f.claimed_class == 0], ids=str)
def test_a_segment_is_only_offered_in_a_class_in_which_a_claim_takes_it(facts: Facts) -> None:
    kind = class_of(facts.is_processed, facts.is_held, facts.policy)
    claimed = Facts(facts.is_processed, facts.is_held, False, facts.in_spool, facts.policy, kind, facts.is_young)
    assert (judge(claimed).verdict is not Verdict.KEEP) == (kind != 0)
