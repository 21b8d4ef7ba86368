"""Opening one engine's directory: everything that a crash can leave is brought to rest before the engine takes work.

Afterwards the directory holds sealed segments, progress files, `quiver.core` and an optional empty log; every acknowledged
bundle is in a segment. `wal.recovery` decides about each log file, this module reads, seals, adopts and moves aside.
Every step can be cut off and done again: nothing is removed before what replaces it is durable, and nothing that cannot be
parsed is deleted.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import msgspec
import xxhash

from quiver_actors.ballast import release as release_ballast
from quiver_actors.checksum import crc32
from quiver_actors.config import TopicSettings
from quiver_actors.core_file import (
    SEGMENT_SEQ_BLOCK,
    SEQUENCE_BLOCK,
    CoreFile,
    decode_core,
)
from quiver_actors.disk.protocol import NO_SPACE_ERRNOS, Disk, DiskFile, write_atomically
from quiver_actors.errors import ConfigMismatch, DiskError, FormatError, InvalidFormat, UnsupportedVersion
from quiver_actors.jobs import write_core
from quiver_actors.model import SEGMENT_BUNDLES_MAX
from quiver_actors.paths import TEMPORARY_SUFFIX, EnginePaths, segment_seq_of
from quiver_actors.protocol.messages import SegmentInfo
from quiver_actors.quarantine import SMALL_FILE_BYTES_MAX, copy_span, copy_to_quarantine, move_to_quarantine
from quiver_actors.rescue import SalvageReader, finish_rescues
from quiver_actors.sealing import seal_file, write_cursor
from quiver_actors.segment.builder import SegmentBuilder
from quiver_actors.segment.check import is_plausible, run_to_end, verify_steps
from quiver_actors.segment.codec import SegmentFooter
from quiver_actors.segment.outline import Read
from quiver_actors.segment.reader import read_footer
from quiver_actors.subscriber.gaps import GapLedger, decode_gaps, gaps_file_name
from quiver_actors.subscriber.progress import decode_progress, encode_progress, subscriber_of
from quiver_actors.subscriber.registry import SubscriberRegistry
from quiver_actors.transactions.keys import KeyRun, Windows, decode_windows, key_of
from quiver_actors.transactions.recovery import RecoveredStages, check_versions, recover_stages
from quiver_actors.wal import layout
from quiver_actors.wal.codec import Identity, decode_cursor, decode_header
from quiver_actors.wal.decisions import Behind, Decision, Header, Held, decide
from quiver_actors.wal.log import Log
from quiver_actors.wal.reader import CHUNK_BYTES, LogReader, Span
from quiver_actors.wal.recovery import FoundLog, examine_log, read_entry

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Recovered:
    """What an engine starts from."""

    core: CoreFile
    """As it stands on disk now: numbers reserved, not clean."""
    next_segment_seq: int
    next_sequence: int
    position: int
    """End of everything logged so far: the next log starts here."""
    next_rotation: int
    segments: dict[int, SegmentInfo]
    registry: SubscriberRegistry
    missing: list[int] = field(default_factory=list)
    """Segments that progress waits for and whose files are gone."""
    damaged: dict[int, str] = field(default_factory=dict)
    """Segments whose footer cannot be read or believed, and why: the files are where they were, to be rescued."""
    quarantined: int = 0
    notes: list[str] = field(default_factory=list)
    stages: RecoveredStages = field(default_factory=RecoveredStages)
    """Staged bundles, the prepared ones."""
    windows: Windows = field(default_factory=Windows)
    """What idempotent producers have stored, as it is in their file."""


def segment_cfg_hash(settings: TopicSettings) -> bytes:
    """The layout contract of a topic as 16 bytes. FORMATS section 2."""
    if not settings.slots:
        return layout.DEFAULT_CFG_HASH
    contract = {"checksum": "crc32", "slots": sorted((slot_id, name) for name, slot_id in settings.slots.items())}
    return xxhash.xxh3_128_digest(msgspec.msgpack.encode(contract, order="deterministic"))


def recover(disk: Disk, paths: EnginePaths, settings: TopicSettings, core_id: int) -> Recovered:
    """Recover the directory; on a full disk its ballast makes room. Raises as `Recovery.run`."""
    try:
        return Recovery(disk, paths, settings, core_id).run()
    except DiskError as error:
        if error.errno not in NO_SPACE_ERRNOS or not release_ballast(disk, paths.ballast):
            raise
    return Recovery(disk, paths, settings, core_id).run()


class Recovery:
    """One opening of one directory. `run` does all of it."""

    def __init__(
        self,
        disk: Disk,
        paths: EnginePaths,
        settings: TopicSettings,
        core_id: int,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._disk = disk
        self._paths = paths
        self._core_id = core_id
        self._cfg_hash = segment_cfg_hash(settings)
        self._target_bytes = settings.segment.target_size_bytes
        self._random_bytes = random_bytes
        self._registry = SubscriberRegistry()
        self._segments: dict[int, SegmentInfo] = {}
        self._held: list[tuple[int, int, int]] = []
        """Closed ranges of sequences that segments of ours hold, and the log position where each of them starts."""
        self._windows = Windows()
        self._keys: list[tuple[str, KeyRun]] = []
        """Found in the log that is being sealed."""
        self._position = 0
        self._covered_position = 0
        self._cursor_position = 0
        self._cursor_found: int | None = None
        self._damaged: dict[int, str] = {}
        self._quarantined = 0
        self._notes: list[str] = []
        self._next_rotation = 1
        self._next_sequence = 0
        self._next_segment_seq = 0
        self._incarnation = b""

    def run(self) -> Recovered:
        """Recover the directory.

        Raises:
            UnsupportedVersion, ConfigMismatch: nothing was changed.
            DiskError: the same directory can be opened again. A log that the disk does not give back in full is such a case:
                what is missing of it may have been acknowledged, so nobody but an operator may give it up.
        """
        for directory in (self._paths.root, self._paths.wal, self._paths.segments):
            self._disk.make_directory(directory)
        core = self._read_core()
        was_clean = core is not None and core.clean_shutdown
        found = self._examine_logs()
        self._check_config(found)
        check_versions(self._disk, self._paths)
        self._reap_temporaries()
        finish_rescues(self._disk, self._paths)
        self._load_segments()
        self._load_progress()
        self._load_windows()
        core = self._reserve(core, found)
        stages = self._recover_stages()
        self._settle_logs(found, was_clean)
        return Recovered(
            core,
            self._next_segment_seq,
            self._next_sequence,
            self._position,
            self._next_rotation,
            dict(sorted(self._segments.items())),
            self._registry,
            self._missing_segments(),
            self._damaged,
            self._quarantined,
            self._notes,
            stages,
            self._windows,
        )

    def _recover_stages(self) -> RecoveredStages:
        """Staged bundles: prepared ones are kept, a publish that was begun is finished, the rest is deleted."""
        found = recover_stages(
            self._disk, self._paths, self._incarnation, lambda seq: seq in self._segments or seq in self._damaged
        )
        for part in found.published:
            self._register_sealed(part, found.infos[part.segment_seq])
            self._next_sequence = max(self._next_sequence, part.builder.last_sequence + 1)
            self._next_segment_seq = max(self._next_segment_seq, part.segment_seq + 1)
            self._position = max(self._position, part.position_end)
        self._notes += found.notes
        self._quarantined += found.quarantined
        return found

    # --- reading what is there, before anything is changed -------------------------------------------------------------------

    def _read_core(self) -> CoreFile | None:
        if not self._disk.exists(self._paths.core):
            return None
        try:
            return decode_core(self._read_small(self._paths.core))
        except UnsupportedVersion:
            raise
        except FormatError as error:
            self._quarantine(self._paths.core, str(error))
            return None

    def _read_small(self, path: str) -> bytes:
        """A core, cursor or progress file; what the disk does not give back is zero, and so damaged."""
        file = self._disk.open_read(path)
        try:
            source = SalvageReader(file)
            return source.read(min(source.size_bytes, SMALL_FILE_BYTES_MAX), 0)
        finally:
            file.close()

    def _examine_logs(self) -> list[FoundLog]:
        """All log files, by position; our own of equal position by number."""
        names = [n for n in self._disk.list_directory(self._paths.wal) if self._is_log(n)]
        found = [self._examine(name) for name in names]
        found.sort(key=lambda log: (log.position_start, layout.rotation_number(log.name) or 1 << 62))
        for log, following in pairwise(log for log in found if log.header_state is Header.OURS):
            log.learn_from(following)
        return found

    @staticmethod
    def _is_log(name: str) -> bool:
        return name == layout.ACTIVE_NAME or layout.rotation_number(name) is not None

    def _examine(self, name: str) -> FoundLog:
        file = self._disk.open_read(f"{self._paths.wal}/{name}")
        try:
            size = file.size()
            return examine_log(name, LogReader(file.read, size), size, _has_valid_trailer(file.read, size))
        finally:
            file.close()

    def _check_config(self, found: list[FoundLog]) -> None:
        for log in found:
            if log.header and log.scan.entries and log.header.cfg_hash != self._cfg_hash:
                raise ConfigMismatch(
                    f"{self._paths.wal}/{log.name} was written under another slot table: its segment_cfg_hash is "
                    f"{log.header.cfg_hash.hex()}, the settings give {self._cfg_hash.hex()}. Start once with the former "
                    "table and stop cleanly (that seals the log), or put the new table on a new topic"
                )

    def _load_segments(self) -> None:
        for name in self._disk.list_directory(self._paths.segments):
            segment_seq = segment_seq_of(name)
            if segment_seq is None:
                continue
            self._next_segment_seq = max(self._next_segment_seq, segment_seq + 1)
            file = self._disk.open_read(f"{self._paths.segments}/{name}")
            try:
                self._load_segment(segment_seq, SalvageReader(file))
            finally:
                file.close()

    def _load_segment(self, segment_seq: int, source: SalvageReader) -> None:
        """Only the footer is read, unless something is wrong with it: then the checksum of the file decides what to believe."""
        try:
            footer = read_footer(source.read, source.size_bytes)
            if is_plausible(footer):
                self._know_segment(segment_seq, footer, source.size_bytes)
                return
            found: FormatError = InvalidFormat("the numbers in the segment's footer contradict each other")
        except FormatError as error:
            found = error
        try:
            footer = run_to_end(verify_steps(source.read, source.size_bytes))
            self._know_segment(segment_seq, footer, source.size_bytes)
        except UnsupportedVersion:
            raise
        except FormatError:
            self._damaged[segment_seq] = str(found)
            self._notes.append(f"segment {segment_seq} is damaged: {found}")
            self._step_over_damaged(source)

    def _step_over_damaged(self, source: SalvageReader) -> None:
        """Use no number that a damaged segment may have used."""
        try:
            header = decode_header(source.read(layout.HEADER_BYTES, 0))
        except FormatError:
            return
        self._position = max(self._position, header.position_start + source.size_bytes)
        if header.identity is not None:
            self._next_sequence = max(self._next_sequence, header.identity.first_sequence + SEGMENT_BUNDLES_MAX)

    def _know_segment(self, segment_seq: int, footer: SegmentFooter, size_bytes: int) -> None:
        extension = footer.extension
        if extension is None:
            self._segments[segment_seq] = SegmentInfo(segment_seq, footer.bundle_count, 0, size_bytes, 0, 0)
            return
        self._segments[segment_seq] = SegmentInfo(
            segment_seq,
            footer.bundle_count,
            extension.row_count,
            size_bytes,
            extension.first_ingestion_ts_nanos,
            extension.last_ingestion_ts_nanos,
        )
        self._held.append((extension.first_sequence, extension.last_sequence, extension.wal_position_start))
        self._next_sequence = max(self._next_sequence, extension.last_sequence + 1)
        self._position = max(self._position, extension.wal_position_end)

    def _load_windows(self) -> None:
        if not self._disk.exists(self._paths.producers):
            return
        try:
            self._windows = decode_windows(self._read_small(self._paths.producers))
        except UnsupportedVersion:
            raise
        except FormatError as error:
            self._quarantine(self._paths.producers, str(error))

    def _load_progress(self) -> None:
        for name in self._disk.list_directory(self._paths.root):
            subscriber = subscriber_of(name)
            if subscriber is None:
                continue
            path = self._paths.in_root(name)
            gaps = self._read_gaps(subscriber)
            try:
                self._registry.load(subscriber, decode_progress(self._read_small(path)), gaps)
            except UnsupportedVersion:
                raise
            except FormatError as error:
                self._start_over(subscriber, path, str(error), gaps)
        self._next_segment_seq = max(self._next_segment_seq, self._registry.highest_segment_seq_seen() + 1)

    def _start_over(self, subscriber: str, path: str, why: str, gaps: GapLedger) -> None:
        """Keep a subscriber whose progress is damaged, from the beginning: at least once, never silently less.

        Its file is replaced and not moved, so that no crash leaves the subscriber unknown.
        """
        state = self._registry.register(subscriber, "earliest", (0, 0))
        state.gaps = gaps
        kept_as = copy_to_quarantine(self._disk, self._paths, path)
        write_atomically(self._disk, path, encode_progress(state.snapshot(0)))
        self._disk.sync_directory(self._paths.root)
        self._note_quarantined(path, kept_as, why)

    def _read_gaps(self, subscriber: str) -> GapLedger:
        path = self._paths.in_root(gaps_file_name(subscriber))
        if not self._disk.exists(path):
            return GapLedger()
        try:
            return decode_gaps(self._read_small(path))
        except UnsupportedVersion:
            raise
        except FormatError as error:
            self._quarantine(path, str(error))
            return GapLedger()

    # --- bringing it to rest -------------------------------------------------------------------------------------------------

    def _reap_temporaries(self) -> None:
        """Also makes the names durable that a killed process has left: everything below relies on them."""
        kept = [self._paths.quarantine] if self._disk.exists(self._paths.quarantine) else []
        for directory in (*kept, self._paths.root, self._paths.wal, self._paths.segments):
            for name in self._disk.list_directory(directory):
                if name.endswith(TEMPORARY_SUFFIX):
                    self._disk.unlink(f"{directory}/{name}")
            self._disk.sync_directory(directory)

    def _reserve(self, core: CoreFile | None, found: list[FoundLog]) -> CoreFile:
        """Fix the numbers to go on with, durably, before the first of them is used."""
        if core is not None:
            self._next_segment_seq = max(self._next_segment_seq, core.next_segment_seq_reserved)
            self._next_sequence = max(self._next_sequence, core.next_sequence_reserved)
        for log in found:
            self._note_numbers(log)
        if self._disk.exists(self._paths.cursor):
            self._read_cursor()
        incarnation = core.incarnation if core else self._random_bytes(16)
        self._incarnation = incarnation
        reserved = CoreFile(
            incarnation,
            self._core_id,
            self._next_segment_seq + SEGMENT_SEQ_BLOCK,
            self._next_sequence + SEQUENCE_BLOCK,
            clean_shutdown=False,
        )
        write_core(self._disk, self._paths, reserved)
        return reserved

    def _note_numbers(self, log: FoundLog) -> None:
        self._next_rotation = max(self._next_rotation, (layout.rotation_number(log.name) or 0) + 1)
        self._position = max(self._position, log.position_end)
        identity = log.header.identity if log.header else None
        if identity is not None:
            # An empty one gave its number to no bundle; after a clean stop it is exactly the next.
            used = 1 if log.has_entries or log.behind is Behind.TAIL else 0
            self._next_segment_seq = max(self._next_segment_seq, identity.segment_seq + used)
            self._next_sequence = max(self._next_sequence, identity.first_sequence)
        if log.has_entries:
            self._next_sequence = max(self._next_sequence, log.sequence_end)

    def _read_cursor(self) -> None:
        try:
            position = decode_cursor(self._read_small(self._paths.cursor))
        except FormatError as error:
            self._quarantine(self._paths.cursor, str(error))
            return
        self._cursor_position = self._cursor_found = position
        self._covered_position = position
        self._position = max(self._position, position)

    def _settle_logs(self, found: list[FoundLog], was_clean: bool) -> None:
        to_adopt = []
        for log in sorted(found, key=lambda log: log.header_state is not Header.OURS):
            path = f"{self._paths.wal}/{log.name}"
            decision = decide(log.case(self._cursor_found, self._held_of(log), is_clean=was_clean))
            if decision is Decision.FINISH:
                self._finish_seal(log, path)
            elif decision is Decision.SEAL:
                self._seal(log, path)
            elif decision is Decision.QUARANTINE:
                self._quarantine(path, "no valid entry in it, and bytes that cannot be parsed")
            elif decision is Decision.DROP and (log.name != layout.ACTIVE_NAME or log.has_entries):
                self._disk.unlink(path)
            elif decision in (Decision.ADOPT, Decision.ADOPT_AND_KEEP):
                to_adopt.append((log, decision is Decision.ADOPT_AND_KEEP))
        self._adopt(to_adopt)
        if self._position > self._cursor_position:
            # Also where it would not be needed: it has to bear the position once everything else that does is deleted.
            write_cursor(self._disk, self._paths, self._position)
        self._disk.sync_directory(self._paths.wal)

    def _held_of(self, log: FoundLog) -> Held:
        """Of a log of ours, by the number that only it could become; which entries of others are held shows when they are read."""
        identity = log.header.identity if log.header else None
        return Held.ALL if identity is not None and identity.segment_seq in self._segments else Held.NOTHING

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
        self._know_segment(segment_seq, footer, log.size_bytes)
        self._notes.append(f"finished the seal of segment {segment_seq}")

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
            self._save_keys(log)
            if file.path == path:
                file.fsync()
                log.path = self._retire_active(path) if found.name == layout.ACTIVE_NAME else path
            self._register_sealed(log, seal_file(self._disk, self._paths, log, identity.incarnation))
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
        copy = self._disk.create(self._paths.spare(self._next_rotation))
        self._next_rotation += 1
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
        target = self._paths.rotated(self._next_rotation)
        self._next_rotation += 1
        self._disk.rename(path, target)
        self._disk.sync_directory(self._paths.wal)
        return target

    def _rebuild(self, log: Log, found: FoundLog) -> None:
        """Fill the log's builder from the file: bundle i of the segment has sequence first_sequence + i."""
        reader = LogReader(log.file.read, found.scan.end)
        log.builder = SegmentBuilder(log.identity.segment_seq, log.read)
        for span in found.damaged:
            self._keep_damaged_span(log.file.read, found.name, span)
        for span in found.scan.entries:
            entry = read_entry(reader, span)
            if entry.entry_type != layout.ENTRY_TYPE_BUNDLE:
                continue
            expected = log.identity.first_sequence + log.builder.bundle_count
            if entry.error or not expected <= entry.sequence < expected + SEGMENT_BUNDLES_MAX:
                self._keep_damaged_span(log.file.read, found.name, span)
                continue
            self._append_lost(log, expected, entry.sequence)
            index = log.builder.append(
                entry.sequence, entry.ingestion_ts_nanos, -1, span.end - span.start, entry.placements
            )
            if key := key_of(entry.placements, log.file.read):
                self._keys.append((key[0], KeyRun(key[1], 1, log.segment_seq, index, entry.sequence)))
        self._append_lost(log, log.identity.first_sequence + log.builder.bundle_count, found.sequence_end)
        log.written_end = log.end = found.end
        log.crc = _crc_of(log.file.read, log.end)

    def _save_keys(self, log: Log) -> None:
        """Of idempotent producers: their file has to have them before the log is a segment, which nobody looks through."""
        if not self._keys:
            return
        for producer, run in self._keys:
            self._windows.add(producer, run)
        self._keys.clear()
        write_atomically(self._disk, self._paths.producers, self._windows.encode())
        self._disk.sync_directory(self._paths.root)

    def _append_lost(self, log: Log, first_sequence: int, end_sequence: int) -> None:
        """Number the bundles that cannot be read any more, so that those behind keep their ids; they have no slots."""
        for sequence in range(first_sequence, end_sequence):
            index = log.builder.append(sequence, 0, 0, 0, ())
            self._notes.append(f"bundle {log.segment_seq}/{index} is damaged")

    def _register_sealed(self, log: Log, info: SegmentInfo) -> None:
        self._segments[info.segment_seq] = info
        self._held.append((log.builder.first_sequence, log.builder.last_sequence, log.position_start))
        self._notes.append(f"sealed segment {info.segment_seq} with {info.bundle_count} bundles")

    # --- logs of other writers -----------------------------------------------------------------------------------------------

    def _adopt(self, found: list[tuple[FoundLog, bool]]) -> None:
        """Lay the entries that no segment covers into logs of ours, seal those, then remove the files they came from.

        The cursor moves when all of them are sealed: before, it says what the other writer had sealed.
        """
        adopter = _Adopter(self._disk, self._paths, self._new_log, self._target_bytes)
        for log, _ in found:
            file = self._disk.open_read(f"{self._paths.wal}/{log.name}")
            try:
                reader = LogReader(file.read, file.size())
                for span in log.scan.damaged:
                    self._keep_damaged_span(file.read, log.name, span)
                for span in log.scan.entries:
                    if not self._is_covered(log, span):
                        self._adopt_entry(adopter, reader, file.read, log, span)
            finally:
                file.close()
        for ours in adopter.finish():
            self._register_sealed(ours, seal_file(self._disk, self._paths, ours, self._incarnation))
            self._position = ours.position_end
        if found:
            write_cursor(self._disk, self._paths, self._position)
            self._cursor_position = self._position
        for log, is_kept in found:
            if is_kept:
                self._quarantine(
                    f"{self._paths.wal}/{log.name}", "unreadable log header; its valid entries were adopted"
                )
            else:
                self._disk.unlink(f"{self._paths.wal}/{log.name}")

    def _is_covered(self, log: FoundLog, span: Span) -> bool:
        if log.header is None:
            return False
        return log.header.position_start + span.end - log.header.header_bytes <= self._covered_position

    def _is_held(self, log: FoundLog, span: Span, sequence: int) -> bool:
        """Whether the entry was adopted before: then a segment of ours has its sequence, and a position behind it.

        Another writer that went on behind a segment of ours may have used the same sequences for other bundles.
        """
        end = log.header.position_start + span.end - log.header.header_bytes if log.header else 0
        return any(first <= sequence <= last and end <= start for first, last, start in self._held)

    def _adopt_entry(self, adopter: _Adopter, reader: LogReader, read: Read, log: FoundLog, span: Span) -> None:
        entry = read_entry(reader, span)
        if entry.entry_type != layout.ENTRY_TYPE_BUNDLE:
            return
        if self._is_held(log, span, entry.sequence):
            return
        if entry.error:
            self._keep_damaged_span(read, log.name, span)
            return
        adopter.add(reader.body(span), entry.sequence)

    def _new_log(self, capacity_bytes: int, first_sequence: int, position_start: int | None) -> Log:
        path = self._paths.spare(self._next_rotation)
        file = self._disk.create(path)
        file.allocate(capacity_bytes)
        log = Log(file, path, capacity_bytes)
        start = self._position if position_start is None else position_start
        log.activate(self._cfg_hash, start, Identity(self._next_segment_seq, first_sequence, self._incarnation))
        self._next_segment_seq += 1
        self._next_rotation += 1
        return log

    # --- what is left over ---------------------------------------------------------------------------------------------------

    def _missing_segments(self) -> list[int]:
        """Segments that progress names and whose files are gone; nobody can get the rest of those."""
        present = {*self._segments, *self._damaged}
        awaited = self._registry.awaited_segments()
        return [seq for seq in awaited if seq < self._next_segment_seq and seq not in present]

    def _quarantine(self, path: str, why: str) -> None:
        self._note_quarantined(path, move_to_quarantine(self._disk, self._paths, path), why)

    def _note_quarantined(self, path: str, target: str, why: str) -> None:
        self._quarantined += 1
        self._notes.append(f"{path} moved to {target}: {why}")
        _log.warning("event=quiver.quarantine path=%s target=%s reason=%r", path, target, why)

    def _keep_damaged_span(self, read: Read, name: str, span: Span) -> None:
        """Copy damaged bytes aside; the file that holds them goes on to become a segment."""
        path = copy_span(self._disk, self._paths, read, name, span.start, span.end)
        if path is None:
            return
        self._quarantined += 1
        self._notes.append(f"{name}: bytes {span.start}..{span.end} are damaged, kept as {path}")
        _log.warning("event=quiver.wal.damage file=%s start=%d end=%d", name, span.start, span.end)


