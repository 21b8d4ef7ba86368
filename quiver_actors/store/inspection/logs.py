"""A look at one log file: header, entries, damaged spans, and what follows the last entry.

Deep: every entry's CRC, and every Arrow payload decoded and validated. Otherwise the entries are followed by their length fields
alone; where that breaks, the file is searched with CRCs all the same, so that the report is exact.

What follows the last valid entry is told apart as recovery does: zeroes are the unused rest of a preallocated file, the tail of a
seal that was cut off is sealed again, and a torn write is normal in the last file only (`is_last`).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

from quiver_actors.base.checksum import crc32_of_range
from quiver_actors.errors import FormatError
from quiver_actors.store.format.fields import show
from quiver_actors.store.inspection import structures
from quiver_actors.store.inspection.decoding import check_payloads
from quiver_actors.store.inspection.fields import Structure
from quiver_actors.store.inspection.findings import Finding, damage, note, warning
from quiver_actors.store.inspection.small_files import newer_version
from quiver_actors.store.inspection.source import Source
from quiver_actors.store.inspection.views import EntryView, LogView, SlotView, SpanView
from quiver_actors.store.segment import layout as segment_layout
from quiver_actors.store.wal import layout
from quiver_actors.store.wal.codec import decode_entry_header, decode_header, decode_slots, plausible_entry_length
from quiver_actors.store.wal.decisions import Behind
from quiver_actors.store.wal.reader import LogReader, LogScan, Span
from quiver_actors.store.wal.recovery import Start, find_start, what_follows

_HEADER_ACTION = "its entries stay readable: start the node, or run `quiver repair`, to have them laid into a new log"
_SPAN_ACTION = (
    "start the node, or run `quiver repair`: the bytes are kept in quarantine/, the bundles behind them are served"
)
_SEQUENCE_ACTION = "look at the file with `quiver inspect`, and at those before and behind it"
TORN_WRITE, SEAL_TAIL, ZEROES, END_OF_FILE = "torn write", "tail of a seal", "zeroes", "end of file"


@dataclass(slots=True)
class LogLook:
    """The result of a look at one log file. `spans` are its valid entries, `sequences` the sequences of these."""

    view: LogView
    findings: list[Finding] = field(default_factory=list)
    spans: tuple[Span, ...] = ()
    sequences: list[int] = field(default_factory=list)


def examine_log(
    source: Source, *, deep: bool, limit: int, is_last: bool, end: int | None = None, is_sealed: bool = False
) -> LogLook:
    """Look at a log file, or at the log inside a segment sealed in place.

    Args:
        limit: how many entries to show.
        is_last: a torn write at its end is normal.
        end: where the entries end at the latest; the file's end if None.
        is_sealed: the segment around the log knows which entries it needs, and has its payloads looked at itself: damaged spans
            are no findings, and nothing is decoded.

    Raises:
        DiskError: the file cannot be read.
    """
    return _LogExaminer(source, deep, limit, is_last, source.size_bytes if end is None else end, is_sealed).run()


class _LogExaminer:
    """One look at one file."""

    def __init__(self, source: Source, deep: bool, limit: int, is_last: bool, end: int, is_sealed: bool) -> None:
        self._source = source
        self._deep = deep
        self._limit = limit
        self._is_last = is_last
        self._end = end
        self._is_sealed = is_sealed
        self._reader = LogReader(source.read, end)
        self._view = LogView()
        self._look = LogLook(self._view)

    def run(self) -> LogLook:
        start = self._read_header()
        scan = self._find_entries(start)
        self._look.spans = scan.entries
        for span in scan.entries:
            self._read_entry(span)
        self._number_entries(scan)
        if not self._is_sealed:
            for span in scan.damaged:
                self._report_span(span)
            self._report_sequences(scan)
        self._report_end(scan, start)
        return self._look

    # --- header --------------------------------------------------------------------------------------------------------------

    def _read_header(self) -> Start:
        """Describe the header; returns where recovery looks for entries."""
        data = self._source.read(layout.HEADER_BYTES, 0)
        header = structures.log_header(data)
        self._view.header = header.fields
        is_own = structures.is_own_log_header(data)
        readable = None
        with suppress(FormatError):
            readable = decode_header(data)
        start = find_start(readable, self._reader)[1]
        if readable is not None and start.offset != readable.header_bytes:
            header.field("header_size").expected = str(start.offset)
        if not header.is_right:
            self._report_header(data, header)
        if header.is_right or is_own:
            self._describe_header(header, data, is_own)
        return start

    def _report_header(self, data: bytes, header: Structure) -> None:
        findings, path = self._look.findings, self._source.path
        if self._is_newer(header):
            findings.append(newer_version(self._source, "log.version", header.field("version")))
        elif any(data):
            findings += header.damage(path, _HEADER_ACTION)
        elif self._source.is_zero(self._end):
            findings.append(note("log.never_written", path, 0, "preallocated, never written"))
        else:
            wanted = show(layout.WAL_MAGIC)
            findings.append(damage("log.header", path, 0, "log header is zero", _HEADER_ACTION, wanted, "zeroes"))

    @staticmethod
    def _is_newer(header: Structure) -> bool:
        """Another version, and a CRC over it that says so too."""
        wrong = [field.name for field in header.fields if field.expected is not None]
        return header.is_whole and "crc32" in header and wrong == ["version"] and any(header["incarnation"])

    def _describe_header(self, header: Structure, data: bytes, is_own: bool) -> None:
        view = self._view
        if not header.is_right:
            restored = structures.restored_log_header(data)
            if restored is None:
                return
            header = structures.log_header(restored)
        view.cfg_hash = header["segment_cfg_hash"].hex()
        view.position_start = header["wal_position_start"]
        if is_own and any(header["incarnation"]):
            view.segment_seq = header["segment_seq"]
            view.next_sequence = header["first_sequence"]
            view.incarnation = header["incarnation"].hex()

    # --- entries -------------------------------------------------------------------------------------------------------------

    def _find_entries(self, start: Start) -> LogScan:
        self._view.header_bytes = start.offset
        if start.offset > self._end:
            return LogScan(end=self._end, end_marked=True)
        followed = None if self._deep else self._follow_lengths(start.offset)
        # In a part of a stage, and in the segment that it becomes, entries count from 0.
        known = start if self._source.name.startswith(layout.ACTIVE_NAME) else start._replace(last_sequence=None)
        return self._reader.scan(*known) if followed is None else followed

    def _follow_lengths(self, start: int) -> LogScan | None:
        """The entries by their length fields alone; None where that leads nowhere, or to what cannot be an entry."""
        found = LogScan(end=start, end_marked=True)
        previous: int | None = None
        while found.end + layout.END_MARK_BYTES <= self._end:
            head = self._source.read(layout.ENTRY_HEAD.size, found.end)
            length = int.from_bytes(head[: layout.ENTRY_LENGTH_BYTES], "little")
            if length == 0:
                return found
            if not plausible_entry_length(length, self._end - found.end - layout.ENTRY_LENGTH_BYTES):
                return None
            sequence = decode_entry_header(head[layout.ENTRY_LENGTH_BYTES :]).sequence
            if previous is not None and sequence != previous + 1:
                return None  # being written right now, or damaged: CRCs tell
            previous = sequence
            end = found.end + length + layout.ENTRY_OVERHEAD_BYTES
            found.add(found.end, [end])
        return found

    def _read_entry(self, span: Span) -> None:
        """Note one entry; show it if it is one of the first, decode it if the look is deep."""
        head = self._source.read(layout.ENTRY_HEAD.size, span.start) if not self._deep else None
        body = self._reader.body(span) if head is None else head[layout.ENTRY_LENGTH_BYTES :]
        header = decode_entry_header(body)
        is_staged = header.entry_type == layout.ENTRY_TYPE_STAGED
        # A staged bundle says its place in the file; its sequence follows from the header that the file got when it was published.
        sequence = header.sequence + (self._view.next_sequence or 0 if is_staged else 0)
        self._look.sequences.append(sequence)
        is_bundle = is_staged or header.entry_type == layout.ENTRY_TYPE_BUNDLE
        if not is_bundle:
            message = f"entry of type {header.entry_type}, which this version does not know, is skipped"
            action = "use the program that wrote it"
            self._look.findings.append(warning("log.entry_type", self._source.path, span.start, message, action))
        error = check_payloads(body, header.slot_bitmap) if self._deep and is_bundle and not self._is_sealed else ""
        if error:
            message = f"entry {sequence}: {error}"
            self._damage("log.payload", span, message)
        if len(self._view.entries) < self._limit:
            self._view.entries.append(
                EntryView(
                    offset=span.start,
                    size_bytes=span.end - span.start,
                    entry_type=header.entry_type,
                    sequence=sequence,
                    ingestion_ts_nanos=header.ingestion_ts_nanos,
                    slots=self._slots(span, header.slot_bitmap) if is_bundle else [],
                    error=error,
                )
            )

    def _slots(self, span: Span, slot_bitmap: int) -> list[SlotView]:
        body_start = span.start + layout.ENTRY_LENGTH_BYTES
        try:
            blocks = decode_slots(self._reader.body(span), slot_bitmap)
        except FormatError as error:
            if not self._deep:
                self._damage("log.entry", span, str(error))
            return []
        return [
            SlotView(
                slot_id=block.slot_id,
                fingerprint=block.fingerprint.hex(),
                row_count=block.row_count,
                payload_offset=body_start + block.payload_offset,
                payload_bytes=block.payload_bytes,
            )
            for block in blocks
        ]

    def _number_entries(self, scan: LogScan) -> None:
        view, sequences = self._view, self._look.sequences
        view.entry_count = scan.entry_count
        view.written_end = scan.end
        view.damaged = [SpanView(start=span.start, end=span.end) for span in scan.damaged]
        if sequences:
            view.first_sequence, view.last_sequence = sequences[0], sequences[-1]
        if view.position_start is not None:
            view.position_end = view.position_start + max(0, scan.end - view.header_bytes)

    # --- what is wrong -------------------------------------------------------------------------------------------------------

    def _damage(self, code: str, span: Span, message: str, *wrong: str) -> None:
        self._look.findings.append(damage(code, self._source.path, span.start, message, _SPAN_ACTION, *wrong))

    def _report_span(self, span: Span) -> None:
        message = f"bytes {span.start} to {span.end} are damaged: no valid entry, but valid ones behind them"
        self._damage("log.entry", span, message, *self._what_is_wrong(span.start))

    def _what_is_wrong(self, offset: int) -> tuple[str, str]:
        """What was expected and found where an entry should start."""
        length = int.from_bytes(self._source.read(layout.ENTRY_LENGTH_BYTES, offset), "little")
        if not plausible_entry_length(length, self._end - offset - layout.ENTRY_LENGTH_BYTES):
            return "the length of an entry", str(length)
        start = offset + layout.ENTRY_LENGTH_BYTES
        value = crc32_of_range(self._source.read, start, start + length)
        stored = int.from_bytes(self._source.read(layout.ENTRY_CRC.size, start + length), "little")
        return f"CRC-32 {stored:#010x} of {length} bytes", f"{value:#010x}"

    def _report_sequences(self, scan: LogScan) -> None:
        """Sequences rise by one from entry to entry; only behind damaged bytes some may be missing."""
        behind_damage = {span.end for span in scan.damaged}
        expected = self._view.next_sequence
        for span, sequence in zip(scan.entries, self._look.sequences, strict=True):
            jumps = expected is not None and sequence != expected
            if jumps and (span.start not in behind_damage or sequence < (expected or 0)):
                message, action = "entry is out of sequence", _SEQUENCE_ACTION
                wrong = f"sequence {expected}", f"sequence {sequence}"
                self._look.findings.append(
                    damage("log.sequence", self._source.path, span.start, message, action, *wrong)
                )
            expected = sequence + 1

    def _report_end(self, scan: LogScan, start: Start) -> None:
        view, path = self._view, self._source.path
        view.behind = self._behind(scan, start)
        if view.behind == SEAL_TAIL:
            message, action = "the seal of this log was cut off", "nothing: the next open seals it"
            self._look.findings.append(note("log.unfinished_seal", path, scan.end, message, action))
        if view.behind != TORN_WRITE:
            return
        wrong = self._what_is_wrong(scan.end)
        if self._is_last:
            message = (
                "torn write behind the last entry: being written now, or cut off by a crash and never acknowledged"
            )
            action = "nothing: the next open cuts it"
            self._look.findings.append(note("log.torn_write", path, scan.end, message, action, *wrong))
        else:
            message = "damaged behind the last valid entry, in a file that was complete"
            action = "the entries from here on are lost, those before are kept: run `quiver repair`, or start the node"
            self._look.findings.append(damage("log.end", path, scan.end, message, action, *wrong))

    def _behind(self, scan: LogScan, start: Start) -> str:
        if what_follows(scan, start, self._reader) is Behind.OTHER:
            return TORN_WRITE
        rest = self._source.read(1 << 16, scan.end) if scan.end < self._source.size_bytes else b""
        if not rest:
            return END_OF_FILE
        tail = self._source.read(segment_layout.TRAILER.size, self._source.size_bytes - segment_layout.TRAILER.size)
        return SEAL_TAIL if any(rest) or any(tail) else ZEROES
