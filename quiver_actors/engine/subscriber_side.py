"""What subscribers ask of an engine: to be known, to claim and resolve bundles, to be told of losses, and what they are owed.

Owner: the engine, on the loop thread. It owns no state: progress, segments and logs do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from quiver_actors.clock import Clock
from quiver_actors.engine.log_queue import LogQueue
from quiver_actors.engine.progress import Progress
from quiver_actors.engine.shelf import Shelf
from quiver_actors.engine_figures import PendingCounts, SubscriberFigures
from quiver_actors.errors import UsageError
from quiver_actors.events import Claimable, Event, GapFound
from quiver_actors.model import check_id
from quiver_actors.subscriber import bitmap as bitmaps
from quiver_actors.subscriber.claim_order import OLDEST
from quiver_actors.subscriber.claims import SubscriberState
from quiver_actors.subscriber.gaps import GapNotice
from quiver_actors.subscriber.grants import Grant
from quiver_actors.subscriber.progress import SegmentProgress
from quiver_actors.subscriber.seek import before_position, plan_seek
from quiver_actors.subscriber.starts import parse_start, resolved_before


class SubscriberSide:
    """See the module; an engine is one."""

    def __init__(
        self,
        core: int,
        clock: Clock,
        logs: LogQueue,
        progress: Progress,
        shelf: Shelf,
        unannounced: Callable[[], Iterable[int]],
    ) -> None:
        """
        Args:
            unannounced: says the numbers of the segments that subscribers have not been told of yet.
        """
        self.core = core
        self._clock = clock
        self._logs = logs
        self._progress = progress
        self._shelf = shelf
        self._numbers_unannounced = unannounced

    # --- subscribers ---------------------------------------------------------------------------------------------------

    def register(self, subscriber: str, start: str) -> int:
        """Make a subscriber known, or resume it. Durable once `progress_durable` reaches the returned ticket.

        Args:
            start: see `protocol.messages.Register`; only used when the subscriber is new.

        Raises:
            InvalidId, UsageError: bad id or start.
            DiskError, FormatError: the times of old bundles could not be read.
        """
        begin = parse_start(start)
        if subscriber in self._progress.registry:
            return self.progress_ticket()
        check_id("subscriber", subscriber)
        end = self._logs.end
        if begin.kind == "latest":
            state = self._progress.registry.register_at(subscriber, end)
        elif begin.kind == "bundle" and begin.core == self.core:
            state = self._progress.registry.register_at(subscriber, min(end, (begin.segment_seq, begin.bundle_index)))
        elif begin.kind == "time":
            state = self._progress.registry.register_with(subscriber, self._resolved_before(begin.unix_ns))
        else:
            state = self._progress.registry.register_at(subscriber, (0, 0))
        for segment_seq in self._shelf.doomed:
            state.forget_segment(segment_seq)
        self._shelf.hold_back()
        self._progress.changed()
        return self.flush_progress()

    def _resolved_before(self, unix_ns: int) -> dict[int, SegmentProgress]:
        """What of everything appended so far was ingested before that time."""
        found = {}
        for seq, info in self._shelf.segments.items():
            if info.last_ingestion_ts_nanos and info.last_ingestion_ts_nanos < unix_ns:
                found[seq] = SegmentProgress(info.bundle_count, bitmaps.full(info.bundle_count))
            elif info.first_ingestion_ts_nanos < unix_ns:
                found[seq] = resolved_before(self._shelf.ingestion_times(seq), unix_ns)
        for seq, times in self._logs.ingestion_times():
            if len(times):
                found[seq] = resolved_before(times, unix_ns)
        return found

    def unregister(self, subscriber: str) -> tuple[int, int]:
        """Forget a subscriber and what it is owed.

        Returns:
            The ticket (durable once `progress_durable` reaches it) and how many bundles it was owed.

        Raises:
            UnknownSubscriber: it is not known.
        """
        unsealed = self._unsealed_of(self._progress.registry.get(subscriber))
        owed = unsealed + self._progress.unregister(subscriber)
        return self.flush_progress(), owed

    def seek(self, subscriber: str, start: str, *, is_dry: bool = False) -> tuple[int, int, int]:
        """Move a known subscriber to where `start` says, as if it was new; see `subscriber.seek`. Its terms must be set again.

        Returns:
            The ticket (durable once `progress_durable` reaches it), how many bundles it skips, and how many it is owed again.

        Raises:
            UnknownSubscriber, UsageError: no such subscriber, or a start that is none.
            DiskError, FormatError: the times of old bundles could not be read.
        """
        begin = parse_start(start)
        state = self._progress.registry.get(subscriber)
        doomed, stored = set(self._shelf.doomed), self._logs.bundle_counts()
        stored.update((info.segment_seq, info.bundle_count) for info in self._shelf)
        going = {seq: stored.pop(seq) for seq in doomed & stored.keys()}
        if begin.kind == "time":
            before = self._resolved_before(begin.unix_ns)
        else:
            at_bundle = begin.kind == "bundle" and begin.core == self.core
            position = (begin.segment_seq, begin.bundle_index) if at_bundle else (0, 0)
            end = self._logs.end
            before = before_position(end if begin.kind == "latest" else min(position, end), stored)
        floor = min([self._logs.end[0], *(seq for seq in self._numbers_unannounced() if not state.is_complete(seq))])
        plan = plan_seek(state, stored, before, floor, going)
        if is_dry:
            return 0, plan.skipped_count, plan.again_count
        for notice in self._progress.registry.seek(subscriber, plan):
            run = (notice.segment_seq, notice.bundle_index_first, notice.bundle_count)
            self._progress.tell(GapFound(subscriber, *run, notice.reason))
        self._shelf.hold_back()
        self._progress.note_resolved()
        return self.flush_progress(), plan.skipped_count, plan.again_count

    def set_terms(self, subscriber: str, *, lease_ns: int, max_deliveries: int, exhausted: str) -> None:
        """
        Raises:
            UnknownSubscriber, UsageError: nothing was changed.
        """
        state = self._progress.registry.get(subscriber)
        version = state.version
        state.set_terms(
            lease_ns=lease_ns, max_deliveries=max_deliveries, exhausted=exhausted, now_ns=self._clock.monotonic_ns()
        )
        if state.version != version:
            self._progress.note_resolved()

    def subscribers(self) -> list[str]:
        return [state.subscriber for state in self._progress.registry]

    # --- progress ------------------------------------------------------------------------------------------------------

    def progress_ticket(self) -> int:
        """The ticket that covers every change of progress so far."""
        return self._progress.ticket

    def flush_progress(self) -> int:
        """Flush with the next background job instead of after the interval. Returns the ticket to wait for."""
        return self._progress.flush()

    # --- claims --------------------------------------------------------------------------------------------------------

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
        """Give at most that many sealed bundles to `owner`; see `SubscriberState.claim`.

        Oldest first stops where a gap notice has to be told first: take it with `take_gap` and claim again.
        """
        state = self._progress.registry.get(subscriber)
        notice = state.gaps.next_untold() if order == OLDEST else None
        return state.claim(
            owner,
            bundles,
            self._clock.monotonic_ns(),
            order=order,
            backfill_ratio=backfill_ratio,
            before=notice.position if notice else None,
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
        version = state.version
        refused = state.resolve(owner, segment_seq, token, outcome, indexes, delay_ns, self._clock.monotonic_ns())
        if state.version != version:
            self._progress.note_resolved()
        return refused

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
                f"bundle {segment_seq}/{bundle_index} does not exist on core {self.core}: the next one is {end[0]}/{end[1]}"
            )
        unsealed = {seq: count for seq, count in self._counted().items() if seq <= segment_seq}
        version = state.version
        state.ack_through(segment_seq, bundle_index, unsealed)
        if state.version != version:
            self._progress.note_resolved()
        return self.flush_progress()

    def extend(self, subscriber: str, owner: object, tokens: Iterable[int]) -> tuple[int, list[int]]:
        """Start leases anew; see `SubscriberState.extend`."""
        return self._progress.registry.get(subscriber).extend(owner, tokens, self._clock.monotonic_ns())

    def held(self, subscriber: str, owner: object) -> tuple[int, int]:
        """(bundles, bytes) of that subscriber that `owner` holds."""
        return self._progress.registry.get(subscriber).held(owner)

    def claimable_count(self, subscriber: str) -> int:
        return self._progress.registry.get(subscriber).claimable_count

    def release(self, owner: object) -> list[Event]:
        """A connection is gone: its claims are pending again at once."""
        released: list[Event] = [Claimable(subscriber) for subscriber in self._progress.registry.release(owner)]
        self._progress.note_given_back()
        return released

    # --- losses --------------------------------------------------------------------------------------------------------

    def take_gap(self, subscriber: str, owner: object, *, in_order: bool = True) -> GapNotice | None:
        """The notice that `owner` is to be told now, if it is durable; with `in_order` only once no older bundle is pending.

        It stays with that owner until `ack_gap`, its `release`, or the end of a lease.
        """
        state = self._progress.registry.get(subscriber)
        notice = state.gaps.next_untold()
        if notice is None or not state.gaps.is_durable(notice):
            return None
        oldest = state.oldest_pending() if in_order else None
        if oldest is not None and oldest < notice.position:
            return None
        state.give_gap(notice, owner, self._clock.monotonic_ns())
        return notice

    def ack_gap(self, subscriber: str, notice: int) -> int:
        """A consumer has been told. Returns the ticket that makes it durable."""
        self._progress.registry.get(subscriber).gaps.ack(notice)
        if self._progress.registry.is_dirty:
            self._progress.changed()
        return self.flush_progress()

    def drop_segment(self, segment_seq: int, reason: str) -> int:
        """Give a sealed segment up for everybody who has not resolved it (`evicted`, `expired`, `dropped`). Its file can go once
        `progress_durable` reaches the returned ticket, and goes by itself.
        """
        self._shelf.drop(segment_seq, reason)
        return self.flush_progress()

    # --- dead letters --------------------------------------------------------------------------------------------------

    def exhausted(self, subscriber: str) -> tuple[int, int] | None:
        """The next bundle that waits for its dead letter, now the caller's to bury; None if there is none."""
        state = self._progress.registry.get(subscriber)
        while state.exhausted:
            position = state.exhausted.popleft()
            if state.is_exhausted(*position):
                return position
        return None

    def exhausted_again(self, subscriber: str, segment_seq: int, bundle_index: int) -> None:
        """Its dead letter could not be written: try it later, if it is still wanted."""
        if subscriber in self._progress.registry:
            state = self._progress.registry.get(subscriber)
            version = state.version
            state.wait_again(segment_seq, bundle_index)
            if state.version != version:
                self._progress.note_resolved()

    def block(self, subscriber: str, segment_seq: int, bundle_index: int) -> None:
        """No dead letter can be made of it: it is kept, and given to nobody but who claims it by its id."""
        if subscriber in self._progress.registry:
            self._progress.registry.get(subscriber).block(segment_seq, bundle_index)

    def delivery_count(self, subscriber: str, segment_seq: int, bundle_index: int) -> int:
        return self._progress.registry.get(subscriber).delivery_count(segment_seq, bundle_index)

    def bury(self, subscriber: str, segment_seq: int, bundle_index: int) -> None:
        """The dead letter of that bundle is durable. Ignored if the subscriber is gone."""
        if subscriber in self._progress.registry and self._progress.registry.get(subscriber).bury(
            segment_seq, bundle_index
        ):
            self._progress.note_resolved()

    # --- what is owed --------------------------------------------------------------------------------------------------

    def pending(
        self, subscriber: str, start: tuple[int, int] = (0, 0), end: tuple[int, int] | None = None
    ) -> PendingCounts:
        """What the subscriber is owed, and how much of it lies in `start..end`."""
        state = self._progress.registry.get(subscriber)
        unsealed = self._unsealed_of(state)
        in_range, uncounted = state.unresolved_between(start, end), self._shelf.uncounted()
        for seq, count in self._unannounced().items():
            first = 0 if seq > start[0] else start[1] if seq == start[0] else count
            stop = count if end is None or seq < end[0] else end[1] if seq == end[0] else 0
            # Who asks about bundles of a segment that does not say how many it has knows that it has them.
            stop = stop if seq in uncounted else min(stop, count)
            if first < stop:
                in_range += state.unresolved_in_unsealed(seq, stop) - state.unresolved_in_unsealed(seq, first)
        return PendingCounts(
            pending=state.claimable_count,
            claimed=state.claimed_count,
            deferred=state.waiting_count,
            blocked=state.blocked_count,
            unsealed=unsealed,
            gaps=state.gaps.untold_count,
            oldest=state.oldest_unresolved(),
            in_range=in_range,
            drained=state.needs_nothing and not unsealed,
        )

    def _unannounced(self) -> dict[int, int]:
        """Bundle counts of what subscribers have not been told of: unsealed logs, and segments that wait for their check or their rescue;
        at least one more than anybody knows of those that do not say how many they have."""
        known = self._progress.registry.known_bundle_count
        return {**{seq: known(seq) + 1 for seq in self._shelf.uncounted()}, **self._counted()}

    def _counted(self) -> dict[int, int]:
        """Without those that do not say how many they have."""
        return {**self._shelf.waiting_counts(), **self._logs.bundle_counts()}

    def _unsealed_of(self, state: SubscriberState) -> int:
        return sum(state.unresolved_in_unsealed(seq, count) for seq, count in self._unannounced().items())

    def bundle_time(self, segment_seq: int, bundle_index: int) -> int:
        """When a bundle was ingested, UNIX nanoseconds; 0 where that is not known (any more)."""
        times = self._logs.ingestion_times_of(segment_seq)
        if times is None and segment_seq in self._shelf.segments:
            times = self._shelf.ingestion_times(segment_seq)
        if times is None:
            return 0
        return int(times[bundle_index]) if 0 <= bundle_index < len(times) else 0

    def subscriber_figures(self, subscribers: Iterable[str] | None = None) -> dict[str, SubscriberFigures]:
        """A snapshot of each of these, or of all. Raises UnknownSubscriber."""
        unannounced = self._unannounced()
        wanted = self.subscribers() if subscribers is None else subscribers
        return {subscriber: self._figures_of(subscriber, unannounced) for subscriber in wanted}

    def figures_of(self, subscriber: str) -> SubscriberFigures:
        """A snapshot of one subscriber. Raises UnknownSubscriber."""
        return self._figures_of(subscriber, self._unannounced())

    def _figures_of(self, subscriber: str, unannounced: Mapping[int, int]) -> SubscriberFigures:
        state = self._progress.registry.get(subscriber)
        lag = state.unresolved_count
        lag += sum(state.unresolved_in_unsealed(seq, count) for seq, count in unannounced.items())
        return SubscriberFigures(
            lag_bundles=lag,
            oldest_unix_ns=self._oldest_unix_ns(state.oldest_unresolved()) if lag else 0,
            claimed=state.claimed_count,
            acked=state.acked,
            rejected=state.rejected,
            deferred=state.deferred,
            delivered=state.delivered,
            pending=state.claimable_count,
            waiting=state.waiting_count,
            blocked=state.blocked_count,
            gaps=state.gaps.untold_count,
            redelivered=state.redelivered,
            expired=state.expired,
            dead_lettered=state.dead_lettered,
            dropped=state.dropped,
        )

    def _oldest_unix_ns(self, oldest: tuple[int, int] | None) -> int:
        """Ingestion time of the segment in which the oldest unresolved bundle is: exact to one segment."""
        info = self._shelf.segments.get(oldest[0]) if oldest else None
        if info is not None:
            return info.first_ingestion_ts_nanos
        return self._logs.first_ingestion_unix_ns()
