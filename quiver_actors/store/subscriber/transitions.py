"""The life of one bundle as one subscriber sees it: states, events and the literal table between them.

    pending --claim--> claimed --ack----> acked      (resolved)
                               --reject-> rejected   (resolved)
                               --defer--> deferred --due--> pending
                               --release> pending                   (returned, lease over, connection gone)
                               --exhaust> exhausted --bury--> rejected   (its dead letter is durable)
                                                    --block-> blocked    (it cannot be written, or is not wanted any more)
                                                    --release> pending   (there is no limit of deliveries any more)
                               --block--> blocked                   (too many deliveries, or it cannot be read; for an operator)
    deferred or blocked --claim--> claimed           (by reference only)
    anything unresolved --drop--> rejected           (a gap notice says so)
    anything unresolved --pass--> acked              (cumulative ack)

The value of a state is the byte that stands for it in `bundle_states.BundleStates`; everything from `ACKED` up is resolved, for
ever. Only "resolved" is durable: everything else is memory of the worker, and a restart makes it pending.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import ClassVar

from quiver_actors.errors import QuiverError


class IllegalTransition(QuiverError):
    """A bundle was asked to do what its state does not allow: a bug of ours, never of a caller."""

    code: ClassVar[str] = "illegal_transition"


class BundleState(enum.IntEnum):
    """The states of one bundle for one subscriber; a byte in memory, never on disk."""

    PENDING = 0
    """Zero, so that fresh memory is pending."""
    CLAIMED = 1
    DEFERRED = 2
    """The bundle was given back with a delay that has not passed."""
    EXHAUSTED = 3
    """The bundle was delivered too often: the engine keeps it until its dead letter is durable."""
    BLOCKED = 4
    """The bundle was delivered too often, or cannot be read: it is kept, and only a claim by its id gets it."""
    ACKED = 5
    REJECTED = 6
    """The bundle is not delivered any more: a consumer has rejected it, or it was dropped with its segment."""


class BundleEvent(enum.Enum):
    """Event that changes the state of a bundle."""

    CLAIM = "claim"
    ACK = "ack"
    REJECT = "reject"
    DEFER = "defer"
    RELEASE = "release"
    DUE = "due"
    EXHAUST = "exhaust"
    BLOCK = "block"
    BURY = "bury"
    DROP = "drop"
    PASS = "pass"


_S, _E = BundleState, BundleEvent

TRANSITIONS: Mapping[tuple[BundleState, BundleEvent], BundleState] = {
    (_S.PENDING, _E.CLAIM): _S.CLAIMED,
    (_S.CLAIMED, _E.ACK): _S.ACKED,
    (_S.CLAIMED, _E.REJECT): _S.REJECTED,
    (_S.CLAIMED, _E.DEFER): _S.DEFERRED,
    (_S.CLAIMED, _E.RELEASE): _S.PENDING,
    (_S.CLAIMED, _E.EXHAUST): _S.EXHAUSTED,
    (_S.CLAIMED, _E.BLOCK): _S.BLOCKED,
    (_S.DEFERRED, _E.DUE): _S.PENDING,
    (_S.DEFERRED, _E.CLAIM): _S.CLAIMED,
    (_S.BLOCKED, _E.CLAIM): _S.CLAIMED,
    (_S.EXHAUSTED, _E.BURY): _S.REJECTED,
    (_S.EXHAUSTED, _E.BLOCK): _S.BLOCKED,
    (_S.EXHAUSTED, _E.RELEASE): _S.PENDING,
    (_S.PENDING, _E.DROP): _S.REJECTED,
    (_S.CLAIMED, _E.DROP): _S.REJECTED,
    (_S.DEFERRED, _E.DROP): _S.REJECTED,
    (_S.EXHAUSTED, _E.DROP): _S.REJECTED,
    (_S.BLOCKED, _E.DROP): _S.REJECTED,
    (_S.PENDING, _E.PASS): _S.ACKED,
    (_S.CLAIMED, _E.PASS): _S.ACKED,
    (_S.DEFERRED, _E.PASS): _S.ACKED,
    (_S.EXHAUSTED, _E.PASS): _S.ACKED,
    (_S.BLOCKED, _E.PASS): _S.ACKED,
}


def advance(state: BundleState, event: BundleEvent) -> BundleState:
    """The state after `event`.

    Raises:
        IllegalTransition: the table has no such pair.
    """
    target = TRANSITIONS.get((state, event))
    if target is None:
        raise IllegalTransition(f"a bundle that is {state.name.lower()} cannot {event.value}")
    return target


def is_resolved(state: BundleState) -> bool:
    """Whether the bundle is done with: what the progress bitmap records."""
    return state >= BundleState.ACKED
