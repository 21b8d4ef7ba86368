"""Upkeep of sealed segments when there is nothing better to do: compaction, and the scrub that finds damage before a reader does.

Owner: the engine, on its loop thread; the jobs run on the seal thread like its other background work. Both kinds of work come in
slices of a few milliseconds, so that a seal or a progress flush never waits longer for them, and rest in between: compaction works at
most a quarter of the time and only while nothing is being committed, scrub at most a twentieth, which is its share of the disk.

A segment is looked at for compaction once, a minute after it was sealed: what consumers keep up with is gone by then. A segment is
scrubbed when its last check is six days old, oldest first, so that none goes unchecked for a week. Checks are remembered in memory
only: after a restart every segment is checked before its first bundle is delivered.
"""

from __future__ import annotations

import contextlib
import heapq
import time
from collections import deque
from collections.abc import Generator

import pyarrow as pa

from quiver_actors.base.clock import Clock
from quiver_actors.base.units import MILLISECOND_NS, SECOND_NS
from quiver_actors.errors import ChecksumMismatch, DiskError, FormatError, InvalidFormat
from quiver_actors.store.disk.protocol import NO_SPACE_ERRNOS, UNREADABLE_ERRNOS, Disk, DiskFile
from quiver_actors.store.files.held_names import put_back, set_aside
from quiver_actors.store.files.paths import TEMPORARY_SUFFIX, EnginePaths, names_beside
from quiver_actors.store.jobs.job import Job
from quiver_actors.store.segment.check import verify_steps
from quiver_actors.store.segment.codec import decode_directory
from quiver_actors.store.segment.compaction import Rewriting, Verdict, check_rewriting, judge
from quiver_actors.store.segment.outline import read_outline
from quiver_actors.store.segment.reader import read_footer
from quiver_actors.supervisor.log import log_event

SLICE_NS = 5 * MILLISECOND_NS
COMPACTION_REST = 3
"""Pause after a slice of compaction, in durations of that slice."""
SCRUB_REST = 19
COMPACTION_AGE_NS = 60 * SECOND_NS
SCRUB_AGE_NS = 6 * 86_400 * SECOND_NS
BUSY_RETRY_NS = 50 * MILLISECOND_NS
NO_ROOM_RETRY_NS = 60 * SECOND_NS
"""How long it takes until work is tried again that found no room, or could not open its file."""
STALE_CHECKS_MAX = 64
"""Entries of the heap of checks beyond twice the segments there are: those behind one that stays are looked at after days only."""
_NEVER_NS = 1 << 63

_Steps = Generator[int, None, None]


class SlicedJob(Job):
    """Work on one segment that is done a slice at a time: it is run again and again until `is_done`.

    `damage` says what is wrong with the segment's file, None if nothing was found.
    """

    slice_ns = SLICE_NS

    def __init__(self, disk: Disk, paths: EnginePaths, segment_seq: int) -> None:
        super().__init__()
        self._disk = disk
        self._paths = paths
        self.segment_seq = segment_seq
        self.is_done = False
        self.is_abandoned = False
        self.damage: str | None = None
        self.fault = ""
        """Why the segment's file cannot be opened now: that is for a check of the segment to judge."""
        self.bytes_checked = 0
        """How many bytes of the segment's file the last run has checked."""
        self._steps = self.steps()

    def steps(self) -> _Steps:
        """The work; each step takes a millisecond or so. Closed early it leaves nothing behind but its segment as it was."""
        raise NotImplementedError

    def work(self) -> None:
        """Do steps for one slice of time; the job is run again until `is_done`."""
        self.bytes_checked = 0
        deadline = time.monotonic_ns() + self.slice_ns
        try:
            for _ in self._steps:
                if time.monotonic_ns() >= deadline:
                    return
        except DiskError as error:
            if error.operation != "open":
                raise
            self.fault = str(error)
        self.is_done = True

    def abandon(self) -> None:
        """Stop for good, between two runs, and clean up. A job that is merely forgotten leaves the disk as it is."""
        self.is_abandoned = True
        self._steps.close()

    def _check(self, file: DiskFile, size_bytes: int) -> _Steps:
        """Check the whole file; what is wrong with it goes to `damage`."""
        try:
            for read_bytes in verify_steps(file.read, size_bytes):
                self.bytes_checked += read_bytes
                yield read_bytes
        except FormatError as error:
            self.damage = str(error)
        except DiskError as error:
            if error.errno not in UNREADABLE_ERRNOS:
                raise
            self.damage = str(error)


