"""The table of bundle states, enumerated whole."""

from __future__ import annotations

import itertools

import pytest

from quiver_actors.store.subscriber.transitions import (
    TRANSITIONS,
    BundleEvent,
    BundleState,
    IllegalTransition,
    advance,
    is_resolved,
)


@pytest.mark.parametrize(("state", "event"), list(itertools.product(BundleState, BundleEvent)))
def test_advance_follows_the_table_and_refuses_everything_else(state: BundleState, event: BundleEvent) -> None:
    if (state, event) in TRANSITIONS:
        assert advance(state, event) is TRANSITIONS[state, event]
        return
    with pytest.raises(IllegalTransition, match=f"{state.name.lower()} cannot {event.value}"):
        advance(state, event)


def test_resolved_states_are_final() -> None:
    assert {state for state in BundleState if is_resolved(state)} == {BundleState.ACKED, BundleState.REJECTED}
    assert not any(is_resolved(state) for state, _ in TRANSITIONS)


def test_every_unresolved_state_can_end_resolved() -> None:
    for state in BundleState:
        if not is_resolved(state):
            assert is_resolved(advance(state, BundleEvent.DROP))


def test_fresh_memory_is_pending() -> None:
    assert bytes(1)[0] == BundleState.PENDING.value
