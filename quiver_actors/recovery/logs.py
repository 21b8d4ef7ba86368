"""Log files of ours at open: each becomes the segment that its bundles were given, whatever a crash has left of it.

Owner: one `Recovery`. `wal.recovery` decides about each file, this module seals, finishes seals and removes what is left over. A log of a
former process is written anew before it is sealed.
"""

from __future__ import annotations

from itertools import pairwise

from quiver_actors.checksum import crc32
from quiver_actors.disk.protocol import NO_SPACE_ERRNOS, Disk, DiskFile
from quiver_actors.errors import DiskError, FormatError
from quiver_actors.model import SEGMENT_BUNDLES_MAX
from quiver_actors.paths import EnginePaths
from quiver_actors.recovery.findings import Findings
from quiver_actors.recovery.numbers import NumbersUsed
from quiver_actors.recovery.producers import FoundProducers
from quiver_actors.recovery.shelf import FoundSegments
from quiver_actors.sealing import seal_file
from quiver_actors.segment.builder import SegmentBuilder
from quiver_actors.segment.outline import Read
from quiver_actors.segment.reader import read_footer
from quiver_actors.wal import layout
from quiver_actors.wal.decisions import Decision, Header, Held, decide
from quiver_actors.wal.log import Log
from quiver_actors.wal.reader import CHUNK_BYTES, LogReader
from quiver_actors.wal.recovery import FoundLog, examine_log, read_entry


def examine_logs(disk: Disk, paths: EnginePaths) -> list[FoundLog]:
    """All log files, by position; our own of equal position by number. Changes nothing."""
    names = [name for name in disk.list_directory(paths.wal) if _is_log(name)]
    found = [_examine(disk, paths, name) for name in names]
    found.sort(key=lambda log: (log.position_start, layout.rotation_number(log.name) or 1 << 62))
    for log, following in pairwise(log for log in found if log.header_state is Header.OURS):
        log.learn_from(following)
    return found


def _is_log(name: str) -> bool:
    return name == layout.ACTIVE_NAME or layout.rotation_number(name) is not None


def _examine(disk: Disk, paths: EnginePaths, name: str) -> FoundLog:
    file = disk.open_read(f"{paths.wal}/{name}")
    try:
        size = file.size()
        return examine_log(name, LogReader(file.read, size), size, has_valid_trailer(file.read, size))
    finally:
        file.close()