class ScrubJob(SlicedJob):
    """Read a segment and compare it with its checksum."""

    def steps(self) -> _Steps:
        """Check the whole segment against its checksums, one step a piece."""
        file = self._disk.open_read(self._paths.segment(self.segment_seq))
        try:
            yield from self._check(file, file.size())
        finally:
            file.close()


class CompactJob(SlicedJob):
    """Rewrite a segment if that pays: `.tmp`, synced, read back and compared, renamed over the old file, directory synced.

    Whoever holds a descriptor of the old file goes on reading it. What goes wrong before the rename costs the compaction, nothing else.
    """

    def __init__(self, disk: Disk, paths: EnginePaths, segment_seq: int, *, free_bytes_min: int = 0) -> None:
        """
        Args:
            free_bytes_min: what must stay free on the disk beside the new file.
        """
        self.verdict: Verdict | None = None
        self.old_size_bytes = 0
        self.new_size_bytes: int | None = None
        """Size of the new file; None: the old file was left alone."""
        self.has_no_room = False
        self._free_bytes_min = free_bytes_min
        super().__init__(disk, paths, segment_seq)
        self.strays = names_beside(segment_seq)

    def steps(self) -> _Steps:
        """Judge, check, rewrite and compare the segment, one step a piece; the rewritten file replaces it at the end."""
        path = self._paths.segment(self.segment_seq)
        source = self._disk.open_read(path)
        try:
            if not self._judge(source).pays:
                return
            yield from self._check(source, self.old_size_bytes)
            if self.damage is None:
                yield from self._rewrite(source, path)
        finally:
            source.close()

    def judge_only(self) -> None:
        """Find out whether it would pay, and change nothing."""
        source = self._disk.open_read(self._paths.segment(self.segment_seq))
        try:
            self._judge(source)
        finally:
            source.close()

    def _judge(self, source: DiskFile) -> Verdict:
        self.old_size_bytes = source.size()
        try:
            footer = read_footer(source.read, self.old_size_bytes)
            directory = decode_directory(source.read(footer.directory_length, footer.directory_offset))
            self.verdict = judge(footer, list(directory.values()))
        except FormatError as error:
            self.damage = str(error)
            self.verdict = Verdict(False, "it cannot be read")
        return self.verdict

    def _rewrite(self, source: DiskFile, path: str) -> _Steps:
        try:
            if self._disk.free_bytes(self._paths.segments) < self._free_bytes_min + self.old_size_bytes:
                self.has_no_room = True
                return
            file = self._disk.create(path + TEMPORARY_SUFFIX)
        except DiskError as error:
            self._give_up(error)
            return
        try:
            size_bytes = yield from self._write(source, file)
            # Else this job would be one of those that have it open.
            source.close()
            held = set_aside(self._disk, self._paths, path)
            try:
                self._disk.rename(file.path, path)
            except DiskError:
                put_back(self._disk, held)
                raise
            self.keep(held)
        except (DiskError, FormatError, pa.ArrowException) as error:
            self._drop(file)
            self._give_up(error)
            return
        except GeneratorExit:
            if self.is_abandoned:
                self._drop(file)
            raise
        try:
            self._disk.sync_directory(self._paths.segments)
            file.make_read_only()
        finally:
            file.close()
        self.new_size_bytes = size_bytes

    def _write(self, source: DiskFile, file: DiskFile) -> Generator[int, None, int]:
        """Write the new file and compare it with the old one. Returns its size."""
        outline = read_outline(source.read, self.old_size_bytes)
        yield 0
        size_bytes = 0
        for part in Rewriting(outline, source.read).parts():
            part_bytes = sum(map(len, part))
            file.write(part, size_bytes)
            size_bytes += part_bytes
            yield part_bytes
        if size_bytes >= self.old_size_bytes:
            raise InvalidFormat(f"it would grow from {self.old_size_bytes} to {size_bytes} bytes")
        file.fsync()
        yield 0
        yield from verify_steps(file.read, size_bytes)
        check_rewriting(outline, read_outline(file.read, size_bytes))
        yield 0
        # Damage that came to the old file since its check was copied, and has a valid checksum in the new one.
        yield from self._check(source, self.old_size_bytes)
        if self.damage is not None:
            raise ChecksumMismatch(f"it was damaged while it was rewritten: {self.damage}")
        return size_bytes

    def _give_up(self, error: Exception) -> None:
        self.has_no_room = isinstance(error, DiskError) and error.errno in NO_SPACE_ERRNOS
        log_event("compaction.given_up", {"segment": self.segment_seq, "reason": str(error)})

    def _drop(self, file: DiskFile) -> None:
        file.close()
        with contextlib.suppress(DiskError):  # What cannot be removed now is reaped at the next open.
            self._disk.unlink(file.path)


