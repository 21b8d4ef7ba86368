"""One engine inside a worker: its push side, its subscribers' side, and its blocking work on the way to the threads.

Owner: the loop thread. An actor: requests, finished jobs and the clock go in; answers appear in the sessions, jobs at the threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from quiver_actors.base.clock import SystemClock
from quiver_actors.base.config import TopicSettings
from quiver_actors.base.metrics.latency import Histogram, Latency
from quiver_actors.base.units import MILLISECOND_NS, SECOND_NS
from quiver_actors.errors import EngineFailed, QuiverError
from quiver_actors.node.worker.archive_readers import note_readers
from quiver_actors.node.worker.attachments import Attachments
from quiver_actors.node.worker.dead_letters import DeadLetters
from quiver_actors.node.worker.deliveries import Deliveries
from quiver_actors.node.worker.dispatcher import Dispatcher
from quiver_actors.node.worker.easing import Easing
from quiver_actors.node.worker.engine_event_log import EngineEventLog
from quiver_actors.node.worker.engine_jobs import EngineJobs
from quiver_actors.node.worker.ingest import Ingest
from quiver_actors.node.worker.journal import Journal
from quiver_actors.node.worker.lone_lane import LoneLane
from quiver_actors.node.worker.lone_syncs import CarryOut
from quiver_actors.node.worker.readers import Readers
from quiver_actors.node.worker.run_queue import RunQueue
from quiver_actors.node.worker.session import Session
from quiver_actors.node.worker.staging import Staging
from quiver_actors.node.worker.threads import Submit
from quiver_actors.store.engine import Engine, EngineState, events
from quiver_actors.store.jobs.commits import CommitJob
from quiver_actors.store.jobs.job import Job
from quiver_actors.store.retention.pressure import Pressure

_FAILED = EngineState.FAILED
"""Alias that each turn reads: looking up a member of an enum takes longer."""
_TICK_INTERVAL_NS_MIN = MILLISECOND_NS
"""An engine that asks for a tick in the past, because its work is still out, is asked again this much later."""
_SWEEP_INTERVAL_NS_MAX = 60 * SECOND_NS
"""Longest time between sweeps, and so for a waiting sweep to keep the host of a deleted topic in memory."""
_CARE_INTERVAL_NS = 5 * MILLISECOND_NS
"""How long turns that only brought pushes and commits may leave everything else alone (docs/performance.md, light turns)."""


class EngineHost:
    """One engine inside a worker. Requests go to `ingest` and `deliveries`; the caller of a request then calls `touch()`."""

    def __init__(
        self,
        engine: Engine,
        *,
        commit: Submit,
        commit_lone: CarryOut,
        background: Submit,
        ask: Submit,
        cold: Submit,
        own_log: str,
        journal: Journal,
        run_queue: RunQueue[EngineHost],
        pressure: Pressure | None = None,
        host_of: Callable[[str], EngineHost | None] = lambda _: None,
        ring_archiver: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Args:
            ask: where decision logs of transactions are asked.
            cold: where work on the cold disk is done.
            own_log: the node's own one.
            run queue: of the worker's loop.
            pressure: of the worker.
            host_of: the other topics of this core, for dead letters.
            ring_archiver: wakes the archiver, as pushes wait for what has been sealed.
        """
        self.engine = engine
        self.latencies = {latency: Histogram() for latency in Latency}
        self._easing = Easing(pressure or Pressure())
        self.jobs = EngineJobs(
            engine,
            commit=commit,
            background=background,
            cold=cold,
            finished=self._finished,
            easing=self._easing,
            oldest_push_ns=lambda: ingest.unacknowledged_since_ns,
            latencies=self.latencies,
        )
        ingest = Ingest(engine, self.jobs.start, self.latencies[Latency.PUSH], self._easing.pressure)
        ingest.flushes.ring_archiver = ring_archiver
        self.ingest = ingest
        self._event_log = EngineEventLog(engine, journal)
        clock = SystemClock()
        attachments = Attachments(clock)
        self.dispatcher = Dispatcher(engine, attachments, journal, self.latencies[Latency.DELIVER], clock)
        parts = ingest, self.jobs, commit_lone, self.dispatcher, self.latencies[Latency.PUSH], run_queue, self
        self.lone = LoneLane(engine, *parts, self._easing.pressure)
        self.jobs.finished_lone = self.lone.finished
        self.deliveries = Deliveries(engine, attachments, self.dispatcher, journal, clock)
        self.staging = Staging(engine, self.touch, lambda: ingest.closed_by, ask, own_log)
        terms = attachments.terms, attachments.set_by
        self._dead_letters = DeadLetters(engine, *terms, host_of, background, cold, journal, self.dispatcher.wake)
        self.readers = Readers(engine)
        self.deadline_ns: int | None = None
        """Monotonic time when `turn` must be called again, whatever happens."""
        self._run_queue = run_queue
        self.is_touched = False
        """Whether there is work for `turn` now."""
        self._needs_care = True
        """Whether more than pushes and commits has happened since the last full turn."""
        self._care_at_ns = 0
        self.is_failed = False
        self.is_given_up = False
        """Whether the topic is deleted, and the host abandoned."""
        self._intake_is_stopped = False
        self._event_log.opened(engine)
        self.touch()

    @property
    def is_lingering(self) -> bool:
        """Whether deliveries wait: the host then has a turn whenever anything happens in the worker."""
        return self.dispatcher.is_due

    @property
    def priority(self) -> int:
        """Priority of the topic: hosts with a higher one have their turn first."""
        return self.engine.settings.priority

    @property
    def waiting_since_ns(self) -> int:
        """Monotonic time at which the oldest waiting push or part of a transaction began to wait; 0 if none waits."""
        return min(filter(None, (self.ingest.waiting.oldest_since_ns, self.staging.pushes.waiting_since_ns)), default=0)

    @property
    def is_settled(self) -> bool:
        """True when every push has been answered."""
        return self.is_failed or self.ingest.is_settled

    @property
    def is_drained(self) -> bool:
        """True after `drain()`, once everything is sealed and all progress is on disk."""
        return self.is_failed or (self.engine.is_drained and self.ingest.is_settled)

    def touch(self) -> None:
        """Note a request to the engine: the next `turn` must serve it."""
        self._needs_care = True
        self.touch_push()

    def touch_push(self) -> None:
        """Note that `ingest` got a push, and nothing else happened: the next `turn` must write it."""
        if not self.is_touched:
            self.is_touched = True
            self._run_queue.touch(self)

    def turn(self, now_ns: int) -> None:
        """Do what this turn's requests, finished jobs and the clock call for. Cheap when there is nothing, and light while pushes and
        their commits are all that happens: the rest is then looked at every `_CARE_INTERVAL_NS`."""
        if self.is_given_up:
            return
        if self.deadline_ns is not None and now_ns >= self.deadline_ns:
            self._apply(self.engine.tick())
        elif not self.is_touched and not self.dispatcher.is_due:
            return
        elif not self._needs_care and now_ns < self._care_at_ns and self.ingest.is_flowing:
            self._run_queue.note_activity(self)
            self._light_turn()
            return
        self._run_queue.note_activity(self)
        self._full_turn(now_ns)

    def _light_turn(self) -> None:
        self.is_touched = False
        self.ingest.write()
        self.jobs.start_commit()
        self.ingest.acknowledge()
        if self.dispatcher.is_due:
            self._deliver()
        if self.engine.state is _FAILED and not self.is_failed:
            self._fail()
        due_ns = self._easing.due_ns
        at_ns = self._care_at_ns if due_ns is None else min(self._care_at_ns, due_ns)
        if self.deadline_ns is None or self.deadline_ns > at_ns:
            self.deadline_ns = at_ns

    def _full_turn(self, now_ns: int) -> None:
        self.is_touched = self._needs_care = False
        self._care_at_ns = now_ns + _CARE_INTERVAL_NS
        self.ingest.write()
        while self.ingest.retry(now_ns):
            self.ingest.write()
        # Before everything else that this turn looks at: what was written waits for the disk, and nothing that follows for it.
        self.jobs.start_commit()
        self.staging.pushes.turn(now_ns)
        if self._intake_is_stopped and not self.is_failed:
            self.engine.seal_now()
        letters_at_ns = None
        if not self.is_failed and self.dispatcher.is_open:
            letters_at_ns = self._dead_letters.step(now_ns)
        self.jobs.start()
        if self.ingest.refuse_rejected(now_ns) and self.ingest.waiting.count:
            self.touch()  # those that still wait may need less room
        self.ingest.acknowledge()
        self.dispatcher.tell_withdrawn()
        self.deliveries.answers.settle()
        if self.readers.lists.deadline_ns is not None:
            self.readers.lists.look_again(now_ns)
        self._deliver()
        if self.engine.state is _FAILED and not self.is_failed:
            self._fail()
        self._set_deadline(now_ns, letters_at_ns)

    def look_again(self) -> None:
        """Have a turn if somebody with credit waits for what he could have, as a wake-up was lost."""
        if not self.is_given_up and self.dispatcher.look_again():
            self.touch()

    def stop_intake(self, reason: QuiverError) -> None:
        """Take no more pushes and seal at once what is there; subscribers are served as before."""
        self.touch()
        self._intake_is_stopped = self.deliveries.questions.is_leaving = True
        self.ingest.close(reason)

    def drain(self) -> None:
        """Take no more pushes, seal, make all progress durable; `is_drained` tells when."""
        self.touch()
        if not self.is_failed:
            self.ingest.write()
            self.dispatcher.is_open = False
            self.engine.drain()

    def stop_taking(self, reason: QuiverError) -> None:
        """Take no more pushes and deliver no more; what was taken is still acknowledged."""
        self.touch()
        self.ingest.close(reason)
        self.dispatcher.is_open = False

    def change_settings(self, settings: TopicSettings) -> None:
        """See `Engine.change_settings`."""
        self.engine.change_settings(settings)
        self.deliveries.detach_refused()
        note_readers(self.engine, self.deliveries.attachments, self.deliveries.attachments.subscribers)
        self.touch()

    def give_up(self, reason: QuiverError, when_gone: Callable[[], object]) -> None:
        """Abandon a deleted topic: refuse its waiting requests, tell its consumers, and close the engine as it stands.

        Args:
            when_gone: called once no job is under way any more and the engine is closed.
        """
        self.is_given_up = True
        self.ingest.give_up(reason)
        self.staging.give_up(reason)
        self.deliveries.give_up(reason)
        self.readers.give_up(reason)
        self.jobs.remove_cold()
        self.jobs.end(partial(self._close, when_gone))

    def _close(self, when_gone: Callable[[], object]) -> None:
        try:
            self.engine.close()
        except QuiverError as error:
            self._event_log.close_failed(error)
        self._run_queue.forget(self)
        del self.lone  # it refers to this host; nobody asks a host for it that is given up
        self.ingest.let_go()
        self.staging.let_go()
        when_gone()

    def _finished(self, job: Job) -> None:
        """A turn follows at once, if there is more to do than to acknowledge and to commit what has come meanwhile."""
        self._run_queue.note_activity(self)
        happened = self.engine.finish(job)
        self.ingest.acknowledge()
        if isinstance(job, CommitJob):
            self._run_queue.note_commit(self)
            if not job.rotates:
                # What else it tells of, that more is durable or that it failed, is seen in the engine's own state.
                is_shown = [
                    self.dispatcher.shown(event.segment_seq) for event in happened if isinstance(event, events.Shown)
                ]
                if any(is_shown) or job.error is not None or self._easing.pressure.steps or not self.ingest.is_flowing:
                    self.touch_push()
                if self.readers.lists.deadline_ns is not None:
                    self.touch()
                return
        self._event_log.finished(job)
        self._apply(happened)
        self.touch()

    def _deliver(self) -> None:
        if not self._easing.delays_delivery(self.engine.settings.priority):
            self.dispatcher.deliver()

    def _fail(self) -> None:
        self.is_failed = True
        reason = self.engine.failure or "the engine failed"
        self._event_log.failed(reason)
        self.ingest.fail(reason)
        self.staging.fail(reason)
        self.deliveries.fail(EngineFailed(f"topic {self.engine.topic!r}, core {self.engine.core}: {reason}"))

    def _apply(self, happened: Sequence[events.Event]) -> None:
        for event in happened:
            self._event_log.happened(event)
            match event:
                case events.Sealed():
                    self.ingest.flushes.sealed(event.segment_seq)
                    self.dispatcher.sealed(event.segment_seq)
                case events.Shown():
                    self.dispatcher.shown(event.segment_seq)
                case events.Claimable() | events.GapFound():
                    self.dispatcher.wake(event.subscriber)
                case events.Replaced():
                    self.dispatcher.replaced(event.segment_seq)
                case events.StagePrepared() | events.StageDropped() | events.StagesPublished():
                    self.staging.apply(event)
                case events.ProgressDurable():
                    # Notices that became durable with progress can be told.
                    self.dispatcher.wake()
                case events.ColdOpened() | events.ColdDiskFaulted():
                    self.readers.files.look_again()
                    self.dispatcher.cold_changed()
                case events.Retired() | events.LeftDisk():
                    self.dispatcher.retired(event)
                case _:
                    # Durable, Failed and Resumed are seen in the engine's own state, every turn.
                    continue

    def _set_deadline(self, now_ns: int, letters_at_ns: int | None) -> None:
        deadlines = (
            self._easing.take_due_ns(),
            self.engine.next_deadline_ns(),
            self.ingest.waiting.next_until_ns,
            self.staging.pushes.deadline_ns,
            self.readers.lists.deadline_ns,
            letters_at_ns,
        )
        wanted = [at for at in deadlines if at is not None]
        self.deadline_ns = max(min(wanted), now_ns + _TICK_INTERVAL_NS_MIN) if wanted else None

    def sweep(self, now_ns: int) -> int | None:
        """Trim buffers, drop expired orphans, ask about expired stages. Returns when to sweep next (monotonic ns); None: after an event."""
        is_trimmed = self.ingest.buffer.trim()
        if self.deliveries.drop_orphans() or self.engine.disk_account.look_again():
            self.touch()
        self.staging.ask_about_expired()
        if not is_trimmed or any(True for _ in self.engine.stages):
            return now_ns
        due = (self.deliveries.next_orphan_ns(), self.engine.disk_account.list_due_ns())
        wanted = [at for at in due if at is not None]
        return min(*wanted, now_ns + _SWEEP_INTERVAL_NS_MAX) if wanted else None

    def detach(self, session: Session) -> None:
        """Take back what a connection held that has ended."""
        has_stages = any(True for _ in self.engine.stages)
        self.staging.detach(session)
        if self.deliveries.detach(session) or self.ingest.waiting.count or has_stages:
            self.touch()
