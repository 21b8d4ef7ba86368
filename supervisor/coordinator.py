"""Shares the node's size cap out among its children: how much each may have on disk, and which of them is to delete what.

Pure: `decide` looks at what the children say of themselves and at the quotas as they stand, and returns new quotas and claims.
Nothing here reads a page, a disk or a clock. What a quota is worth does not depend on anybody's memory: a coordinator that starts in
the middle goes on from the words that it finds.

Guarantees
- New quotas never sum past the cap (less what is in nobody's directories), and nothing is given away twice: until a child has said
  that it saw a lower quota, it counts with the higher one; what it has on disk counts in any case.
- Children whose pushes wait are served in the order in which they began to wait. One whose wish is larger than what is free lets
  others pass for `PATIENCE_NS`, then nothing is given to anybody before it.
- One eviction claim at a time, for the child with the oldest of the first class that any has; it reaches as far as the next child's
  oldest. A child that does not carry its claim out in time is passed over for a while.
- Deleting begins at the soft limit and ends well below it, so that a store that swings around a limit does not flap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from .figures import NO_LIMIT, EvictionClass
from .spec import MILLISECOND_NS, SECOND_NS

PATIENCE_NS = SECOND_NS
"""How long a wish that does not fit lets smaller ones pass."""
CLAIM_NS = 2 * SECOND_NS
"""How long a child has for a claim: its loop's turn, a flush of progress, the unlinks."""
PASSED_OVER_NS = 1 * SECOND_NS
RESPONSIVE_NS = 500 * MILLISECOND_NS
"""A child whose heartbeat is older is not asked to delete anything."""
NEAR = 0.9
"""The part of the soft limit from which on every child says what it would delete first, so that all have said it before one must."""
SILENT_NS = 5 * SECOND_NS
"""Silence of a child after which the unused part of its quota counts as used; where a policy lets data go, that frees room instead."""
_MARGIN_SHARE = 16
_MARGIN_STEPS = 4


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits at which deleting begins and ends, in bytes on disk."""

    hard_bytes: int
    soft_bytes: int
    """Above this limit the node deletes what it may."""
    low_bytes: int
    """At or below this limit the deleting ends."""


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """One child's disk, as the page and the process table show it."""

    index: int
    used_bytes: int
    """Bytes on disk as the child reports them; for a child that reports nothing, as they were measured."""
    seen_bytes: int = 0
    """The quota that it lives within; 0 of a dead one whose directories were measured."""
    wanted_bytes: int = 0
    waiting_since_ns: int = 0
    step_bytes: int = 0
    is_responsive: bool = True
    beat_ns: int = NO_LIMIT
    """Monotonic time of its last look at its words."""
    is_silent: bool = False
    """Whether the child has been silent for `SILENT_NS`: what its quota leaves it counts as used."""
    evictable_class: int = 0
    evictable_oldest_unix_ns: int = 0
    evictable_bytes: int = 0
    doomed_bytes: int = 0
    claim_done: int = 0


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """Order to a child to delete data."""

    number: int
    index: int
    eviction_class: int
    through_unix_ns: int
    size_bytes: int
    expires_ns: int


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one round: how many bytes of disk each child may use, and what must be deleted."""

    quotas: Mapping[int, int]
    """Bytes that each child may have, by its index."""
    used_bytes: int
    is_over: bool
    shortage_bytes: int
    """How much must be deleted so that everybody who waits can go on."""


def limits_of(cap_bytes: int, step_bytes: int) -> Limits:
    """The limits of a cap. The margin is a sixteenth of it, or four steps if that is less."""
    margin = min(cap_bytes // _MARGIN_SHARE, _MARGIN_STEPS * step_bytes) if step_bytes else cap_bytes // _MARGIN_SHARE
    return Limits(hard_bytes=cap_bytes, soft_bytes=cap_bytes - margin, low_bytes=cap_bytes - margin - margin // 2)


def decide(
    now_ns: int,
    limits: Limits | None,
    unowned_bytes: int,
    holdings: Sequence[Holding],
    quotas: Mapping[int, int],
    is_over: bool,
) -> Decision:
    """
    Args:
        limits: None = no cap.
        unowned_bytes: in the data directory and in no child's directories.
        quotas: as they were written last, by child.
        is_over: as it was decided last.
    """
    used = unowned_bytes + sum(holding.used_bytes for holding in holdings)
    if limits is None:
        free = dict.fromkeys((holding.index for holding in holdings), NO_LIMIT)
        return Decision(quotas=free, used_bytes=used, is_over=False, shortage_bytes=0)
    doomed = sum(holding.doomed_bytes for holding in holdings)
    waiting = sum(holding.wanted_bytes for holding in holdings if holding.waiting_since_ns)
    held = sum(max(0, holding.seen_bytes - holding.used_bytes) for holding in holdings if holding.is_silent)
    needed = used + waiting + (held if waiting else 0)
    over = used > (limits.low_bytes if is_over else limits.soft_bytes)
    budget = max(0, limits.hard_bytes - unowned_bytes)
    shares = share_out(now_ns, budget, holdings, quotas)
    return Decision(
        quotas=shares,
        used_bytes=used,
        is_over=over or needed > limits.hard_bytes,
        shortage_bytes=max(0, needed - limits.hard_bytes - doomed),
    )


# --- quotas --------------------------------------------------------------------------------------------------------------


def share_out(now_ns: int, budget: int, holdings: Sequence[Holding], quotas: Mapping[int, int]) -> dict[int, int]:
    """The next quotas: lowered at once where they are too high, raised as far as nobody else may still use it."""
    order = sorted(holdings, key=_service_order)
    targets = _targets(now_ns, budget, order)
    new = {holding.index: min(quotas.get(holding.index, 0), targets[holding.index]) for holding in order}
    free = budget - sum(max(new[holding.index], holding.seen_bytes, holding.used_bytes) for holding in order)
    for holding in order:
        index = holding.index
        held = max(new[index], holding.seen_bytes, holding.used_bytes)
        raised = min(targets[index], held + max(0, free))
        if raised > new[index]:
            free -= max(0, raised - held)
            new[index] = raised
    return new


def _targets(now_ns: int, budget: int, order: Sequence[Holding]) -> dict[int, int]:
    """What each should have: what it uses, what it wants if there is room, and an even part of half of the rest.

    The other half stays with nobody, so that the next wish is served without waiting for somebody to give something back.
    """
    used = sum(holding.used_bytes for holding in order)
    if used > budget:
        return {holding.index: holding.used_bytes * budget // used for holding in order}
    left = budget - used
    targets = {}
    is_held_back = False
    for holding in order:
        served = 0 if is_held_back else min(holding.wanted_bytes, left)
        if holding.waiting_since_ns and served < holding.wanted_bytes:
            served = 0  # a part of a log is of no use to pushes that wait for it
        if holding.waiting_since_ns and not served and now_ns - holding.waiting_since_ns > PATIENCE_NS:
            is_held_back = True
        left -= served
        targets[holding.index] = holding.used_bytes + served
    # What those who wait could not get yet is kept together for them.
    spare = (
        0 if any(h.waiting_since_ns and targets[h.index] == h.used_bytes and h.wanted_bytes for h in order) else left
    )
    for index in targets:
        targets[index] += spare // (2 * len(targets))
    return targets


def _service_order(holding: Holding) -> tuple[bool, int, int]:
    """Sort key: children whose pushes wait come first, longest first; then those that only look ahead, smallest first."""
    return (not holding.waiting_since_ns, holding.waiting_since_ns or holding.used_bytes, holding.index)


# --- evictions -----------------------------------------------------------------------------------------------------------


class Evictions:
    """Which claim is out, and who has let one pass. Losing this memory costs a repeated claim at most."""

    def __init__(self, number: int = 0) -> None:
        """`number` is that of the last claim that was ever written."""
        self.number = number
        self.expired = 0
        self.claim: Claim | None = None
        self._passed_over: dict[int, int] = {}
        self._near_since_ns: int | None = None

    def decide(
        self, now_ns: int, limits: Limits | None, decision: Decision, holdings: Sequence[Holding]
    ) -> Claim | None:
        """The claim that is to stand now; None = none."""
        self._look_back(now_ns, holdings)
        is_near = limits is not None and (decision.is_over or decision.used_bytes > NEAR * limits.soft_bytes)
        self._near_since_ns = (self._near_since_ns or now_ns) if is_near else None
        needed = _needed_bytes(limits, decision, holdings)
        if limits is None or needed <= 0:
            self.claim = None
        elif self.claim is None:
            self.claim = self._next(now_ns, needed, decision, holdings)
        return self.claim

    def _look_back(self, now_ns: int, holdings: Iterable[Holding]) -> None:
        claim = self.claim
        if claim is None:
            return
        if any(holding.index == claim.index and holding.claim_done >= claim.number for holding in holdings):
            self.claim = None
        elif now_ns >= claim.expires_ns:
            self.claim = None
            self.expired += 1
            self._passed_over[claim.index] = now_ns + PASSED_OVER_NS

    def _next(self, now_ns: int, needed: int, decision: Decision, holdings: Iterable[Holding]) -> Claim | None:
        near_since_ns = self._near_since_ns or 0
        if any(holding.is_responsive and holding.beat_ns < near_since_ns for holding in holdings):
            return None  # it may have something older, and has not looked since that matters
        last = EvictionClass.CLAIMED if decision.shortage_bytes else EvictionClass.UNPROCESSED
        able = [
            holding
            for holding in holdings
            if holding.is_responsive
            and 0 < holding.evictable_class <= last
            and self._passed_over.get(holding.index, 0) <= now_ns
        ]
        able.sort(key=lambda holding: (holding.evictable_class, holding.evictable_oldest_unix_ns, holding.index))
        if not able:
            return None
        first = able[0]
        rivals = [
            other.evictable_oldest_unix_ns for other in able[1:] if other.evictable_class == first.evictable_class
        ]
        self.number += 1
        return Claim(
            number=self.number,
            index=first.index,
            eviction_class=first.evictable_class,
            through_unix_ns=rivals[0] if rivals else NO_LIMIT,
            size_bytes=needed,
            expires_ns=now_ns + CLAIM_NS,
        )


def _needed_bytes(limits: Limits | None, decision: Decision, holdings: Iterable[Holding]) -> int:
    """How much is to be deleted: down to the low limit once over the soft one, and whatever those who wait are short of."""
    if limits is None or not decision.is_over:
        return 0
    doomed = sum(holding.doomed_bytes for holding in holdings)
    return max(decision.used_bytes - doomed - limits.low_bytes, decision.shortage_bytes)
