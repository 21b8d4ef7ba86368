"""The numbers of one engine that never repeat: segment numbers, sequences, log positions, and the names of log files.

Owner: the engine, on the loop thread. Segment numbers and sequences are used only below what `quiver.core` has reserved durably.
"""

from __future__ import annotations

from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.engine.events import Event, Resumed
from quiver_actors.store.files.core_file import SEGMENT_SEQ_BLOCK, SEQUENCE_BLOCK, CoreFile
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.jobs.records import ReserveJob
from quiver_actors.store.recovery import Recovered
from quiver_actors.store.wal.codec import Identity


class Numbers:
    """The next numbers that one engine gives, and how far they are reserved.

    Attributes:
        incarnation: the 16 bytes that identify the directory.
        next_segment_seq, next_sequence: the next ones to give.
        position: log position behind everything that was staged.
    """

    def __init__(self, disk: Disk, paths: EnginePaths, recovered: Recovered) -> None:
        self.incarnation = recovered.core.incarnation
        self.next_segment_seq = recovered.next_segment_seq
        self.next_sequence = recovered.next_sequence
        self.position = recovered.position
        self._disk = disk
        self._paths = paths
        self._reserved = recovered.core
        self._next_rotation = recovered.next_rotation
        self._next_spare = 0
        self._wanted = (0, 0)

    # --- reserved ahead of use ---------------------------------------------------------------------------------------------

    def has_sequences(self, count: int) -> bool:
        """Whether `count` more sequences are reserved durably."""
        return self.next_sequence + count <= self._reserved.next_sequence_reserved

    @property
    def has_segment_seq(self) -> bool:
        """Whether another segment number is reserved durably."""
        return self.next_segment_seq < self._reserved.next_segment_seq_reserved

    def has_many(self, segments: int, bundles: int) -> bool:
        """Whether so many segment numbers and sequences can be taken at once; if not, they are asked for."""
        self._wanted = (segments, bundles)
        enough = self.next_segment_seq + segments <= self._reserved.next_segment_seq_reserved
        return enough and self.has_sequences(bundles)

    def reserve_job(self) -> ReserveJob | None:
        """The job that reserves more, before half of what is reserved is used up, or as soon as `has_many` has asked for more."""
        segments, bundles = self._wanted
        segment_seq, sequence = self.next_segment_seq + segments, self.next_sequence + bundles
        low = (
            sequence + SEQUENCE_BLOCK // 2 > self._reserved.next_sequence_reserved
            or segment_seq + SEGMENT_SEQ_BLOCK // 2 > self._reserved.next_segment_seq_reserved
        )
        if not low:
            return None
        self._wanted = (0, 0)
        segment_seq, sequence = segment_seq + SEGMENT_SEQ_BLOCK, sequence + SEQUENCE_BLOCK
        return ReserveJob(self._disk, self._paths, self._core_file(segment_seq, sequence, clean_shutdown=False))

    def finish_reserve(self, job: ReserveJob) -> list[Event]:
        """Take back the job that reserved numbers; waiting pushes go on."""
        self._reserved = job.core
        return [Resumed()]

    def exact(self) -> CoreFile:
        """Return the numbers that a clean shutdown leaves: exactly the next ones."""
        return self._core_file(self.next_segment_seq, self.next_sequence, clean_shutdown=True)

    def _core_file(self, segment_seq: int, sequence: int, *, clean_shutdown: bool) -> CoreFile:
        core_id = self._reserved.core_id
        return CoreFile(self.incarnation, core_id, segment_seq, sequence, clean_shutdown=clean_shutdown)

    # --- use ---------------------------------------------------------------------------------------------------------------

    def identity(self) -> Identity:
        """The numbers that a log would get which begins now."""
        return Identity(self.next_segment_seq, self.next_sequence, self.incarnation)

    def take_segment_seq(self) -> None:
        """Take the segment number of `identity`, whose log has begun."""
        self.next_segment_seq += 1

    def advance(self, sequence_end: int, position_end: int) -> None:
        """Note that bundles were numbered up to that sequence and log position."""
        self.next_sequence = sequence_end
        self.position = position_end

    def take_rotation(self, segment_seq: int) -> int:
        """The number for the name of that segment's rotated log."""
        number = max(self._next_rotation, segment_seq + 1)
        self._next_rotation = number + 1
        return number

    def take_spare(self) -> int:
        """The number for the name of a new log file."""
        self._next_spare += 1
        return self._next_spare
