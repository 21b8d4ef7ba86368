"""The progress of an engine's subscribers: who they are, when their changes are flushed, and what became true by them.

Owner: the engine, on the loop thread. Changes are flushed together, an interval after the first of them; each is covered by a
ticket, durable once `durable` has reached it.
"""

from __future__ import annotations

from collections.abc import Callable

from quiver_actors import jobs
from quiver_actors.clock import Clock
from quiver_actors.config import TopicSettings
from quiver_actors.disk.protocol import Disk
from quiver_actors.engine.condition import Condition
from quiver_actors.events import Event, ProgressDurable, Retired
from quiver_actors.paths import EnginePaths
from quiver_actors.subscriber.claims import SubscriberState
from quiver_actors.subscriber.gaps import gaps_file_name
from quiver_actors.subscriber.progress import encode_progress, progress_file_name
from quiver_actors.subscriber.registry import SubscriberRegistry


class Progress:
    """See the module.

    Attributes:
        registry: the subscribers; whoever changes one says so with `changed` or `note_resolved`.
        ticket: covers every change so far.
        durable: changes up to that ticket are on disk.
        due_ns: when the next flush is due, None if nothing is to be flushed.
        flushes: how many were done.
    """

    def __init__(
        self,
        disk: Disk,
        paths: EnginePaths,
        settings: TopicSettings,
        clock: Clock,
        condition: Condition,
        registry: SubscriberRegistry,
    ) -> None:
        self.registry = registry
        self.ticket = 0
        self.durable = 0
        self.due_ns: int | None = None
        self.flushes = 0
        self._disk = disk
        self._paths = paths
        self._interval_ns = settings.progress_flush_interval_ns
        self._clock = clock
        self._condition = condition
        self._removed: dict[str, int] = {}
        """Subscribers whose files are to go, and the ticket of their end: a flush that was made before says nothing of it."""
        self._events: list[Event] = []

    def change_settings(self, settings: TopicSettings) -> None:
        self._interval_ns = settings.progress_flush_interval_ns

    @property
    def is_dirty(self) -> bool:
        return bool(self._removed) or self.registry.is_dirty

    @property
    def is_forgetting(self) -> bool:
        """The files of a subscriber that is gone may come back with a crash: it still counts."""
        return bool(self._removed)

    # --- changes -----------------------------------------------------------------------------------------------------------

    def changed(self) -> None:
        """Something is to be made durable."""
        self.ticket += 1
        self._schedule()

    def note_resolved(self) -> None:
        """The same, and segments may have been completed by it."""
        self.changed()
        self._events += self.retired()

    def note_given_back(self) -> None:
        """Giving bundles back may have resolved some: delivered too often."""
        if self.registry.is_dirty:
            self.note_resolved()

    def retired(self) -> list[Event]:
        """Segments that a subscriber has completed since the last call."""
        return [Retired(subscriber, segment_seq) for subscriber, segment_seq in self.registry.completed_since()]

    def unregister(self, subscriber: str) -> int:
        """Forget a subscriber and delete its files. Returns how many sealed bundles it was owed. Raises UnknownSubscriber."""
        owed = self.registry.unregister(subscriber)
        self.changed()
        self._removed[subscriber] = self.ticket
        return owed

    # --- what is told by and by --------------------------------------------------------------------------------------------

    def tell(self, event: Event) -> None:
        """With the engine's next events."""
        self._events.append(event)

    @property
    def has_events(self) -> bool:
        return bool(self._events)

    def take_events(self) -> list[Event]:
        """What is still true of it: a subscriber may have been moved back since it had finished a segment."""
        events, self._events = self._events, []
        return [event for event in events if not (isinstance(event, Retired) and self._is_owed(event))]

    def _is_owed(self, event: Retired) -> bool:
        registry = self.registry
        return event.subscriber in registry and not registry.get(event.subscriber).is_complete(event.segment_seq)

    # --- flushes -----------------------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        if self.due_ns is None:
            wait_ns = 0 if self._condition.is_draining else self._interval_ns
            self.due_ns = self._clock.monotonic_ns() + wait_ns

    def flush(self) -> int:
        """Flush with the next background job instead of after the interval. Returns the ticket to wait for."""
        if self.is_dirty:
            self.hurry()
        return self.ticket

    def hurry(self) -> None:
        """Somebody waits for the next flush, whatever is in it."""
        self.due_ns = self._clock.monotonic_ns()

    def drain(self) -> None:
        self.due_ns = self._clock.monotonic_ns() if self.is_dirty else None

    def flush_job(self, oldest_unannounced: Callable[[], int]) -> jobs.ProgressJob | None:
        """
        Args:
            oldest_unannounced: says the lowest segment number that subscribers have not been told of yet.
        """
        if self.due_ns is None or self._clock.monotonic_ns() < self.due_ns:
            return None
        writes = []
        for name in sorted(name for name in self._removed if name not in self.registry):
            writes.append(jobs.ProgressWrite(self._progress_path(name), None, name, 0))
            writes.append(jobs.ProgressWrite(self._gaps_path(name), None, name, 0))
        writes += self._gap_writes()
        for subscriber, version, progress in self.registry.dirty(oldest_unannounced()):
            content = encode_progress(progress)
            writes.append(jobs.ProgressWrite(self._progress_path(subscriber), content, subscriber, version))
        # Withdrawn notices go only after the progress that owes their bundles again.
        withdrawing = [state for state in self.registry.changed() if state.gaps.has_withdrawn]
        writes += [self._gap_write(state, with_withdrawn=False) for state in withdrawing]
        self.due_ns = None
        return jobs.ProgressJob(self._disk, self._paths, writes, self.ticket)

    def _gap_writes(self) -> list[jobs.ProgressWrite]:
        # One that was unregistered and came back at once must not inherit the old notices.
        return [
            self._gap_write(state, with_withdrawn=True)
            for state in self.registry.changed()
            if state.gaps.is_dirty or state.subscriber in self._removed
        ]

    def _gap_write(self, state: SubscriberState, *, with_withdrawn: bool) -> jobs.ProgressWrite:
        gaps, path = state.gaps, self._gaps_path(state.subscriber)
        content = gaps.encode(state.flushed_version, with_withdrawn=with_withdrawn)
        return jobs.ProgressWrite(path, content, state.subscriber, gaps.version, is_gaps=True)

    def _gaps_path(self, subscriber: str) -> str:
        return self._paths.in_root(gaps_file_name(subscriber))

    def _progress_path(self, subscriber: str) -> str:
        return self._paths.in_root(progress_file_name(subscriber))

    def finish_flush(self, job: jobs.ProgressJob) -> list[Event]:
        for write in job.writes:
            if (write.content is None or write.is_gaps) and self._removed.get(
                write.subscriber, job.ticket + 1
            ) <= job.ticket:
                del self._removed[write.subscriber]
            if write.content is None:
                continue
            if write.is_gaps:
                self.registry.mark_gaps_flushed(write.subscriber, write.version)
            else:
                self.registry.mark_flushed(write.subscriber, write.version)
        self.durable = job.ticket
        self.flushes += 1
        if self.is_dirty:
            self._schedule()
        return [ProgressDurable(job.ticket)]

    def no_room_to_flush(self, _: jobs.ProgressJob) -> list[Event]:
        """Again as soon as the job may be tried."""
        self.due_ns = self._clock.monotonic_ns()
        return []
