"""Log files of ours at open: each becomes the segment that its bundles were given, whatever a crash has left of it.

Owner: one `Recovery`. `store.wal.recovery` decides about each file, this module seals, finishes seals and removes what is left over. A
log of a former process is sealed where it is if the disk has all that was read of it; if not, or if it is damaged, it is written anew
first.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from quiver_actors.base.checksum import crc32_of_range
from quiver_actors.errors import DiskError, FormatError
from quiver_actors.store.disk.protocol import NO_SPACE_ERRNOS, Disk, DiskFile
from quiver_actors.store.files.held_names import name_if_held
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.jobs.sealing import seal_file
from quiver_actors.store.recovery.adoption import Source
from quiver_actors.store.recovery.findings import NO_BUNDLE_OF_LOG
from quiver_actors.store.recovery.found_segments import extent_of
from quiver_actors.store.recovery.found_state import FoundState
from quiver_actors.store.recovery.missing_logs import Extent
from quiver_actors.store.recovery.plans import LogPlan
from quiver_actors.store.recovery.replay import Replay
from quiver_actors.store.recovery.source import LogSource, Trust
from quiver_actors.store.segment.codec import FooterExtension, SegmentFooter
from quiver_actors.store.segment.outline import Read
from quiver_actors.store.segment.reader import read_footer
from quiver_actors.store.wal import layout
from quiver_actors.store.wal.codec import Identity
from quiver_actors.store.wal.decisions import Behind, Decision, Header
from quiver_actors.store.wal.log import Log
from quiver_actors.store.wal.reader import CHUNK_BYTES, LogReader, Take
from quiver_actors.store.wal.recovery import FoundLog, examine_log


class Readings(NamedTuple):
    """What was read of the log files, by name."""

    trust: dict[str, Trust]
    replays: dict[str, Replay]
    """What was read of each log of ours that is not sealed yet."""
    tails: dict[str, FooterExtension]
    """The footer extension of each log that is sealed but lacks its segment's name."""

    def rename(self, former: str, name: str) -> None:
        """Keep what was read of a log that has got another name."""
        self.trust[name] = self.trust.pop(former)
        if former in self.replays:
            self.replays[name] = self.replays.pop(former)
        if former in self.tails:
            self.tails[name] = self.tails.pop(former)


def examine_logs(
    disk: Disk, paths: EnginePaths, names: Iterable[str], *, trusts: bool = True
) -> tuple[list[FoundLog], Readings]:
    """All log files, by position; our own of equal position by number. Changes nothing.

    Args:
        names: what is in the directory of the logs.
        trusts: what the disk gives back may be taken for what it has.
    """
    readings = Readings({}, {}, {})
    found = [_examine(disk, paths, name, readings) for name in names if _is_log(name)]
    found.sort(key=lambda log: (log.position_start, layout.rotation_number(log.name) or 1 << 62))
    for trust in readings.trust.values():
        trust.is_proven &= trusts
    for log, following in pairwise(log for log in found if log.header_state is Header.OURS):
        log.learn_from(following)
    return found, readings


def _is_log(name: str) -> bool:
    return name == layout.ACTIVE_NAME or layout.rotation_number(name) is not None


def extents_of(found: Iterable[FoundLog], readings: Readings) -> list[Extent]:
    """What logs of ours cover; the tail says it for a log that is sealed but lacks its segment's name.

    The empty log that a clean stop leaves covers nothing, and no log becomes a segment of its number because of it: it stays beside
    transactions that are published behind it, under its own number and those that follow.
    """
    ours = (log for log in found if log.header_state is Header.OURS and not _is_empty(log))
    return [_extent_of(log, readings.tails.get(log.name)) for log in ours]


def end_of(found: Iterable[FoundLog]) -> Extent | None:
    """What the empty log that a clean stop leaves says of the end of everything before it: it covers nothing itself."""
    for log in found:
        identity = log.identity if log.header_state is Header.OURS else None
        if identity is not None and _is_empty(log):
            place, sequence = log.position_start, identity.first_sequence
            return Extent(identity.segment_seq, place, place, sequence, sequence, identity.incarnation, is_log=True)
    return None


def _is_empty(log: FoundLog) -> bool:
    """Whether nothing was ever written behind its header."""
    return log.behind is Behind.END and not log.has_entries


def _extent_of(log: FoundLog, tail: FooterExtension | None) -> Extent:
    assert log.header is not None
    assert log.header.identity is not None
    mine = log.header.identity
    if tail is not None:
        return extent_of(mine.segment_seq, tail, is_log=True)
    positions = log.position_start, log.position_end
    sequences = mine.first_sequence, max(mine.first_sequence, log.sequence_end)
    return Extent(mine.segment_seq, *positions, *sequences, mine.incarnation, is_log=True)