class _Adopter:
    """Lays adopted entries into new logs, aligned as our format wants them."""

    def __init__(
        self,
        disk: Disk,
        paths: EnginePaths,
        new_log: Callable[[int, int, int | None], Log],
        target_bytes: int,
    ) -> None:
        self._disk = disk
        self._paths = paths
        self._new_log = new_log
        self._target_bytes = target_bytes
        self._logs: list[Log] = []
        self._open: Log | None = None

    def add(self, body: bytes, sequence: int) -> None:
        entry = realign_entry(body)
        log = self._log_for(len(entry), sequence)
        offset = log.end
        log.file.write([entry], offset)
        log.crc = crc32(entry, log.crc)
        log.end = log.written_end = offset + len(entry)
        reader = LogReader(log.file.read, log.end)
        laid = read_entry(reader, Span(offset, log.end))
        log.builder.append(sequence, laid.ingestion_ts_nanos, -1, len(entry), laid.placements)
        log.sequence_end = sequence + 1
        if not laid.placements:
            self._open = None  # an entry without slots breaks the alignment of what would follow it

    def _log_for(self, entry_bytes: int, sequence: int) -> Log:
        log = self._open
        if (
            log is not None
            and log.end + entry_bytes <= log.capacity_bytes
            and log.builder.bundle_count < SEGMENT_BUNDLES_MAX
            and sequence == log.sequence_end
        ):
            return log
        capacity = layout.HEADER_BYTES + max(self._target_bytes, entry_bytes)
        position = self._logs[-1].position_end if self._logs else None
        log = self._new_log(capacity, sequence, position)
        log.write()
        self._logs.append(log)
        self._open = log
        return log

    def finish(self) -> list[Log]:
        """The new logs, complete and still under temporary names: a crash before their seal leaves only what they came from."""
        return self._logs


