"""The rules that decide about one sealed segment, in the order in which they win.

    0  archive      the topic requires an archive (`archive.require`), and the segment is not in it: it stays.
    1  max_age      older than that and nobody holds a bundle of it: it goes, processed or not; what somebody still needed is lost,
                    announced as `expired`. Also inside the spool, and under every policy.
    2  processed    every subscriber is done with it, and neither 4 nor 5 keeps it: it goes within one tick.
    3  size         processed, the node is over its soft limit, and it is the oldest such segment of all cores: it goes, nothing is lost.
    4  keep_for     processed, and its newest bundle is younger than that: it stays.
    5  spool        processed, and among the newest `steady_state_headroom` bytes of those: it stays.
    6  policy       not processed, the node is over its limit, and there is nothing of 3 anywhere:
                    `backpressure`, `reject`   it stays; pushes wait, or are refused
                    `drop_oldest`              the oldest that nobody holds goes, then (sealed first) what is in logs, then what
                                               is held; what somebody still needed is lost, announced as `evicted`
    7  otherwise    it stays.

Rules 1, 2, 4 and 5 are each core's own, at every tick. 3 and 6 need a claim of the coordinator, who sees all cores. A topic without a
subscriber has no processed segments: nobody is done with anything.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from quiver_actors.base.policies import DROP_OLDEST
from quiver_actors.supervisor.figures import EvictionClass


class Verdict(enum.Enum):
    """What becomes of a segment."""

    KEEP = "keep"
    DELETE = "delete"
    """Delete the segment, which nobody needs."""
    DROP = "drop"
    """Delete the segment although somebody still needs it: a gap notice tells so before the file goes."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about a segment, and about the claim that is being carried out, by which the rules decide."""

    is_processed: bool
    is_held: bool
    """Whether some consumer holds a bundle of it at this moment."""
    is_expired: bool
    in_spool: bool
    policy: str
    claimed_class: int = 0
    """The last `EvictionClass` that a claim covers this segment for; 0 = no claim does."""
    is_young: bool = False
    """Whether its newest bundle is younger than `keep_for`."""
    is_unarchived: bool = False
    """Whether it must be in the archive before it may go, and is not."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A verdict and why."""

    verdict: Verdict
    reason: str = ""
    """The reason, as metrics and gap notices spell it."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A row of the table: the first row that applies decides."""

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
    Rule("archive", lambda facts: facts.is_unarchived, _stays),
    Rule("max_age", lambda facts: facts.is_expired and not facts.is_held, _goes("expired")),
    Rule("processed", lambda facts: facts.is_processed and not (facts.in_spool or facts.is_young), _goes("processed")),
    Rule("size", lambda facts: facts.is_processed and facts.claimed_class >= EvictionClass.PROCESSED, _goes("size")),
    Rule("keep_for", lambda facts: facts.is_processed and facts.is_young, _stays),
    Rule("spool", lambda facts: facts.is_processed, _stays),
    Rule("policy", _policy_lets_go, _goes("evicted")),
    Rule("otherwise", lambda facts: True, _stays),
)
"""The first that applies decides."""


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
