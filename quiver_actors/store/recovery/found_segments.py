"""Sealed segments at open: which are there, which are damaged, and which sequences they hold.

Owner: one `Recovery`. Damaged segments are left where they are; the engine has them rescued.

Of a segment of ours only the footer is read. A file without our footer extension is another writer's only if its checksum says that it is
as it was written: a flipped bit makes a segment of ours look so, and under another number its bundles would be delivered again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from quiver_actors.base.protocol.messages import SegmentInfo
from quiver_actors.errors import FormatError, InvalidFormat
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.disk.salvage import SalvageReader
from quiver_actors.store.files.cold_list import ColdEntry
from quiver_actors.store.files.foreign_record import ForeignSegment
from quiver_actors.store.files.paths import RESCUED_SUFFIX, EnginePaths, segment_seq_of
from quiver_actors.store.format.framing import DAMAGE
from quiver_actors.store.jobs.rescue import finish_rescues
from quiver_actors.store.recovery.findings import Findings
from quiver_actors.store.recovery.missing_logs import Extent
from quiver_actors.store.recovery.numbers import NumbersUsed
from quiver_actors.store.segment.check import is_plausible, run_to_end, verify_steps
from quiver_actors.store.segment.codec import FooterExtension, SegmentFooter, decode_footer
from quiver_actors.store.segment.reader import read_footer
from quiver_actors.store.wal.codec import Identity
from quiver_actors.store.wal.log import Log


class FoundSegments:
    """The sealed segments that one start finds or seals.

    Attributes:
        segments: by number.
        damaged: segments whose footer cannot be read or believed, and why.
        extents: what each segment of ours covers.
        foreign: for each segment of another writer, what tells its file from others of the same number.
    """

    def __init__(self, disk: Disk, paths: EnginePaths, numbers: NumbersUsed, findings: Findings) -> None:
        self.segments: dict[int, SegmentInfo] = {}
        self.damaged: dict[int, str] = {}
        self.extents: list[Extent] = []
        self.foreign: dict[int, ForeignSegment] = {}
        self._disk = disk
        self._paths = paths
        self._numbers = numbers
        self._findings = findings
        self._announced: Mapping[int, ForeignSegment] = {}
        self._rescued: list[str] = []
        """Names of files that were rebuilt from damaged segments and do not have the segments' names yet."""

    def __contains__(self, segment_seq: int) -> bool:
        """Whether there is a file of that number, damaged or not."""
        return segment_seq in self.segments or segment_seq in self.damaged

    def read(self, names: Collection[str], announced: Mapping[int, ForeignSegment]) -> None:
        """Look at every file in `segments/`, and change nothing.

        Args:
            names: the names in that directory.
            announced: segments of other writers that were there at a start before: their checksums were right then.

        Raises:
            UnsupportedVersion: a file is of a newer program.
        """
        self._announced = announced
        self._rescued = [name for name in names if name.endswith(RESCUED_SUFFIX)]
        superseded = {name for name in self._rescued if name.removesuffix(RESCUED_SUFFIX) in names}
        for name in names:
            segment_seq = segment_seq_of(name.removesuffix(RESCUED_SUFFIX))
            if segment_seq is not None and name not in superseded:
                self._look_at(segment_seq, name)

    def add_cold(self, cold: Mapping[int, ColdEntry]) -> None:
        """Add the segments on the cold disk by what their list says: nothing is read there."""
        for segment_seq, entry in cold.items():
            self._numbers.note_segment_seq(segment_seq)
            self.add(segment_seq, decode_footer(entry.end, entry.size_bytes), entry.size_bytes)

    def settle(self) -> None:
        """Give their names to segments whose rescue was cut off."""
        finish_rescues(self._disk, self._paths, self._rescued)

    def _look_at(self, segment_seq: int, name: str) -> None:
        self._numbers.note_segment_seq(segment_seq)
        file = self._disk.open_read(f"{self._paths.segments}/{name}")
        try:
            self._load(segment_seq, SalvageReader(file))
        finally:
            file.close()

    def _load(self, segment_seq: int, source: SalvageReader) -> None:
        """Load a segment from its footer alone, unless that is not to be believed: then the checksum of the file decides."""
        try:
            footer = read_footer(source.read, source.size_bytes)
            doubt = self._doubt(segment_seq, footer, source.size_bytes)
            if not doubt:
                self.add(segment_seq, footer, source.size_bytes)
                return
            found: FormatError = InvalidFormat(doubt)
        except FormatError as error:
            found = error
        try:
            footer = run_to_end(verify_steps(source.read, source.size_bytes))
            self.add(segment_seq, footer, source.size_bytes)
        except DAMAGE:
            self.damaged[segment_seq] = str(found)
            self._findings.notes.append(f"segment {segment_seq} is damaged: {found}")
            self._numbers.note_damaged(source)

    def _doubt(self, segment_seq: int, footer: SegmentFooter, size_bytes: int) -> str:
        """Why the footer is not to be believed without the checksum of the file; empty if it is."""
        if not is_plausible(footer):
            return "the numbers in the segment's footer contradict each other"
        if footer.extension is None and self._announced.get(segment_seq) != ForeignSegment(size_bytes, footer.crc32):
            return "the segment has no footer extension, and its checksum does not say that another writer wrote it so"
        return ""

    def add(self, segment_seq: int, footer: SegmentFooter, size_bytes: int) -> None:
        """Take a segment that was found whole into the list; one without an extension is another writer's."""
        extension = footer.extension
        if extension is None:
            self.segments[segment_seq] = SegmentInfo(segment_seq, footer.bundle_count, 0, size_bytes, 0, 0)
            self.foreign[segment_seq] = ForeignSegment(size_bytes, footer.crc32)
            return
        self.segments[segment_seq] = SegmentInfo(
            segment_seq,
            footer.bundle_count,
            extension.row_count,
            size_bytes,
            extension.first_ingestion_ts_nanos,
            extension.last_ingestion_ts_nanos,
            position_start=extension.wal_position_start,
            position_end=extension.wal_position_end,
        )
        self.extents.append(extent_of(segment_seq, extension, is_log=False))
        self._numbers.note_footer(extension)

    def add_sealed(self, log: Log, info: SegmentInfo) -> None:
        """Add a segment that was sealed just now. A damaged file of its number was moved aside before."""
        self.segments[info.segment_seq] = info
        self.damaged.pop(info.segment_seq, None)
        sequences = log.builder.first_sequence, log.builder.last_sequence + 1
        positions = log.position_start, log.position_end
        # The log's, which may not be what `quiver.core` says: the log was copied here, or that file was lost.
        incarnation = log.identity.incarnation
        self.extents.append(Extent(info.segment_seq, *positions, *sequences, incarnation, is_log=False))
        self._findings.notes.append(f"sealed segment {info.segment_seq} with {info.bundle_count} bundles")

    def became(self, identity: Identity, position_start: int) -> Extent | None:
        """The segment that a log of ours has become, which has its number, its first sequence and its first position; None if none has."""
        for held in self.extents:
            is_same = held.segment_seq == identity.segment_seq and held.first_sequence == identity.first_sequence
            if is_same and (held.incarnation, held.position_start) == (identity.incarnation, position_start):
                return held
        return None

    def renumber(self, segment_seq: int, new_segment_seq: int) -> None:
        """Give a segment of another writer a number that no other one has had. Durable with the next sync of the directory."""
        self._disk.rename(self._paths.segment(segment_seq), self._paths.segment(new_segment_seq))
        info = self.segments.pop(segment_seq)
        self.segments[new_segment_seq] = msgspec.structs.replace(info, segment_seq=new_segment_seq)
        self.foreign[new_segment_seq] = self.foreign.pop(segment_seq)
        self._numbers.note_segment_seq(new_segment_seq)

    def missing(self, awaited: Iterable[int]) -> list[int]:
        """The segments among these whose files are gone: nobody can get the rest of their bundles."""
        return [seq for seq in awaited if seq < self._numbers.next_segment_seq and seq not in self]


def extent_of(segment_seq: int, extension: FooterExtension, *, is_log: bool) -> Extent:
    """What a segment of ours says that it covers."""
    positions = extension.wal_position_start, extension.wal_position_end
    sequences = extension.first_sequence, extension.last_sequence + 1
    return Extent(segment_seq, *positions, *sequences, extension.incarnation, is_log)
