"""One durable subscriber on one engine: what it is owed, who holds what under which token, what is done.

Owner: the engine of its worker, on the loop thread. Pure: time is passed in, nothing is written here; `snapshot` is what the
engine makes durable.

How the next pending bundle is found: `_oldest` is a heap of spans (segment, start, end) in which pending bundles may lie. A
sealed segment enters as one span, a claim consumes the lowest from its start, and what is given back enters as a span again. The
state bytes are the truth and the spans are hints that may overlap, so nothing is ever searched twice for the same reason: a
claim costs the same whether nothing or a hundred thousand bundles are held. Every pending bundle lies in at least one span.
`_newest` is the same the other way round, kept from the first claim of newest bundles on.

Who holds what: a claim makes one grant a segment, with a token that rises for ever. Only that token and its owner can finish the
grant's bundles. A grant ends when its last bundle is finished, when its lease runs out, or when its owner goes.

Which segments are complete: those below `_floor`, and those in `_complete`. All other sealed ones are in `_segments`. `_awaited`
is progress that was loaded (or set by `start_at`, `ack_through`) for segments that have not been added yet.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence

from quiver_actors.errors import AlreadyResolved, Fenced, LeaseExpired, NotClaimed, UsageError
from quiver_actors.subscriber import bitmap as bitmaps
from quiver_actors.subscriber.bundle_states import GIVEN_BACK, TOKEN_MASK, BundleStates, Resolved
from quiver_actors.subscriber.gaps import GapLedger
from quiver_actors.subscriber.grants import (
    BACKFILL_CYCLE,
    Building,
    Grant,
    Live,
    Owner,
    Room,
    TokenSource,
    backfill_share,
    first_deliveries,
)
from quiver_actors.subscriber.progress import SegmentProgress, SubscriberProgress
from quiver_actors.subscriber.transitions import BundleEvent, BundleState, advance

# Plain ints, as in bundle_states.
_AFTER_RELEASE = int(advance(BundleState.CLAIMED, BundleEvent.RELEASE))
_ACKED = int(BundleState.ACKED)
_REJECTED = int(BundleState.REJECTED)
_DEFERRED = int(BundleState.DEFERRED)
_EXHAUSTED = int(advance(BundleState.CLAIMED, BundleEvent.EXHAUST))
_PASSED = int(advance(BundleState.PENDING, BundleEvent.PASS))
_DROPPED = int(advance(BundleState.PENDING, BundleEvent.DROP))
_RETURNED = -1
"""Not a state: pending again, and the delivery does not count."""
_OUTCOMES = {
    "ack": int(advance(BundleState.CLAIMED, BundleEvent.ACK)),
    "reject": int(advance(BundleState.CLAIMED, BundleEvent.REJECT)),
    "defer": int(advance(BundleState.CLAIMED, BundleEvent.DEFER)),
    "return": _RETURNED,
}
EXHAUSTED_TARGETS = {
    "dead_letter": _EXHAUSTED,
    "drop": int(advance(BundleState.CLAIMED, BundleEvent.REJECT)),
    "block": int(advance(BundleState.CLAIMED, BundleEvent.BLOCK)),
}

OLDEST, NEWEST, NEWEST_BACKFILL = "oldest", "newest", "newest_backfill"
ORDERS = (OLDEST, NEWEST, NEWEST_BACKFILL)

_ENDED_MAX = 65_536
"""So many tokens that lost their claims are remembered, to tell their late owners why."""
_SPANS_SLACK = 1024

Position = tuple[int, int]
"""(segment_seq, bundle index)."""


class SubscriberState:
    """Progress and claims of one subscriber.

    Attributes:
        subscriber: its id.
        version: rises with every change that a flush must make durable.
        flushed_version: the highest version known to be durable.
        claimed_count: bundles held by owners now.
        waiting_count: deferred bundles whose delay has not passed.
        blocked_count: bundles that were delivered too often and are not resolved.
        delivered, redelivered, acked, rejected, deferred: claims granted (and those of them that were not the first) and outcomes
            since this object exists; `deferred` counts each time.
        expired: bundles whose lease ran out. dead_lettered: exhausted bundles that went to a dead letter topic.
        dropped: bundles that were given up: nobody gets them, a gap notice says so.
        gaps: notices of those.
        exhausted: (segment_seq, bundle index) of bundles that wait for a dead letter; a hint, see `is_exhausted`.
    """

    def __init__(self, subscriber: str, *, version: int = 0, tokens: TokenSource | None = None) -> None:
        self.subscriber = subscriber
        self.version = version
        self.flushed_version = version
        self.claimed_count = 0
        self.waiting_count = 0
        self.blocked_count = 0
        self.delivered = self.redelivered = self.acked = self.rejected = self.deferred = self.dropped = 0
        self.expired = self.dead_lettered = 0
        self.gaps = GapLedger()
        self.exhausted: deque[Position] = deque()
        self._lease_ns = 0
        self._max_deliveries = 0
        self._exhausted_target = _EXHAUSTED
        self._tokens = tokens or TokenSource()
        self._floor = 0
        self._segments: dict[int, BundleStates] = {}
        self._incomplete: list[int] = []  # heap of the keys of _segments, and of some that have left it
        self._touched: set[int] = set()  # keys of _segments with something resolved
        self._complete: dict[int, int] = {}  # bundle counts; 0 where no progress entry is needed
        self._awaited: dict[int, SegmentProgress] = {}
        self._oldest: list[tuple[int, int, int]] = []
        self._newest: list[tuple[int, int, int]] | None = None  # (-segment, -end, start)
        self._deferred: list[tuple[int, int, int, list[int]]] = []  # heap of (due_ns, segment, token, indexes)
        self._owners: dict[object, Owner] = {}
        self._live: dict[int, Live] = {}
        self._leased: OrderedDict[int, Live] = OrderedDict()  # by the end of their lease
        self._ended: dict[int, bool] = {}  # token: whether its bundles were given up for everybody
        self._ended_order: deque[int] = deque()
        self._unresolved_count = 0
        self._completed: list[int] = []
        self._unflushed: dict[int, int] = {}  # completed segments and the version that makes it durable

    def __repr__(self) -> str:
        return (
            f"<SubscriberState {self.subscriber} floor={self._floor} incomplete={len(self._segments)} "
            f"unresolved={self._unresolved_count} claimed={self.claimed_count} version={self.version}>"
        )

    # --- where it stands at the start ------------------------------------------------------------------------------------

    def load(self, progress: SubscriberProgress, gaps: GapLedger | None = None) -> None:
        """Take over what its files say. Only before any segment was added."""
        self._floor = progress.watermark
        self._awaited = dict(progress.entries)
        if gaps is not None:
            self.gaps = gaps
            # What the notices say goes into the progress file before any of them is removed.
            self.version += 1 if len(gaps) else 0
            for gap in gaps:
                gap.progress_version = self.version
                self._await_lost(gap.segment_seq, gap.bundle_index_first, gap.bundle_count)

    def _await_lost(self, segment_seq: int, first: int, count: int) -> None:
        """A notice is durable before the progress that goes with it: nobody may be given those bundles in between."""
        if not count:
            self._complete[segment_seq] = 0
            self._awaited.pop(segment_seq, None)
        elif not self.is_complete(segment_seq):
            self._await(segment_seq, first + count, ((1 << count) - 1) << first)

    def _await(self, segment_seq: int, bundle_count: int, bits: int) -> None:
        known = self._awaited.get(segment_seq, SegmentProgress(0, b""))
        count = max(bundle_count, known.bundle_count)
        bits |= int.from_bytes(known.bitmap, "little")
        self._awaited[segment_seq] = SegmentProgress(count, bits.to_bytes(bitmaps.word_count(count) * 8, "little"))

    def start_at(self, segment_seq: int, bundle_index: int) -> None:
        """Begin at that bundle: all before it counts as resolved. Only before any segment was added.

        The segment may be open still; its first `bundle_index` bundles are then known as resolved when it is added.
        """
        self._floor = segment_seq
        if bundle_index:
            self._awaited[segment_seq] = SegmentProgress(bundle_index, bitmaps.full(bundle_index))
        self.version += 1

    def start_with(self, progress: Mapping[int, SegmentProgress]) -> None:
        """Begin with these bundles resolved and everything else owed. Only before any segment was added."""
        self._awaited = dict(progress)
        self.version += 1

    def set_terms(self, *, lease_ns: int, max_deliveries: int, exhausted: str, now_ns: int) -> None:
        """Change the rules; what is held gets the new lease from now.

        Raises:
            UsageError: a value that makes no sense; nothing was changed.
        """
        target = EXHAUSTED_TARGETS.get(exhausted)
        if target is None:
            raise UsageError(f"exhausted {exhausted!r} is unknown: expected one of {', '.join(EXHAUSTED_TARGETS)}")
        if lease_ns < 0 or max_deliveries < 0:
            raise UsageError(f"lease of {lease_ns} ns, {max_deliveries} deliveries: expected 0 (no limit) or more")
        self._max_deliveries = max_deliveries
        self._exhausted_target = target
        if lease_ns != self._lease_ns:
            self._lease_ns = lease_ns
            self._leased.clear()
            for live in self._live.values():
                self._lease(live, now_ns)

    @property
    def lease_ns(self) -> int:
        return self._lease_ns

    # --- segments --------------------------------------------------------------------------------------------------------

    def add_segment(self, segment_seq: int, bundle_count: int, size_bytes: int = 0) -> None:
        """A segment is sealed and readable: what is not known as resolved of it becomes claimable.

        Known progress is applied; where it covers fewer bundles the rest is pending, where it covers more the surplus is
        ignored. Adding a segment again changes nothing.

        Raises:
            UsageError: the segment was added with another bundle count.
        """
        if self.is_complete(segment_seq):
            return
        known = self._segments.get(segment_seq)
        if known is not None:
            if known.bundle_count != bundle_count:
                raise UsageError(
                    f"segment {segment_seq} was added with {known.bundle_count} bundles, not {bundle_count}"
                )
            return
        progress = self._awaited.pop(segment_seq, None)
        states = BundleStates(bundle_count, progress.bitmap if progress else b"", size_bytes // max(1, bundle_count))
        if states.is_complete:
            self._complete[segment_seq] = bundle_count
            if self.is_dirty:
                self._unflushed[segment_seq] = self.version
            return
        self._segments[segment_seq] = states
        self._unresolved_count += bundle_count - states.resolved_count
        if states.resolved_count:
            self._touched.add(segment_seq)
        heapq.heappush(self._incomplete, segment_seq)
        self._offer(segment_seq, states.first_unresolved(), bundle_count)

    def forget_segment(self, segment_seq: int, *, file_is_gone: bool = False) -> list[tuple[int, int]]:
        """The segment was deleted, or cannot be read: what was unresolved of it is resolved as dropped.

        Args:
            file_is_gone: its unlink is durable, so that no restart can find the file again and it needs no progress entry.
                Without that the entry stays until the watermark has passed it.

        Returns:
            The dropped bundles as (first index, count), ascending: what a gap notice must name. Empty for a complete one.
        """
        if self.is_complete(segment_seq):
            if file_is_gone and segment_seq in self._complete:
                self._complete[segment_seq] = 0
            return []
        states = self._segments.get(segment_seq)
        if states is not None:
            runs = self._drop_span(segment_seq, states, 0, states.bundle_count)
            bundle_count = states.bundle_count
        else:
            progress = self._awaited.pop(segment_seq, SegmentProgress(0, b""))
            bundle_count = progress.bundle_count
            runs = bitmaps.unresolved_runs(progress.bitmap, bundle_count)
            self.dropped += sum(count for _, count in runs)
            self.version += 1
            self._set_complete(segment_seq, bundle_count)
        if file_is_gone:
            self._complete[segment_seq] = 0
        return runs

    def drop(self, segment_seq: int, first: int, count: int) -> list[tuple[int, int]]:
        """Some bundles of a segment that was added are lost: like `forget_segment`, for these only."""
        states = self._segments.get(segment_seq)
        if states is None:
            return []
        return self._drop_span(segment_seq, states, first, min(first + count, states.bundle_count))

    def _drop_span(self, segment_seq: int, states: BundleStates, start: int, stop: int) -> list[tuple[int, int]]:
        bits = int.from_bytes(states.bitmap(), "little") >> start
        size = stop - start
        packed = (bits & ((1 << size) - 1)).to_bytes(bitmaps.word_count(size) * 8, "little")
        runs = [(start + first, count) for first, count in bitmaps.unresolved_runs(packed, size)]
        if runs:
            ended = self._resolve_span(segment_seq, states, start, stop, _DROPPED)
            self.dropped += ended.bundles
            for token, _ in ended.claimed:
                self._note_ended(token, given_up=True)
        return runs

    def _resolve_span(self, segment_seq: int, states: BundleStates, start: int, stop: int, target: int) -> Resolved:
        """Resolve bundles whoever holds them."""
        ended = states.resolve_span(start, stop, target)
        self.waiting_count -= ended.deferred
        self.blocked_count -= ended.blocked
        for token, count in ended.claimed:
            self._count_off(self._live[token], count)
        if ended.bundles:
            self._unresolved_count -= ended.bundles
            self._note_progress(segment_seq, states)
        return ended

    def ack_through(self, segment_seq: int, bundle_index: int, unsealed: Mapping[int, int]) -> None:
        """Resolve everything up to and including that bundle, whoever holds it.

        Args:
            unsealed: bundle counts of segments up to that one that were not added yet.
        """
        for seq in sorted(seq for seq in self._segments if seq <= segment_seq):
            states = self._segments[seq]
            stop = states.bundle_count if seq < segment_seq else min(bundle_index + 1, states.bundle_count)
            self.acked += self._resolve_span(seq, states, 0, stop, _PASSED).bundles
        for seq, bundle_count in unsealed.items():
            passed = bundle_count if seq < segment_seq else min(bundle_index + 1, bundle_count)
            new = self.unresolved_in_unsealed(seq, passed)
            if new:
                self.acked += new
                self._await(seq, passed, (1 << passed) - 1)
                self.version += 1

    def _note_progress(self, segment_seq: int, states: BundleStates) -> None:
        """Something of the segment was resolved."""
        self.version += 1
        if states.is_complete:
            self._set_complete(segment_seq, states.bundle_count)
        else:
            self._touched.add(segment_seq)

    def _set_complete(self, segment_seq: int, bundle_count: int) -> None:
        self._segments.pop(segment_seq, None)
        self._touched.discard(segment_seq)
        self._complete[segment_seq] = bundle_count
        self._completed.append(segment_seq)
        self._unflushed[segment_seq] = self.version

    def is_complete(self, segment_seq: int) -> bool:
        """Whether this subscriber will never need that segment again."""
        return segment_seq < self._floor or segment_seq in self._complete

    def is_durably_complete(self, segment_seq: int) -> bool:
        """Whether it is complete and a flush has said so: only then may the file go."""
        return self.is_complete(segment_seq) and segment_seq not in self._unflushed

    def completed_since(self) -> list[int]:
        """Segments that became complete since the last call, in that order."""
        completed, self._completed = self._completed, []
        return completed

    def awaits_complete(self, segment_seq: int) -> bool:
        """Whether the progress says that a segment which was not added is all resolved."""
        progress = self._awaited.get(segment_seq)
        return progress is not None and progress.is_complete

    def awaited_segments(self) -> list[int]:
        """Segments that the progress names and that were not added, ascending.

        After recovery has added all sealed segments, such a one below the open segment does not exist any more: it must be
        forgotten (with a gap notice if `forget_segment` names bundles), or it holds the watermark for ever.
        """
        return sorted(self._awaited)

    def known_bundle_count(self, segment_seq: int) -> int:
        """How many bundles a segment that was not added has at least, by the progress that was loaded; 0 if it has none."""
        progress = self._awaited.get(segment_seq)
        return progress.bundle_count if progress else 0

    # --- claims ----------------------------------------------------------------------------------------------------------

    def claim(
        self,
        owner: object,
        bundles: int,
        now_ns: int = 0,
        *,
        order: str = OLDEST,
        backfill_ratio: int = 0,
        before: Position | None = None,
        size_limit_bytes: int | None = None,
    ) -> list[Grant]:
        """Give at most that many pending bundles to `owner` (hashable).

        Args:
            order: `oldest` first; `newest` first; or `newest_backfill`: of ten bundles `backfill_ratio` are the oldest ones.
            before: only bundles before that position; for oldest first only.
            size_limit_bytes: stop before more than that is given; counted with the mean size of a segment's bundles.

        Returns:
            A grant for each segment; empty when nothing is pending.
        """
        holder = self._owners.get(owner) or self._owners.setdefault(owner, Owner())
        room = Room(bundles, size_limit_bytes)
        if order == OLDEST:
            return self._claim_oldest(owner, holder, room, now_ns, before)
        older = 0
        if order == NEWEST_BACKFILL:
            older = backfill_share(holder.mix + bundles, backfill_ratio) - backfill_share(holder.mix, backfill_ratio)
            holder.mix = (holder.mix + bundles) % BACKFILL_CYCLE
        room.bundles = bundles - older
        granted = self._claim_newest(owner, holder, room, now_ns)
        if older:
            room.bundles = older
            granted += self._claim_oldest(owner, holder, room, now_ns, None)
        return granted

    def _claim_oldest(
        self, owner: object, holder: Owner, room: Room, now_ns: int, before: Position | None
    ) -> list[Grant]:
        granted: list[Grant] = []
        building: Building | None = None
        while room.bundles > 0 and self._oldest:
            segment_seq, start, end = self._oldest[0]
            if before is not None and (segment_seq, start) >= before:
                break
            states = self._segments.get(segment_seq)
            if states is None:  # completed or forgotten since
                heapq.heappop(self._oldest)
                continue
            limit = room.limit(states.bundle_bytes)
            if not limit:
                break
            if building is None or building.segment_seq != segment_seq:
                self._finish(building, owner, holder, now_ns, granted)
                building = Building(self._tokens.take(), segment_seq, states)
            last = end if before is None or before[0] != segment_seq else min(end, before[1])
            run = states.claim(start, last, limit, building.token)
            if run.stop < end:
                heapq.heapreplace(self._oldest, (segment_seq, run.stop, end))
            else:
                heapq.heappop(self._oldest)
            building.add(run, room)
        self._finish(building, owner, holder, now_ns, granted)
        return granted

    def _claim_newest(self, owner: object, holder: Owner, room: Room, now_ns: int) -> list[Grant]:
        if self._newest is None:
            self._newest = [(-seq, -states.bundle_count, 0) for seq, states in self._segments.items()]
            heapq.heapify(self._newest)
        granted: list[Grant] = []
        building: Building | None = None
        while room.bundles > 0 and self._newest:
            segment_seq, end, start = -self._newest[0][0], -self._newest[0][1], self._newest[0][2]
            states = self._segments.get(segment_seq)
            if states is None:
                heapq.heappop(self._newest)
                continue
            limit = room.limit(states.bundle_bytes)
            if not limit:
                break
            if building is None or building.segment_seq != segment_seq:
                self._finish(building, owner, holder, now_ns, granted)
                building = Building(self._tokens.take(), segment_seq, states)
            run = states.claim_newest(start, end, limit, building.token)
            if run.start > start:
                heapq.heapreplace(self._newest, (-segment_seq, -run.start, start))
            else:
                heapq.heappop(self._newest)
            building.add(run[::-1], room)
        self._finish(building, owner, holder, now_ns, granted)
        return granted

    def claim_ref(self, owner: object, segment_seq: int, bundle_index: int, now_ns: int) -> Grant:
        """Claim one bundle by its id, also if it is deferred or blocked.

        Raises:
            AlreadyResolved: it is done with.
            NotClaimed: somebody holds it, or it is not sealed yet.
        """
        if self.is_complete(segment_seq):
            raise AlreadyResolved(f"bundle {segment_seq}/{bundle_index} is resolved for {self.subscriber!r}")
        states = self._segments.get(segment_seq)
        if states is None or not 0 <= bundle_index < states.bundle_count:
            raise NotClaimed(f"bundle {segment_seq}/{bundle_index} is not in a sealed segment")
        if states.at(bundle_index)[0] >= _ACKED:
            raise AlreadyResolved(f"bundle {segment_seq}/{bundle_index} is resolved for {self.subscriber!r}")
        building = Building(self._tokens.take(), segment_seq, states)
        deferred, blocked = states.deferred_count, states.blocked_count
        if states.claim_one(bundle_index, building.token) is None:
            raise NotClaimed(f"bundle {segment_seq}/{bundle_index} is held by another consumer or being moved away")
        self.waiting_count += states.deferred_count - deferred
        self.blocked_count += states.blocked_count - blocked
        building.add(range(bundle_index, bundle_index + 1), Room(1, None))
        holder = self._owners.get(owner) or self._owners.setdefault(owner, Owner())
        granted: list[Grant] = []
        self._finish(building, owner, holder, now_ns, granted)
        return granted[0]

    def _finish(
        self, building: Building | None, owner: object, holder: Owner, now_ns: int, granted: list[Grant]
    ) -> None:
        """Make a grant of what was claimed of one segment."""
        if building is None or not building.count:
            return
        count, states = building.count, building.states
        live = Live(building.token, owner, holder, building.segment_seq, states)
        live.held, live.start, live.stop = count, building.start, building.stop
        self._live[live.token] = live
        states.live.add(live.token)
        holder.tokens.add(live.token)
        holder.held_count += count
        holder.held_bytes += count * states.bundle_bytes
        self.claimed_count += count
        self.delivered += count
        counts = building.counts()
        self.redelivered += count - first_deliveries(counts)
        self._lease(live, now_ns)
        granted.append(Grant(live.segment_seq, building.indexes(), live.token, counts, live.lease_until_ns))

    def _lease(self, live: Live, now_ns: int) -> None:
        live.lease_until_ns = now_ns + self._lease_ns if self._lease_ns else 0
        if self._lease_ns:
            self._leased[live.token] = live
            self._leased.move_to_end(live.token)

    def extend(self, owner: object, tokens: Iterable[int], now_ns: int) -> tuple[int, list[int]]:
        """Start the lease of these claims anew.

        Returns:
            When it ends now (0: never), and the tokens under which `owner` holds nothing any more.
        """
        ended = []
        for token in tokens:
            live = self._live.get(token)
            if live is None or live.owner_key is not owner:
                ended.append(token)
            else:
                self._lease(live, now_ns)
        return (now_ns + self._lease_ns if self._lease_ns else 0), ended

    def held(self, owner: object) -> tuple[int, int]:
        """(bundles, bytes) that `owner` has claimed now."""
        holder = self._owners.get(owner)
        return (holder.held_count, holder.held_bytes) if holder else (0, 0)

    def oldest_pending(self) -> Position | None:
        """Position of the bundle that a claim of the oldest would give next."""
        while self._oldest:
            segment_seq, start, end = self._oldest[0]
            states = self._segments.get(segment_seq)
            first = states.first_pending(start) if states else end
            if states is not None and first < end:
                if first > start:
                    heapq.heapreplace(self._oldest, (segment_seq, first, end))
                return segment_seq, first
            heapq.heappop(self._oldest)
        return None

    def _offer(self, segment_seq: int, start: int, end: int) -> None:
        """Bundles of that span may be pending."""
        heapq.heappush(self._oldest, (segment_seq, start, end))
        if self._newest is not None:
            heapq.heappush(self._newest, (-segment_seq, -end, start))
            # Whichever order nobody asks for would only grow.
            limit = 2 * len(self._segments) + _SPANS_SLACK
            if len(self._oldest) > limit:
                self._oldest = [(seq, 0, states.bundle_count) for seq, states in self._segments.items()]
                heapq.heapify(self._oldest)
            if len(self._newest) > limit:
                self._newest = None

    # --- ends of claims --------------------------------------------------------------------------------------------------

    def resolve(
        self,
        owner: object,
        segment_seq: int,
        token: int,
        outcome: str,
        indexes: Sequence[int],
        delay_ns: int,
        now_ns: int,
    ) -> list[tuple[str, list[int]]]:
        """Finish claims: `ack`, `reject`, `defer` for `delay_ns` from `now_ns` (0 = pending at once), or `return`.

        Saying the same again is no error.

        Returns:
            The bundles that `owner` does not hold under `token`, by the `code` of the error that says why; the others are done.

        Raises:
            UsageError: unknown outcome; nothing was changed.
        """
        target = _OUTCOMES.get(outcome)
        if target is None:
            raise UsageError(f"outcome {outcome!r} is unknown: expected one of {', '.join(_OUTCOMES)}")
        live = self._live.get(token)
        if live is None or live.owner_key is not owner or live.segment_seq != segment_seq:
            return self._refusals(segment_seq, token, target, indexes)
        states = live.states
        if target >= _ACKED:
            moved, refused = states.move(indexes, token, target)
            if moved:
                self._count_off(live, len(moved))
                self._note_resolved(segment_seq, states, target, len(moved))
        else:
            moved, refused = states.held(indexes, token)
            if moved:
                self._give_back(live, moved, target, delay_ns, now_ns)
        return self._refusals(segment_seq, token, target, refused) if refused else []

    def _note_resolved(self, segment_seq: int, states: BundleStates, target: int, count: int) -> None:
        self._unresolved_count -= count
        if target == _ACKED:
            self.acked += count
        else:
            self.rejected += count
        self._note_progress(segment_seq, states)

    def _give_back(self, live: Live, moved: Sequence[int], target: int, delay_ns: int, now_ns: int) -> None:
        """The holder itself defers or returns bundles."""
        states = live.states
        states.mark_given_back(moved)
        self.deferred += len(moved)
        if target == _RETURNED:
            states.uncount(moved)
            self.delivered -= len(moved)
            again: Sequence[int] = moved
        else:
            again = self._without_exhausted(live.segment_seq, states, moved)
        if target == _DEFERRED and delay_ns > 0:
            states.set_claimed(again, _DEFERRED)
            self.waiting_count += len(again)
            if again:
                heapq.heappush(self._deferred, (now_ns + delay_ns, live.segment_seq, live.token, list(again)))
        else:
            self._make_pending(live.segment_seq, states, again)
        self._count_off(live, len(moved))

    def _make_pending(self, segment_seq: int, states: BundleStates, indexes: Sequence[int]) -> None:
        if indexes:
            states.set_claimed(indexes, _AFTER_RELEASE)
            self._offer(segment_seq, min(indexes), max(indexes) + 1)

    def _without_exhausted(self, segment_seq: int, states: BundleStates, indexes: Sequence[int]) -> Sequence[int]:
        """Set aside what was delivered too often of claimed bundles that come back; returns the others."""
        again, gone = states.split_exhausted(indexes, self._max_deliveries)
        if gone:
            target = self._exhausted_target
            states.set_claimed(gone, target)
            if target >= _ACKED:
                self._note_resolved(segment_seq, states, target, len(gone))
            else:
                self.blocked_count += len(gone)
            if target == _EXHAUSTED:
                self.exhausted.extend((segment_seq, index) for index in gone)
        return again

    def _count_off(self, live: Live, count: int) -> None:
        """So many bundles of a grant are held no more; the last one ends it."""
        live.held -= count
        live.owner.held_count -= count
        live.owner.held_bytes -= count * live.states.bundle_bytes
        self.claimed_count -= count
        if not live.held:
            del self._live[live.token]
            self._leased.pop(live.token, None)
            live.owner.tokens.discard(live.token)
            live.states.live.discard(live.token)

    def _refusals(
        self, segment_seq: int, token: int, target: int, indexes: Sequence[int]
    ) -> list[tuple[str, list[int]]]:
        found: dict[str, list[int]] = {}
        for index in indexes:
            code = self._why_not(segment_seq, token, target, index)
            if code is not None:
                found.setdefault(code, []).append(index)
        return list(found.items())

    def _why_not(self, segment_seq: int, token: int, target: int, index: int) -> str | None:
        """Why a bundle that is not held under `token` cannot be resolved with it; None if that was done before."""
        if not self._tokens.was_given(token):
            return NotClaimed.code
        states = self._segments.get(segment_seq)
        has_ended = token in self._ended
        if states is None:
            if not self.is_complete(segment_seq):
                return NotClaimed.code
            return self._why_resolved(token, target, _ACKED, 0, has_ended)
        if not 0 <= index < states.bundle_count:
            return NotClaimed.code
        state, last = states.at(index)
        if state >= _ACKED:
            return self._why_resolved(token, target, state, last & TOKEN_MASK, has_ended)
        if last & TOKEN_MASK > token:
            return Fenced.code
        if last == token | GIVEN_BACK:
            return NotClaimed.code if target >= _ACKED else None
        return LeaseExpired.code if last == token and has_ended else NotClaimed.code

    def _why_resolved(self, token: int, target: int, state: int, last: int, has_ended: bool) -> str | None:
        """Of a resolved bundle. `last`: the token that it was given under last, 0 if nobody knows any more."""
        if last > token:
            return Fenced.code
        if last == token and state == target:
            return None
        if last == 0 and target >= _ACKED and not has_ended:
            return None
        if last == 0 and has_ended and not self._ended[token]:
            return Fenced.code
        return AlreadyResolved.code

    def _note_ended(self, token: int, *, given_up: bool) -> None:
        if token not in self._ended:
            self._ended_order.append(token)
        self._ended[token] = given_up
        if len(self._ended_order) > _ENDED_MAX:
            del self._ended[self._ended_order.popleft()]

    def release(self, owner: object) -> int:
        """Make all claims of an owner that is gone pending again at once; returns how many there were."""
        self.gaps.release(owner)
        holder = self._owners.pop(owner, None)
        if holder is None:
            return 0
        return sum(self._take_away(self._live[token]) for token in sorted(holder.tokens))

    def _take_away(self, live: Live) -> int:
        """End a grant whose owner is gone or silent."""
        held, states = live.held, live.states
        indexes: Sequence[int] = range(live.start, live.stop)
        if held != len(indexes):  # some are finished, or there were holes
            indexes = states.held_in(live.token, live.start, live.stop)
        self._note_ended(live.token, given_up=False)
        self._make_pending(live.segment_seq, states, self._without_exhausted(live.segment_seq, states, indexes))
        self._count_off(live, held)
        states.rest()
        return held

    def due(self, now_ns: int) -> bool:
        """End delays and leases that have passed; returns whether there is something to claim or to tell by it."""
        woken = self._end_delays(now_ns)
        expired = 0
        while self._leased:
            live = next(iter(self._leased.values()))
            if live.lease_until_ns > now_ns:
                break
            expired += self._take_away(live)
        self.expired += expired
        return bool(woken or expired or self.gaps.due(now_ns))

    def _end_delays(self, now_ns: int) -> int:
        woken = 0
        while self._deferred and self._deferred[0][0] <= now_ns:
            _, segment_seq, token, indexes = heapq.heappop(self._deferred)
            states = self._segments.get(segment_seq)
            if states is not None:
                woken += states.end_delay(indexes, token)
                self._offer(segment_seq, min(indexes), max(indexes) + 1)
        self.waiting_count -= woken
        return woken

    def next_due_ns(self) -> int | None:
        """When `due` should be called next, on the clock of `now_ns`; None if time changes nothing."""
        times = [self._deferred[0][0]] if self._deferred else []
        if self._leased:
            times.append(next(iter(self._leased.values())).lease_until_ns)
        if (told := self.gaps.next_due_ns()) is not None:
            times.append(told)
        return min(times, default=None)

    # --- exhausted bundles -----------------------------------------------------------------------------------------------

    def is_exhausted(self, segment_seq: int, bundle_index: int) -> bool:
        """Whether the bundle still waits for its dead letter."""
        states = self._segments.get(segment_seq)
        return states is not None and states.at(bundle_index)[0] == _EXHAUSTED

    def delivery_count(self, segment_seq: int, bundle_index: int) -> int:
        states = self._segments.get(segment_seq)
        return states.count(bundle_index) if states else 0

    def bury(self, segment_seq: int, bundle_index: int) -> bool:
        """The dead letter of that bundle is durable: it is resolved. False if it was resolved in another way before."""
        states = self._segments.get(segment_seq)
        if states is None or not states.move_exhausted(bundle_index, _REJECTED):
            return False
        self.blocked_count -= 1
        self.dead_lettered += 1
        self._note_resolved(segment_seq, states, _REJECTED, 1)
        return True

    # --- figures ---------------------------------------------------------------------------------------------------------

    @property
    def unresolved_count(self) -> int:
        """Bundles of sealed segments that are not resolved: pending, deferred or claimed."""
        return self._unresolved_count

    def pending_count(self) -> int:
        """Bundles of sealed segments that nobody holds and that are not resolved, deferred ones included."""
        return self._unresolved_count - self.claimed_count

    @property
    def claimable_count(self) -> int:
        """Bundles that `claim` could give out now."""
        return self._unresolved_count - self.claimed_count - self.waiting_count - self.blocked_count

    def unresolved_between(self, start: Position, end: Position | None) -> int:
        """Unresolved bundles of sealed segments from `start` up to and without `end` (None: no end)."""
        count = 0
        for seq, states in self._segments.items():
            if seq < start[0] or (end is not None and seq > end[0]):
                continue
            first = start[1] if seq == start[0] else 0
            stop = end[1] if end is not None and seq == end[0] else states.bundle_count
            count += states.unresolved_in(first, stop)
        return count

    @property
    def needs_nothing(self) -> bool:
        """No sealed bundle and no notice is owed."""
        return not self._unresolved_count and not self.gaps.untold_count

    def unresolved_in_unsealed(self, segment_seq: int, bundle_count: int) -> int:
        """How many of the `bundle_count` bundles of a segment that was not added yet this subscriber will be owed."""
        if self.is_complete(segment_seq):
            return 0
        progress = self._awaited.get(segment_seq, SegmentProgress(0, b""))
        return bundle_count - bitmaps.resolved_count(bitmaps.resized(progress.bitmap, bundle_count))

    def oldest_unresolved(self) -> tuple[int, int] | None:
        """(segment_seq, bundle index) of the oldest bundle of a sealed segment that is not resolved."""
        segment_seq = self._oldest_incomplete()
        return None if segment_seq is None else (segment_seq, self._segments[segment_seq].first_unresolved())

    def _oldest_incomplete(self) -> int | None:
        while self._incomplete and self._incomplete[0] not in self._segments:
            heapq.heappop(self._incomplete)
        return self._incomplete[0] if self._incomplete else None

    # --- durable progress ------------------------------------------------------------------------------------------------

    def watermark(self, next_segment_seq: int) -> int:
        """The oldest incomplete segment; `next_segment_seq` if there is none. It never falls.

        Args:
            next_segment_seq: the oldest segment that is not sealed yet: the open one, or a rotated one whose seal is under
                way. All sealed segments below it must have been added.
        """
        oldest = next_segment_seq
        for segment_seq, progress in self._awaited.items():
            if segment_seq < oldest and not progress.is_complete:
                oldest = segment_seq
        incomplete = self._oldest_incomplete()
        return max(self._floor, oldest if incomplete is None else min(oldest, incomplete))

    def snapshot(self, next_segment_seq: int) -> SubscriberProgress:
        """What a progress file must say at `version`; immutable, so that another thread may encode and write it.

        Args:
            next_segment_seq: as for `watermark`.
        """
        self._floor = self.watermark(next_segment_seq)
        self._complete = {seq: count for seq, count in self._complete.items() if seq >= self._floor}
        entries = {seq: progress for seq, progress in self._awaited.items() if seq >= self._floor}
        for segment_seq, bundle_count in self._complete.items():
            if bundle_count:
                entries[segment_seq] = SegmentProgress(bundle_count, bitmaps.full(bundle_count))
        for segment_seq in self._touched:
            entries[segment_seq] = self._entry(segment_seq)
        oldest = self._oldest_incomplete()
        if oldest is not None:
            # Also with nothing resolved: Rust reads the watermark from the lowest entry.
            entries[oldest] = self._entry(oldest)
        return SubscriberProgress(oldest_incomplete_seg=self._floor, entries=entries, trusted_watermark=True)

    def _entry(self, segment_seq: int) -> SegmentProgress:
        states = self._segments[segment_seq]
        entry = SegmentProgress(states.bundle_count, states.bitmap())
        states.rest()
        return entry

    def mark_flushed(self, version: int) -> None:
        """A snapshot that was taken at `version` is durable."""
        self.flushed_version = max(self.flushed_version, version)
        self._unflushed = {seq: at for seq, at in self._unflushed.items() if at > self.flushed_version}

    @property
    def is_dirty(self) -> bool:
        """Whether something has changed that no flush has made durable."""
        return self.version > self.flushed_version

    def highest_segment_seq(self) -> int:
        """The highest segment number that this subscriber has heard of, -1 for none."""
        return max(self._floor - 1, *self._awaited, *self._segments, *self._complete, -1)
