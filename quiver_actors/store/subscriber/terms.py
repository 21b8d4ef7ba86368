"""The terms of a subscriber, and what becomes of the bundles that were delivered too often under them.

Pure functions over one `SubscriberState`, which owns all of it; called on the loop thread. Such a bundle waits for its dead letter, is
resolved, or is blocked: kept, and given only to a claim by its id.
"""

from __future__ import annotations

from quiver_actors.errors import UsageError
from quiver_actors.store.subscriber.claims import SubscriberState
from quiver_actors.store.subscriber.outcomes import ACKED, BLOCKED, EXHAUSTED, EXHAUSTED_TARGETS, REJECTED, RELEASED
from quiver_actors.store.subscriber.progress_state import Position


def set_terms(state: SubscriberState, *, lease_ns: int, max_deliveries: int, exhausted: str, now_ns: int) -> None:
    """Change the rules; what is held gets the new lease from now.

    Raises:
        UsageError: a value that makes no sense; nothing was changed.
    """
    target = EXHAUSTED_TARGETS.get(exhausted)
    if target is None:
        raise UsageError(f"exhausted {exhausted!r} is unknown: expected one of {', '.join(EXHAUSTED_TARGETS)}")
    if lease_ns < 0 or max_deliveries < 0:
        raise UsageError(f"lease of {lease_ns} ns, {max_deliveries} deliveries: expected 0 (no limit) or more")
    state.aside.max_deliveries, state.aside.target = max_deliveries, target
    _settle_exhausted(state)
    state.leases.set_lease(lease_ns, now_ns)
    state.note_lease(now_ns)


def next_exhausted(state: SubscriberState) -> Position | None:
    """The next bundle that waits for its dead letter, now the caller's to bury; None if there is none."""
    while state.aside.exhausted:
        position = state.aside.exhausted.popleft()
        if is_exhausted(state, *position):
            return position
    return None


def is_exhausted(state: SubscriberState, segment_seq: int, bundle_index: int) -> bool:
    """Whether the bundle still waits for its dead letter."""
    states = state.progress.segments.get(segment_seq)
    return states is not None and states.at(bundle_index)[0] == EXHAUSTED


def bury(state: SubscriberState, segment_seq: int, bundle_index: int) -> bool:
    """Resolve a bundle whose dead letter is durable. False if it was resolved in another way before."""
    buried = _move_exhausted(state, segment_seq, bundle_index, REJECTED)
    state.counts.dead_lettered += buried
    return buried


def wait_again(state: SubscriberState, segment_seq: int, bundle_index: int) -> None:
    """Let a bundle wait again whose dead letter could not be written now."""
    state.aside.exhausted.append((segment_seq, bundle_index))
    _settle_exhausted(state)


def block(state: SubscriberState, segment_seq: int, bundle_index: int) -> None:
    """Keep a bundle that no dead letter can be made of, and give it only to a claim by its id."""
    _move_exhausted(state, segment_seq, bundle_index, BLOCKED)


def _settle_exhausted(state: SubscriberState) -> None:
    """Take bundles that wait for dead letters to where the terms want them, if these want no dead letters."""
    aside = state.aside
    while aside.exhausted and not aside.wants_letters:
        target = aside.target if aside.max_deliveries else RELEASED
        _move_exhausted(state, *aside.exhausted.popleft(), target)


def _move_exhausted(state: SubscriberState, segment_seq: int, bundle_index: int, target: int) -> bool:
    states = state.progress.segments.get(segment_seq)
    if states is None or not state.aside.move_exhausted(states, bundle_index, target):
        return False
    if target >= ACKED:
        state.note_outcome(segment_seq, states, target, 1)
    elif target == RELEASED:
        state.order.offer(segment_seq, bundle_index, bundle_index + 1)
    return True
