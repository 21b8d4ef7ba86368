"""One durable subscriber on one engine: what it is owed, who holds what under which token, what is done.

Owner: the engine of its worker, on the loop thread. Pure: time is passed in, nothing is written here. What is resolved is kept by
`progress_state`, in which order pending bundles are found by `claim_order`, who holds what by `leases`, what nobody can have for now by
`set_aside`, the state of each bundle by `bundle_states`. Here is what happens to claims: they are given, finished, given back, taken away.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from quiver_actors.base.units import SECOND_NS
from quiver_actors.errors import AlreadyResolved, NotClaimed, UsageError
from quiver_actors.store.subscriber.attention import Attention
from quiver_actors.store.subscriber.bundle_runs import Resolved
from quiver_actors.store.subscriber.bundle_states import BundleStates
from quiver_actors.store.subscriber.claim_order import NEWEST_BACKFILL, OLDEST, ClaimOrder, SizesOf
from quiver_actors.store.subscriber.claim_room import Room
from quiver_actors.store.subscriber.delivery_counts import DeliveryCounts
from quiver_actors.store.subscriber.gaps import GapLedger, GapNotice
from quiver_actors.store.subscriber.grants import (
    BACKFILL_CYCLE,
    Grant,
    Live,
    TokenSource,
    backfill_share,
    first_deliveries,
)
from quiver_actors.store.subscriber.leases import Leases
from quiver_actors.store.subscriber.outcomes import (
    ACKED,
    OUTCOMES,
    RELEASED,
    RETURNED,
    SET_ASIDE,
    refusals,
)
from quiver_actors.store.subscriber.progress import SubscriberProgress
from quiver_actors.store.subscriber.progress_state import Position, ProgressState
from quiver_actors.store.subscriber.set_aside import SetAside
from quiver_actors.store.subscriber.sizes import OpenSizes

NOTICE_LEASE_NS_MIN = 5 * SECOND_NS
"""Shortest time that a consumer has to hand over a gap notice, however short its leases are."""


class SubscriberState:
    """Progress and claims of one subscriber.

    Attributes:
        subscriber: its id.
        attention: of the registry.
        counts: its deliveries and their outcomes.
        progress: what it has resolved.
        gaps: the notices of what it has lost.
        order: in which order it claims.
        leases: who holds what.
        aside: what nobody can claim for now.
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
        self.subscriber = subscriber
        self.counts = DeliveryCounts()
        self.attention: Attention[SubscriberState] = attention or Attention()
        # By name: whom the parts tell of changes and claims must not keep this object alive.
        self._note_change = partial(self.attention.changed.setdefault, subscriber)
        self.progress = ProgressState(
            version, self._note_change, partial(self.attention.completing.setdefault, subscriber)
        )
        self.gaps = GapLedger(version)
        self.gaps.changes.on_change = self._note_change
        self._tokens = tokens or TokenSource()
        self.order = ClaimOrder(self.progress.segments, self._tokens, sizes_of)
        self.leases = Leases(self._tokens, partial(self.attention.note_withdrawn, subscriber))
        self.aside = SetAside(self.progress.segments)

    def __repr__(self) -> str:
        return f"<SubscriberState {self.subscriber} claimed={self.leases.claimed_count} {self.progress}>"

    def load_files(self, progress: SubscriberProgress, gaps: GapLedger | None = None) -> None:
        """Take over what its files say. Only before any segment was added."""
        self.progress.load(progress)
        if gaps is not None:
            self.gaps = gaps
            gaps.changes.on_change = self._note_change
            if self.is_behind:
                self._note_change()
            # What the notices say goes into the progress file before any of them is removed.
            if len(gaps):
                self.progress.changes.note()
            for gap in gaps:
                gap.progress_version = self.progress.changes.version
                self.progress.load_lost(gap.segment_seq, gap.bundle_index_first, gap.bundle_count)

    def succeed(self, former: SubscriberState) -> None:
        """Take over from an object that stood for the same subscriber: its counts. Its claims have ended for everybody."""
        self.counts = former.counts
        self.leases.succeed(former.leases)

    def note_lease(self, now_ns: int) -> None:
        """Ask to be looked at when leases that begin now end."""
        if self.leases.lease_ns:
            self.attention.call_at(self, now_ns + self.leases.lease_ns)

    # --- segments ----------------------------------------------------------------------------------------------------------

    def add_segment(self, segment_seq: int, bundle_count: int, size_bytes: int = 0) -> None:
        """A segment is sealed and readable: what is not known as resolved of it becomes claimable.

        Known progress is applied; where it covers fewer bundles the rest is pending, where it covers more the surplus is
        ignored. Adding a segment again changes nothing.

        Raises:
            UsageError: the segment was added with another bundle count.
        """
        states = self.progress.add(segment_seq, bundle_count, size_bytes)
        if states is not None:
            self.order.offer(segment_seq, states.first_unresolved(), bundle_count)

    def grow_segment(self, segment_seq: int, bundle_count: int, sizes: OpenSizes) -> None:
        """The first so many bundles of a segment that is not sealed can be read: they become claimable."""
        known = self.progress.segments.get(segment_seq)
        first = known.bundle_count if known is not None else 0
        states = self.progress.grow(segment_seq, bundle_count)
        if states is not None:
            states.sizes = sizes
            self.order.offer(segment_seq, first, bundle_count)

    def resolve_span(self, segment_seq: int, states: BundleStates, start: int, stop: int, target: int) -> Resolved:
        """Resolve bundles whoever holds them."""
        ended = states.resolve_span(start, stop, target)
        self.aside.note_resolved(ended)
        self.leases.give_up(ended.claimed, start, stop)
        if ended.bundles:
            self.progress.note(segment_seq, states, ended.bundles)
        return ended

    # --- claims ------------------------------------------------------------------------------------------------------------

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
            before: only bundles before that position; of what is claimed oldest first.
            size_limit_bytes: stop before more than that is given.

        Returns:
            A grant for each segment; empty when nothing is pending.
        """
        room = Room(bundles, size_limit_bytes)
        if order == OLDEST:
            return self._grant(owner, self.order.take_oldest(room, before), now_ns)
        older = self._backfill(owner, bundles, backfill_ratio) if order == NEWEST_BACKFILL else 0
        room.bundles = bundles - older
        granted = self._grant(owner, self.order.take_newest(room), now_ns)
        if older:
            room.bundles = older
            granted += self._grant(owner, self.order.take_oldest(room, before), now_ns)
        return granted

    def _backfill(self, owner: object, bundles: int, ratio: int) -> int:
        """How many of the next bundles of a mixed order are old ones."""
        holder = self.leases.owner(owner)
        older = backfill_share(holder.mix + bundles, ratio) - backfill_share(holder.mix, ratio)
        holder.mix = (holder.mix + bundles) % BACKFILL_CYCLE
        return older

    def _grant(self, owner: object, claimed: Iterable[Live], now_ns: int) -> list[Grant]:
        """Give the claimed bundles to the owner."""
        leases = self.leases
        granted = []
        for live in claimed:
            if live.held:
                grant = leases.grant(live, owner, now_ns)
                self.counts.note_delivered(live.held, first_deliveries(grant.counts))
                granted.append(grant)
        if granted:
            self.note_lease(now_ns)
        return granted

    def delivery_count(self, segment_seq: int, bundle_index: int) -> int:
        """Return how often a bundle was delivered since the worker started; 0 for an unknown segment."""
        states = self.progress.segments.get(segment_seq)
        return states.count(bundle_index) if states else 0

    def claim_ref(self, owner: object, segment_seq: int, bundle_index: int, now_ns: int) -> Grant:
        """Claim one bundle by its id, also if it is deferred or blocked.

        Raises:
            AlreadyResolved: it is done with.
            NotClaimed: somebody holds it, or it cannot be read yet.
        """
        if self.progress.is_complete(segment_seq):
            raise AlreadyResolved(f"bundle {segment_seq}/{bundle_index} is resolved for {self.subscriber!r}")
        states = self.progress.segments.get(segment_seq)
        if states is None or not 0 <= bundle_index < states.bundle_count:
            raise NotClaimed(f"bundle {segment_seq}/{bundle_index} cannot be read (yet)")
        if states.at(bundle_index)[0] >= ACKED:
            raise AlreadyResolved(f"bundle {segment_seq}/{bundle_index} is resolved for {self.subscriber!r}")
        live = Live(self._tokens.take(), segment_seq, states)
        if not self.aside.claim_one(states, bundle_index, live.token):
            raise NotClaimed(f"bundle {segment_seq}/{bundle_index} is held by another consumer or being moved away")
        live.add(range(bundle_index, bundle_index + 1), Room(1, None))
        live.note_taken([bundle_index])
        return self._grant(owner, [live], now_ns)[0]

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
        """Finish claims: `ack`, `reject`, `defer` for `delay_ns` from `now_ns` (0 = pending at once), `return`, which is not counted as a
        delivery, likewise, or `set_aside` for good. Saying the same again is no error.

        Returns:
            The bundles that `owner` does not hold under `token`, by the `code` of the error that says why; the others are done.

        Raises:
            UsageError: unknown outcome; nothing was changed.
        """
        target = OUTCOMES.get(outcome)
        if target is None:
            raise UsageError(f"outcome {outcome!r} is unknown: expected one of {', '.join(OUTCOMES)}")
        live = self.leases.find(token, owner, segment_seq)
        if live is None:
            return refusals(self.progress, self.leases, segment_seq, token, target, indexes)
        states = live.states
        moved, refused = states.held(indexes, token)
        if moved and target >= ACKED:
            states.set_claimed(moved, target)
            self.leases.count_off(live, len(moved), states.sizes.of(moved))
            self.note_outcome(segment_seq, states, target, len(moved))
        elif moved:
            self._give_back(live, moved, target, delay_ns, now_ns)
        return refusals(self.progress, self.leases, segment_seq, token, target, refused) if refused else []

    def note_outcome(self, segment_seq: int, states: BundleStates, target: int, count: int) -> None:
        """Count `count` bundles of a segment as resolved by acknowledgement or rejection, the state `target`."""
        if target == ACKED:
            self.counts.acked += count
        else:
            self.counts.rejected += count
        self.progress.note(segment_seq, states, count)

    def _give_back(self, live: Live, moved: Sequence[int], target: int, delay_ns: int, now_ns: int) -> None:
        """Defer or return bundles, as their holder has asked."""
        states = live.states
        states.mark_given_back(moved, is_counted=target != RETURNED)
        self.counts.deferred += len(moved)
        if target == RETURNED:
            self.counts.note_returned(len(moved))
        # Also of what is returned: one that was blocked may have been claimed by its id.
        set_aside = self.aside.set_aside if target == SET_ASIDE else self._without_exhausted
        again = set_aside(live.segment_seq, states, moved)
        if delay_ns > 0:
            self.aside.defer(live.segment_seq, states, live.token, again, now_ns + delay_ns)
            self.attention.call_at(self, now_ns + delay_ns)
        else:
            self._make_pending(live.segment_seq, states, again)
        self.leases.count_off(live, len(moved), states.sizes.of(moved))

    def _make_pending(self, segment_seq: int, states: BundleStates, indexes: Sequence[int]) -> None:
        if indexes:
            first, last = (indexes[0], indexes[-1]) if isinstance(indexes, range) else (min(indexes), max(indexes))
            states.set_claimed(indexes, RELEASED)
            self.order.offer(segment_seq, first, last + 1)

    def _without_exhausted(
        self, segment_seq: int, states: BundleStates, indexes: Sequence[int], untaken: Sequence[int] = ()
    ) -> Sequence[int]:
        """Set aside what was delivered too often of claimed bundles that come back, not counting now the `untaken` ones of them; returns
        the others."""
        again, gone = states.split_exhausted(indexes, self.aside.max_deliveries, untaken)
        if gone:
            target = self.aside.target
            states.set_claimed(gone, target)
            if target >= ACKED:
                self.note_outcome(segment_seq, states, target, len(gone))
            else:
                self.aside.block(segment_seq, gone)
        return again

    def release(self, owner: object) -> int:
        """Make all claims of an owner that is gone pending again at once; returns how many there were."""
        self.gaps.release(owner)
        return self._take_away(self.leases.of_owner(owner))

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
            # A bundle that nobody was handed was not delivered: the fate of those in front of it is not its own.
            untaken = [index for live in group for index in live.untaken()] if self.aside.max_deliveries else []
            self.counts.note_returned(len(untaken))
            self.leases.take_away(group)
            self._make_pending(segment_seq, states, self._without_exhausted(segment_seq, states, indexes, untaken))
            states.rest()
        return taken

    def give_gap(self, notice: GapNotice, owner: object, now_ns: int) -> None:
        """Note that a notice is being sent to that owner, which has as long as a lease to acknowledge it, and not less than
        `NOTICE_LEASE_NS_MIN`: it drops a notice that it has not handed over by then."""
        self.gaps.give(
            notice, owner, now_ns + max(self.leases.lease_ns, NOTICE_LEASE_NS_MIN) if self.leases.lease_ns else 0
        )
        self.note_lease(now_ns)

    # --- time --------------------------------------------------------------------------------------------------------------

    def due(self, now_ns: int) -> bool:
        """End delays and leases that have passed; returns whether there is something to claim or to tell by it."""
        woken = 0
        for segment_seq, start, end, count in self.aside.end_delays(now_ns):
            woken += count
            self.order.offer(segment_seq, start, end)
        expired = self._take_away(self.leases.overdue(now_ns))
        self.counts.expired += expired
        return bool(woken or expired or self.gaps.due(now_ns))

    def next_due_ns(self) -> int | None:
        """When `due` should be called next, on the clock of `now_ns`; None if time changes nothing."""
        times = (self.aside.next_due_ns(), self.leases.next_end_ns(), self.gaps.next_due_ns())
        return min((time for time in times if time is not None), default=None)

    # --- figures -----------------------------------------------------------------------------------------------------------

    @property
    def claimable_count(self) -> int:
        """How many bundles `claim` could give now."""
        return (
            self.progress.unresolved_count
            - self.leases.claimed_count
            - self.aside.waiting_count
            - self.aside.blocked_count
        )

    @property
    def is_behind(self) -> bool:
        """Whether one of the subscriber's files is behind."""
        return self.progress.changes.is_dirty or self.gaps.changes.is_dirty or self.gaps.has_withdrawn
