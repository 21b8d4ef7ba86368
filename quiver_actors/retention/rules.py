"""What becomes of one sealed segment: the rules in the order in which they win.

    1  max_age      older than that and nobody holds a bundle of it: it goes, processed or not; what somebody still needed is lost,
                    announced as `expired`. Also inside the spool, and under every policy.
    2  processed    every subscriber is done with it and it is outside the spool: it goes within one tick.
    3  spool        processed, among the newest `steady_state_headroom` bytes of those: it stays ...
    4  size         ... until the node is over its soft limit and it is the oldest such segment of all cores: it goes, nothing is lost.
    5  policy       not processed, the node is over its limit, and there is nothing of 4 anywhere:
                    `backpressure`, `reject`   it stays; pushes wait, or are refused
                    `drop_oldest`              the oldest that nobody holds goes, then (sealed first) what is in logs, then what
                                               is held; what somebody still needed is lost, announced as `evicted`
    6  otherwise    it stays.

Rules 1 to 3 are each core's own, at every tick. 4 and 5 need a claim of the coordinator, who sees all cores. A topic without a
subscriber has no processed segments: nobody is done with anything.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from quiver_actors.supervisor.figures import EvictionClass

BACKPRESSURE, REJECT, DROP_OLDEST = "backpressure", "reject", "drop_oldest"
POLICIES = (BACKPRESSURE, REJECT, DROP_OLDEST)


class Verdict(enum.Enum):
    """What becomes of a segment."""

    KEEP = "keep"
    DELETE = "delete"
    """Nobody needs it."""
    DROP = "drop"
    """Somebody does: told by a gap notice before the file goes."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a segment, and of the claim that is being carried out."""

    is_processed: bool
    is_held: bool
    """Some consumer holds a bundle of it at this moment."""
    is_expired: bool
    in_spool: bool
    policy: str
    claimed_class: int = 0
    """The last `EvictionClass` that a claim covers this segment for; 0 = no claim does."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A verdict and why."""

    verdict: Verdict
    reason: str = ""
    """As metrics and gap notices spell it."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A row of the table: of the rules that apply the first one decides."""

    name: str
    applies: Callable[[Facts], bool]
    outcome: Callable[[Facts], Outcome]


def _goes(reason: str) -> Callable[[Facts], Outcome]:
    return lambda facts: Outcome(Verdict.DELETE if facts.is_processed else Verdict.DROP, reason)


def _stays(facts: Facts) -> Outcome:
    return Outcome(Verdict.KEEP)


def _policy_lets_go(facts: Facts) -> bool:
    needed = EvictionClass.CLAIMED if facts.is_held else EvictionClass.UNPROCESSED
    return not facts.is_processed and facts.policy == DROP_OLDEST and facts.claimed_class >= needed


RULES = (
    Rule("max_age", lambda facts: facts.is_expired and not facts.is_held, _goes("expired")),
    Rule("processed", lambda facts: facts.is_processed and not facts.in_spool, _goes("processed")),
    Rule("size", lambda facts: facts.is_processed and facts.claimed_class >= EvictionClass.PROCESSED, _goes("size")),
    Rule("spool", lambda facts: facts.is_processed, _stays),
    Rule("policy", _policy_lets_go, _goes("evicted")),
    Rule("otherwise", lambda facts: True, _stays),
)
"""The first that applies decides. (The spool, 3 above, stands behind the size rule that overrules it.)"""


def judge(facts: Facts) -> Outcome:
    """What becomes of a segment."""
    return next(rule.outcome(facts) for rule in RULES if rule.applies(facts))


def class_of(is_processed: bool, is_held: bool, policy: str) -> int:
    """The `EvictionClass` of a sealed segment; 0 where its topic's policy keeps it."""
    if is_processed:
        return EvictionClass.PROCESSED
    if policy != DROP_OLDEST:
        return 0
    return EvictionClass.CLAIMED if is_held else EvictionClass.UNPROCESSED
