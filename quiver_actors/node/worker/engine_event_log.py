"""An engine's life in the log, under the event names of Quiver's Rust implementation: a search over both finds the same words.

| event                      | level | when                                                                     |
|----------------------------|-------|--------------------------------------------------------------------------|
| `engine.init`              | info  | its directory is recovered and it serves; debug: there was nothing in it |
| `wal.replay`               | warning | what recovery has to say, a line each                                  |
| `wal.init`                 | debug | a log has its name and takes entries                                     |
| `wal.rotate`               | debug | a log is full, or old enough: it becomes a segment                       |
| `segment.flush`            | debug | a segment is sealed                                                      |
| `segment.drop`             | debug | segments are deleted that nobody needs, or that had to go                |
| `subscriber.register`      | info  | a new one; debug: a known one has a consumer again (`node.worker.deliveries`) |
| `subscriber.unregister`    | info  | it is dropped (`node.worker.deliveries`)                                      |
| `subscriber.progress.flush`| debug | what subscribers resolved is durable                                     |

Losses and failures have lines of their own: `subscriber.gap`, `segment.damage`, `quarantine`, `engine.failed`.
Owner: the loop thread. Costs nothing where the level is higher.
"""

from __future__ import annotations

import logging

from quiver_actors.errors import QuiverError
from quiver_actors.node.worker.journal import Journal
from quiver_actors.store.engine import Engine
from quiver_actors.store.engine.events import ColdDiskFaulted, Event, Faulted, GapFound
from quiver_actors.store.jobs.commits import CommitJob, SealJob
from quiver_actors.store.jobs.job import Job
from quiver_actors.store.jobs.records import JournalJob, ProgressJob
from quiver_actors.store.jobs.removal import DeleteJob

_logger = logging.getLogger("quiver")


class EngineEventLog:
    """Writes the events of one engine to the log."""

    def __init__(self, engine: Engine, journal: Journal) -> None:
        self._topic = engine.topic
        self._core = engine.core
        self._journal = journal

    def opened(self, engine: Engine) -> None:
        """Log that the engine has been recovered."""
        for note in engine.recovery_notes:
            self._tell("wal.replay", level=logging.WARNING, finding=note)
        segments, subscribers = len(engine.segments()), len(engine.registrations.names())
        level = logging.INFO if segments or subscribers else logging.DEBUG
        self._tell("engine.init", level=level, segments=segments, subscribers=subscribers)

    def finished(self, job: Job) -> None:
        """A thread has done something for it."""
        if not _logger.isEnabledFor(logging.DEBUG) or job.error is not None:
            return
        match job:
            case CommitJob():
                self._committed(job)
            case SealJob(info=info) if info is not None:
                took_ms = job.took_ns // 1_000_000
                figures = {"bundles": info.bundle_count, "bytes": info.size_bytes, "took_ms": took_ms}
                self._tell("segment.flush", segment=info.segment_seq, **figures)
            case DeleteJob():
                self._tell("segment.drop", segments=",".join(map(str, job.segment_seqs)))
            case JournalJob():
                self._tell("subscriber.progress.flush", records=len(job.writes))
            case ProgressJob():
                self._tell("subscriber.progress.flush", files=len(job.writes))
            case _:
                return

    def happened(self, event: Event) -> None:
        """The engine has told of an event: those that an operator wants to know are logged."""
        if isinstance(event, Faulted):
            self._faulted(event.reason)
        elif isinstance(event, ColdDiskFaulted):
            self._cold_faulted(event.reason)
        elif isinstance(event, GapFound):
            self._gap_found(event)

    def _faulted(self, reason: str) -> None:
        """Something of it cannot be opened now; an empty reason: everything can again."""
        if reason:
            message = f"topic {self._topic!r}, core {self._core}: {reason}"
            self._journal.error("engine.degraded", message, topic=self._topic, core=self._core)
        else:
            self._tell("engine.restored", level=logging.INFO)

    def _cold_faulted(self, reason: str) -> None:
        """The cold disk cannot be used; an empty reason: it can again."""
        if reason:
            message = (
                f"topic {self._topic!r}, core {self._core}: the cold disk cannot be used, and is tried again: {reason}"
            )
            self._journal.error("cold.away", message, topic=self._topic, core=self._core)
        else:
            self._tell("cold.back", level=logging.INFO)

    def _gap_found(self, event: GapFound) -> None:
        """A subscriber will never get some bundles."""
        self._journal.event(
            "subscriber.gap",
            level=logging.WARNING,
            topic=self._topic,
            subscriber=event.subscriber,
            segment=event.segment_seq,
            first=event.bundle_index,
            bundles=event.bundle_count,
            reason=event.reason,
        )

    def failed(self, reason: str) -> None:
        """Log that the engine has failed, and count the error."""
        self._journal.error("engine.failed", reason, topic=self._topic)

    def close_failed(self, error: QuiverError) -> None:
        """The engine of a deleted topic could not be closed. Nobody needs what it could not write: its directory goes."""
        self._journal.error("engine.close_failed", str(error), topic=self._topic)

    def _committed(self, job: CommitJob) -> None:
        for step in job.steps:
            if step.publish:
                self._tell("wal.init", path=step.log.path)
            if step.retire_as:
                self._tell("wal.rotate", path=step.retire_as)

    def _tell(self, event: str, *, level: int = logging.DEBUG, **fields: object) -> None:
        self._journal.event(event, level=level, topic=self._topic, core=self._core, **fields)
