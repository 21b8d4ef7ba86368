"""Questions about the bundles that subscribers are owed, and about what is stored; they change nothing.

Owner: the engine, on the loop thread. It owns no state: progress, segments and logs do.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping

from quiver_actors.base.protocol.messages import SchemaList, StatisticsList
from quiver_actors.store.engine.engine_figures import PendingCounts, SubscriberFigures
from quiver_actors.store.engine.log_queue import LogQueue
from quiver_actors.store.engine.progress import Progress
from quiver_actors.store.engine.sealed_segments import SealedSegments
from quiver_actors.store.subscriber.claims import SubscriberState
from quiver_actors.store.subscriber.gaps import GapNotice


class Owed:
    """Says what the subscribers of one engine are owed, and where they stand."""

    def __init__(self, logs: LogQueue, progress: Progress, sealed_segments: SealedSegments) -> None:
        self._logs = logs
        self._progress = progress
        self._sealed_segments = sealed_segments

    def schemas(self, tag: int) -> SchemaList:
        """Return every schema of what is stored, sealed or not; see `Summaries.schemas`."""
        return self._sealed_segments.summaries.schemas(tag, self._logs)

    def statistics(self, tag: int, first: int) -> StatisticsList:
        """Return what is known of the columns of sealed segments; see `Summaries.statistics`."""
        return self._sealed_segments.summaries.statistics(tag, first)

    def pending(
        self, subscriber: str, start: tuple[int, int] = (0, 0), end: tuple[int, int] | None = None
    ) -> PendingCounts:
        """Return how many bundles the subscriber is owed, and how many of them lie in `start..end`."""
        state = self._progress.registry.get(subscriber)
        unsealed = self.unsealed_of(state)
        in_range, uncounted = state.progress.unresolved_between(start, end), self._sealed_segments.uncounted()
        for seq, count in self._unannounced().items():
            first = 0 if seq > start[0] else start[1] if seq == start[0] else count
            stop = count if end is None or seq < end[0] else end[1] if seq == end[0] else 0
            # Who asks about bundles of a segment that does not say how many it has knows that it has them.
            stop = stop if seq in uncounted else min(stop, count)
            if first < stop:
                in_range += state.progress.unresolved_in_unsealed(seq, stop) - state.progress.unresolved_in_unsealed(
                    seq, first
                )
        return PendingCounts(
            pending=state.claimable_count,
            claimed=state.leases.claimed_count,
            deferred=state.aside.waiting_count,
            blocked=state.aside.blocked_count,
            unsealed=unsealed,
            gaps=state.gaps.untold_count,
            oldest=state.progress.oldest_unresolved(),
            in_range=in_range,
            drained=not (state.progress.unresolved_count or state.gaps.untold_count or unsealed),
        )

    def _unannounced(self) -> dict[int, int]:
        """Bundle counts of what subscribers have not been told of: unsealed logs, and segments that wait for their check or their rescue;
        at least one more than anybody knows of those that do not say how many they have."""
        known = self._progress.registry.known_bundle_count
        return {**{seq: known(seq) + 1 for seq in self._sealed_segments.uncounted()}, **self.counted()}

    def counted(self) -> dict[int, int]:
        """Bundle counts of what subscribers have not been told of, without the segments that do not say how many they have."""
        return {**self._sealed_segments.waiting_counts(), **self._logs.bundle_counts()}

    def unsealed_of(self, state: SubscriberState) -> int:
        """How many bundles a subscriber is owed that it was not told of yet."""
        return sum(state.progress.unresolved_in_unsealed(seq, count) for seq, count in self._unannounced().items())

    def bundle_time(self, segment_seq: int, bundle_index: int) -> int:
        """When a bundle was ingested, UNIX nanoseconds; 0 where that is not known (any more)."""
        times = next((each for seq, each in self._logs.ingestion_times() if seq == segment_seq), None)
        if times is None and segment_seq in self._sealed_segments.segments:
            times = self._sealed_segments.ingestion_times(segment_seq)
        if times is None:
            return 0
        return int(times[bundle_index]) if 0 <= bundle_index < len(times) else 0

    def subscriber_figures(self, subscribers: Iterable[str] | None = None) -> dict[str, SubscriberFigures]:
        """A snapshot of each of these subscribers, or of all. Raises UnknownSubscriber."""
        unannounced = self._unannounced()
        wanted = [state.subscriber for state in self._progress.registry] if subscribers is None else subscribers
        return {subscriber: self._figures_of(subscriber, unannounced) for subscriber in wanted}

    def first_gaps(self, subscriber: str, count_max: int) -> list[GapNotice]:
        """The first notices that the subscriber has not taken, in their order. Raises UnknownSubscriber."""
        gaps = self._progress.registry.get(subscriber).gaps
        if not gaps.untold_count:
            return []
        return heapq.nsmallest(count_max, (each for each in gaps if not each.is_told), key=lambda each: each.position)

    def figures_of(self, subscriber: str) -> SubscriberFigures:
        """A snapshot of one subscriber. Raises UnknownSubscriber."""
        return self._figures_of(subscriber, self._unannounced())

    def _figures_of(self, subscriber: str, unannounced: Mapping[int, int]) -> SubscriberFigures:
        state = self._progress.registry.get(subscriber)
        lag = state.progress.unresolved_count
        lag += sum(state.progress.unresolved_in_unsealed(seq, count) for seq, count in unannounced.items())
        return SubscriberFigures(
            lag_bundles=lag,
            oldest_unix_ns=self._oldest_unix_ns(state.progress.oldest_unresolved()) if lag else 0,
            claimed=state.leases.claimed_count,
            acked=state.counts.acked,
            rejected=state.counts.rejected,
            deferred=state.counts.deferred,
            delivered=state.counts.delivered,
            pending=state.claimable_count,
            waiting=state.aside.waiting_count,
            blocked=state.aside.blocked_count,
            gaps=state.gaps.untold_count,
            redelivered=state.counts.redelivered,
            expired=state.counts.expired,
            dead_lettered=state.counts.dead_lettered,
            dropped=state.counts.dropped,
        )

    def _oldest_unix_ns(self, oldest: tuple[int, int] | None) -> int:
        """Ingestion time of the segment in which the oldest unresolved bundle is: exact to one segment."""
        info = self._sealed_segments.segments.get(oldest[0]) if oldest else None
        if info is not None:
            return info.first_ingestion_ts_nanos
        return self._logs.first_ingestion_unix_ns()