def realign_entry(body: bytes) -> bytes:
    """A whole entry with the same slots, sequence and time, padded so that each payload starts on 64 bytes. Pure."""
    from quiver_actors.wal.codec import decode_entry_header, decode_slots

    header = decode_entry_header(body)
    blocks = sorted(decode_slots(body, header.slot_bitmap), key=lambda block: block.slot_id)
    laid = bytearray(body[: layout.ENTRY_HEADER.size])
    for number, block in enumerate(blocks):
        payload = body[block.payload_offset : block.payload_offset + block.payload_bytes]
        wanted = 53 if number == len(blocks) - 1 else 22
        padding = (wanted - len(payload)) % layout.ALIGNMENT
        laid += layout.SLOT_HEAD.pack(block.slot_id, block.fingerprint, block.row_count, len(payload) + padding)
        laid += payload + bytes(padding)
    return len(laid).to_bytes(4, "little") + bytes(laid) + crc32(laid).to_bytes(4, "little")


def _copy_bytes(source: DiskFile, target: DiskFile, end: int) -> None:
    for offset in range(0, end, CHUNK_BYTES):
        target.write([source.read(min(CHUNK_BYTES, end - offset), offset)], offset)


def _has_valid_trailer(read: Read, size_bytes: int) -> bool:
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