def _examine(disk: Disk, paths: EnginePaths, name: str, readings: Readings) -> FoundLog:
    file = disk.open_read(f"{paths.wal}/{name}")
    try:
        source = LogSource(file)

        def begin(header: bytes, identity: Identity) -> Take:
            readings.replays[name] = Replay(header, identity, source.read)
            return readings.replays[name].take

        reader = LogReader(source.read, source.size_bytes)
        footer = whole_footer(source.read, source.size_bytes)
        if footer is not None and footer.extension is not None:
            readings.tails[name] = footer.extension
        found = examine_log(name, reader, source.size_bytes, footer is not None, begin)
        readings.trust[name] = source.trust
        found.has_foreign = name in readings.replays and bool(readings.replays[name].foreign)
        return found
    finally:
        file.close()


class Settlement:
    """Carries out the plan of each log file: seals it, finishes its seal, writes it again, or removes it."""

    def __init__(self, found: FoundState, readings: Readings) -> None:
        self._disk = found.disk
        self._paths = found.paths
        self._numbers = found.numbers
        self._sealed_segments = found.sealed_segments
        self._findings = found.findings
        self._producers = found.producers
        self._readings = readings

    def settle(self, plans: list[LogPlan]) -> list[Source]:
        """Do what was decided about each file, by `_turn`.

        Returns:
            Logs that are to be adopted.
        """
        to_adopt = []
        for plan in sorted(plans, key=self._turn):
            log, decision = plan.log, plan.decision
            path = f"{self._paths.wal}/{log.name}"
            if decision in (Decision.FINISH, Decision.SEAL) or self._has_own(plan):
                self._clear_number(log)
            if decision in (Decision.FINISH, Decision.SEAL) and self._is_taken(log):
                to_adopt += self._settle_taken(plan, path)
            elif decision is Decision.FINISH:
                self._finish_seal(log, path)
            elif decision is Decision.SEAL:
                self._seal(log, path)
            elif decision is Decision.QUARANTINE:
                self._findings.quarantine(path, "no valid entry in it, and bytes that cannot be parsed")
            elif decision is Decision.DROP and (log.name != layout.ACTIVE_NAME or log.has_entries):
                name_if_held(self._disk, self._paths, path)
                self._disk.unlink(path)
            elif decision is Decision.RENEW:
                to_adopt.append(Source(log, own=self._readings.replays[log.name], taken=plan.taken))
            elif decision in (Decision.ADOPT, Decision.ADOPT_AND_KEEP):
                is_kept = decision is Decision.ADOPT_AND_KEEP
                to_adopt.append(Source(log, is_kept=is_kept, covered_end=plan.covered_end, taken=plan.taken))
        return to_adopt

    def _turn(self, plan: LogPlan) -> tuple[bool, bool, int, bool]:
        """Place of a log among all of them: lower ones are settled first, equal ones in the order of their numbers.

        Two logs have one number if somebody has copied one here. Then those of this directory come first, because receipts and progress
        name their bundles; and a finished seal comes before an older copy of its log, because nothing of a seal is adopted.
        """
        log = plan.log
        is_copied = log.identity is not None and log.identity.incarnation != self._numbers.incarnation
        return log.header_state is not Header.OURS, is_copied, log.position_start, log.behind is not Behind.TAIL

    def _has_own(self, plan: LogPlan) -> bool:
        """Whether the log is written anew and some of its bundles are ours."""
        is_renewed = plan.decision is Decision.RENEW
        return is_renewed and self._readings.replays[plan.log.name].builder.bundle_count > 0

    def _is_taken(self, log: FoundLog) -> bool:
        """Whether another log, settled before, has become the segment of this one's number."""
        assert log.header is not None
        assert log.header.identity is not None
        return log.header.identity.segment_seq in self._sealed_segments.segments

    def _settle_taken(self, plan: LogPlan, path: str) -> list[Source]:
        """What lies behind what the segment holds is adopted under other numbers; a log with nothing behind that is kept aside."""
        log = plan.log
        assert log.header is not None
        assert log.header.identity is not None
        became = self._sealed_segments.became(log.header.identity, log.position_start)
        end = 0 if became is None else became.position_end - log.position_start + log.header.header_bytes
        if log.behind is not Behind.TAIL and log.scan.end > end:
            return [Source(log, covered_end=end, taken=plan.taken)]
        self._findings.quarantine(path, "another log has become the segment of its number")
        return []

    def _clear_number(self, log: FoundLog) -> None:
        """A damaged file has the number that the log is about to give its segment: a crash of another writer leaves one half written."""
        assert log.header is not None
        assert log.header.identity is not None
        segment_seq = log.header.identity.segment_seq
        if segment_seq in self._sealed_segments.damaged:
            self._findings.quarantine(self._paths.segment(segment_seq), "damaged; the log that it was made of is there")
            del self._sealed_segments.damaged[segment_seq]

    def _finish_seal(self, log: FoundLog, path: str) -> None:
        """The file is a whole segment that only lacks its name."""
        assert log.header is not None
        assert log.header.identity is not None
        segment_seq = log.header.identity.segment_seq
        file = self._settled(log, path, log.size_bytes)
        try:
            footer = read_footer(file.read, log.size_bytes)
            is_copy = file.path != path and not self._producers.is_damaged
            if is_copy:
                file.fsync()
            else:
                self._put_in_place(file, path)
                self._producers.find(file.read, log.size_bytes, segment_seq)
            self._disk.rename(file.path if is_copy else path, self._paths.segment(segment_seq))
            self._disk.sync_directory(self._paths.segments)
            self._disk.sync_directory(self._paths.wal)
            file.make_read_only()
        finally:
            file.close()
        if is_copy:
            self._disk.unlink(path)
        self._sealed_segments.add(segment_seq, footer, log.size_bytes)
        self._findings.notes.append(f"finished the seal of segment {segment_seq}")

    def _seal(self, found: FoundLog, path: str) -> None:
        """Seal a log of ours under the number that its bundles were given."""
        assert found.header is not None
        assert found.header.identity is not None
        identity = found.header.identity
        file = self._settled(found, path, found.end)
        log = Log(file, file.path, found.size_bytes)
        log.position_start, log.identity = found.position_start, identity
        try:
            self._fill(log, found)
            is_copy = file.path != path and not self._producers.has_unsaved
            if not is_copy:
                self._put_in_place(file, path)
                log.path = path
            self._producers.save()
            self._sealed_segments.add_sealed(log, seal_file(self._disk, self._paths, log, identity.incarnation))
        finally:
            file.close()
        if is_copy:
            self._disk.unlink(path)

    def _put_in_place(self, file: DiskFile, path: str) -> None:
        """Make a log durable under its name. What producers are said to have stored has to be before that is said: a start that is cut
        off here forgets a copy, and of the log that was copied the disk may have less than memory has shown."""
        file.fsync()
        if file.path != path:
            self._disk.rename(file.path, path)
            self._disk.sync_directory(self._paths.wal)

    def _settled(self, log: FoundLog, path: str, end: int) -> DiskFile:
        """A file with the first `end` bytes of a log, of which the next sync brings everything to the disk that is not there yet.

        That is the log itself if the disk has what was read of it. Where there is no room for a copy, it is written over itself.
        """
        trust = self._readings.trust[log.name]
        if trust.is_proven and not log.damaged:
            return self._disk.open_write(path)
        source = self._disk.open_read(path)
        try:
            copy = self._copied(source, trust, end, log.size_bytes)
        except DiskError as error:
            if error.errno not in NO_SPACE_ERRNOS:
                raise
            copy = None
        finally:
            source.close()
        if copy is not None:
            name_if_held(self._disk, self._paths, path)  # consumers of the former process may still have the log
            return copy
        file = self._disk.open_write(path)
        _copy_bytes(file, trust, file, end)
        return file

    def _copied(self, source: DiskFile, trust: Trust, end: int, capacity_bytes: int) -> DiskFile:
        copy = self._disk.create(self._paths.spare(self._numbers.take_rotation()))
        try:
            copy.allocate(capacity_bytes)
            _copy_bytes(source, trust, copy, end)
        except DiskError:
            copy.close()
            self._disk.unlink(copy.path)
            raise
        return copy

    def _fill(self, log: Log, found: FoundLog) -> None:
        """Give the log its books: bundle i of the segment has sequence first_sequence + i."""
        replay = self._readings.replays[found.name]
        for span in found.damaged:
            self._findings.keep_span(log.file.read, found.found_as, span)
        for span in replay.unusable:
            self._findings.keep_span(log.file.read, found.found_as, span, NO_BUNDLE_OF_LOG)
        # Bundles that cannot be read any more are numbered, so that those behind keep their ids; they have no slots.
        replay.skip_to(found.proven_sequence_end)
        self._findings.notes += [f"bundle {log.segment_seq}/{index} is damaged" for index in replay.lost]
        self._producers.add(replay.keys, replay.lost)
        log.builder = replay.builder
        log.written_end = log.end = found.end
        is_known = replay.crc is not None and replay.end == found.end
        log.crc = replay.crc if is_known and replay.crc is not None else crc32_of_range(log.file.read, 0, log.end)


def _copy_bytes(source: DiskFile, trust: Trust, target: DiskFile, end: int) -> None:
    for offset in range(0, end, CHUNK_BYTES):
        piece = source.read(min(CHUNK_BYTES, end - offset), offset)
        target.write([trust.restore(piece, offset)], offset)


def whole_footer(read: Read, size_bytes: int) -> SegmentFooter | None:
    """The footer of a file that ends as a whole segment does, its CRC included; None of any other."""
    try:
        footer = read_footer(read, size_bytes)
    except FormatError:
        return None
    return footer if crc32_of_range(read, 0, size_bytes - 4) == footer.crc32 else None
