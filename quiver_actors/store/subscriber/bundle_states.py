"""The states of one segment's bundles for one subscriber: a byte a bundle, who was given it last, and how often it was delivered.

Owner: the `SubscriberState` that made it. Invariants:
- `tokens[i]` is the fencing token of the last claim of bundle i, 0 if there was none that we know of; `GIVEN_BACK` is set in it once
  its holder has deferred or returned it.
- The counts agree with the bytes.
- At rest (nothing unresolved was ever delivered) only the packed bitmap is kept; the arrays come with the first claim. An untouched
  segment costs this object and no more.

Bulk work is done on slices by bytes and numpy operations, because a Python step per bundle is what limits a consumer.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from quiver_actors.store.subscriber import bitmap as bitmaps
from quiver_actors.store.subscriber import state_bytes
from quiver_actors.store.subscriber.bundle_runs import HeldRun, Resolved, as_run
from quiver_actors.store.subscriber.claim_room import Room
from quiver_actors.store.subscriber.sizes import BundleSizes, OpenSizes, Sizes
from quiver_actors.store.subscriber.state_bytes import ACKED, CLAIMED, CLAIMED_BYTE, PENDING, PENDING_RUN, UNRESOLVED

GIVEN_BACK = 1 << 63
TOKEN_MASK = GIVEN_BACK - 1
DELIVERIES_MAX = 65_535
"""Delivery counts stop at this number."""


class BundleStates:
    """Where each bundle of one incomplete segment stands."""

    __slots__ = (
        "_bitmap",
        "_bitmap_is_current",
        "_claims_uncounted",
        "_counts",
        "_mean_bytes",
        "_oldest_hint",
        "_states",
        "_tokens",
        "blocked_count",
        "bundle_count",
        "claimed_count",
        "deferred_count",
        "is_open",
        "resolved_count",
        "sizes",
    )

    def __init__(self, bundle_count: int, bitmap: bytes = b"", bundle_bytes: int = 0) -> None:
        """Start with the bundles of `bitmap` resolved and all others pending."""
        self.bundle_count = bundle_count
        self.is_open = False
        """Whether the segment is not sealed: more bundles may come, so it is never complete."""
        self._mean_bytes = bundle_bytes
        self.sizes: Sizes = BundleSizes(bundle_bytes)
        """The bundles' sizes for windows in bytes; the owner replaces the mean by exact sizes where there is such a window."""
        self.claimed_count = 0
        self.deferred_count = 0
        self.blocked_count = 0
        """How many bundles are exhausted or blocked."""
        self._bitmap = bitmaps.resized(bitmap, bundle_count) if bitmap else b""
        self._bitmap_is_current = True
        self.resolved_count = bitmaps.resolved_count(self._bitmap)
        self._states = bytearray()
        self._tokens = array("Q")
        self._counts: npt.NDArray[np.uint16] = _NO_COUNTS
        self._oldest_hint = 0
        self._claims_uncounted = DELIVERIES_MAX
        """How many more claims it takes until some delivery count may be at its limit."""

    @property
    def is_complete(self) -> bool:
        """Whether every bundle of the segment is resolved and no other will come."""
        return self.resolved_count == self.bundle_count and not self.is_open

    def grow(self, bundle_count: int, resolved: int = 0) -> int:
        """Add bundles behind those that are here, up to a count of `bundle_count`.

        Args:
            resolved: those of the new bundles that are resolved, as bits from the first of them on.

        Returns:
            How many of the new ones are pending.
        """
        first, added = self.bundle_count, bundle_count - self.bundle_count
        resolved &= (1 << added) - 1
        self.bundle_count = bundle_count
        if self._states:
            if bundle_count > len(self._states):
                # Long enough for bundles to come; those behind the bundle count are never looked at.
                more = max(bundle_count, 2 * len(self._states)) - len(self._states)
                self._states.extend(bytes(more))
                self._tokens.frombytes(bytes(8 * more))
                self._counts = np.concatenate([self._counts, np.zeros(more, dtype=np.uint16)])
            for index in bitmaps.indexes(resolved):
                self._states[first + index] = ACKED
            # Its length follows the count.
            self._bitmap_is_current = False
        elif self._bitmap or resolved:
            bits = bitmaps.bits_of(self._bitmap) | resolved << first
            self._bitmap = bitmaps.bitmap_of(bits, bundle_count)
            self._bitmap_is_current = True
        self.resolved_count += resolved.bit_count()
        return added - resolved.bit_count()

    def seal(self, size_bytes: int) -> None:
        """No bundle will follow. The exact sizes, which take memory for each bundle, are kept only while something is claimed by them."""
        self.is_open = False
        self._mean_bytes = size_bytes // max(1, self.bundle_count)
        self.rest()

    # --- claiming ----------------------------------------------------------------------------------------------------------

    def claim(self, start: int, end: int, room: Room, token: int) -> range:
        """Claim the first run of pending bundles in `start..end`, as far as there is room: empty and before the end if there is none.

        Cost: what lies between `start` and the end of the result is looked at, and nothing behind it.
        """
        if not self._states:
            self._wake()
        states = self._states
        first = states.find(PENDING, start, end)
        if first < 0:
            return range(end, end)
        limit = room.bundles if room.bytes is None else room.limit(self.sizes.fitting_from(first, room.bytes))
        found = PENDING_RUN.match(states, first, min(end, first + limit))
        return self._grant(range(first, found.end() if found else first), token)

    def claim_shown(self, index: int, token: int) -> bool:
        """Add one bundle behind those that are here, and claim it at once. False: nothing has happened, as it takes `grow` and `claim`."""
        if index != self.bundle_count or index >= len(self._states):
            return False
        self.bundle_count = index + 1
        self._states[index] = CLAIMED
        self._tokens[index] = token
        self._counts[index] = 1
        self._claims_uncounted -= self._claims_uncounted > 0
        self.claimed_count += 1
        self._bitmap_is_current = False
        return True

    def claim_newest(self, start: int, end: int, room: Room, token: int) -> range:
        """Claim the last run of pending bundles in `start..end`, as far as there is room: empty and behind the start if there is none."""
        if not self._states:
            self._wake()
        states = self._states
        last = states.rfind(PENDING, start, end)
        if last < 0:
            return range(start, start)
        limit = room.bundles if room.bytes is None else room.limit(self.sizes.fitting_up_to(last, room.bytes))
        lowest = max(start, last + 1 - limit)
        behind = states[lowest : last + 1].rstrip(state_bytes.PENDING_BYTE)
        return self._grant(range(lowest + len(behind), last + 1), token)

    def claim_one(self, index: int, token: int) -> int | None:
        """Claim one bundle, also a deferred or blocked one; returns the state it was in, None if it cannot be claimed."""
        if not self._states:
            self._wake()
        was = self._states[index]
        if was not in state_bytes.CLAIMABLE_BY_REFERENCE:
            return None
        self.deferred_count -= was == state_bytes.DEFERRED
        self.blocked_count -= was == state_bytes.BLOCKED
        self._grant(range(index, index + 1), token)
        return was

    def _grant(self, run: range, token: int) -> range:
        first, size = run.start, len(run)
        if size == 1:
            self._states[first] = CLAIMED
            self._tokens[first] = token
            if self._counts[first] < DELIVERIES_MAX:
                self._counts[first] += 1
        else:
            self._states[first : run.stop] = CLAIMED_BYTE * size
            self._tokens[first : run.stop] = array("Q", (token,)) * size
            counts = self._counts[first : run.stop]
            if self._claims_uncounted:
                counts += 1
            else:
                np.add(counts, 1, out=counts, where=counts < DELIVERIES_MAX)
        if self._claims_uncounted:
            self._claims_uncounted -= 1
        self.claimed_count += size
        return run

    def counts(self, run: range) -> bytes:
        """Deliveries of consecutive bundles as a u16 array."""
        return self._counts[run.start : run.stop].tobytes()

    def count(self, index: int) -> int:
        """Return how often a bundle was delivered."""
        return int(self._counts[index]) if self._states else 0

    # --- ending claims -----------------------------------------------------------------------------------------------------

    def held(self, indexes: Sequence[int], token: int) -> tuple[Sequence[int], list[int]]:
        """Split `indexes` by whether they are claimed under `token`, which holds something; a repeated one is held once."""
        run = as_run(indexes)
        size = len(run)
        states, tokens = self._states, self._tokens
        if (
            run
            and run.stop <= self.bundle_count
            and states[run.start : run.stop] == CLAIMED_BYTE * size
            and tokens[run.start : run.stop] == array("Q", (token,)) * size
        ):
            return run, []
        found: dict[int, None] = {}
        refused = []
        for index in indexes:
            if (
                0 <= index < self.bundle_count
                and tokens[index] == token
                and states[index] == CLAIMED
                and index not in found
            ):
                found[index] = None
            else:
                refused.append(index)
        return list(found), refused

    def set_claimed(self, moved: Sequence[int], target: int) -> None:
        """Take bundles that `held` has named to `target`."""
        states, count = self._states, len(moved)
        if isinstance(moved, range):
            states[moved.start : moved.stop] = bytes((target,)) * count
        else:
            for index in moved:
                states[index] = target
        self.claimed_count -= count
        if target >= ACKED:
            self.resolved_count += count
            self._bitmap_is_current &= count == 0
        elif target == state_bytes.DEFERRED:
            self.deferred_count += count
        elif target in (state_bytes.EXHAUSTED, state_bytes.BLOCKED):
            self.blocked_count += count

    def mark_given_back(self, indexes: Sequence[int], *, is_counted: bool = True) -> None:
        """Note that the holder of these bundles has ended their claims itself, so that saying it again is no error.

        Args:
            is_counted: the deliveries count; else the last one is taken off.
        """
        for index in indexes:
            self._tokens[index] |= GIVEN_BACK
            self._counts[index] -= not is_counted

    def split_exhausted(
        self, indexes: Sequence[int], deliveries_max: int, untaken: Sequence[int] = ()
    ) -> tuple[Sequence[int], list[int]]:
        """Split bundles into those that may be delivered again and those that were delivered `deliveries_max` times (0 = no limit). The
        last delivery of those that nobody was handed, the `untaken` ones, is taken off their counts before."""
        if not deliveries_max:
            return indexes, []
        counts = self._counts
        for index in untaken:
            counts[index] -= 1
        gone = [index for index in indexes if counts[index] >= deliveries_max]
        if not gone:
            return indexes, gone
        return [index for index in indexes if counts[index] < deliveries_max], gone

    def held_under(self, lives: Sequence[HeldRun]) -> Sequence[int]:
        """Indexes of the bundles that are claimed under the tokens of those grants, ascending."""
        start, stop = min(live.start for live in lives), max(live.stop for live in lives)
        if len(lives) == 1 and lives[0].held == stop - start:
            return range(start, stop)
        tokens = np.frombuffer(self._tokens, dtype=np.uint64)[start:stop]
        states = np.frombuffer(self._states, dtype=np.uint8)[start:stop]
        wanted = np.array([live.token for live in lives], dtype=np.uint64)
        found = np.flatnonzero(np.isin(tokens, wanted) & (states == CLAIMED)) + start
        first, last = int(found[0]), int(found[-1])
        return range(first, last + 1) if last - first + 1 == len(found) else found.tolist()

    def end_delay(self, indexes: Sequence[int], token: int) -> int:
        """Make those bundles of `indexes` pending again that `token` has deferred; returns how many they were."""
        if not self._states:
            return 0
        states, tokens = self._states, self._tokens
        count = 0
        for index in indexes:
            if states[index] == state_bytes.DEFERRED and tokens[index] & TOKEN_MASK == token:
                states[index] = state_bytes.AFTER_DUE
                count += 1
        self.deferred_count -= count
        return count

    def move_exhausted(self, index: int, target: int) -> bool:
        """Take an exhausted bundle to `target`: pending, blocked or resolved; False if it is not exhausted (any more)."""
        if not self._states or self._states[index] != state_bytes.EXHAUSTED:
            return False
        self._states[index] = target
        self.blocked_count -= target != state_bytes.BLOCKED
        if target >= ACKED:
            self.resolved_count += 1
            self._bitmap_is_current = False
        return True

    def resolve_span(self, start: int, stop: int, target: int) -> Resolved:
        """Take everything unresolved in `start..stop` to `target`, whoever holds it."""
        if not self._states:
            self._wake()
        states = np.frombuffer(self._states, dtype=np.uint8)[start:stop]
        claimed = np.frombuffer(self._tokens, dtype=np.uint64)[start:stop][states == CLAIMED]
        tokens, held = np.unique(claimed, return_counts=True)
        deferred = int(np.count_nonzero(states == state_bytes.DEFERRED))
        blocked = int(np.count_nonzero((states == state_bytes.EXHAUSTED) | (states == state_bytes.BLOCKED)))
        unresolved = states < ACKED
        count = int(np.count_nonzero(unresolved))
        states[unresolved] = target
        self.claimed_count -= int(claimed.size)
        self.deferred_count -= deferred
        self.blocked_count -= blocked
        self.resolved_count += count
        self._bitmap_is_current &= count == 0
        return Resolved(count, deferred, blocked, list(zip(tokens.tolist(), held.tolist(), strict=True)))

    # --- looking -----------------------------------------------------------------------------------------------------------

    def at(self, index: int) -> tuple[int, int]:
        """State and token (with its flag) of one bundle. At rest a resolved one counts as acked, and nobody knows by whom."""
        if self._states:
            return self._states[index], self._tokens[index]
        is_resolved = self._bitmap and self._bitmap[index >> 3] >> (index & 7) & 1
        return (ACKED if is_resolved else PENDING), 0

    def first_unresolved(self) -> int:
        """Index of the oldest bundle that is not resolved; the bundle count if all are."""
        if not self._states:
            return bitmaps.first_unresolved(self._bitmap) if self._bitmap else 0
        # Resolved is for ever, so the search goes on where the last one ended.
        found = UNRESOLVED.search(self._states, self._oldest_hint, self.bundle_count)
        self._oldest_hint = found.start() if found else self.bundle_count
        return self._oldest_hint

    def first_pending(self, start: int) -> int:
        """Index of the first pending bundle from `start` on; the bundle count if there is none."""
        if self._states:
            found = self._states.find(PENDING, start, self.bundle_count)
            return found if found >= 0 else self.bundle_count
        missing = ~(bitmaps.bits_of(self._bitmap) >> start)
        return min(self.bundle_count, start + (missing & -missing).bit_length() - 1)

    def bitmap(self) -> bytes:
        """The resolved bundles as a bitmap of full length."""
        if not self._bitmap_is_current:
            resolved = np.frombuffer(self._states, dtype=np.uint8)[: self.bundle_count] >= ACKED
            packed = np.packbits(resolved, bitorder="little").tobytes()
            self._bitmap = packed.ljust(bitmaps.word_count(self.bundle_count) * 8, b"\0")
            self._bitmap_is_current = True
        return self._bitmap or bytes(bitmaps.word_count(self.bundle_count) * 8)

    def rest(self) -> None:
        """Free the arrays if nothing in them matters: whatever was delivered is resolved."""
        if isinstance(self.sizes, OpenSizes) and not self.claimed_count and not self.is_open:
            self.sizes = BundleSizes(self._mean_bytes)
        if not self._states or self.claimed_count or self.deferred_count or self.blocked_count:
            return
        unresolved = np.frombuffer(self._states, dtype=np.uint8) < ACKED
        if self._counts[unresolved].any():
            return
        self._bitmap = self.bitmap() if self.resolved_count else b""
        self._bitmap_is_current = True
        del unresolved
        self._states = bytearray()
        self._tokens = array("Q")
        self._counts = _NO_COUNTS

    def _wake(self) -> None:
        self._tokens = array("Q", bytes(self.bundle_count * 8))
        self._counts = np.zeros(self.bundle_count, dtype=np.uint16)
        self._states = bytearray(self.bundle_count)
        if self._bitmap:
            bits = np.unpackbits(np.frombuffer(self._bitmap, np.uint8), count=self.bundle_count, bitorder="little")
            # How a bundle was resolved is not durable: any resolved state will do.
            np.frombuffer(self._states, dtype=np.uint8)[:] = bits * np.uint8(ACKED)


_NO_COUNTS: npt.NDArray[np.uint16] = np.zeros(0, dtype=np.uint16)
