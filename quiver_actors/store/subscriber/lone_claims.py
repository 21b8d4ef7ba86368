"""The short way of a new bundle of an open log to the one consumer that waits for it: shown, and claimed at once.

What follows is as after `SubscriberState.grow_segment` and `SubscriberState.claim`; everything but the plain case is left to them.
"""

from __future__ import annotations

from quiver_actors.store.subscriber.claims import SubscriberState
from quiver_actors.store.subscriber.grants import Live


def claim_shown(
    state: SubscriberState, segment_seq: int, bundle_index: int, size_bytes: int, owner: object, now_ns: int
) -> Live | None:
    """Show a subscriber the next bundle of a segment that is not sealed, and give it to `owner`. None: nothing has happened, as another
    bundle is pending, a notice is to be told, nothing of the segment was claimed yet, or there is no room for the bundle's state.

    Args:
        owner: takes the oldest bundles first, as many as it is given.

    Returns:
        What `owner` holds by it.
    """
    progress, leases, aside = state.progress, state.leases, state.aside
    states = progress.segments.get(segment_seq)
    tokens = leases.tokens
    if (
        states is None
        or not states.is_open
        or progress.unresolved_count != leases.claimed_count + aside.waiting_count + aside.blocked_count
        or progress.awaited.entries
        or state.gaps.free
        or not states.claim_shown(bundle_index, tokens.next)
    ):
        return None
    progress.unresolved_count += 1
    live = Live(tokens.take(), segment_seq, states)
    live.held, live.held_bytes = 1, size_bytes
    live.start, live.stop = bundle_index, bundle_index + 1
    live.indexes, live.counts = (), b""
    leases.hold(live, owner, now_ns)
    state.counts.note_delivered(1, 1)
    if leases.lease_ns:
        state.attention.call_at(state, live.lease_until_ns)
    return live
