"""One durable subscriber on one engine: what it is owed, who holds what under which token, what is done.

Owner: the engine of its worker, on the loop thread. Pure: time is passed in, nothing is written here. What is resolved is kept by
`standing`, in which order pending bundles are found by `claim_order`, who holds what by `leases`, what nobody can have for now by
`set_aside`, the state of each bundle by `bundle_states`. Here is what happens to claims: they are given, finished, given back, taken away.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from quiver_actors.errors import AlreadyResolved, NotClaimed, UsageError
from quiver_actors.subscriber import bitmap as bitmaps
from quiver_actors.subscriber.attention import Attention
from quiver_actors.subscriber.bundle_states import BundleStates, Resolved
from quiver_actors.subscriber.claim_order import NEWEST_BACKFILL, OLDEST, ClaimOrder, SizesOf
from quiver_actors.subscriber.gaps import GapLedger, GapNotice
from quiver_actors.subscriber.grants import (
    BACKFILL_CYCLE,
    Grant,
    Live,
    Room,
    TokenSource,
    backfill_share,
    first_deliveries,
)
from quiver_actors.subscriber.leases import Leases
from quiver_actors.subscriber.outcomes import (
    ACKED,
    BLOCKED,
    DROPPED,
    EXHAUSTED,
    EXHAUSTED_TARGETS,
    OUTCOMES,
    PASSED,
    REJECTED,
    RELEASED,
    RETURNED,
    refusals,
)
from quiver_actors.subscriber.progress import SubscriberProgress
from quiver_actors.subscriber.set_aside import SetAside
from quiver_actors.subscriber.standing import Position, Runs, Standing

_COUNTS = (
    "delivered",
    "redelivered",
    "acked",
    "rejected",
    "deferred",
    "dropped",
    "expired",
    "dead_lettered",
    "_unseen",
)


class SubscriberState(Standing):
    """Progress and claims of one subscriber.

    Attributes:
        subscriber: its id.
        delivered, redelivered, acked, rejected, deferred: claims granted (and those of them that were not the first) and outcomes
            since this object exists; `deferred` counts each time. None of them ever falls: of claims that were returned as many
            later ones are not counted.
        expired: bundles whose lease ran out. dead_lettered: exhausted bundles that went to a dead letter topic.
        dropped: bundles that were given up: nobody gets them, a gap notice says so.
        gaps: notices of those.
    """

    def __init__(
        self,
        subscriber: str,
        *,
        version: int = 0,
        tokens: TokenSource | None = None,
        sizes_of: SizesOf = lambda _: None,
        attention: Attention[SubscriberState] | None = None,
    ) -> None:
        super().__init__(version)
        self.subscriber = subscriber
        self._attention: Attention[SubscriberState] = attention or Attention()
        self.delivered = self.redelivered = self.acked = self.rejected = self.deferred = self.dropped = 0
        self.expired = self.dead_lettered = 0
        self._unseen = 0
        """Counted in `delivered` and returned since."""
        self.gaps = GapLedger(version)
        self._watch_gaps()
        self._tokens = tokens or TokenSource()
        self._order = ClaimOrder(self.segments, self._tokens, sizes_of)
        self._leases = Leases(self._tokens)
        self._aside = SetAside(self.segments)

    def __repr__(self) -> str:
        return f"<SubscriberState {self.subscriber} claimed={self.claimed_count} {super().__repr__()}>"

    def load_files(self, progress: SubscriberProgress, gaps: GapLedger | None = None) -> None:
        """Take over what its files say. Only before any segment was added."""
        self.load(progress)
        if gaps is not None:
            self.gaps = gaps
            self._watch_gaps()
            # What the notices say goes into the progress file before any of them is removed.
            if len(gaps):
                self.version += 1
            for gap in gaps:
                gap.progress_version = self.version
                self.load_lost(gap.segment_seq, gap.bundle_index_first, gap.bundle_count)

    def succeed(self, former: SubscriberState) -> None:
        """Take over from an object that stood for the same subscriber: its counts. Its claims have ended for everybody."""
        for name in _COUNTS:
            setattr(self, name, getattr(former, name))
        self._leases.succeed(former._leases)

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
        self._aside.max_deliveries, self._aside.target = max_deliveries, target
        self._settle_exhausted()
        self._leases.set_lease(lease_ns, now_ns)
        self._note_lease(now_ns)

    def _note_lease(self, now_ns: int) -> None:
        """Leases that begin now end then."""
        if self._leases.lease_ns:
            self._attention.call_at(self, now_ns + self._leases.lease_ns)

    @property
    def lease_ns(self) -> int:
        return self._leases.lease_ns

    # --- segments ----------------------------------------------------------------------------------------------------------

    def add_segment(self, segment_seq: int, bundle_count: int, size_bytes: int = 0) -> None:
        """A segment is sealed and readable: what is not known as resolved of it becomes claimable.

        Known progress is applied; where it covers fewer bundles the rest is pending, where it covers more the surplus is
        ignored. Adding a segment again changes nothing.

        Raises:
            UsageError: the segment was added with another bundle count.
        """
        states = self.add(segment_seq, bundle_count, size_bytes)
        if states is not None:
            self._order.offer(segment_seq, states.first_unresolved(), bundle_count)

    def forget_segment(self, segment_seq: int, *, file_is_gone: bool = False) -> Runs:
        """The segment was deleted, or cannot be read: what was unresolved of it is resolved as dropped.

        Args:
            file_is_gone: its unlink is durable, so that no restart can find the file again and it needs no progress entry.
                Without that the entry stays until the watermark has passed it.

        Returns:
            The dropped bundles as (first index, count), ascending: what a gap notice must name. Empty for a complete one.
        """
        runs: Runs = []
        states = self.segments.get(segment_seq)
        if states is not None:
            runs = self._drop_span(segment_seq, states, 0, states.bundle_count)
        elif not self.is_complete(segment_seq):
            runs = self.give_up_awaited(segment_seq)
            self.dropped += sum(count for _, count in runs)
        # With a notice of some of its bundles, a restart must still be able to tell what became of the others.
        if file_is_gone and not self.gaps.covers(segment_seq):
            self.file_is_gone(segment_seq)
        return runs

    def lose_unsealed(self, segment_seq: int, bundle_count: int) -> Runs:
        """A segment that was not added will never be: note what is lost of it, as notices that were loaded are.

        Args:
            bundle_count: 0 if nobody knows.

        Returns:
            What is new of it, as (first index, count), count 0 for nobody knows how many.
        """
        if self.is_complete(segment_seq) or self.gaps.has_open_end(segment_seq):
            return []
        runs = self.unresolved_of_awaited(segment_seq, bundle_count)
        if runs:
            self.version += 1
        for first, count in runs:
            self.gaps.add(segment_seq, first, count, -1, "damaged", self.version)
            self.load_lost(segment_seq, first, count)
            self.dropped += count
        return runs

    def drop(self, segment_seq: int, first: int, count: int) -> Runs:
        """Some bundles of a segment that was added are lost: like `forget_segment`, for these only."""
        states = self.segments.get(segment_seq)
        if states is None:
            return []
        return self._drop_span(segment_seq, states, first, min(first + count, states.bundle_count))

    def _drop_span(self, segment_seq: int, states: BundleStates, start: int, stop: int) -> Runs:
        bits = int.from_bytes(states.bitmap(), "little") >> start
        size = stop - start
        packed = (bits & ((1 << size) - 1)).to_bytes(bitmaps.word_count(size) * 8, "little")
        runs = [(start + first, count) for first, count in bitmaps.unresolved_runs(packed, size)]
        if runs:
            ended = self._resolve_span(segment_seq, states, start, stop, DROPPED)
            self.dropped += ended.bundles
            for token, _ in ended.claimed:
                self._leases.note_ended(token, given_up=True)
        return runs

    def _resolve_span(self, segment_seq: int, states: BundleStates, start: int, stop: int, target: int) -> Resolved:
        """Resolve bundles whoever holds them."""
        ended = states.resolve_span(start, stop, target)
        self._aside.note_resolved(ended)
        self._leases.give_up(ended.claimed)
        if ended.bundles:
            self.note(segment_seq, states, ended.bundles)
        return ended

    def ack_through(self, segment_seq: int, bundle_index: int, unsealed: Mapping[int, int]) -> None:
        """Resolve everything up to and including that bundle, whoever holds it.

        Args:
            unsealed: bundle counts of segments up to that one that were not added yet.
        """
        for seq in sorted(seq for seq in self.segments if seq <= segment_seq):
            states = self.segments[seq]
            stop = states.bundle_count if seq < segment_seq else min(bundle_index + 1, states.bundle_count)
            self.acked += self._resolve_span(seq, states, 0, stop, PASSED).bundles
        for seq, bundle_count in unsealed.items():
            passed = bundle_count if seq < segment_seq else min(bundle_index + 1, bundle_count)
            self.acked += self.pass_unsealed(seq, passed)

    def _note_change(self) -> None:
        self._attention.changed[self.subscriber] = None

    def _watch_gaps(self) -> None:
        """What happens to the notices is a change, too. By name: a ledger that knew this object would keep it alive."""
        self.gaps.on_change = partial(self._attention.changed.setdefault, self.subscriber)
        if self.is_behind:
            self._note_change()

    def _set_complete(self, segment_seq: int, bundle_count: int) -> None:
        super()._set_complete(segment_seq, bundle_count)
        self._attention.completing[self.subscriber] = None

    # --- claims ------------------------------------------------------------------------------------------------------------

    def held_segments(self) -> set[int]:
        """Segments of which bundles are claimed now."""
        return self._leases.segments()

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
            size_limit_bytes: stop before more than that is given.

        Returns:
            A grant for each segment; empty when nothing is pending.
        """
        room = Room(bundles, size_limit_bytes)
        if order == OLDEST:
            return self._grant(owner, self._order.take_oldest(room, before), now_ns)
        older = self._backfill(owner, bundles, backfill_ratio) if order == NEWEST_BACKFILL else 0
        room.bundles = bundles - older
        granted = self._grant(owner, self._order.take_newest(room), now_ns)
        if older:
            room.bundles = older
            granted += self._grant(owner, self._order.take_oldest(room, None), now_ns)
        return granted

    def _backfill(self, owner: object, bundles: int, ratio: int) -> int:
        """How many of the next bundles of a mixed order are old ones."""
        holder = self._leases.owner(owner)
        older = backfill_share(holder.mix + bundles, ratio) - backfill_share(holder.mix, ratio)
        holder.mix = (holder.mix + bundles) % BACKFILL_CYCLE
        return older

    def _grant(self, owner: object, claimed: Iterable[Live], now_ns: int) -> list[Grant]:
        """What was claimed is the owner's."""
        leases = self._leases
        holder = leases.owner(owner)
        granted = []
        for live in claimed:
            if live.held:
                grant = leases.grant(live, owner, holder, now_ns)
                self._count_delivered(live.held)
                self.redelivered += live.held - first_deliveries(grant.counts)
                granted.append(grant)
        if granted:
            self._note_lease(now_ns)
        return granted

    def _count_delivered(self, bundles: int) -> None:
        seen_before = min(bundles, self._unseen)
        self._unseen -= seen_before
        self.delivered += bundles - seen_before

    def claim_ref(self, owner: object, segment_seq: int, bundle_index: int, now_ns: int) -> Grant:
        """Claim one bundle by its id, also if it is deferred or blocked.

        Raises:
            AlreadyResolved: it is done with.
            NotClaimed: somebody holds it, or it is not sealed yet.
        """
        if self.is_complete(segment_seq):
            raise AlreadyResolved(f"bundle {segment_seq}/{bundle_index} is resolved for {self.subscriber!r}")
        states = self.segments.get(segment_seq)
        if states is None or not 0 <= bundle_index < states.bundle_count:
            raise NotClaimed(f"bundle {segment_seq}/{bundle_index} is not in a sealed segment")
        if states.at(bundle_index)[0] >= ACKED:
            raise AlreadyResolved(f"bundle {segment_seq}/{bundle_index} is resolved for {self.subscriber!r}")
        live = Live(self._tokens.take(), segment_seq, states)
        if not self._aside.claim_one(states, bundle_index, live.token):
            raise NotClaimed(f"bundle {segment_seq}/{bundle_index} is held by another consumer or being moved away")
        live.add(range(bundle_index, bundle_index + 1), Room(1, None))
        return self._grant(owner, [live], now_ns)[0]

    def extend(self, owner: object, tokens: Iterable[int], now_ns: int) -> tuple[int, list[int]]:
        """Start the lease of these claims anew.

        Returns:
            When it ends now (0: never), and the tokens under which `owner` holds nothing any more.
        """
        return self._leases.extend(owner, tokens, now_ns)

    def held(self, owner: object) -> tuple[int, int]:
        """(bundles, bytes) that `owner` has claimed now."""
        return self._leases.held(owner)

    def oldest_pending(self) -> Position | None:
        """Position of the bundle that a claim of the oldest would give next."""
        return self._order.oldest()

    # --- ends of claims ----------------------------------------------------------------------------------------------------

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
        """Finish claims: `ack`, `reject`, `defer` for `delay_ns` from `now_ns` (0 = pending at once), or `return`, which is not counted
        as a delivery, likewise.

        Saying the same again is no error.

        Returns:
            The bundles that `owner` does not hold under `token`, by the `code` of the error that says why; the others are done.

        Raises:
            UsageError: unknown outcome; nothing was changed.
        """
        target = OUTCOMES.get(outcome)
        if target is None:
            raise UsageError(f"outcome {outcome!r} is unknown: expected one of {', '.join(OUTCOMES)}")
        live = self._leases.find(token, owner, segment_seq)
        if live is None:
            return refusals(self, self._leases, segment_seq, token, target, indexes)
        states = live.states
        if target >= ACKED:
            moved, refused = states.move(indexes, token, target)
            if moved:
                self._leases.count_off(live, len(moved), states.sizes.of(moved))
                self._note_outcome(segment_seq, states, target, len(moved))
        else:
            moved, refused = states.held(indexes, token)
            if moved:
                self._give_back(live, moved, target, delay_ns, now_ns)
        return refusals(self, self._leases, segment_seq, token, target, refused) if refused else []

    def _note_outcome(self, segment_seq: int, states: BundleStates, target: int, count: int) -> None:
        if target == ACKED:
            self.acked += count
        else:
            self.rejected += count
        self.note(segment_seq, states, count)

    def _give_back(self, live: Live, moved: Sequence[int], target: int, delay_ns: int, now_ns: int) -> None:
        """The holder itself defers or returns bundles."""
        states = live.states
        states.mark_given_back(moved)
        self.deferred += len(moved)
        if target == RETURNED:
            states.uncount(moved)
            # A counter that fell would be read as a restart by whoever takes its rate: with all that it had counted.
            self._unseen += len(moved)
        # Also of what is returned: one that was blocked may have been claimed by its id.
        again = self._without_exhausted(live.segment_seq, states, moved)
        if delay_ns > 0:
            self._aside.defer(live.segment_seq, states, live.token, again, now_ns + delay_ns)
            self._attention.call_at(self, now_ns + delay_ns)
        else:
            self._make_pending(live.segment_seq, states, again)
        self._leases.count_off(live, len(moved), states.sizes.of(moved))

    def _make_pending(self, segment_seq: int, states: BundleStates, indexes: Sequence[int]) -> None:
        if indexes:
            first, last = (indexes[0], indexes[-1]) if isinstance(indexes, range) else (min(indexes), max(indexes))
            states.set_claimed(indexes, RELEASED)
            self._order.offer(segment_seq, first, last + 1)

    def _without_exhausted(self, segment_seq: int, states: BundleStates, indexes: Sequence[int]) -> Sequence[int]:
        """Set aside what was delivered too often of claimed bundles that come back; returns the others."""
        again, gone = states.split_exhausted(indexes, self._aside.max_deliveries)
        if gone:
            target = self._aside.target
            states.set_claimed(gone, target)
            if target >= ACKED:
                self._note_outcome(segment_seq, states, target, len(gone))
            else:
                self._aside.block(segment_seq, gone)
        return again

    def release(self, owner: object) -> int:
        """Make all claims of an owner that is gone pending again at once; returns how many there were."""
        self.gaps.release(owner)
        return self._take_away(self._leases.of_owner(owner))

    def _take_away(self, lives: Iterable[Live]) -> int:
        """End grants whose owner is gone or silent, those of one segment together; returns how many bundles they held."""
        taken = 0
        by_segment: dict[int, list[Live]] = {}
        for live in lives:
            taken += live.held
            by_segment.setdefault(live.segment_seq, []).append(live)
        for segment_seq, group in by_segment.items():
            states = group[0].states
            indexes = states.held_under(group)
            self._leases.take_away(group)
            self._make_pending(segment_seq, states, self._without_exhausted(segment_seq, states, indexes))
            states.rest()
        return taken

    def give_gap(self, notice: GapNotice, owner: object, now_ns: int) -> None:
        """A notice is being sent to that owner, which has as long as a lease to acknowledge it."""
        self.gaps.give(notice, owner, now_ns + self.lease_ns if self.lease_ns else 0)
        self._note_lease(now_ns)

    # --- time --------------------------------------------------------------------------------------------------------------

    def due(self, now_ns: int) -> bool:
        """End delays and leases that have passed; returns whether there is something to claim or to tell by it."""
        woken = 0
        for segment_seq, start, end, count in self._aside.end_delays(now_ns):
            woken += count
            self._order.offer(segment_seq, start, end)
        expired = self._take_away(self._leases.overdue(now_ns))
        self.expired += expired
        return bool(woken or expired or self.gaps.due(now_ns))

    def next_due_ns(self) -> int | None:
        """When `due` should be called next, on the clock of `now_ns`; None if time changes nothing."""
        times = (self._aside.next_due_ns(), self._leases.next_end_ns(), self.gaps.next_due_ns())
        return min((time for time in times if time is not None), default=None)

    # --- exhausted bundles -------------------------------------------------------------------------------------------------

    @property
    def exhausted(self) -> deque[Position]:
        """(segment_seq, bundle index) of bundles that wait for a dead letter; a hint, see `is_exhausted`."""
        return self._aside.exhausted

    def is_exhausted(self, segment_seq: int, bundle_index: int) -> bool:
        """Whether the bundle still waits for its dead letter."""
        states = self.segments.get(segment_seq)
        return states is not None and states.at(bundle_index)[0] == EXHAUSTED

    def delivery_count(self, segment_seq: int, bundle_index: int) -> int:
        states = self.segments.get(segment_seq)
        return states.count(bundle_index) if states else 0

    def bury(self, segment_seq: int, bundle_index: int) -> bool:
        """The dead letter of that bundle is durable: it is resolved. False if it was resolved in another way before."""
        buried = self._move_exhausted(segment_seq, bundle_index, REJECTED)
        self.dead_lettered += buried
        return buried

    def wait_again(self, segment_seq: int, bundle_index: int) -> None:
        """The dead letter of that bundle could not be written now."""
        self._aside.exhausted.append((segment_seq, bundle_index))
        self._settle_exhausted()

    def block(self, segment_seq: int, bundle_index: int) -> None:
        """No dead letter can be made of that bundle: it is kept, for whoever claims it by its id."""
        self._move_exhausted(segment_seq, bundle_index, BLOCKED)

    def _settle_exhausted(self) -> None:
        """What waits for dead letters when the terms want none goes where they want it."""
        aside = self._aside
        while aside.exhausted and not aside.wants_letters:
            target = aside.target if aside.max_deliveries else RELEASED
            self._move_exhausted(*aside.exhausted.popleft(), target)

    def _move_exhausted(self, segment_seq: int, bundle_index: int, target: int) -> bool:
        states = self.segments.get(segment_seq)
        if states is None or not self._aside.move_exhausted(states, bundle_index, target):
            return False
        if target >= ACKED:
            self._note_outcome(segment_seq, states, target, 1)
        elif target == RELEASED:
            self._order.offer(segment_seq, bundle_index, bundle_index + 1)
        return True

    # --- figures -----------------------------------------------------------------------------------------------------------

    @property
    def claimed_count(self) -> int:
        """Bundles held by owners now."""
        return self._leases.claimed_count

    @property
    def waiting_count(self) -> int:
        """Deferred bundles whose delay has not passed."""
        return self._aside.waiting_count

    @property
    def blocked_count(self) -> int:
        """Bundles that were delivered too often and are not resolved."""
        return self._aside.blocked_count

    def pending_count(self) -> int:
        """Bundles of sealed segments that nobody holds and that are not resolved, deferred ones included."""
        return self.unresolved_count - self.claimed_count

    @property
    def claimable_count(self) -> int:
        """Bundles that `claim` could give out now."""
        return self.unresolved_count - self.claimed_count - self.waiting_count - self.blocked_count

    @property
    def is_behind(self) -> bool:
        """Whether one of its files is."""
        return self.is_dirty or self.gaps.is_dirty or self.gaps.has_withdrawn

    @property
    def needs_nothing(self) -> bool:
        """No sealed bundle and no notice is owed."""
        return not self.unresolved_count and not self.gaps.untold_count