class _Lane:
    """One kind of work: at most one job of it is under way, and it rests some times as long as it has worked."""

    def __init__(self, rest: int) -> None:
        self._rest = rest
        self.job: SlicedJob | None = None
        self.resumes_ns = 0

    def pause(self, job: SlicedJob, now_ns: int) -> None:
        self.job = None if job.is_done else job
        self.resumes_ns = now_ns + self._rest * job.took_ns

    def abandon(self, segment_seq: int | None = None) -> None:
        if self.job is not None and segment_seq in (None, self.job.segment_seq):
            self.job.abandon()
            self.job = None


class Upkeep:
    """The compaction and the scrub of one engine's segments, and when each is due. Times are those of `clock`."""

    def __init__(self, disk: Disk, paths: EnginePaths, clock: Clock, *, compacts: bool, free_bytes_min: int) -> None:
        self._disk = disk
        self._paths = paths
        self._clock = clock
        self._compacts = compacts
        self._free_bytes_min = free_bytes_min
        self._compaction = _Lane(COMPACTION_REST)
        self._scrub = _Lane(SCRUB_REST)
        self._uncompacted: deque[tuple[int, int]] = deque()  # (when to look, segment), in that order
        self._checked: dict[int, tuple[int, int]] = {}  # by segment: when, on the monotonic clock and in UNIX time
        self._oldest: list[tuple[int, int]] = []  # heap of (when, segment), of some that were checked again since, too
        self.compactions = 0
        self.saved_bytes = 0
        self.scrubbed_bytes = 0

    # --- segments come and go --------------------------------------------------------------------------------------------

    def change_limits(self, *, compacts: bool, free_bytes_min: int) -> None:
        """Use these limits for what is begun from now on."""
        self._compacts = compacts
        self._free_bytes_min = free_bytes_min

    def checked(self, segment_seq: int) -> None:
        """A segment is whole: it was just written, or read and compared with its checksum."""
        now_ns = self._clock.monotonic_ns()
        if segment_seq not in self._checked and self._compacts:
            self._uncompacted.append((now_ns + COMPACTION_AGE_NS, segment_seq))
        self._note_check(segment_seq)

    def _note_check(self, segment_seq: int) -> None:
        now_ns = self._clock.monotonic_ns()
        self._checked[segment_seq] = (now_ns, self._clock.unix_ns())
        heapq.heappush(self._oldest, (now_ns, segment_seq))
        if len(self._oldest) > 2 * len(self._checked) + STALE_CHECKS_MAX:
            self._oldest = [(at_ns, seq) for seq, (at_ns, _) in self._checked.items()]
            heapq.heapify(self._oldest)

    def forget(self, segment_seq: int) -> None:
        """The segment's file is gone or about to be replaced; nothing of it is under way afterwards."""
        self._checked.pop(segment_seq, None)
        for lane in (self._compaction, self._scrub):
            lane.abandon(segment_seq)

    def close(self) -> None:
        """Stop what is under way. No job may be out."""
        for lane in (self._compaction, self._scrub):
            lane.abandon()

    # --- jobs ------------------------------------------------------------------------------------------------------------

    def next_job(self, *, is_idle: bool) -> SlicedJob | None:
        """The next slice, None if nothing is due.

        Args:
            is_idle: nothing is being ingested or committed at this moment, and there is room on the disk.
        """
        now_ns = self._clock.monotonic_ns()
        if self._compaction_due_ns() <= now_ns:
            if is_idle:
                return self._next_compaction()
            self._compaction.resumes_ns = now_ns + BUSY_RETRY_NS
        return self._next_scrub() if self._scrub_due_ns() <= now_ns else None

    def _next_compaction(self) -> SlicedJob | None:
        if self._compaction.job is None:
            _, segment_seq = self._uncompacted.popleft()
            self._compaction.job = CompactJob(self._disk, self._paths, segment_seq, free_bytes_min=self._free_bytes_min)
        return self._compaction.job

    def _next_scrub(self) -> SlicedJob:
        if self._scrub.job is None:
            self._scrub.job = ScrubJob(self._disk, self._paths, self._oldest[0][1])
        return self._scrub.job

    def _compaction_due_ns(self) -> int:
        if self._compaction.job is not None:
            return self._compaction.resumes_ns
        while self._uncompacted and self._uncompacted[0][1] not in self._checked:
            self._uncompacted.popleft()
        return max(self._uncompacted[0][0], self._compaction.resumes_ns) if self._uncompacted else _NEVER_NS

    def _scrub_due_ns(self) -> int:
        if self._scrub.job is not None:
            return self._scrub.resumes_ns
        oldest = self._oldest_check()
        return _NEVER_NS if oldest is None else max(oldest[0] + SCRUB_AGE_NS, self._scrub.resumes_ns)

    def _oldest_check(self) -> tuple[int, int] | None:
        """When the segment that was checked longest ago was checked: monotonic and UNIX time."""
        while self._oldest:
            at_ns, segment_seq = self._oldest[0]
            checked = self._checked.get(segment_seq)
            if checked is not None and checked[0] == at_ns:
                return checked
            heapq.heappop(self._oldest)
        return None

    def finish(self, job: SlicedJob) -> None:
        """Take back a job of which a slice has been run."""
        now_ns = self._clock.monotonic_ns()
        lane = self._compaction if isinstance(job, CompactJob) else self._scrub
        lane.pause(job, now_ns)
        if job.fault:
            lane.resumes_ns = now_ns + NO_ROOM_RETRY_NS
        self.scrubbed_bytes += job.bytes_checked
        if job.is_done and job.damage is None and job.segment_seq in self._checked:
            self._finish_sound(job, now_ns)

    def _finish_sound(self, job: SlicedJob, now_ns: int) -> None:
        if not isinstance(job, CompactJob):
            if not job.fault:
                self._note_check(job.segment_seq)
        elif job.new_size_bytes is not None:
            self._note_check(job.segment_seq)
            self.compactions += 1
            self.saved_bytes += max(0, job.old_size_bytes - job.new_size_bytes)
        elif job.has_no_room or job.fault:
            self._uncompacted.append((now_ns + NO_ROOM_RETRY_NS, job.segment_seq))

    # --- figures ---------------------------------------------------------------------------------------------------------

    def next_due_ns(self) -> int | None:
        """When `next_job` should be asked next; None if nothing is waiting."""
        due_ns = min(self._compaction_due_ns(), self._scrub_due_ns())
        return None if due_ns == _NEVER_NS else due_ns

    @property
    def oldest_check_unix_ns(self) -> int:
        """When the segment that was checked longest ago was checked; 0 if there is none."""
        oldest = self._oldest_check()
        return oldest[1] if oldest else 0
