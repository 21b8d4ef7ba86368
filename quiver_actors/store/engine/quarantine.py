"""The damaged segments of one engine on their way into `quarantine/`, and the cap of that directory.

Owner: the engine, on the loop thread.
"""

from __future__ import annotations

from quiver_actors.base.config import TopicSettings
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.engine.events import Event
from quiver_actors.store.engine.foreign_segments import ForeignSegments
from quiver_actors.store.engine.progress import Progress
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.jobs.removal import QuarantineJob, TrimJob
from quiver_actors.store.recovery import Recovered


class Quarantine:
    """Moves segments aside of which nothing can be read, and keeps the directory below its cap.

    Attributes:
        count: how many files were moved aside.
    """

    def __init__(
        self,
        disk: Disk,
        paths: EnginePaths,
        settings: TopicSettings,
        recovered: Recovered,
        progress: Progress,
        foreign: ForeignSegments,
    ) -> None:
        self.count = recovered.quarantined
        self._disk = disk
        self._paths = paths
        self._cap_bytes = settings.retention.quarantine_cap_bytes
        self._is_trimmed = not recovered.has_quarantine
        """Whether nothing was moved aside since the quarantine was trimmed to its cap."""
        self._progress = progress
        self._foreign = foreign
        self._condemned: dict[int, int] = {}
        """Damaged segments and the ticket of the progress that must be in its files before they are moved aside."""

    def change_settings(self, settings: TopicSettings) -> None:
        """Use the new cap from now on."""
        self._cap_bytes = settings.retention.quarantine_cap_bytes
        self._is_trimmed = False

    def note_kept(self) -> None:
        """Count a file that a job has moved aside."""
        self.count += 1
        self._is_trimmed = False

    def condemn(self, segment_seq: int) -> None:
        """Have a segment moved aside, if it is there, once all progress and all notices up to now are durable."""
        self._condemned[segment_seq] = self._progress.settle()

    def move_job(self) -> QuarantineJob | None:
        """Return the job that moves a segment without any good bundle away, once its notices are durable."""
        due = (seq for seq, ticket in self._condemned.items() if ticket <= self._progress.filed)
        segment_seq = next(due, None)
        if segment_seq is None:
            return None
        return QuarantineJob(self._disk, self._paths, segment_seq, self._foreign.without([segment_seq]))

    def finish_move(self, job: QuarantineJob) -> list[Event]:
        """Take back the move of a segment to quarantine."""
        del self._condemned[job.segment_seq]
        self._foreign.forget([job.segment_seq])
        self._is_trimmed = False
        return []

    def trim_job(self) -> TrimJob | None:
        """Return the job that brings `quarantine/` below its cap; None if nothing was added since the last one."""
        return None if self._is_trimmed else TrimJob(self._disk, self._paths, self._cap_bytes)

    def finish_trim(self, _: TrimJob) -> list[Event]:
        """Take back the job that trimmed `quarantine/`."""
        self._is_trimmed = True
        return []
