import itertools

import pytest

from quiver_actors.supervisor.errors import IllegalTransition
from quiver_actors.supervisor.state import (
    FINAL,
    HAS_PROCESS,
    TRANSITIONS,
    ChildEvent,
    ChildState,
    advance,
    transition_table,
)


@pytest.mark.parametrize(("state", "event"), list(itertools.product(ChildState, ChildEvent)))
def test_advance_every_pair_follows_the_table_or_is_refused(state: ChildState, event: ChildEvent) -> None:
    if (state, event) in TRANSITIONS:
        assert advance(state, event) is TRANSITIONS[state, event]
    else:
        with pytest.raises(IllegalTransition, match=f"{state.name} cannot take {event.name}"):
            advance(state, event)


def test_table_final_states_have_no_way_out() -> None:
    assert not [pair for pair in TRANSITIONS if pair[0] in FINAL]


def test_table_every_other_state_can_be_told_to_drain_and_can_end() -> None:
    for state in set(ChildState) - FINAL - {ChildState.DRAINING}:
        assert (state, ChildEvent.DRAIN) in TRANSITIONS
        assert (state, ChildEvent.DIED) in TRANSITIONS
    assert advance(ChildState.DRAINING, ChildEvent.ENDED) is ChildState.STOPPED


def test_table_only_forking_makes_a_process() -> None:
    for (state, event), after in TRANSITIONS.items():
        if state not in HAS_PROCESS and after in HAS_PROCESS:
            assert event is ChildEvent.FORKED


def test_transition_table_prints_every_pair() -> None:
    assert len(transition_table().splitlines()) == len(TRANSITIONS) + 1
