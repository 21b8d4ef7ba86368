"""The outcomes of a claimed bundle, and the reasons why a consumer cannot decide about one. Pure.

| asked of a bundle that the token does not hold | answer |
|---|---|
| the token was never given, or the bundle is in no sealed segment | `not_claimed` |
| it is resolved, and the last holder said the same, or nobody knows who did | none: done before |
| it is resolved in another way, or by another holder since | `already_resolved`, `fenced` |
| it was given to somebody else since | `fenced` |
| its holder has given it back | none if that is asked again, else `not_claimed` |
| its lease has run out | `lease_expired` |
"""

from __future__ import annotations

from collections.abc import Sequence

from quiver_actors.errors import AlreadyResolved, Fenced, LeaseExpired, NotClaimed
from quiver_actors.store.subscriber.bundle_states import GIVEN_BACK, TOKEN_MASK
from quiver_actors.store.subscriber.leases import Leases
from quiver_actors.store.subscriber.progress_state import ProgressState
from quiver_actors.store.subscriber.transitions import BundleEvent, BundleState, advance

# Plain ints, as in bundle_states.
ACKED = int(BundleState.ACKED)
REJECTED = int(BundleState.REJECTED)
DEFERRED = int(BundleState.DEFERRED)
EXHAUSTED = int(advance(BundleState.CLAIMED, BundleEvent.EXHAUST))
RELEASED = int(advance(BundleState.CLAIMED, BundleEvent.RELEASE))
PASSED = int(advance(BundleState.PENDING, BundleEvent.PASS))
DROPPED = int(advance(BundleState.PENDING, BundleEvent.DROP))
BLOCKED = int(advance(BundleState.EXHAUSTED, BundleEvent.BLOCK))
RETURNED = -1
"""The bundle becomes pending again, and the delivery does not count; no bundle stays in this outcome."""
SET_ASIDE = -2
"""The bundle becomes a dead letter where the subscriber's terms want dead letters, else it is blocked."""
OUTCOMES = {
    "ack": int(advance(BundleState.CLAIMED, BundleEvent.ACK)),
    "reject": int(advance(BundleState.CLAIMED, BundleEvent.REJECT)),
    "defer": int(advance(BundleState.CLAIMED, BundleEvent.DEFER)),
    "return": RETURNED,
    "set_aside": SET_ASIDE,
}
EXHAUSTED_TARGETS = {
    "dead_letter": EXHAUSTED,
    "drop": int(advance(BundleState.CLAIMED, BundleEvent.REJECT)),
    "block": int(advance(BundleState.CLAIMED, BundleEvent.BLOCK)),
}
"""Fate of a bundle that was delivered too often."""


def refusals(
    progress_state: ProgressState, leases: Leases, segment_seq: int, token: int, target: int, indexes: Sequence[int]
) -> list[tuple[str, list[int]]]:
    """The bundles, none of them held under `token`, that it cannot take to `target`, by the code of the error that says why."""
    found: dict[str, list[int]] = {}
    for index in indexes:
        code = _why_not(progress_state, leases, segment_seq, token, target, index)
        if code is not None:
            found.setdefault(code, []).append(index)
    return list(found.items())


def _why_not(
    progress_state: ProgressState, leases: Leases, segment_seq: int, token: int, target: int, index: int
) -> str | None:
    if not leases.tokens.was_given(token):
        return NotClaimed.code
    states = progress_state.segments.get(segment_seq)
    if states is None:
        if not progress_state.is_complete(segment_seq):
            return NotClaimed.code
        return _why_resolved(leases, token, target, ACKED, 0)
    if not 0 <= index < states.bundle_count:
        return NotClaimed.code
    state, last = states.at(index)
    if state >= ACKED:
        return _why_resolved(leases, token, target, state, last & TOKEN_MASK)
    if last & TOKEN_MASK > token:
        return Fenced.code
    if last == token | GIVEN_BACK:
        return NotClaimed.code if target >= ACKED else None
    return LeaseExpired.code if last == token and leases.has_ended(token) else NotClaimed.code


def _why_resolved(leases: Leases, token: int, target: int, state: int, last: int) -> str | None:
    """Why a resolved bundle cannot be taken to `target`; None: it was done before. `last`: the token of its last claim, 0 if unknown."""
    has_ended = leases.has_ended(token)
    if last > token:
        return Fenced.code
    if last == token and state == target:
        return None
    if last == 0 and target >= ACKED and not has_ended:
        return None
    if last == 0 and has_ended and not leases.was_given_up(token):
        return Fenced.code
    return AlreadyResolved.code
