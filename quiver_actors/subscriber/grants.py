"""Grants: what was claimed in one go, under which token, by whom, and the arithmetic of putting them together.

Owner: `claims.SubscriberState`. Pure values and notes; the state of every bundle is in `bundle_states`.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from typing import NamedTuple

from quiver_actors.subscriber.bundle_states import BundleStates

_ONCE = array("H", [1]).tobytes()
BACKFILL_CYCLE = 10
"""A backfill ratio counts bundles of so many."""


class Grant(NamedTuple):
    """Bundles of one segment, claimed together."""

    segment_seq: int
    indexes: Sequence[int]
    """In the order in which they are to be delivered."""
    token: int
    counts: bytes
    """u16 array: deliveries of each, this one included."""
    lease_until_ns: int
    """0: as long as its owner lives."""


class TokenSource:
    """Fencing tokens of one engine: rising, also from one process to the next, which begins at the time of its start: nobody claims a
    billion times a second."""

    def __init__(self, first: int | None = None) -> None:
        self.first = time.time_ns() if first is None else first
        self.next = self.first

    def take(self) -> int:
        self.next += 1
        return self.next - 1

    def was_given(self, token: int) -> bool:
        return self.first <= token < self.next


class Owner:
    __slots__ = ("held_bytes", "held_count", "mix", "tokens")

    def __init__(self) -> None:
        self.tokens: set[int] = set()
        self.held_count = 0
        self.held_bytes = 0
        self.mix = 0
        """Bundles claimed in mixed order so far."""


class Room:
    """What may still be claimed."""

    __slots__ = ("bundles", "bytes")

    def __init__(self, bundles: int, size_bytes: int | None) -> None:
        self.bundles = bundles
        self.bytes = size_bytes

    def limit(self, fitting: int) -> int:
        """How many bundles may be claimed of which so many fit."""
        return min(self.bundles, fitting)


class Live:
    """A grant: put together from runs of one segment, then of its owner as long as something of it is held."""

    __slots__ = (
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
    """Its bundles lie in `start..stop`."""
    indexes: Sequence[int]
    """In the order in which they are to be delivered, until it is the owner's."""
    counts: bytes
    """Beside them."""

    def __init__(self, token: int, segment_seq: int, states: BundleStates) -> None:
        self.token = token
        self.segment_seq = segment_seq
        self.states = states
        self.held = 0
        self.held_bytes = 0

    def add(self, run: range, room: Room) -> None:
        """Take a run of bundles that was claimed under its token, in the order in which it is to be delivered: rising or falling."""
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
    return array("H", counts).count(1) if len(counts) > 2 else counts == _ONCE
