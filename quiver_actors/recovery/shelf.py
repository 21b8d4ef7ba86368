"""Sealed segments at open: which are there, which are damaged, and which sequences they hold.

Owner: one `Recovery`. Damaged segments are left where they are; the engine has them rescued.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from quiver_actors.disk.protocol import Disk
from quiver_actors.disk.salvage import SalvageReader
from quiver_actors.errors import FormatError, InvalidFormat, UnsupportedVersion
from quiver_actors.paths import RESCUED_SUFFIX, EnginePaths, segment_seq_of
from quiver_actors.protocol.messages import SegmentInfo
from quiver_actors.recovery.findings import Findings
from quiver_actors.recovery.missing_logs import Extent
from quiver_actors.recovery.numbers import NumbersUsed
from quiver_actors.rescue import finish_rescues
from quiver_actors.segment.check import is_plausible, run_to_end, verify_steps
from quiver_actors.segment.codec import FooterExtension, SegmentFooter
from quiver_actors.segment.reader import read_footer
from quiver_actors.wal.log import Log


class FoundSegments:
    """See the module.

    Attributes:
        segments: by number.
        damaged: segments whose footer cannot be read or believed, and why.
        extents: of those of ours.
    """

    def __init__(self, disk: Disk, paths: EnginePaths, numbers: NumbersUsed, findings: Findings) -> None:
        self.segments: dict[int, SegmentInfo] = {}
        self.damaged: dict[int, str] = {}
        self.extents: list[Extent] = []
        self._disk = disk
        self._paths = paths
        self._numbers = numbers
        self._findings = findings
        self._rescued: list[str] = []
        """Names of what was rebuilt of damaged ones, and does not have its name yet."""

    def __contains__(self, segment_seq: int) -> bool:
        """Whether there is a file of that number, damaged or not."""
        return segment_seq in self.segments or segment_seq in self.damaged

    def read(self, names: Collection[str]) -> None:
        """Look at every file in `segments/`, and change nothing.

        Args:
            names: what is there.

        Raises:
            UnsupportedVersion: a file is of a newer program.
        """
        self._rescued = [name for name in names if name.endswith(RESCUED_SUFFIX)]
        superseded = {name for name in self._rescued if name.removesuffix(RESCUED_SUFFIX) in names}
        for name in names:
            segment_seq = segment_seq_of(name.removesuffix(RESCUED_SUFFIX))
            if segment_seq is not None and name not in superseded:
                self._look_at(segment_seq, name)

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
        """Only the footer is read, unless something is wrong with it: then the checksum of the file decides what to believe."""
        try:
            footer = read_footer(source.read, source.size_bytes)
            if is_plausible(footer):
                self.add(segment_seq, footer, source.size_bytes)
                return
            found: FormatError = InvalidFormat("the numbers in the segment's footer contradict each other")
        except FormatError as error:
            found = error
        try:
            footer = run_to_end(verify_steps(source.read, source.size_bytes))
            self.add(segment_seq, footer, source.size_bytes)
        except UnsupportedVersion:
            raise
        except FormatError:
            self.damaged[segment_seq] = str(found)
            self._findings.notes.append(f"segment {segment_seq} is damaged: {found}")
            self._numbers.note_damaged(source)

    def add(self, segment_seq: int, footer: SegmentFooter, size_bytes: int) -> None:
        """A whole segment."""
        extension = footer.extension
        if extension is None:
            self.segments[segment_seq] = SegmentInfo(segment_seq, footer.bundle_count, 0, size_bytes, 0, 0)
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
        """A segment that was sealed just now."""
        self.segments[info.segment_seq] = info
        sequences = log.builder.first_sequence, log.builder.last_sequence + 1
        positions = log.position_start, log.position_end
        self.extents.append(Extent(info.segment_seq, *positions, *sequences, self._numbers.incarnation, is_log=False))
        self._findings.notes.append(f"sealed segment {info.segment_seq} with {info.bundle_count} bundles")

    def holds(self, sequence: int, position_end: int) -> bool:
        """Whether an entry of that sequence, which ends at that log position, was adopted before: then a segment of ours has its
        sequence, and a position behind it.

        Another writer that went on behind a segment of ours may have used the same sequences for other bundles.
        """
        return any(
            held.first_sequence <= sequence < held.sequence_end and position_end <= held.position_start
            for held in self.extents
        )

    def missing(self, awaited: Iterable[int]) -> list[int]:
        """Those of the segments whose files are gone; nobody can get the rest of those."""
        return [seq for seq in awaited if seq < self._numbers.next_segment_seq and seq not in self]


def extent_of(segment_seq: int, extension: FooterExtension, *, is_log: bool) -> Extent:
    """What a segment of ours says that it covers."""
    positions = extension.wal_position_start, extension.wal_position_end
    sequences = extension.first_sequence, extension.last_sequence + 1
    return Extent(segment_seq, *positions, *sequences, extension.incarnation, is_log)
