"""Grants: which bundles were claimed at once, under which token and by whom, and how grants are put together.

Owner: `claims.SubscriberState`. Pure values and notes; the state of every bundle is in `bundle_states`.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from quiver_actors.store.subscriber.bundle_states import BundleStates
from quiver_actors.store.subscriber.claim_room import Room

ONCE = array("H", [1]).tobytes()
"""The delivery counts of one bundle that was never delivered before."""
BACKFILL_CYCLE = 10
"""A backfill ratio says how many of this number of bundles are old ones."""


class Grant(NamedTuple):
    """Bundles of one segment, claimed together."""

    segment_seq: int
    indexes: Sequence[int]
    """Indexes of the bundles, in the order in which they are to be delivered."""
    token: int
    counts: bytes
    """How often each bundle was delivered, this time included: a u16 array."""
    lease_until_ns: int
    """When the lease ends, in nanoseconds of the monotonic clock; 0: as long as the owner lives."""


class TokenSource:
    """Fencing tokens of one engine: rising, also from one process to the next, which begins at the time of its start: nobody claims a
    billion times a second."""

    def __init__(self, first: int | None = None) -> None:
        self.first = time.time_ns() if first is None else first
        self.next = self.first

    def take(self) -> int:
        """Return the next fencing token; each is higher than all before it."""
        self.next += 1
        return self.next - 1

    def was_given(self, token: int) -> bool:
        """Whether this source gave the token out since the worker started."""
        return self.first <= token < self.next


class Owner:
    """The holdings of one consumer: its tokens, and the number and bytes of the bundles under them."""

    __slots__ = ("held_bytes", "held_count", "mix", "tells_taken", "tokens")

    def __init__(self) -> None:
        self.tokens: set[int] = set()
        self.held_count = 0
        self.held_bytes = 0
        self.mix = 0
        """How many bundles were claimed in mixed order so far."""
        self.tells_taken = False
        """Whether it tells which bundles its caller was handed; if not, all that it holds counts as delivered."""


class Live:
    """A grant that is put together from runs of one segment, and then belongs to its owner as long as something of it is held."""

    __slots__ = (
        "_taken",
        "counts",
        "held",
        "held_bytes",
        "indexes",
        "lease_until_ns",
        "owner",
        "owner_key",
        "segment_seq",
        "start",
        "states",
        "stop",
        "token",
    )

    owner: Owner
    owner_key: object
    lease_until_ns: int
    start: int
    stop: int
    """The end of the range `start..stop` in which all bundles lie."""
    indexes: Sequence[int]
    """Indexes of the bundles, in the order in which they are to be delivered, until the owner has the grant."""
    counts: bytes
    """How often each of these bundles was delivered, in the same order."""

    def __init__(self, token: int, segment_seq: int, states: BundleStates) -> None:
        self.token = token
        self.segment_seq = segment_seq
        self.states = states
        self.held = 0
        self.held_bytes = 0
        self._taken: set[int] | None = None

    def note_taken(self, indexes: Iterable[int]) -> None:
        """Note that the owner's caller was handed these bundles, all of them held."""
        self._taken = self._taken or set()
        self._taken.update(indexes)

    def untaken(self) -> list[int]:
        """Return the indexes of held bundles that nobody was handed; none if the owner does not tell."""
        if not self.owner.tells_taken:
            return []
        taken = self._taken or ()
        return [index for index in self.states.held_under([self]) if index not in taken]

    def add(self, run: range, room: Room) -> None:
        """Add a run of bundles that was claimed under the grant's token, in the order in which it is to be delivered: rising or falling."""
        size = len(run)
        if not size:
            return
        states, ascending = self.states, run if run.step > 0 else run[::-1]
        counts = states.counts(ascending)
        if run.step < 0:
            counts = array("H", array("H", counts)[::-1]).tobytes()
        if self.held:
            self.indexes, self.counts = [*self.indexes, *run], self.counts + counts
            self.start, self.stop = min(self.start, ascending.start), max(self.stop, ascending.stop)
        else:
            self.indexes, self.counts, self.start, self.stop = run, counts, ascending.start, ascending.stop
        size_bytes = states.sizes.of(ascending)
        self.held += size
        self.held_bytes += size_bytes
        room.bundles -= size
        if room.bytes is not None:
            room.bytes -= size_bytes


def backfill_share(bundles: int, ratio: int) -> int:
    """How many of the first `bundles` of a mixed order are old ones."""
    return bundles * ratio // BACKFILL_CYCLE


def first_deliveries(counts: bytes) -> int:
    """Return how many of the delivery counts, a u16 array, are 1."""
    return array("H", counts).count(1) if len(counts) > 2 else counts == ONCE
