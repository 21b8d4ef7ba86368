"""Building a segment again from what is left of a damaged one. Reads through a function, writes one new file.

Two ways, by what the file is: sealed in place (its log entries are still there, each with its CRC; here) or compacted (each bundle has
a checksum in the manifest; `rebuild_compacted`). A bundle that cannot be proven to be what was written keeps its number as a row
without slots.

What the entries do not carry comes from the other end of the file, if that is consistent: item counts, the number of bundles behind
the last one that is left, the log positions. Item counts are taken at their word where the damage is in the entries; where it is
not, only if the rebuilt file has the CRC that the damaged one claims, which proves every byte of it. Otherwise they become unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from quiver_actors.base.checksum import crc32
from quiver_actors.base.model import SEGMENT_BUNDLES_MAX
from quiver_actors.base.protocol.messages import SegmentInfo
from quiver_actors.errors import FormatError
from quiver_actors.store.disk.protocol import DiskFile
from quiver_actors.store.jobs.rebuild_compacted import ATTEMPTS_MAX, Rebuilt, lost_bundles, rebuild_compacted
from quiver_actors.store.segment.builder import SegmentBuilder
from quiver_actors.store.segment.check import is_plausible
from quiver_actors.store.segment.codec import FooterExtension, SegmentFooter, decode_manifest
from quiver_actors.store.segment.layout import CRC, EXTENSION, FOOTER, STREAM_ALIGNMENT, TRAILER, Part
from quiver_actors.store.segment.manifest import ManifestColumns
from quiver_actors.store.segment.outline import Read, manifest_columns
from quiver_actors.store.segment.reader import read_footer
from quiver_actors.store.segment.tail import encode_tail
from quiver_actors.store.wal import layout
from quiver_actors.store.wal.codec import Identity, LogHeader, decode_header, encode_header
from quiver_actors.store.wal.reader import CHUNK_BYTES, LogReader, LogScan
from quiver_actors.store.wal.recovery import read_entry


@dataclass(frozen=True, slots=True)
class Hints:
    """Facts about the segment from other files."""

    segment_seq: int
    cfg_hash: bytes
    bundle_count_min: int = 0
    next_segment: FooterExtension | None = None
    """The footer extension of the segment with the next number, if there is one."""
    is_count_known: bool = False
    """Whether the segment had exactly `bundle_count_min` bundles."""
    bundle_count_between: int = 0
    """How many bundles the sequences of the segments before and behind it leave room for; 0 if one of them does not say."""


def rebuild(read: Read, size_bytes: int, file: DiskFile, hints: Hints) -> Rebuilt | None:
    """Write what can be proven into `file`, which is empty; None if that is nothing. Not synced.

    Raises:
        DiskError: `file` cannot be written.
    """
    for attempt in range(1, ATTEMPTS_MAX + 1):
        if read(len(layout.ARROW_MAGIC), 0) == layout.ARROW_MAGIC:
            break
        footer = _believed_footer(read, size_bytes)
        scan = _scan_entries(read, size_bytes, footer)
        facts = _gather(read, scan, footer, hints)
        if facts is None:
            break
        found = _InPlace(read, size_bytes, file, scan, facts).rebuild()
        # The last attempt counts as it is: one entry that cannot be read is less than a segment.
        if found is None or _holds_entries(file, scan) or attempt == ATTEMPTS_MAX:
            return found
        file.truncate(0)
    return rebuild_compacted(read, size_bytes, file, hints.segment_seq)


def _holds_entries(file: DiskFile, scan: LogScan) -> bool:
    """Whether the copy holds the entries that were proven. One that was damaged between its proof and the copy would be in a file whose
    new checksum is right, and no reader could ever read it."""
    copied = LogReader(file.read, scan.end)
    return copied.scan(layout.HEADER_BYTES, stride=layout.ALIGNMENT).entries == scan.entries


def _scan_entries(read: Read, size_bytes: int, footer: SegmentFooter | None) -> LogScan:
    """Find the entries up to where the footer says that they end, and on from there as long as one entry follows the other: the footer
    may be what is damaged, and the tail begins with an end mark."""
    end = _entries_end(footer.extension) if footer and footer.extension else size_bytes
    scan = LogReader(read, end).scan(layout.HEADER_BYTES, stride=layout.ALIGNMENT)
    for entry in LogReader(read, size_bytes).scan(scan.end, stride=layout.ALIGNMENT).entries:
        if entry.start != scan.end:
            break
        scan.add(entry.start, [entry.end])
    return scan


def count_bundles(read: Read, size_bytes: int, hints: Hints) -> int:
    """The least number of bundles that a segment had of which nothing could be rebuilt; 0 if nothing tells."""
    footer, header = _believed_footer(read, size_bytes), _own_header(read, hints.segment_seq)
    if footer is not None:
        return footer.bundle_count
    told = _count_told_twice(read, size_bytes)
    if not hints.is_count_known and told >= max(1, hints.bundle_count_min):
        return told
    if header is not None and header.identity is not None and hints.next_segment is not None:
        bundle_count = hints.next_segment.first_sequence - header.identity.first_sequence
        if hints.bundle_count_min <= bundle_count <= SEGMENT_BUNDLES_MAX:
            return bundle_count
    return max(hints.bundle_count_min, hints.bundle_count_between)


def _count_told_twice(read: Read, size_bytes: int) -> int:
    """How many bundles footer and manifest both say that there were, whoever wrote the file; 0 if they do not."""
    try:
        footer = read_footer(read, size_bytes)
        manifest = decode_manifest(read(footer.manifest_length, footer.manifest_offset))
    except FormatError:
        return 0
    return footer.bundle_count if footer.bundle_count == manifest.bundle_count <= SEGMENT_BUNDLES_MAX else 0


@dataclass(slots=True)
class _Facts:
    """What an in-place segment is, from whatever part of it says so."""

    identity: Identity
    cfg_hash: bytes
    position_start: int
    entries_end: int
    bundle_count_min: int
    bundle_count_max: int
    is_end_known: bool
    """Whether it is certain how many bundles the segment had."""
    columns: ManifestColumns | None
    """The manifest of the damaged file; None where it does not agree with the rest."""


def _believed_footer(read: Read, size_bytes: int) -> SegmentFooter | None:
    """The footer, if its numbers agree with each other and with a file that was sealed in place."""
    try:
        footer = read_footer(read, size_bytes)
    except FormatError:
        return None
    extension = footer.extension
    if extension is None or not is_plausible(footer) or _entries_end(extension) > footer.directory_offset:
        return None
    return footer


def _entries_end(extension: FooterExtension) -> int:
    return layout.HEADER_BYTES + extension.wal_position_end - extension.wal_position_start


def _gather(read: Read, scan: LogScan, footer: SegmentFooter | None, hints: Hints) -> _Facts | None:
    """The facts about a segment that was sealed in place; None if it has no entries, or nothing tells their place in the segment."""
    if not scan.entry_count:
        return None
    header = _own_header(read, hints.segment_seq)
    extension = footer.extension if footer else None
    if header is not None and header.identity is not None:
        identity, position, cfg_hash = header.identity, header.position_start, header.cfg_hash
    elif extension is not None:
        identity = Identity(hints.segment_seq, extension.first_sequence, extension.incarnation)
        position, cfg_hash = extension.wal_position_start, hints.cfg_hash
    elif scan.entries[0].start == layout.HEADER_BYTES:
        entry = read_entry(LogReader(read, scan.end), scan.entries[0])
        if entry.entry_type == layout.ENTRY_TYPE_STAGED:
            return None  # it says its place in the file only
        first = entry.sequence
        identity, position, cfg_hash = Identity(hints.segment_seq, first, bytes(16)), 0, hints.cfg_hash
    else:
        return None
    if extension is not None and extension.first_sequence != identity.first_sequence:
        footer = extension = None
    facts = _Facts(
        identity,
        cfg_hash,
        position,
        scan.end,
        hints.bundle_count_min,
        SEGMENT_BUNDLES_MAX,
        is_end_known=hints.is_count_known,
        columns=None,
    )
    if footer is not None and extension is not None:
        facts.entries_end = max(scan.end, _entries_end(extension))
        facts.bundle_count_min = facts.bundle_count_max = footer.bundle_count
        facts.is_end_known = True
        facts.columns = _own_columns(read, footer, identity.first_sequence)
    elif hints.next_segment is not None:
        _learn_from_next(facts, hints.next_segment)
    return facts


def _own_header(read: Read, segment_seq: int) -> LogHeader | None:
    try:
        header = decode_header(read(layout.HEADER_BYTES, 0))
    except FormatError:
        return None
    return header if header.identity is not None and header.identity.segment_seq == segment_seq else None


def _own_columns(read: Read, footer: SegmentFooter, first_sequence: int) -> ManifestColumns | None:
    try:
        columns = manifest_columns(decode_manifest(read(footer.manifest_length, footer.manifest_offset)))
    except FormatError:
        return None
    expected = np.arange(first_sequence, first_sequence + footer.bundle_count, dtype=np.uint64)
    return columns if np.array_equal(columns.sequence, expected) else None


def _learn_from_next(facts: _Facts, following: FooterExtension) -> None:
    """Where log positions show that entries are missing at the end, the next segment's sequence tells how many."""
    position_end = facts.position_start + facts.entries_end - layout.HEADER_BYTES
    bundle_count = following.first_sequence - facts.identity.first_sequence
    if following.wal_position_start == position_end:
        facts.is_end_known = True
    elif following.wal_position_start > position_end and 0 < bundle_count <= SEGMENT_BUNDLES_MAX:
        facts.bundle_count_min = max(facts.bundle_count_min, bundle_count)
        facts.is_end_known = True


