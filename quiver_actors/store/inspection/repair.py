"""Putting a stopped engine's directory right as far as that can be done without inventing anything.

- Damaged files go to quarantine/; nothing is deleted but temporary files. What can be proven of a segment is sealed again, as the
  engine itself does it.
- A log header is restored if its CRC proves what stood there. A cursor is derived from the segments. Logs are sealed, and what is in
  them saved, by the recovery that every open runs.
- Progress is never derived: a subscriber whose file is damaged is kept and starts from the beginning, as at every open.

A directory without damage is not touched. A dry run is the same code over a `PreviewDisk`. The caller makes sure that no node runs.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from quiver_actors.base.config import TopicSettings
from quiver_actors.errors import AlreadyRunning, DiskError, FormatError
from quiver_actors.store.disk.protocol import UNREADABLE_ERRNOS, Disk, write_atomically
from quiver_actors.store.files.core_file import CORE_NAME
from quiver_actors.store.files.paths import TEMPORARY_SUFFIX, EnginePaths, segment_seq_of
from quiver_actors.store.files.quarantine import copy_span, move_to_quarantine
from quiver_actors.store.inspection import directory as directories
from quiver_actors.store.inspection import structures
from quiver_actors.store.inspection.careful import Action, CarefulDisk, Step
from quiver_actors.store.inspection.findings import Finding, Severity, has_damage
from quiver_actors.store.inspection.preview import PreviewDisk, quiet_log
from quiver_actors.store.inspection.segments import SegmentLook, examine_segment
from quiver_actors.store.inspection.small_files import examine_progress
from quiver_actors.store.inspection.source import CHUNK_BYTES, Tree
from quiver_actors.store.inspection.verification import Totals, verify_engine
from quiver_actors.store.jobs.rescue import RescueJob
from quiver_actors.store.jobs.sealing import write_cursor
from quiver_actors.store.recovery import Recovered, Recovery
from quiver_actors.store.segment.codec import FooterExtension
from quiver_actors.store.segment.reader import read_footer
from quiver_actors.store.subscriber.progress import encode_progress, progress_file_name, subscriber_of
from quiver_actors.store.wal import layout
from quiver_actors.store.wal.contract import segment_cfg_hash

SETTLED_BY_START = frozenset(["progress.missing_segment"])
"""Damage that the node itself settles when it starts: subscribers are told by gap notices, which only it can send."""
_NOT_BY_RECOVERY = frozenset(["progress.missing_segment", "progress.bundle_count"])
_GAP = (
    "a log file, or the end of one, is missing. Put it back if you can; the logs are not sealed here, because that hides the gap. "
    "Starting the node seals them as they are"
)
_NO_FILE_ERRNOS = frozenset([errno.ELOOP, errno.EISDIR])
"""A link or a directory stands where a file should be. Whatever else fails may succeed the next time, or at the start of the node."""
_BY_RECOVERY = (
    "log.",
    "progress",
    "core",
    "producers",
    "foreign.record",
    "stage.record",
    "stage.part",
    "file.unreadable",
)


@dataclass(slots=True)
class EngineRepair:
    """Report of a repair of one engine's directory: what was done, or would be done."""

    directory: str
    damage: list[Finding] = field(default_factory=list)
    """The damage that was found before anything was done."""
    steps: list[Step] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    left: list[Finding] = field(default_factory=list)
    """Damage that is still there, and that somebody has to deal with."""
    refusal: str = ""
    """Why recovery could not be run; empty if it was run, or was not needed."""

    @property
    def is_whole(self) -> bool:
        """Whether nothing damaged is left."""
        return not self.left and not self.refusal


