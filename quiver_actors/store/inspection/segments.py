"""A look at one segment file: trailer, footer, directory, manifest, the streams they name, and the log it was sealed from.

Each part is looked at whether or not the one before it could be read, as far as it can still be found. Deep: the CRC of the whole
file, every entry's CRC where it was sealed in place, and every batch decoded and validated.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from quiver_actors.errors import FormatError
from quiver_actors.store.inspection import structures
from quiver_actors.store.inspection.decoding import BrokenBatch, checked_batch, one_line, stream_schemas
from quiver_actors.store.inspection.fields import Structure
from quiver_actors.store.inspection.findings import Finding, damage, has_damage, note
from quiver_actors.store.inspection.logs import LogLook, examine_log
from quiver_actors.store.inspection.small_files import newer_version
from quiver_actors.store.inspection.source import Source
from quiver_actors.store.inspection.views import BundleView, LogView, SegmentView, SlotRefView, StreamView
from quiver_actors.store.segment import arrow_file
from quiver_actors.store.segment.codec import StreamInfo, decode_directory, decode_manifest
from quiver_actors.store.segment.layout import CHUNKS_MAX, EXTENSION, FOOTER, TRAILER
from quiver_actors.store.segment.manifest import Manifest
from quiver_actors.store.segment.reader import SegmentReader
from quiver_actors.store.wal import layout as wal_layout

ACTION = (
    "run `quiver repair`, or start the node: the file is moved to quarantine/ and subscribers are told what they lose; "
    "`quiver export-segment` saves what can still be read"
)
_NAME_ACTION = "find out who copied or renamed it; `quiver repair` moves it to quarantine/"
DECODE_BYTES_MAX = 4 << 30
"""Files above this size are checked by their CRC alone: decoding holds the file in memory."""
_FINDINGS_MAX = 50
_ARROW_END = 10
"""An Arrow file ends in the length of its footer (4) and `ARROW1` (6)."""


@dataclass(slots=True)
class SegmentLook:
    """Result of looking at a segment: the view to show, the findings, and the log below a segment sealed in place."""

    view: SegmentView
    findings: list[Finding] = field(default_factory=list)
    log: LogLook | None = None
    has_tables: bool = False
    """Whether directory and manifest could be read."""


def examine_segment(source: Source, segment_seq: int | None, *, deep: bool, limit: int) -> SegmentLook:
    """Look at a segment file.

    Args:
        segment_seq: the number in its name; None where the name does not say.
        limit: how many streams, bundles and entries to show.

    Raises:
        DiskError: the file cannot be read.
    """
    return _SegmentExaminer(source, segment_seq, deep, limit).run()


class _SegmentExaminer:
    """One look at one file."""

    def __init__(self, source: Source, segment_seq: int | None, deep: bool, limit: int) -> None:
        self._source = source
        self._segment_seq = segment_seq
        self._deep = deep
        self._limit = limit
        self._view = SegmentView()
        self._look = SegmentLook(self._view)
        self._streams: dict[int, StreamInfo] | None = None
        self._manifest: Manifest | None = None
        self._stored_crc: int | None = None
        self._entries_end = source.size_bytes

    def run(self) -> SegmentLook:
        is_in_place = self._starts_as_log()
        self._view.layout = "sealed in place" if is_in_place else "contiguous"
        footer = self._read_trailer()
        if footer is not None:
            self._read_tables(footer)
        if self._streams is not None and self._manifest is not None:
            self._look.has_tables = True
            self._check_references(self._streams, self._manifest)
        self._show()
        if is_in_place:
            self._read_log()
        self._check_version(footer)
        if self._deep:
            self._check_crc()
            self._decode()
        return self._look

    def _starts_as_log(self) -> bool:
        """Whether the file begins as a log. Damage to its first bytes does not hide a log of ours, which carries a second magic."""
        head = self._source.read(wal_layout.HEADER_BYTES, 0)
        return head.startswith(wal_layout.WAL_MAGIC) or structures.restored_log_header(head) is not None

    def _damage(self, code: str, offset: int | None, message: str, *wrong: str) -> None:
        self._look.findings.append(damage(code, self._source.path, offset, message, ACTION, *wrong))

    # --- trailer and footer ----------------------------------------------------------------------------------------------------

    def _read_trailer(self) -> Structure | None:
        """Trailer, footer and extension; returns the footer if it can be used."""
        source, view = self._source, self._view
        tail = source.read(TRAILER.size, max(0, source.size_bytes - TRAILER.size))
        trailer = structures.segment_trailer(tail, source.size_bytes)
        view.trailer = trailer.fields
        self._look.findings += trailer.damage(source.path, ACTION)
        if not trailer.is_right:
            return None
        self._stored_crc = trailer["crc32"]
        trailer.check_crc(self._stored_crc)
        trailer_start = source.size_bytes - TRAILER.size
        start = trailer_start - trailer["footer_size"]
        data = source.read(trailer["footer_size"], start)
        footer = structures.segment_footer(data, start, trailer_start)
        extension = structures.segment_extension(data[FOOTER.size :], start + FOOTER.size)
        view.footer = footer.fields + (extension.fields if extension else [])
        self._look.findings += footer.damage(source.path, ACTION)
        if extension is not None:
            self._look.findings += extension.damage(source.path, ACTION)
            self._describe_extension(extension)
        return footer if footer.is_right else None

    def _describe_extension(self, extension: Structure) -> None:
        view = self._view
        if extension["extension_size"] < EXTENSION.size:
            return
        view.position_start, view.position_end = extension["wal_position_start"], extension["wal_position_end"]
        view.first_sequence, view.last_sequence = extension["first_sequence"], extension["last_sequence"]
        view.row_count = extension["row_count"]
        view.incarnation = extension["incarnation"].hex()

    def _check_version(self, footer: Structure | None) -> None:
        """Another version is damage only if the CRC of the file says so too."""
        wrong = [field for field in self._view.footer if field.name == "version" and field.expected is not None]
        if footer is not None or not wrong or self._stored_crc is None:
            return
        if self._source.crc32(self._source.size_bytes - 4) == self._stored_crc:
            self._look.findings = [newer_version(self._source, "segment.version", wrong[0])]

    # --- directory and manifest --------------------------------------------------------------------------------------------------

    def _read_tables(self, footer: Structure) -> None:
        view = self._view
        view.stream_count, view.bundle_count = footer["stream_count"], footer["bundle_count"]
        self._entries_end = footer["directory_offset"]
        try:
            self._streams = decode_directory(self._region(footer, "directory"))
            self._check_count("directory", "streams", footer["directory_offset"], view.stream_count, len(self._streams))
            self._check_regions(self._streams, footer["directory_offset"])
        except FormatError as error:
            self._damage("segment.directory", footer["directory_offset"], one_line(error))
        try:
            self._manifest = decode_manifest(self._region(footer, "manifest"))
            count = self._manifest.bundle_count
            self._check_count("manifest", "bundles", footer["manifest_offset"], view.bundle_count, count)
        except FormatError as error:
            self._damage("segment.manifest", footer["manifest_offset"], one_line(error))

    def _region(self, footer: Structure, name: str) -> bytes:
        return self._source.read(footer[f"{name}_length"], footer[f"{name}_offset"])

    def _check_count(self, table: str, of: str, offset: int, expected: int, found: int) -> None:
        if expected != found:
            message = f"{table} and footer disagree about the number of {of}"
            self._damage(f"segment.{table}", offset, message, f"{expected} {of}", f"{found} {of}")

    def _check_regions(self, streams: dict[int, StreamInfo], end: int) -> None:
        """Each stream lies before the directory and ends in the footer of an Arrow file with that many batches."""
        for info in streams.values():
            stream_end = info.byte_offset + info.byte_length
            if stream_end > end:
                message = f"stream {info.stream_id} lies outside the streams' part of the file"
                wrong = f"an end before {end}", f"[{info.byte_offset}, {stream_end})"
                self._damage("segment.stream", info.byte_offset, message, *wrong)
            else:
                self._check_stream_footer(info, stream_end)

    def _check_stream_footer(self, info: StreamInfo, stream_end: int) -> None:
        stream = f"stream {info.stream_id} of slot {info.slot_id}"
        end = self._source.read(_ARROW_END, max(0, stream_end - _ARROW_END))
        wanted = int.from_bytes(end[:4], "little") + _ARROW_END + 2 * len(arrow_file.FILE_START)
        size = min(max(wanted, _ARROW_END), info.byte_length, 64 << 20)
        try:
            region = self._source.read(size, stream_end - size)
            counts = arrow_file.read_footer_counts(region, 0, len(region))
        except FormatError as error:
            message = f"{stream}: {one_line(error)}"
            self._damage("segment.stream", stream_end - _ARROW_END, message, "the footer of an Arrow file")
            return
        if counts.batches != info.chunk_count or counts.batches > CHUNKS_MAX:
            message = f"{stream} does not have the chunks that the directory names"
            self._damage("segment.stream", stream_end - size, message, f"{info.chunk_count}", f"{counts.batches}")

    def _check_references(self, streams: dict[int, StreamInfo], manifest: Manifest) -> None:
        """Every reference of the manifest names a chunk that is there, of a stream of that slot, and no two name the same."""
        slots = np.asarray(manifest.ref_slots, dtype=np.int64)
        ids = np.asarray(manifest.ref_streams, dtype=np.int64)
        chunks = np.asarray(manifest.ref_chunks, dtype=np.int64)
        known = {stream_id: (info.slot_id, info.chunk_count) for stream_id, info in streams.items()}
        wanted = np.array([known.get(int(stream_id), (-1, 0)) for stream_id in ids], dtype=np.int64).reshape(-1, 2)
        wrong = (
            np.flatnonzero((wanted[:, 0] != slots) | (chunks >= wanted[:, 1])) if len(ids) else np.empty(0, np.int64)
        )
        offset = self._offset_of("manifest_offset")
        for ref in wrong[:_FINDINGS_MAX].tolist():
            slot_id, chunk_count = known.get(int(ids[ref]), (None, 0))
            has = f"chunks 0 to {chunk_count - 1} of slot {slot_id}" if chunk_count else "no such stream"
            message = f"manifest: bundle {_bundle_of(manifest, ref)} refers to what is not there"
            wanted_chunk = f"slot {slots[ref]} as chunk {chunks[ref]} of stream {ids[ref]}"
            self._damage("segment.reference", offset, message, wanted_chunk, has)
        places = Counter(zip(ids.tolist(), chunks.tolist(), strict=True))
        twice = [place for place, count in places.items() if count > 1]
        for stream_id, chunk in twice[:_FINDINGS_MAX]:
            message = f"manifest: two bundles refer to chunk {chunk} of stream {stream_id}"
            self._damage("segment.reference", offset, message)

    def _offset_of(self, name: str) -> int | None:
        return next((int(field.value) for field in self._view.footer if field.name == name), None)

    def _show(self) -> None:
        """Fill in the lists of the view, as far as the limit goes."""
        view, limit = self._view, self._limit
        if self._streams is not None:
            view.streams = [_stream_view(info) for info in list(self._streams.values())[:limit]]
            view.row_count = view.row_count or sum(info.row_count for info in self._streams.values())
        if self._manifest is not None:
            ends = np.asarray(self._manifest.ref_ends)
            view.lost_bundles = int((np.diff(ends) == 0).sum())
            view.bundles = [_bundle_view(self._manifest, index) for index in range(min(limit, len(ends) - 1))]

    # --- the log inside --------------------------------------------------------------------------------------------------------

    def _read_log(self) -> None:
        """The entries of a segment sealed in place, up to its directory; those that bundles refer to must be there."""
        can_compare = self._manifest is not None and self._manifest.sequence is not None
        if not self._deep and not self._limit:
            self._view.log = self._header_only()
            return
        look = examine_log(
            self._source,
            deep=self._deep,
            limit=self._limit,
            is_last=True,
            end=self._entries_end,
            is_sealed=can_compare,
        )
        self._view.log, self._look.log = look.view, look
        # What follows the entries of a whole segment is its tail: that is no finding here.
        of_log = [finding for finding in look.findings if finding.code not in ("log.unfinished_seal", "log.torn_write")]
        self._look.findings += of_log
        self._check_number(look.view)
        if self._deep and can_compare:
            self._compare_with_entries(look)

    def _header_only(self) -> LogView:
        data = self._source.read(wal_layout.HEADER_BYTES, 0)
        header = structures.log_header(data)
        self._look.findings += header.damage(self._source.path, ACTION)
        view = LogView(header=header.fields)
        if structures.is_own_log_header(data) and "segment_seq" in header and any(header["incarnation"]):
            view.segment_seq = header["segment_seq"]
            self._check_number(view)
        return view

    def _check_number(self, log: LogView) -> None:
        if None in (log.segment_seq, self._segment_seq) or log.segment_seq == self._segment_seq:
            return
        message = "the file has the name of another segment: its bundles would be delivered under wrong ids"
        wrong = f"segment {self._segment_seq}", f"segment {log.segment_seq}"
        offset = wal_layout.HEADER_EXTENSION_OFFSET
        self._look.findings.append(damage("segment.name", self._source.path, offset, message, _NAME_ACTION, *wrong))

    def _compare_with_entries(self, look: LogLook) -> None:
        manifest = self._manifest
        assert manifest is not None
        assert manifest.sequence is not None
        there = set(look.sequences)
        for index in range(manifest.bundle_count):
            has_slots = manifest.ref_ends[index] < manifest.ref_ends[index + 1]
            if has_slots and manifest.sequence[index] not in there:
                span = _span_around(look, manifest, index)
                message = f"bundle {index}: its log entry (sequence {manifest.sequence[index]}) is damaged"
                self._damage("segment.entry", span, message, "a valid entry", "none")

    # --- deep ------------------------------------------------------------------------------------------------------------------

    def _check_crc(self) -> None:
        if self._stored_crc is None:
            return
        computed = self._source.crc32(self._source.size_bytes - 4)
        if computed != self._stored_crc:
            at = self._source.size_bytes - 4
            expected, found = f"{self._stored_crc:#010x}", f"{computed:#010x}"
            self._view.trailer[-1].expected = found
            self._damage("segment.checksum", at, "the CRC-32 of the file does not match its bytes", expected, found)

    def _decode(self) -> None:
        """Decode every batch; where the tables cannot be read, what is wrong is known already."""
        size = self._source.size_bytes
        if self._streams is None or self._manifest is None:
            return
        if size > DECODE_BYTES_MAX:
            message = f"{size} bytes are too large to decode here: only the checksums were looked at"
            self._look.findings.append(note("segment.size", self._source.path, None, message))
            return
        try:
            reader = SegmentReader(self._source.read(size, 0), segment_seq=self._segment_seq)
        except FormatError as error:
            self._damage("segment.manifest", None, one_line(error))
            return
        schemas = dict(stream_schemas(reader)) if self._limit else {}
        for view in self._view.streams:
            view.schema = schemas.get(view.stream_id, [])
        self._decode_bundles(reader)

    def _decode_bundles(self, reader: SegmentReader) -> None:
        rows: Counter[int] = Counter()
        reported = 0
        assert self._manifest is not None
        for index in range(reader.bundle_count):
            for ref in range(self._manifest.ref_ends[index], self._manifest.ref_ends[index + 1]):
                slot_id, stream_id = self._manifest.ref_slots[ref], self._manifest.ref_streams[ref]
                try:
                    rows[stream_id] += checked_batch(reader, index, slot_id).num_rows
                except BrokenBatch as error:
                    reported += 1
                    if reported <= _FINDINGS_MAX:
                        self._report_batch(index, slot_id, stream_id, error)
        if not reported:
            self._check_rows(rows)

    def _report_batch(self, index: int, slot_id: int, stream_id: int, error: BrokenBatch) -> None:
        info = (self._streams or {}).get(stream_id)
        offset = info.byte_offset if info else None
        if self._look.log is not None and self._manifest is not None and self._manifest.sequence is not None:
            offset = _span_around(self._look.log, self._manifest, index)
        self._damage("segment.batch", offset, f"bundle {index}, slot {slot_id} (stream {stream_id}): {error}")

    def _check_rows(self, rows: Counter[int]) -> None:
        if has_damage(self._look.findings):
            return
        for info in (self._streams or {}).values():
            if rows[info.stream_id] != info.row_count:
                message = f"stream {info.stream_id} does not hold the rows that the directory names"
                self._damage(
                    "segment.directory",
                    self._offset_of("directory_offset"),
                    message,
                    f"{info.row_count} rows",
                    f"{rows[info.stream_id]} rows",
                )


def _stream_view(info: StreamInfo) -> StreamView:
    shown = info._asdict()
    return StreamView(fingerprint=shown.pop("schema_fingerprint").hex(), **shown)


def _bundle_view(manifest: Manifest, index: int) -> BundleView:
    columns = {name: getattr(manifest, name) for name in ("sequence", "ingestion_ts_nanos", "item_count", "byte_count")}
    refs = slice(manifest.ref_ends[index], manifest.ref_ends[index + 1])
    places = zip(manifest.ref_slots[refs], manifest.ref_streams[refs], manifest.ref_chunks[refs], strict=True)
    return BundleView(
        index=index,
        slots=[SlotRefView(slot_id=slot, stream_id=stream, chunk_index=chunk) for slot, stream, chunk in places],
        **{name: None if column is None else column[index] for name, column in columns.items()},
    )


def _bundle_of(manifest: Manifest, ref: int) -> int:
    return int(np.searchsorted(np.asarray(manifest.ref_ends), ref, side="right")) - 1


def _span_around(look: LogLook, manifest: Manifest, index: int) -> int | None:
    """File offset at which a bundle's entry should stand: behind the last valid entry before it."""
    assert manifest.sequence is not None
    sequence = manifest.sequence[index] or 0
    before = [span.end for span, found in zip(look.spans, look.sequences, strict=True) if found < sequence]
    return before[-1] if before else look.view.header_bytes