class _InPlace:
    """The entries as they are, a new header and a new tail."""

    def __init__(self, read: Read, size_bytes: int, file: DiskFile, scan: LogScan, facts: _Facts) -> None:
        self._read = read
        self._size_bytes = size_bytes
        self._file = file
        self._scan = scan
        self._facts = facts

    def rebuild(self) -> Rebuilt | None:
        crc = self._copy_entries()
        builder, tail = self._build_with_counts(crc)
        self._file.write(tail, self._facts.entries_end)
        lost = lost_bundles(builder.manifest_columns())
        if len(lost) == builder.bundle_count:
            return None
        info = SegmentInfo(
            self._facts.identity.segment_seq,
            builder.bundle_count,
            builder.row_count,
            self._facts.entries_end + sum(map(len, tail)),
            builder.first_ingestion_ts_nanos,
            builder.last_ingestion_ts_nanos,
            position_start=self._facts.position_start,
            position_end=self._facts.position_start + self._facts.entries_end - layout.HEADER_BYTES,
        )
        return Rebuilt(info, lost, self._facts.is_end_known or self._ends_like(tail))

    def _ends_like(self, tail: Sequence[Part]) -> bool:
        """Whether the damaged file goes on behind the last entry as a file does in which that entry is the last one."""
        begin = tail[0][:STREAM_ALIGNMENT]
        return bool(begin == self._read(len(begin), self._facts.entries_end))

    def _build_with_counts(self, crc: int) -> tuple[SegmentBuilder, list[Part]]:
        """Build the tail with the item counts of the damaged file, as far as they are to be believed."""
        columns = self._facts.columns
        builder, tail = self._build(columns, crc)
        if columns is not None and (self._lost_more_than(columns, builder) or self._is_original(tail)):
            return builder, tail
        without = self._build(None, crc)
        found = self._find_columns(without[1])
        if found is not None:
            builder, tail = self._build(found, crc)
            if self._is_original(tail):
                return builder, tail
        return without

    def _build(self, columns: ManifestColumns | None, crc: int) -> tuple[SegmentBuilder, list[Part]]:
        builder = self._fill(columns)
        return builder, self._encode_tail(builder, crc)

    def _find_columns(self, tail: Sequence[Part]) -> ManifestColumns | None:
        """The manifest of a file whose footer is damaged: it begins where that of the new file does."""
        start = self._facts.entries_end
        rebuilt = b"".join(tail)
        footer = read_footer(lambda length, offset: rebuilt[offset - start :][:length], start + len(rebuilt))
        behind = FOOTER.size + EXTENSION.size + TRAILER.size
        length = max(0, self._size_bytes - behind - footer.manifest_offset)
        try:
            columns = manifest_columns(decode_manifest(self._read(length, footer.manifest_offset)))
        except FormatError:
            return None
        return columns if len(columns.item_count) == footer.bundle_count else None

    def _copy_entries(self) -> int:
        """Copy them with whatever stands between them. Returns the CRC-32 of the new file so far."""
        facts = self._facts
        header = encode_header(facts.cfg_hash, facts.position_start, facts.identity)
        self._file.write([header], 0)
        crc = crc32(header)
        for offset in range(layout.HEADER_BYTES, facts.entries_end, CHUNK_BYTES):
            size = min(CHUNK_BYTES, facts.entries_end - offset)
            piece = self._read(size, offset).ljust(size, b"\0")
            self._file.write([piece], offset)
            crc = crc32(piece, crc)
        return crc

    def _fill(self, columns: ManifestColumns | None) -> SegmentBuilder:
        """Bundle i of the segment has sequence first_sequence + i."""
        facts = self._facts
        builder = SegmentBuilder(facts.identity.segment_seq, lambda offset, length: self._file.read(length, offset))
        reader = LogReader(self._read, self._scan.end)
        first = facts.identity.first_sequence
        for span in self._scan.entries:
            entry = read_entry(reader, span)
            is_staged = entry.entry_type == layout.ENTRY_TYPE_STAGED
            index = entry.sequence if is_staged else entry.sequence - first
            is_bundle = (is_staged or entry.entry_type == layout.ENTRY_TYPE_BUNDLE) and not entry.error
            if is_bundle and builder.bundle_count <= index < facts.bundle_count_max:
                _append_lost(builder, first, index)
                items = -1 if columns is None else int(columns.item_count[index])
                builder.append(first + index, entry.ingestion_ts_nanos, items, span.end - span.start, entry.placements)
        _append_lost(builder, first, facts.bundle_count_min)
        return builder

    def _encode_tail(self, builder: SegmentBuilder, crc: int) -> list[Part]:
        facts = self._facts
        return encode_tail(
            builder,
            entries_end=facts.entries_end,
            crc32_of_entries=crc,
            wal_position_start=facts.position_start,
            wal_position_end=facts.position_start + facts.entries_end - layout.HEADER_BYTES,
            incarnation=facts.identity.incarnation,
        )

    @staticmethod
    def _lost_more_than(columns: ManifestColumns, builder: SegmentBuilder) -> bool:
        return len(lost_bundles(builder.manifest_columns())) > len(lost_bundles(columns))

    def _is_original(self, tail: Sequence[Part]) -> bool:
        """Whether the new file is what the damaged one once was."""
        return bool(tail[-1][-CRC.size :] == self._read(CRC.size, self._size_bytes - CRC.size))


def _append_lost(builder: SegmentBuilder, first_sequence: int, bundle_count: int) -> None:
    while builder.bundle_count < bundle_count:
        builder.append(first_sequence + builder.bundle_count, 0, -1, 0, ())