def repair_engine(tree: Tree, directory: str, settings: TopicSettings, *, dry_run: bool) -> EngineRepair:
    """Repair one engine's directory.

    Args:
        settings: those of the engine's topic; the slot table must be the one that the logs were written under.
        dry_run: find out the same, change nothing.

    Raises:
        AlreadyRunning: an engine has the directory open.
        DiskError: a change could not be made; what was done before is complete, and the rest can be tried again.
    """
    if dry_run:
        with quiet_log():
            return _EngineRepairer(tree, directory, settings, PreviewDisk(tree.disk)).run()
    lock = tree.disk.lock(EnginePaths(directory).lock)
    if lock is None:
        raise AlreadyRunning(f"{tree.named(directory)} is open in another process: stop it first")
    try:
        with quiet_log():
            return _EngineRepairer(tree, directory, settings, tree.disk).run()
    finally:
        lock.release()


class _EngineRepairer:
    """One repair of one directory. Everything goes through `_disk`, which notes the steps."""

    def __init__(self, tree: Tree, directory: str, settings: TopicSettings, disk: Disk) -> None:
        self._paths = EnginePaths(directory)
        self._settings = settings
        self._disk = CarefulDisk(disk, self._paths)
        self._tree = Tree(self._disk, tree.label, tree.note_look)
        self._repair = EngineRepair(tree.named(directory))
        self._unreadable_subscribers: list[str] = []

    def run(self) -> EngineRepair:
        repair = self._repair
        repair.damage = self._find_damage(deep=True)
        if repair.damage:
            self._restore_log_headers()
            self._rescue_segments()
            self._rebuild_cursor()
            self._move_core()
            if any(finding.code == "log.gap" for finding in repair.damage):
                repair.refusal = _GAP
            elif any(self._is_for_recovery(finding) for finding in repair.damage):
                self._recover()
            repair.left = [finding for finding in self._find_damage(deep=False) if finding.code not in SETTLED_BY_START]
        repair.steps = self._disk.steps
        for step in repair.steps:
            if step.action is Action.MOVE_ASIDE:
                step.reason = step.reason or self._reason(directories.join(self._paths.root, step.path))
        return repair

    def _is_for_recovery(self, finding: Finding) -> bool:
        """Whether it is what an open would meet and settle: damage inside logs, stages and the small files of the root."""
        is_segment = self._tree.path_of(finding.path).startswith(f"{self._paths.segments}/")
        return not is_segment and finding.code.startswith(_BY_RECOVERY) and finding.code not in _NOT_BY_RECOVERY

    def _find_damage(self, *, deep: bool) -> list[Finding]:
        findings = verify_engine(self._tree, self._paths.root, deep=deep, totals=Totals())
        return [finding for finding in findings if finding.severity is Severity.DAMAGE]

    def _damaged_paths(self, prefix: str) -> list[str]:
        """Paths on the disk of files with findings of that kind, each once."""
        found = (self._tree.path_of(f.path) for f in self._repair.damage if f.code.startswith(prefix))
        return list(dict.fromkeys(found))

    def _move_aside(self, path: str, reason: str) -> None:
        move_to_quarantine(self._disk, self._paths, path)
        self._disk.steps[-1].reason = reason

    def _reason(self, path: str) -> str:
        """The first thing that was found wrong with a file."""
        named = self._tree.named(path)
        return next((finding.message for finding in self._repair.damage if finding.path == named), "")

    # --- steps ---------------------------------------------------------------------------------------------------------------

    def _restore_log_headers(self) -> None:
        for path in self._damaged_paths("log.header"):
            if not path.startswith(f"{self._paths.wal}/"):
                continue  # of a segment: rescue does it
            with self._tree.open(path) as source:
                damaged = source.read(layout.HEADER_BYTES, 0)
            restored = structures.restored_log_header(damaged)
            if restored is not None:
                self._keep_copy(path, damaged)
                self._write_header(path, restored)
                self._disk.note(Action.RESTORE, path, reason="its CRC proves what the header was")

    def _write_header(self, path: str, header: bytes) -> None:
        file = self._disk.open_write(path)
        try:
            file.write([header], 0)
            file.fdatasync()
        finally:
            file.close()

    def _keep_copy(self, path: str, damaged: bytes) -> None:
        name = path.rpartition("/")[2]
        copy_span(self._disk, self._paths, lambda length, at: damaged[at : at + length], name, 0, len(damaged))

    def _rescue_segments(self) -> None:
        """Seal again what can be proven of each damaged segment, as the engine would, and move aside whole what is still damaged then."""
        misnamed = self._damaged_paths("segment.name")
        for path in dict.fromkeys(self._damaged_paths("segment.") + self._damaged_paths("file.unreadable")):
            segment_seq = segment_seq_of(path.rpartition("/")[2])
            if segment_seq is None or not path.startswith(f"{self._paths.segments}/"):
                continue
            before = len(self._disk.steps)
            if path == self._paths.segment(segment_seq) and path not in misnamed:
                self._rescue(path, segment_seq)
            if self._disk.exists(path) and self._is_damaged(path, segment_seq):
                move_to_quarantine(self._disk, self._paths, path)
            for step in self._disk.steps[before:]:
                step.reason = step.reason or self._reason(path)

    def _rescue(self, path: str, segment_seq: int) -> None:
        count = self._known_bundle_count(path, segment_seq)
        hash_of_slots = segment_cfg_hash(self._settings)
        job = RescueJob(self._disk, self._paths, segment_seq, self._reason(path), count, hash_of_slots)
        job.run()
        if isinstance(job.error, DiskError) and (job.error.path != path or job.error.errno not in _NO_FILE_ERRNOS):
            # A change that failed says nothing about the segment: what can be proven of it is not to be moved aside with the rest.
            raise job.error
        if job.rescued is not None:
            lost = len(job.rescued.lost) if job.rescued.info is not None else "all"
            self._repair.notes.append(f"segment {segment_seq}: {lost} of {job.rescued.bundle_count} bundles are lost")

    def _known_bundle_count(self, path: str, segment_seq: int) -> int:
        """How many bundles the segment had at least, by its own tables and by what subscribers know of it."""
        counts = [0]
        for name in directories.progress_names(self._disk, self._paths).values():
            with self._tree.open(directories.join(self._paths.root, name)) as source:
                progress = examine_progress(source, limit=0).progress
            if progress is not None and segment_seq in progress.entries:
                counts.append(progress.entries[segment_seq].bundle_count)
        look = self._look(path, segment_seq, deep=False)
        if look is not None and look.has_tables:
            counts.append(look.view.bundle_count)
        return max(counts)

    def _is_damaged(self, path: str, segment_seq: int) -> bool:
        look = self._look(path, segment_seq, deep=True)
        return look is None or has_damage(look.findings)

    def _look(self, path: str, segment_seq: int, *, deep: bool) -> SegmentLook | None:
        """Look at a segment file; None if the file cannot be read."""
        try:
            with self._tree.open(path) as source:
                return examine_segment(source, segment_seq, deep=deep, limit=0)
        except DiskError as error:
            if error.errno not in _NO_FILE_ERRNOS:
                raise
            return None

    def _move_core(self) -> None:
        path = directories.join(self._paths.root, CORE_NAME)
        if path in self._damaged_paths("core"):
            self._move_aside(path, self._reason(path))

    def _rebuild_cursor(self) -> None:
        if self._paths.cursor not in self._damaged_paths("cursor"):
            return
        self._move_aside(self._paths.cursor, self._reason(self._paths.cursor))
        position = self._derived_position()
        if position is None:
            self._repair.notes.append(
                "the cursor is not made anew: segments or logs of another writer do not say where they stand. At the next start "
                "the logs are replayed from the beginning, and some bundles may be delivered twice"
            )
        else:
            write_cursor(self._disk, self._paths, position)
            self._disk.steps[-1].reason = f"position {position}, where the segments end"

    def _derived_position(self) -> int | None:
        """The log position behind everything that segments hold, from the segments; None where they do not say."""
        headers, ends = list(directories.log_headers(self._disk, self._paths)), []
        for extension in self._extensions():
            if extension is None:
                return None
            ends.append(extension.wal_position_end)
        if any(header.identity is None for header in headers):
            return None  # another writer's log, for which the cursor is evidence
        return max(ends) if ends else min((header.position_start for header in headers), default=None)

    def _extensions(self) -> Iterator[FooterExtension | None]:
        """What each segment says of the log that it came from; None for one that says nothing."""
        for name in directories.segment_names(self._disk, self._paths).values():
            with self._tree.open(f"{self._paths.segments}/{name}") as source:
                try:
                    yield read_footer(source.read, source.size_bytes).extension
                except FormatError:
                    yield None

    # --- recovery ------------------------------------------------------------------------------------------------------------

    def _recover(self) -> None:
        """What every open does, and what an engine would do next: make its subscribers durable."""
        unreadable = self._damaged_paths("file.unreadable")
        while True:
            try:
                core_id = directories.core_id_of(self._paths.root)
                recovered = Recovery(self._disk, self._paths, self._settings, core_id, self._incarnation).run()
                break
            except FormatError as error:
                self._repair.refusal = str(error)
                return
            except DiskError as error:
                # A link, a directory or bad sectors under a name of ours: it would stop every open.
                if error.path not in unreadable or not self._disk.exists(error.path):
                    raise
                self._take_out_of_the_way(error)
        self._repair.notes += recovered.notes
        for subscriber in self._unreadable_subscribers:
            if subscriber not in recovered.registry:
                recovered.registry.register(subscriber, (0, 0))
        self._write_progress(recovered)

    def _incarnation(self, length: int) -> bytes:
        """The incarnation for a directory that has lost its core file: the one that all of its files carry, else a new one."""
        found = {extension.incarnation for extension in self._extensions() if extension is not None}
        headers = directories.log_headers(self._disk, self._paths)
        found |= {header.identity.incarnation for header in headers if header.identity is not None}
        return found.pop() if len(found) == 1 else os.urandom(length)

    def _take_out_of_the_way(self, error: DiskError) -> None:
        path = error.path
        directory, _, name = path.rpartition("/")
        if directory == self._paths.wal and name != layout.CURSOR_NAME and error.errno in UNREADABLE_ERRNOS:
            self._copy_log(path)
        subscriber = subscriber_of(name) if directory == self._paths.root else None
        if subscriber is not None:
            self._unreadable_subscribers.append(subscriber)
        self._move_aside(path, self._reason(path))

    def _copy_log(self, path: str) -> None:
        """What the disk gives back of a log, under the next free number: recovery sees zeroes where it gives nothing."""
        numbers = [layout.rotation_number(name) or 0 for name in directories.log_names(self._disk, self._paths)]
        target = self._paths.rotated(max(numbers, default=0) + 1)
        copy = self._disk.create(target + TEMPORARY_SUFFIX)
        try:
            with self._tree.open(path) as source:
                for number, chunk in enumerate(source.chunks(source.size_bytes)):
                    copy.write([chunk], number * CHUNK_BYTES)
            copy.fsync()
        finally:
            copy.close()
        self._disk.rename(target + TEMPORARY_SUFFIX, target)
        self._disk.sync_directory(self._paths.wal)
        self._disk.steps[-1].reason = f"what can be read of {path.rpartition('/')[2]}"

    def _write_progress(self, recovered: Recovered) -> None:
        """Subscribers whose file was moved aside: recovery keeps them in memory only, and nothing follows it here."""
        # Nobody has been told of the segments yet: all of them count as pending, as in an engine that has just opened.
        oldest = min(recovered.segments, default=recovered.next_segment_seq)
        for subscriber, _, progress in recovered.registry.flushes.dirty(oldest):
            path = directories.join(self._paths.root, progress_file_name(subscriber))
            write_atomically(self._disk, path, encode_progress(progress))
            self._disk.steps[-1].reason = f"{subscriber} gets everything that is still there once more"
            self._disk.sync_directory(self._paths.root)
