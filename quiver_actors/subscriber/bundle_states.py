"""The states of one segment's bundles for one subscriber: a byte a bundle, and who holds the claimed ones.

Owner: the `SubscriberState` that made it. Invariants:
- `holders[i]` is not 0 exactly when bundle i is CLAIMED; it then is the number of the holder.
- The counts agree with the bytes.
- At rest (nothing claimed or deferred) only the packed bitmap is kept; the byte arrays come with the first claim. An untouched
  segment costs this object and no more.

Bulk work is done on slices by bytes methods, because a Python step per bundle is what limits a consumer.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence

import numpy as np

from quiver_actors.subscriber import bitmap as bitmaps
from quiver_actors.subscriber.transitions import BundleEvent, BundleState, advance

# Plain ints: an operation on a member of an IntEnum costs three times as much, and these are in every step.
_PENDING = int(BundleState.PENDING)
_DEFERRED = int(BundleState.DEFERRED)
_ACKED = int(BundleState.ACKED)
_CLAIMED = int(advance(BundleState.PENDING, BundleEvent.CLAIM))
_AFTER_RELEASE = int(advance(BundleState.CLAIMED, BundleEvent.RELEASE))
_AFTER_DUE = int(advance(BundleState.DEFERRED, BundleEvent.DUE))

_CLAIMED_BYTE = bytes((_CLAIMED,))
_RUN_MIN = 4
"""Fewer bundles than this are moved one by one: cheaper than a slice."""

_PENDING_RUN = re.compile(b"%c*" % _PENDING)
_UNRESOLVED = re.compile(b"[%c-%c]" % (_PENDING, _ACKED - 1))

HOLDER = "I"
"""Array type of holder numbers."""


class BundleStates:
    """Where each bundle of one incomplete segment stands."""

    __slots__ = (
        "_bitmap",
        "_bitmap_is_current",
        "_holders",
        "_oldest_hint",
        "_states",
        "bundle_count",
        "claimed_count",
        "deferred_count",
        "resolved_count",
    )

    def __init__(self, bundle_count: int, bitmap: bytes = b"") -> None:
        """Start with the bundles of `bitmap` resolved and all others pending."""
        self.bundle_count = bundle_count
        self.claimed_count = 0
        self.deferred_count = 0
        self._bitmap = bitmaps.resized(bitmap, bundle_count) if bitmap else b""
        self._bitmap_is_current = True
        self.resolved_count = bitmaps.resolved_count(self._bitmap)
        self._states = bytearray()
        self._holders = array(HOLDER)
        self._oldest_hint = 0

    @property
    def is_complete(self) -> bool:
        return self.resolved_count == self.bundle_count

    def claim(self, start: int, end: int, limit: int, holder: int) -> range:
        """Claim the first run of pending bundles in `start..end`, at most `limit` of them; empty if there is none.

        Cost: what lies between `start` and the end of the result is looked at, and nothing behind it.
        """
        if not self._states:
            self._wake()
        states = self._states
        first = states.find(_PENDING, start, end)
        if first < 0:
            return range(end, end)
        found = _PENDING_RUN.match(states, first, min(end, first + limit))
        run = range(first, found.end() if found else first)
        if len(run) == 1:
            states[first] = _CLAIMED
            self._holders[first] = holder
        else:
            states[first : run.stop] = _CLAIMED_BYTE * len(run)
            self._holders[first : run.stop] = array(HOLDER, (holder,)) * len(run)
        self.claimed_count += len(run)
        return run

    def move(self, indexes: Sequence[int], holder: int, target: int) -> tuple[Sequence[int], list[int]]:
        """Take the bundles of `indexes` that `holder` holds from CLAIMED to `target`.

        Returns:
            The bundles that moved, and those that `holder` does not hold (unknown indexes and repetitions among them).
        """
        if not self.claimed_count:
            return [], list(indexes)
        moved, refused = self._held(indexes, holder)
        if isinstance(moved, range):
            self._states[moved.start : moved.stop] = bytes((target,)) * len(moved)
        else:
            states = self._states
            for index in moved:
                states[index] = target
        self._count_moved(len(moved), target)
        return moved, refused

    def _held(self, indexes: Sequence[int], holder: int) -> tuple[Sequence[int], list[int]]:
        """Split `indexes` by whether `holder` holds them, and end its holding them."""
        run = _as_run(indexes)
        if run and self._holders[run.start : run.stop] == array(HOLDER, (holder,)) * len(run):
            self._holders[run.start : run.stop] = array(HOLDER, (0,)) * len(run)
            return run, []
        holders = self._holders
        moved, refused = [], []
        for index in indexes:
            if 0 <= index < self.bundle_count and holders[index] == holder:
                holders[index] = 0
                moved.append(index)
            else:
                refused.append(index)
        return moved, refused

    def _count_moved(self, count: int, target: int) -> None:
        self.claimed_count -= count
        if target >= _ACKED:
            self.resolved_count += count
            self._bitmap_is_current &= count == 0
        elif target == _DEFERRED:
            self.deferred_count += count

    def release(self, holder: int) -> range:
        """Make all that `holder` holds pending again.

        Returns:
            The span from the first to the last of them.
        """
        indexes = np.flatnonzero(np.frombuffer(self._holders, dtype=np.uint32) == holder)
        if not indexes.size:
            return range(0)
        np.frombuffer(self._states, dtype=np.uint8)[indexes] = _AFTER_RELEASE
        np.frombuffer(self._holders, dtype=np.uint32)[indexes] = 0
        self.claimed_count -= int(indexes.size)
        self.rest()
        return range(int(indexes[0]), int(indexes[-1]) + 1)

    def end_delay(self, indexes: Sequence[int]) -> int:
        """Make the deferred bundles of `indexes` pending again; returns how many they were."""
        states = self._states
        count = 0
        for index in indexes:
            if states[index] == _DEFERRED:
                states[index] = _AFTER_DUE
                count += 1
        self.deferred_count -= count
        return count

    def first_unresolved(self) -> int:
        """Index of the oldest bundle that is not resolved; the bundle count if all are."""
        if not self._states:
            return bitmaps.first_unresolved(self._bitmap) if self._bitmap else 0
        # Resolved is for ever, so the search goes on where the last one ended.
        found = _UNRESOLVED.search(self._states, self._oldest_hint)
        self._oldest_hint = found.start() if found else self.bundle_count
        return self._oldest_hint

    def bitmap(self) -> bytes:
        """The resolved bundles as a bitmap of full length."""
        if not self._bitmap_is_current:
            resolved = np.frombuffer(self._states, dtype=np.uint8) >= _ACKED
            packed = np.packbits(resolved, bitorder="little").tobytes()
            self._bitmap = packed.ljust(bitmaps.word_count(self.bundle_count) * 8, b"\0")
            self._bitmap_is_current = True
        return self._bitmap or bytes(bitmaps.word_count(self.bundle_count) * 8)

    def rest(self) -> None:
        """Give the byte arrays back if nothing is claimed or deferred."""
        if self._states and not self.claimed_count and not self.deferred_count:
            self._bitmap = self.bitmap() if self.resolved_count else b""
            self._states = bytearray()
            self._holders = array(HOLDER)

    def _wake(self) -> None:
        self._holders = array(HOLDER, bytes(self.bundle_count * self._holders.itemsize))
        self._states = bytearray(self.bundle_count)
        if self._bitmap:
            bits = np.unpackbits(np.frombuffer(self._bitmap, np.uint8), count=self.bundle_count, bitorder="little")
            # How a bundle was resolved is not durable: any resolved state will do.
            np.frombuffer(self._states, dtype=np.uint8)[:] = bits * np.uint8(_ACKED)


def _as_run(indexes: Sequence[int]) -> range:
    """`indexes` as a range if they are consecutive, rising and enough to gain by it, else an empty one.

    Mostly they are: what was delivered together is finished together.
    """
    size = len(indexes)
    if size < _RUN_MIN or indexes[0] < 0 or indexes[-1] - indexes[0] != size - 1:
        return range(0)
    run = range(indexes[0], indexes[0] + size)
    return run if list(indexes) == list(run) else range(0)
