"""One engine inside a worker: its push side, its subscribers' side, and its blocking work on the way to the threads.

Owner: the loop thread. An actor: requests, finished jobs and the clock go in; answers appear in the sessions, jobs at the threads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic_ns

from quiver_actors import events
from quiver_actors.clock import SystemClock
from quiver_actors.config import TopicSettings
from quiver_actors.engine import Engine, EngineState
from quiver_actors.errors import EngineFailed, QuiverError
from quiver_actors.jobs import CommitJob, Job, SealJob
from quiver_actors.metrics.latency import Histogram, Latency
from quiver_actors.retention.pressure import Pressure
from quiver_actors.transactions.asking import AskJob
from quiver_actors.transactions.stage import Stage
from quiver_actors.units import MILLISECOND_NS, SECOND_NS
from quiver_actors.worker.agenda import Agenda
from quiver_actors.worker.attachments import Attachments
from quiver_actors.worker.chronicle import Chronicle
from quiver_actors.worker.dead_letters import DeadLetters
from quiver_actors.worker.deliveries import Deliveries
from quiver_actors.worker.handing_out import HandingOut
from quiver_actors.worker.ingest import Ingest
from quiver_actors.worker.journal import Journal
from quiver_actors.worker.session import Session
from quiver_actors.worker.staging import Staging
from quiver_actors.worker.threads import Submit

_FAILED = EngineState.FAILED
"""Asked for in each turn: a member of an enum takes longer to look up."""
_TICK_INTERVAL_NS_MIN = MILLISECOND_NS
"""An engine that asks for a tick in the past, because its work is still out, is asked again this much later."""
_LOW_PRIORITY_NS = 500 * MILLISECOND_NS
"""How long deliveries of a topic of negative priority wait while the worker defers what can wait."""
_SWEEP_INTERVAL_NS_MAX = 60 * SECOND_NS
"""So long at most whoever waits for a later sweep keeps a host in memory whose topic is deleted."""
_CARE_INTERVAL_NS = 5 * MILLISECOND_NS
"""How long turns that only brought pushes and commits may leave everything else alone (docs/performance.md, light turns)."""


class EngineHost:
    """See the module. Requests go to `ingest` and `deliveries`; whoever makes one calls `touch()`."""

    def __init__(
        self,
        engine: Engine,
        *,
        commit: Submit,
        background: Submit,
        ask: Submit,
        own_log: str,
        journal: Journal,
        agenda: Agenda,
        pressure: Pressure | None = None,
        host_of: Callable[[str], EngineHost | None] = lambda _: None,
    ) -> None:
        """
        Args:
            ask: where decision logs of transactions are asked.
            own_log: the node's own one.
            agenda: of the worker's loop.
            pressure: of the worker.
            host_of: the other topics of this core, for dead letters.
        """
        self.engine = engine
        self.latencies = {latency: Histogram() for latency in Latency}
        self._sync_latency, self._seal_latency = self.latencies[Latency.SYNC], self.latencies[Latency.SEAL]
        self.ingest = Ingest(engine, self._start_jobs, self.latencies[Latency.PUSH])
        self._chronicle = Chronicle(engine, journal)
        clock = SystemClock()
        self.attachments = Attachments(clock)
        self.handing_out = HandingOut(engine, self.attachments, journal, self.latencies[Latency.DELIVER], clock)
        self.deliveries = Deliveries(engine, self.attachments, self.handing_out, journal, clock)
        self.staging = Staging(engine, self.touch, lambda: self.ingest.closed_by)
        self._ask = ask
        self._own_log = own_log
        self._dead_letters = DeadLetters(
            engine, self.attachments.terms, host_of, background, journal, self.handing_out.wake
        )
        self._letters_at_ns: int | None = None
        self._pressure = self.ingest.pressure = pressure or Pressure()
        self._eased_ns: int | None = None
        """When a commit or deliveries that wait for company have waited long enough."""
        self._delivered_ns = 0
        self.deadline_ns: int | None = None
        """When `turn` must be called again, whatever happens."""
        self.alarm_ns: int | None = None
        """The agenda's note of when it calls."""
        self.sweep_ns: int | None = None
        """The same of the next sweep."""
        self._agenda = agenda
        self._commit = commit
        self._background = background
        self._journal = journal
        self.is_touched = False
        """There is work for `turn` now."""
        self._needs_care = True
        """More than pushes and commits has happened since the last full turn."""
        self._care_at_ns = 0
        self.is_failed = False
        self.is_given_up = False
        """Its topic is deleted."""
        self._intake_is_stopped = False
        self._in_flight = 0
        """Jobs that the threads have."""
        self._when_gone: Callable[[], None] | None = None
        """Set once it is given up."""
        self._chronicle.opened(engine)
        self.touch()

    @property
    def waiting_since_ns(self) -> int:
        """Since when what waits longest to be taken does, pushes and parts of transactions; 0 if nothing waits."""
        return min(filter(None, (self.ingest.waiting_since_ns, self.staging.waiting_since_ns)), default=0)

    @property
    def is_settled(self) -> bool:
        """True when every push has been answered."""
        return self.is_failed or self.ingest.is_settled

    @property
    def is_drained(self) -> bool:
        """True after `drain()`, once everything is sealed and all progress is on disk."""
        return self.is_failed or (self.engine.is_drained and self.ingest.is_settled)

    def touch(self) -> None:
        """Something was asked of the engine: the next `turn` must look at it."""
        self._needs_care = True
        self.touch_push()

    def touch_push(self) -> None:
        """A push was handed to `ingest`, and nothing else: the next `turn` must write it."""
        if not self.is_touched:
            self.is_touched = True
            self._agenda.touch(self)

    def turn(self, now_ns: int) -> None:
        """Do what this turn's requests, finished jobs and the clock call for. Cheap when there is nothing, and light while pushes and
        their commits are all that happens: the rest is then looked at every `_CARE_INTERVAL_NS`."""
        if self.is_given_up:
            return
        if self.deadline_ns is not None and now_ns >= self.deadline_ns:
            self._tick()
        elif not self.is_touched and not self.handing_out.is_due:
            return
        elif not self._needs_care and now_ns < self._care_at_ns and self.ingest.is_flowing:
            self._agenda.note_activity(self)
            self._light_turn()
            return
        self._agenda.note_activity(self)
        self._full_turn(now_ns)

    def _light_turn(self) -> None:
        self.is_touched = False
        self.ingest.write()
        self.start_commit()
        self.ingest.acknowledge()
        self._notice_failure()
        if self.deadline_ns is None or self.deadline_ns > self._care_at_ns:
            self.deadline_ns = self._care_at_ns

    def _full_turn(self, now_ns: int) -> None:
        self.is_touched = self._needs_care = False
        self._care_at_ns = now_ns + _CARE_INTERVAL_NS
        self.ingest.write()
        while self.ingest.retry(now_ns):
            self.ingest.write()
        # Before everything else that this turn looks at: what was written waits for the disk, and nothing that follows for it.
        self.start_commit()
        self.staging.turn(now_ns)
        if self._intake_is_stopped and not self.is_failed:
            self.engine.seal_now()
        if not self.is_failed and self.handing_out.is_open:
            self._letters_at_ns = self._dead_letters.step(now_ns)
        self._start_jobs()
        self.ingest.refuse_rejected(now_ns)
        self._answer()
        self._set_deadline(now_ns)

    def stop_intake(self, reason: QuiverError) -> None:
        """Take no more pushes and seal at once what is there; subscribers are served as before."""
        self.touch()
        self._intake_is_stopped = self.deliveries.is_leaving = True
        self.ingest.close(reason)

    def drain(self) -> None:
        """Take no more pushes, seal, make all progress durable; `is_drained` tells when."""
        self.touch()
        if not self.is_failed:
            self.ingest.write()
            self.handing_out.is_open = False
            self.engine.drain()

    def stop_taking(self, reason: QuiverError) -> None:
        """Take no more pushes and deliver no more; what was taken is still acknowledged."""
        self.touch()
        self.ingest.close(reason)
        self.handing_out.is_open = False

    def change_settings(self, settings: TopicSettings) -> None:
        """See `Engine.change_settings`."""
        self.engine.change_settings(settings)
        self.touch()

    def give_up(self, reason: QuiverError, when_gone: Callable[[], None]) -> None:
        """The topic is deleted: refuse whoever waits for it, tell its consumers, and close the engine as it stands.

        Args:
            when_gone: called once no job is under way any more and the engine is closed.
        """
        self._when_gone = when_gone
        self.is_given_up = True
        self.ingest.give_up(reason)
        self.staging.refuse_all(reason)
        self.deliveries.give_up(reason)
        self._close_if_idle()

    def _close_if_idle(self) -> None:
        if self._when_gone is not None and not self._in_flight:
            try:
                self.engine.close()
            except QuiverError as error:
                # Nobody needs what it could not write: its directory goes.
                self._journal.error("engine.close_failed", str(error), topic=self.engine.topic)
            self._when_gone()

    def start_commit(self) -> None:
        """Hand what was written since the last commit to the disk, unless one is out."""
        if self.is_given_up or (self._pressure.steps and self._waits_for_company()):
            return
        if (commit := self.engine.next_commit()) is not None:
            self._submit(self._commit, commit)

    def _waits_for_company(self) -> bool:
        """Under pressure a group commit waits for more pushes, counted from the oldest that it would acknowledge."""
        since_ns, now_ns = self.ingest.unacknowledged_since_ns, monotonic_ns()
        due_ns = since_ns + self._pressure.window_ns
        if not since_ns or now_ns >= due_ns:
            return False
        self._ease_until(due_ns)
        return True

    def _ease_until(self, due_ns: int) -> None:
        self._eased_ns = due_ns if self._eased_ns is None else min(self._eased_ns, due_ns)
        if self.deadline_ns is None or self.deadline_ns > due_ns:
            self.deadline_ns = due_ns

    def _start_jobs(self) -> None:
        self.start_commit()
        while (background := self.engine.next_background()) is not None:
            self._submit(self._background, background)

    def _submit(self, submit: Submit, job: Job) -> None:
        self._in_flight += 1
        submit(job, partial(self._finish, job))

    def _finish(self, job: Job) -> None:
        """A turn follows at once, if there is more to do than to acknowledge and to commit what has come meanwhile."""
        self._in_flight -= 1
        self._agenda.note_activity(self)
        if self.is_given_up:
            self._close_if_idle()
            return
        is_commit = isinstance(job, CommitJob)
        if job.error is None and (is_commit or isinstance(job, SealJob)):
            (self._sync_latency if is_commit else self._seal_latency).observe(job.took_ns)
        happened = self.engine.finish(job)
        self.ingest.acknowledge()
        if is_commit:
            self._agenda.note_commit(self)
        if isinstance(job, CommitJob) and not job.rotates:
            # What it tells of, that more is durable or that it failed, is seen in the engine's own state.
            if job.error is not None or self._pressure.steps or not self.ingest.is_flowing:
                self.touch_push()
            return
        self._chronicle.finished(job)
        self._apply(happened)
        self.touch()

    def _tick(self) -> None:
        self._apply(self.engine.tick())

    def _answer(self) -> None:
        self.ingest.acknowledge()
        self.deliveries.settle()
        self._deliver()
        self._notice_failure()

    def _deliver(self) -> None:
        """Under pressure deliveries wait for more bundles, so that each message and wake-up carries more of them."""
        coalesce_ns = self._pressure.coalesce_ns
        if self._pressure.defers and self.engine.settings.priority < 0:
            coalesce_ns = _LOW_PRIORITY_NS
        if coalesce_ns:
            now_ns = monotonic_ns()
            if now_ns < self._delivered_ns + coalesce_ns:
                self._ease_until(self._delivered_ns + coalesce_ns)
                return
            self._delivered_ns = now_ns
        self.handing_out.deliver()

    def _notice_failure(self) -> None:
        if self.engine.state is _FAILED and not self.is_failed:
            self._fail()

    def _fail(self) -> None:
        self.is_failed = True
        reason = self.engine.failure or "the engine failed"
        self._journal.error("engine.failed", reason, topic=self.engine.topic)
        self.ingest.fail(reason)
        self.staging.fail(reason)
        self.deliveries.fail(EngineFailed(f"topic {self.engine.topic!r}, core {self.engine.core}: {reason}"))

    def _apply(self, happened: Sequence[events.Event]) -> None:
        for event in happened:
            match event:
                case events.Sealed():
                    self.ingest.sealed(event.segment_seq)
                    self.handing_out.sealed(event.segment_seq)
                case events.Claimable():
                    self.handing_out.wake(event.subscriber)
                case events.Replaced():
                    self.handing_out.replaced(event.segment_seq)
                case events.StagePrepared() | events.StageDropped() | events.StagesPublished():
                    self.staging.apply(event)
                case events.ProgressDurable():
                    # Notices that became durable with it can be told.
                    self.handing_out.wake()
                case events.Retired():
                    self.handing_out.retired(event)
                case events.GapFound():
                    self.handing_out.wake(event.subscriber)
                    self._journal.event(
                        "subscriber.gap",
                        level=logging.WARNING,
                        topic=self.engine.topic,
                        subscriber=event.subscriber,
                        segment=event.segment_seq,
                        first=event.bundle_index,
                        bundles=event.bundle_count,
                        reason=event.reason,
                    )
                case _:
                    # Durable, Failed and Resumed are seen in the engine's own state, every turn.
                    continue

    def _set_deadline(self, now_ns: int) -> None:
        eased_ns, self._eased_ns = self._eased_ns, None
        deadlines = (
            eased_ns,
            self.engine.next_deadline_ns(),
            self.ingest.deadline_ns,
            self.staging.deadline_ns,
            self._letters_at_ns,
        )
        wanted = [at for at in deadlines if at is not None]
        self.deadline_ns = max(min(wanted), now_ns + _TICK_INTERVAL_NS_MIN) if wanted else None

    def sweep(self, now_ns: int) -> int | None:
        """What needs to be looked at now and then. When the next time is, if nothing happens before."""
        is_trimmed = self.ingest.trim()
        if self.deliveries.drop_orphans() or self.engine.retention.look_again():
            self.touch()
        for stage in self.engine.stages.take_expired():
            self._ask_about(stage)
        if not is_trimmed or any(True for _ in self.engine.stages):
            return now_ns
        due = (self.deliveries.next_orphan_ns(), self.engine.retention.list_due_ns())
        wanted = [at for at in due if at is not None]
        return min(*wanted, now_ns + _SWEEP_INTERVAL_NS_MAX) if wanted else None

    def _ask_about(self, stage: Stage) -> None:
        order = stage.order
        job = AskJob(order.decisions or self._own_log, order.txn_id, order.epoch)
        self._ask(job, lambda: self._answered(stage, job))

    def _answered(self, stage: Stage, job: AskJob) -> None:
        if not self.is_given_up:
            self.staging.answered(stage, job.answer)

    def detach(self, session: Session) -> None:
        """The connection has ended."""
        has_stages = any(True for _ in self.engine.stages)
        self.staging.detach(session)
        if self.deliveries.detach(session) or self.ingest.waiting_count or has_stages:
            self.touch()
