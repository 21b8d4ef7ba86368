"""The progress of an engine's subscribers: who they are, when their changes are flushed, and what became true by them.

Owner: the engine, on the loop thread. Changes are flushed together, an interval after the first of them; each is covered by a
ticket, durable once `durable` has reached it.
"""

from __future__ import annotations

from collections.abc import Callable

from quiver_actors.base.clock import Clock
from quiver_actors.base.config import TopicSettings
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.engine.condition import Condition
from quiver_actors.store.engine.events import Event, ProgressDurable, Retired
from quiver_actors.store.engine.progress_files import file_writes, progress_writes
from quiver_actors.store.engine.progress_journal import ProgressJournal
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.jobs.records import BringUpJob, FilesJob, JournalJob, ProgressJob
from quiver_actors.store.subscriber.registry import SubscriberRegistry


class Progress:
    """The subscribers of one engine, the flushes of their changes, and the events that follow.

    Attributes:
        registry: the subscribers; whoever changes one says so with `changed` or `note_resolved`.
        ticket: covers every change so far.
        durable: changes up to that ticket are on disk, in the files or in the journal beside them.
        filed: changes up to that ticket are in the files themselves.
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
        self.filed = 0
        self.due_ns: int | None = None
        self.flushes = 0
        self._disk = disk
        self._paths = paths
        self._interval_ns = settings.progress_flush_interval_ns
        registry.archive = settings.archive
        self._clock = clock
        self._condition = condition
        self._removed: dict[str, int] = {}
        """Subscribers whose files are to be deleted, with the ticket of their end: a flush that was made before does not cover it."""
        self._events: list[Event] = []
        self._journal = ProgressJournal(disk, paths)
        self._wanted_in_files = 0
        """The ticket that `filed` is to reach soon."""

    def change_settings(self, settings: TopicSettings) -> None:
        """Use new settings from the next flush and the next look at what may go on."""
        self._interval_ns = settings.progress_flush_interval_ns
        self.registry.archive = settings.archive

    @property
    def is_dirty(self) -> bool:
        """Whether progress or a removal is not durable yet."""
        return bool(self._removed) or self.registry.flushes.is_dirty

    @property
    def is_settled(self) -> bool:
        """Whether the progress files say everything, and nothing but them is needed for it."""
        return not self.is_dirty and not self._journal.is_open

    @property
    def is_forgetting(self) -> bool:
        """Whether the files of a removed subscriber may come back with a crash: the subscriber still counts until then."""
        return bool(self._removed)

    # --- changes -----------------------------------------------------------------------------------------------------------

    def changed(self) -> None:
        """Note that something is to be made durable."""
        self.ticket += 1
        self._schedule()

    def note_resolved(self) -> None:
        """Note a change like `changed`, by which segments may have been completed."""
        self.changed()
        self._events += self.retired()

    def note_given_back(self) -> None:
        """Note that bundles were given back: those that were delivered too often may have been resolved by it."""
        if self.registry.flushes.is_dirty:
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
        """Add the event to the engine's next events."""
        self._events.append(event)

    @property
    def has_events(self) -> bool:
        """Whether events wait to be taken."""
        return bool(self._events)

    def take_events(self) -> list[Event]:
        """Take the events that are still true: a subscriber may have been moved back since it had finished a segment."""
        events, self._events = self._events, []
        return [event for event in events if not (isinstance(event, Retired) and _is_owed(self.registry, event))]

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
        """Make the next flush due now: somebody waits for it, whatever is in it."""
        self.due_ns = self._clock.monotonic_ns()

    def settle(self) -> int:
        """Have everything up to now written into the files, as something goes only once they need it no more. Returns the ticket that
        `filed` must reach."""
        self._wanted_in_files = self.ticket
        return self.ticket

    def drain(self) -> None:
        """Make a flush due at once, if there is anything to flush. The files are brought up by it."""
        self.due_ns = self._clock.monotonic_ns() if self.is_dirty else None

    def bring_up_due_ns(self) -> int | None:
        """When the files are to be brought up to the journal: 0 if at once; None: there is no journal."""
        is_wanted = self._condition.is_draining or self.filed < self._wanted_in_files
        return 0 if is_wanted and self._journal.is_open else self._journal.due_ns

    def flush_job(self, oldest_unannounced: Callable[[], int]) -> ProgressJob | None:
        """
        Args:
            oldest_unannounced: says the lowest segment number that subscribers have not been told of yet.
        """
        now_ns, journal = self._clock.monotonic_ns(), self._journal
        bring_up_ns = self.bring_up_due_ns()
        if bring_up_ns is not None and now_ns >= bring_up_ns:
            return journal.bring_up_job(self.durable)
        if self.due_ns is None or now_ns < self.due_ns:
            return None
        job = self._append_job(oldest_unannounced)
        if job is None and journal.is_open:
            # What it holds must be in the files before anything else is written there.
            return journal.bring_up_job(self.durable)
        self.due_ns = None
        return job or self._files_job(oldest_unannounced)

    def _append_job(self, oldest_unannounced: Callable[[], int]) -> ProgressJob | None:
        """Return the job that writes progress to the journal; None if something must be written that is no progress, or belongs into
        the files."""
        changed = self.registry.flushes.changed()
        has_gaps = any(state.gaps.changes.is_dirty or state.gaps.has_withdrawn for state in changed)
        if has_gaps or self._removed or self._condition.is_draining or self.filed < self._wanted_in_files:
            return None
        if not self._journal.takes([state for state in changed if state.progress.changes.is_dirty]):
            return None
        return self._journal.append_job(progress_writes(self._paths, self.registry, oldest_unannounced()), self.ticket)

    def _files_job(self, oldest_unannounced: Callable[[], int]) -> FilesJob:
        writes = file_writes(self._paths, self.registry, self._removed, oldest_unannounced())
        self._journal.forget_files(write.subscriber for write in writes if not write.is_gaps)
        return FilesJob(self._disk, self._paths, writes, self.ticket)

    def finish_flush(self, job: ProgressJob) -> list[Event]:
        """Take back a flush: note what is durable and return the events of those who waited for it."""
        if isinstance(job, JournalJob):
            self._journal.finish_append(job, self._clock.monotonic_ns())
            for write in job.writes:
                self.registry.flushes.mark_journaled(write.subscriber, write.version)
            if self.registry.flushes.is_file_awaited(write.subscriber for write in job.writes):
                self._wanted_in_files = max(self._wanted_in_files, job.ticket)
        else:
            self._finish_files(job)
        self.flushes += 1
        if isinstance(job, BringUpJob):
            return []
        self.durable = job.ticket
        if self.is_dirty:
            self._schedule()
        return [ProgressDurable(job.ticket)]

    def _finish_files(self, job: ProgressJob) -> None:
        if isinstance(job, BringUpJob):
            self._journal.finish_bring_up(job)
        else:
            self._journal.note_files(job.writes)
        for write in job.writes:
            if (write.content is None or write.is_gaps) and self._removed.get(
                write.subscriber, job.ticket + 1
            ) <= job.ticket:
                del self._removed[write.subscriber]
            if write.content is None:
                continue
            if write.is_gaps:
                self.registry.flushes.mark_gaps_flushed(write.subscriber, write.version)
            else:
                self.registry.flushes.mark_flushed(write.subscriber, write.version)
        self.filed = job.ticket

    def no_room_to_flush(self, _: ProgressJob) -> list[Event]:
        """Flush again as soon as the job may be tried, into files: nothing more is appended to a journal whose sync may have failed."""
        self.due_ns = self._clock.monotonic_ns()
        self.settle()
        return []


def _is_owed(registry: SubscriberRegistry, event: Retired) -> bool:
    return event.subscriber in registry and not registry.get(event.subscriber).progress.is_complete(event.segment_seq)
