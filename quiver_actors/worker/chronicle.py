"""An engine's life in the log, under the event names of Quiver's Rust implementation: a search over both finds the same words.

| event                      | level | when                                                                     |
|----------------------------|-------|--------------------------------------------------------------------------|
| `engine.init`              | info  | its directory is recovered and it serves; debug: there was nothing in it |
| `wal.replay`               | warning | what recovery has to say, a line each                                  |
| `wal.init`                 | debug | a log has its name and takes entries                                     |
| `wal.rotate`               | debug | a log is full, or old enough: it becomes a segment                       |
| `segment.flush`            | debug | a segment is sealed                                                      |
| `segment.drop`             | debug | segments are deleted that nobody needs, or that had to go                |
| `subscriber.register`      | info  | a new one; debug: a known one has a consumer again (`worker.deliveries`) |
| `subscriber.unregister`    | info  | it is dropped (`worker.deliveries`)                                      |
| `subscriber.progress.flush`| debug | what subscribers resolved is durable                                     |

Losses and failures have lines of their own: `subscriber.gap`, `segment.damage`, `quarantine`, `engine.failed`.
Owner: the loop thread. Costs nothing where the level is higher.
"""

from __future__ import annotations

import logging

from quiver_actors.engine import Engine
from quiver_actors.jobs import CommitJob, DeleteJob, Job, ProgressJob, SealJob
from quiver_actors.worker.journal import Journal

_logger = logging.getLogger("quiver")


class Chronicle:
    """Of one engine."""

    def __init__(self, engine: Engine, journal: Journal) -> None:
        self._topic = engine.topic
        self._core = engine.core
        self._journal = journal

    def opened(self, engine: Engine) -> None:
        """It has been recovered."""
        for note in engine.recovery_notes:
            self._tell("wal.replay", level=logging.WARNING, finding=note)
        segments, subscribers = len(engine.segments()), len(engine.subscribers())
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
            case ProgressJob():
                self._tell("subscriber.progress.flush", files=len(job.writes))
            case _:
                return

    def _committed(self, job: CommitJob) -> None:
        for step in job.steps:
            if step.publish:
                self._tell("wal.init", path=step.log.path)
            if step.retire_as:
                self._tell("wal.rotate", path=step.retire_as)

    def _tell(self, event: str, *, level: int = logging.DEBUG, **fields: object) -> None:
        self._journal.event(event, level=level, topic=self._topic, core=self._core, **fields)
