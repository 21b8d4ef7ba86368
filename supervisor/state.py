"""Life of one child: the states, what can happen to it, and the only table that says what follows.

python -m quiver_actors.supervisor.state      prints the table
"""

from __future__ import annotations

import enum

from .errors import IllegalTransition


class ChildState(enum.IntEnum):
    """The number is what the counters page shows."""

    BACKOFF = 1
    """The child has no process; it is forked when its time has come (at once, the first time)."""
    STARTING = 2
    """The child is forked and not ready yet: it imports and recovers."""
    READY = 3
    HUNG = 4
    """The child's heartbeat stopped; it was told to abort and will die."""
    DRAINING = 5
    """The child was told to finish; it ends by itself or is killed."""
    FAILED = 6
    """The child died too often; nothing more is tried until the node is started again."""
    STOPPED = 7
    """The child ended because the node ends."""


class ChildEvent(enum.Enum):
    """Event that changes the state of a child."""

    FORKED = "forked"
    BECAME_READY = "became_ready"
    HEARTBEAT_LOST = "heartbeat_lost"
    DIED = "died"
    """The child's process ended, or could not be forked, and is to be started again."""
    GAVE_UP = "gave_up"
    """The child's process ended, or could not be forked, once too often: it is not started again."""
    DRAIN = "drain"
    """The node stops."""
    ENDED = "ended"
    """The child's process ended after `DRAIN`."""


S, E = ChildState, ChildEvent

TRANSITIONS: dict[tuple[ChildState, ChildEvent], ChildState] = {
    (S.BACKOFF, E.FORKED): S.STARTING,
    (S.BACKOFF, E.DIED): S.BACKOFF,
    (S.BACKOFF, E.GAVE_UP): S.FAILED,
    (S.BACKOFF, E.DRAIN): S.STOPPED,
    (S.STARTING, E.BECAME_READY): S.READY,
    (S.STARTING, E.DIED): S.BACKOFF,
    (S.STARTING, E.GAVE_UP): S.FAILED,
    (S.STARTING, E.DRAIN): S.DRAINING,
    (S.READY, E.HEARTBEAT_LOST): S.HUNG,
    (S.READY, E.DIED): S.BACKOFF,
    (S.READY, E.GAVE_UP): S.FAILED,
    (S.READY, E.DRAIN): S.DRAINING,
    (S.HUNG, E.DIED): S.BACKOFF,
    (S.HUNG, E.GAVE_UP): S.FAILED,
    (S.HUNG, E.DRAIN): S.DRAINING,
    (S.DRAINING, E.ENDED): S.STOPPED,
}

HAS_PROCESS = frozenset([S.STARTING, S.READY, S.HUNG, S.DRAINING])
FINAL = frozenset([S.FAILED, S.STOPPED])


def advance(state: ChildState, event: ChildEvent) -> ChildState:
    """The state after `event`.

    Raises:
        IllegalTransition: the table has no such pair.
    """
    found = TRANSITIONS.get((state, event))
    if found is None:
        raise IllegalTransition(f"a child in state {state.name} cannot take {event.name}")
    return found


def transition_table() -> str:
    """The table as text, for the docs."""
    rows = [f"{state.name:<9} {event.name:<15} {after.name}" for (state, event), after in TRANSITIONS.items()]
    return "\n".join([f"{'state':<9} {'event':<15} next", *rows])


if __name__ == "__main__":
    print(transition_table())
