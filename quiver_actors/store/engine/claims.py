"""The claims of consumers to the bundles of one engine: given, resolved, extended and taken back; and the notices of what is lost.

Owner: the engine, on the loop thread. It owns no state: each subscriber's own does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from quiver_actors.base.clock import Clock
from quiver_actors.base.ranges import runs_of
from quiver_actors.errors import UsageError
from quiver_actors.store.engine.events import Claimable, Event, GapFound
from quiver_actors.store.engine.log_queue import LogQueue
from quiver_actors.store.engine.owed import Owed
from quiver_actors.store.engine.progress import Progress
from quiver_actors.store.engine.unchecked import Unchecked
from quiver_actors.store.subscriber import losses, terms
from quiver_actors.store.subscriber.attention import WithdrawnClaims
from quiver_actors.store.subscriber.claim_order import NEWEST_BACKFILL, OLDEST
from quiver_actors.store.subscriber.claims import SubscriberState
from quiver_actors.store.subscriber.gaps import REASONS, GapNotice
from quiver_actors.store.subscriber.grants import Grant
from quiver_actors.store.subscriber.progress_state import Position
from quiver_actors.store.subscriber.seek import ack_through


class Claims:
    """Serves the consumers of one engine: claims, resolutions, notices of losses, dead letters."""

    def __init__(
        self, core: int, clock: Clock, logs: LogQueue, progress: Progress, unchecked: Unchecked, owed: Owed
    ) -> None:
        self._core = core
        self._clock = clock
        self._logs = logs
        self._progress = progress
        self._unchecked = unchecked
        self._owed = owed

    def claim(
        self,
        subscriber: str,
        owner: object,
        bundles: int,
        *,
        order: str = OLDEST,
        backfill_ratio: int = 0,
        size_limit_bytes: int | None = None,
    ) -> list[Grant]:
        """Give at most that many bundles to `owner`; see `SubscriberState.claim`.

        Oldest first stops where a gap notice has to be told first: take it with `take_gap` and claim again. It also stops where a segment
        waits for its check of which the subscriber is owed bundles.
        """
        state = self._progress.registry.get(subscriber)
        notice = state.gaps.next_untold() if order == OLDEST else None
        before = notice.position if notice else None
        if self._unchecked and order in (OLDEST, NEWEST_BACKFILL):
            before = _lower(before, self._unchecked.limit(state))
        return state.claim(
            owner,
            bundles,
            self._clock.monotonic_ns(),
            order=order,
            backfill_ratio=backfill_ratio,
            before=before,
            size_limit_bytes=size_limit_bytes,
        )

    def claim_ref(self, subscriber: str, owner: object, segment_seq: int, bundle_index: int) -> Grant:
        """Raises UnknownSubscriber, AlreadyResolved or NotClaimed; see `SubscriberState.claim_ref`."""
        now_ns = self._clock.monotonic_ns()
        return self._progress.registry.get(subscriber).claim_ref(owner, segment_seq, bundle_index, now_ns)

    def resolve(
        self,
        subscriber: str,
        owner: object,
        segment_seq: int,
        token: int,
        outcome: str,
        indexes: Sequence[int],
        delay_ns: int,
    ) -> list[tuple[str, list[int]]]:
        """Finish claims; see `SubscriberState.resolve`.

        Raises:
            UsageError: unknown outcome or subscriber; nothing was changed.
        """
        state = self._progress.registry.get(subscriber)
        version = state.progress.changes.version
        refused = state.resolve(owner, segment_seq, token, outcome, indexes, delay_ns, self._clock.monotonic_ns())
        if state.progress.changes.version != version:
            self._progress.note_resolved()
        return refused

    def expect_taken(self, subscriber: str, owner: object, *, tells: bool) -> None:
        """Note whether `owner` will say by `note_taken` what its caller was handed; if not, all that it is given counts as delivered."""
        self._progress.registry.get(subscriber).leases.owner(owner).tells_taken = tells

    def note_taken(self, subscriber: str, owner: object, segment_seq: int, token: int, indexes: Sequence[int]) -> None:
        """Note what the caller of `owner` was handed; see `Leases.note_taken`. Raises UnknownSubscriber."""
        self._progress.registry.get(subscriber).leases.note_taken(token, owner, segment_seq, indexes)

    def ack_through(self, subscriber: str, segment_seq: int, bundle_index: int) -> int:
        """Resolve everything up to and including that bundle; returns the ticket that makes it durable.

        Raises:
            UnknownSubscriber: it is not known.
            UsageError: no such bundle was appended yet.
        """
        state = self._progress.registry.get(subscriber)
        end = self._logs.end
        if (segment_seq, bundle_index) >= end or bundle_index < 0 or segment_seq < 0:
            raise UsageError(
                f"bundle {segment_seq}/{bundle_index} does not exist on core {self._core}: the next one is {end[0]}/{end[1]}"
            )
        unsealed = {seq: count for seq, count in self._owed.counted().items() if seq <= segment_seq}
        version = state.progress.changes.version
        ack_through(state, segment_seq, bundle_index, unsealed)
        if state.progress.changes.version != version:
            self._progress.note_resolved()
        return self._progress.flush()

    def extend(self, subscriber: str, owner: object, tokens: Iterable[int]) -> tuple[int, list[int]]:
        """Start leases anew; see `Leases.extend`."""
        return self._progress.registry.get(subscriber).leases.extend(owner, tokens, self._clock.monotonic_ns())

    def take_withdrawn(self) -> list[WithdrawnClaims]:
        """The claims that ended since the last call without their owners having ended them; whoever has none of them need not ask."""
        return self._progress.registry.attention.take_withdrawn()

    def held(self, subscriber: str, owner: object) -> tuple[int, int]:
        """How many bundles, and how many bytes, of that subscriber `owner` holds."""
        return self._progress.registry.get(subscriber).leases.held(owner)

    def claimable_count(self, subscriber: str) -> int:
        """Return how many bundles the subscriber could claim now. Raises UnknownSubscriber."""
        return self._progress.registry.get(subscriber).claimable_count

    def has_news(self, subscriber: str) -> bool:
        """Whether the subscriber could claim a bundle now, or has a durable notice that nobody was told. Raises UnknownSubscriber."""
        state = self._progress.registry.get(subscriber)
        if state.claimable_count:
            return True
        notice = state.gaps.next_untold()
        return notice is not None and state.gaps.is_durable(notice)

    def release(self, owner: object) -> list[Event]:
        """Make the claims of a connection that is gone pending again, at once."""
        released: list[Event] = [Claimable(subscriber) for subscriber in self._progress.registry.release(owner)]
        self._progress.note_given_back()
        return released

    def release_of(self, subscriber: str, owner: object) -> None:
        """Make the claims that `owner` has under this subscriber pending again, at once."""
        self._progress.registry.get(subscriber).release(owner)
        self._progress.note_given_back()

    # --- losses --------------------------------------------------------------------------------------------------------

    def take_gap(self, subscriber: str, owner: object, *, in_order: bool = True) -> GapNotice | None:
        """The notice that `owner` is to be told now, if it is durable; with `in_order` only once no older bundle is pending.

        It stays with that owner until `ack_gap`, its `release`, or the end of a lease.
        """
        state = self._progress.registry.get(subscriber)
        notice = state.gaps.next_untold()
        if notice is None or not state.gaps.is_durable(notice):
            return None
        if in_order and self._is_behind_others(state, notice):
            return None
        state.give_gap(notice, owner, self._clock.monotonic_ns())
        return notice

    def _is_behind_others(self, state: SubscriberState, notice: GapNotice) -> bool:
        """Whether an older bundle is pending, or may come out of a check."""
        first = _lower(state.order.oldest(), self._unchecked.limit(state))
        return first is not None and first < notice.position

    def lose_archived(
        self, subscriber: str, owner: object, segment_seq: int, token: int, indexes: Sequence[int], reason: str
    ) -> None:
        """The archive does not have some bundles any more that `owner` holds: a notice comes in their place. Of bundles that are not the
        subscriber's from the archive, or not the owner's, nothing is believed.

        Raises:
            UsageError: no such subscriber, or no such reason.
        """
        state = self._progress.registry.get(subscriber)
        if reason not in REASONS:
            raise UsageError(f"reason {reason!r} is unknown: expected one of {', '.join(REASONS)}")
        live = state.leases.find(token, owner, segment_seq)
        if live is None or segment_seq not in state.progress.archived:
            return
        held = runs_of(sorted(live.states.held(indexes, token)[0]))
        for notice in losses.lose_archived(state, [(segment_seq, *run, reason) for run in held]):
            place = (notice.segment_seq, notice.bundle_index_first, notice.bundle_count)
            self._progress.tell(GapFound(subscriber, *place, reason))
        self._progress.note_resolved()
        self._progress.flush()

    def has_gap(self, subscriber: str, owner: object, notice: int) -> bool:
        """Whether that notice was given to `owner`, or acknowledging it changes nothing."""
        return self._progress.registry.get(subscriber).gaps.is_given(notice, owner)

    def ack_gap(self, subscriber: str, notice: int) -> int:
        """Note that a consumer has been told. Returns the ticket that makes it durable."""
        self._progress.registry.get(subscriber).gaps.ack(notice)
        if self._progress.registry.flushes.is_dirty:
            self._progress.changed()
        return self._progress.flush()

    # --- dead letters --------------------------------------------------------------------------------------------------

    def exhausted(self, subscriber: str) -> tuple[int, int] | None:
        """The next bundle that waits for its dead letter, now the caller's to bury; None if there is none."""
        return terms.next_exhausted(self._progress.registry.get(subscriber))

    def exhausted_again(self, subscriber: str, segment_seq: int, bundle_index: int) -> None:
        """Try the dead letter of a bundle again later, if it is still wanted: it could not be written now."""
        if subscriber in self._progress.registry:
            state = self._progress.registry.get(subscriber)
            version = state.progress.changes.version
            terms.wait_again(state, segment_seq, bundle_index)
            if state.progress.changes.version != version:
                self._progress.note_resolved()

    def block(self, subscriber: str, segment_seq: int, bundle_index: int) -> None:
        """Keep a bundle that no dead letter can be made of, and give it only to a claim by its id."""
        if subscriber in self._progress.registry:
            terms.block(self._progress.registry.get(subscriber), segment_seq, bundle_index)

    def delivery_count(self, subscriber: str, segment_seq: int, bundle_index: int) -> int:
        """Return how often a bundle was delivered to the subscriber since the worker started."""
        return self._progress.registry.get(subscriber).delivery_count(segment_seq, bundle_index)

    def bury(self, subscriber: str, segment_seq: int, bundle_index: int) -> None:
        """Resolve a bundle whose dead letter is durable. Ignored if the subscriber is gone."""
        if subscriber in self._progress.registry and terms.bury(
            self._progress.registry.get(subscriber), segment_seq, bundle_index
        ):
            self._progress.note_resolved()


def _lower(position: Position | None, other: Position | None) -> Position | None:
    """The lower one of two positions; None stands for no position."""
    if position is None or other is None:
        return other if position is None else position
    return min(position, other)