class Settlement:
    """See the module."""

    def __init__(
        self,
        disk: Disk,
        paths: EnginePaths,
        numbers: NumbersUsed,
        shelf: FoundSegments,
        findings: Findings,
        producers: FoundProducers,
    ) -> None:
        self._disk = disk
        self._paths = paths
        self._numbers = numbers
        self._shelf = shelf
        self._findings = findings
        self._producers = producers

    def settle(
        self, found: list[FoundLog], cursor_position: int | None, *, is_clean: bool
    ) -> list[tuple[FoundLog, bool]]:
        """Do what the table decides about each file, ours first.

        Args:
            cursor_position: None if there is no cursor that can be read.
            is_clean: the shutdown before was a clean one.

        Returns:
            Logs that are to be adopted, and whether the file is kept aside afterwards.
        """
        to_adopt = []
        for log in sorted(found, key=lambda log: log.header_state is not Header.OURS):
            path = f"{self._paths.wal}/{log.name}"
            decision = decide(log.case(cursor_position, self._held_of(log), is_clean=is_clean))
            if decision is Decision.FINISH:
                self._finish_seal(log, path)
            elif decision is Decision.SEAL:
                self._seal(log, path)
            elif decision is Decision.QUARANTINE:
                self._findings.quarantine(path, "no valid entry in it, and bytes that cannot be parsed")
            elif decision is Decision.DROP and (log.name != layout.ACTIVE_NAME or log.has_entries):
                self._disk.unlink(path)
            elif decision in (Decision.ADOPT, Decision.ADOPT_AND_KEEP):
                to_adopt.append((log, decision is Decision.ADOPT_AND_KEEP))
        return to_adopt

    def _held_of(self, log: FoundLog) -> Held:
        """Of a log of ours, by the number that only it could become; which entries of others are held shows when they are read."""
        identity = log.header.identity if log.header else None
        return Held.ALL if identity is not None and identity.segment_seq in self._shelf.segments else Held.NOTHING

    def _finish_seal(self, log: FoundLog, path: str) -> None:
        """The file is a whole segment that only lacks its name."""
        assert log.header is not None
        assert log.header.identity is not None
        segment_seq = log.header.identity.segment_seq
        file = self._renewed(path, log.size_bytes, log.size_bytes)
        try:
            footer = read_footer(file.read, log.size_bytes)
            file.fsync()
            self._disk.rename(file.path, self._paths.segment(segment_seq))
            self._disk.sync_directory(self._paths.segments)
            self._disk.sync_directory(self._paths.wal)
            file.make_read_only()
        finally:
            file.close()
        if file.path != path:
            self._disk.unlink(path)
        self._shelf.add(segment_seq, footer, log.size_bytes)
        self._findings.notes.append(f"finished the seal of segment {segment_seq}")

    def _seal(self, found: FoundLog, path: str) -> None:
        """Seal a log of ours under the number that its bundles were given."""
        assert found.header is not None
        assert found.header.identity is not None
        identity = found.header.identity
        file = self._renewed(path, found.end, found.size_bytes)
        log = Log(file, file.path, found.size_bytes)
        log.position_start, log.identity = found.position_start, identity
        try:
            self._rebuild(log, found)
            self._producers.save()
            if file.path == path:
                file.fsync()
                log.path = self._retire_active(path) if found.name == layout.ACTIVE_NAME else path
            self._shelf.add_sealed(log, seal_file(self._disk, self._paths, log, identity.incarnation))
        finally:
            file.close()
        if file.path != path:
            self._disk.unlink(path)

    def _renewed(self, path: str, end: int, capacity_bytes: int) -> DiskFile:
        """The first `end` bytes of a log, written anew, so that the next sync brings all of them to the disk.

        Where a sync has failed before, the cache may show bytes that the disk never got and that no later sync of that file
        would write. So a log of a former process is copied, and only where there is no room for that written over itself.
        """
        source = self._disk.open_read(path)
        try:
            return self._copied(source, end, capacity_bytes)
        except DiskError as error:
            if error.errno not in NO_SPACE_ERRNOS:
                raise
        finally:
            source.close()
        file = self._disk.open_write(path)
        _copy_bytes(file, file, end)
        return file

    def _copied(self, source: DiskFile, end: int, capacity_bytes: int) -> DiskFile:
        copy = self._disk.create(self._paths.spare(self._numbers.take_rotation()))
        try:
            copy.allocate(capacity_bytes)
            _copy_bytes(source, copy, end)
        except DiskError:
            copy.close()
            self._disk.unlink(copy.path)
            raise
        return copy

    def _retire_active(self, path: str) -> str:
        """Give the active file its rotated name first, so that no crash leaves a half-sealed quiver.wal."""
        target = self._paths.rotated(self._numbers.take_rotation())
        self._disk.rename(path, target)
        self._disk.sync_directory(self._paths.wal)
        return target

    def _rebuild(self, log: Log, found: FoundLog) -> None:
        """Fill the log's builder from the file: bundle i of the segment has sequence first_sequence + i."""
        reader = LogReader(log.file.read, found.scan.end)
        log.builder = SegmentBuilder(log.identity.segment_seq, log.read)
        for span in found.damaged:
            self._findings.keep_span(log.file.read, found.name, span)
        for span in found.scan.entries:
            entry = read_entry(reader, span)
            if entry.entry_type != layout.ENTRY_TYPE_BUNDLE:
                continue
            expected = log.identity.first_sequence + log.builder.bundle_count
            if entry.error or not expected <= entry.sequence < expected + SEGMENT_BUNDLES_MAX:
                self._findings.keep_span(log.file.read, found.name, span)
                continue
            self._append_lost(log, expected, entry.sequence)
            index = log.builder.append(
                entry.sequence, entry.ingestion_ts_nanos, -1, span.end - span.start, entry.placements
            )
            self._producers.note(log, index, entry.sequence, entry.placements)
        self._append_lost(log, log.identity.first_sequence + log.builder.bundle_count, found.sequence_end)
        log.written_end = log.end = found.end
        log.crc = _crc_of(log.file.read, log.end)

    def _append_lost(self, log: Log, first_sequence: int, end_sequence: int) -> None:
        """Number the bundles that cannot be read any more, so that those behind keep their ids; they have no slots."""
        for sequence in range(first_sequence, end_sequence):
            index = log.builder.append(sequence, 0, 0, 0, ())
            self._findings.notes.append(f"bundle {log.segment_seq}/{index} is damaged")


def _copy_bytes(source: DiskFile, target: DiskFile, end: int) -> None:
    for offset in range(0, end, CHUNK_BYTES):
        target.write([source.read(min(CHUNK_BYTES, end - offset), offset)], offset)


def has_valid_trailer(read: Read, size_bytes: int) -> bool:
    """Whether the file ends as a whole segment does, its CRC included."""
    try:
        footer = read_footer(read, size_bytes)
    except FormatError:
        return False
    return _crc_of(read, size_bytes - 4) == footer.crc32


def _crc_of(read: Read, end: int) -> int:
    value = 0
    for offset in range(0, end, CHUNK_BYTES):
        value = crc32(read(min(CHUNK_BYTES, end - offset), offset), value)
    return value
