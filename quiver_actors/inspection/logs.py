"""A look at one log file: header, entries, damaged spans, and what follows the last entry.

Deep: every entry's CRC, and every Arrow payload decoded and validated. Otherwise the entries are followed by their length fields
alone; where that breaks, the file is searched with CRCs all the same, so that the report is exact.

What follows the last valid entry is told apart as recovery does: zeroes are the unused rest of a preallocated file, the tail of a
seal that was cut off is sealed again, and a torn write is normal in the last file only (`is_last`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from quiver_actors.checksum import crc32
from quiver_actors.errors import FormatError
from quiver_actors.inspection import structures
from quiver_actors.inspection.decoding import check_payloads
from quiver_actors.inspection.fields import Structure, show
from quiver_actors.inspection.findings import Finding, Severity
from quiver_actors.inspection.recognise import SEARCHES
from quiver_actors.inspection.small_files import newer_version
from quiver_actors.inspection.source import Source
from quiver_actors.inspection.views import EntryView, LogView, SlotView, SpanView
from quiver_actors.segment import layout as segment_layout
from quiver_actors.wal import layout
from quiver_actors.wal.codec import decode_entry_header, decode_slots, plausible_entry_length
from quiver_actors.wal.reader import LogReader, LogScan, Span

_HEADER_ACTION = "its entries stay readable: start the node, or run `quiver repair`, to have them laid into a new log"
_SPAN_ACTION = (
    "start the node, or run `quiver repair`: the bytes are kept in quarantine/, the bundles behind them are served"
)
TORN_WRITE, SEAL_TAIL, ZEROES, END_OF_FILE = "torn write", "tail of a seal", "zeroes", "end of file"


@dataclass(slots=True)
class LogLook:
    """What is known of one log file. `spans` are its valid entries, `sequences` theirs."""

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
        start, stride = self._read_header()
        scan = self._find_entries(start, stride)
        self._look.spans = scan.entries
        for span in scan.entries:
            self._read_entry(span)
        self._number_entries(scan)
        if not self._is_sealed:
            for span in scan.damaged:
                self._report_span(span)
            self._report_sequences(scan)
        self._report_end(scan)
        return self._look

    def _add(
        self,
        severity: Severity,
        code: str,
        offset: int,
        message: str,
        expected: str | None = None,
        found: str | None = None,
        action: str = "",
    ) -> None:
        self._look.findings.append(
            Finding(
                severity=severity,
                code=code,
                path=self._source.path,
                offset=offset,
                message=message,
                expected=expected,
                found=found,
                action=action,
            )
        )

    # --- header --------------------------------------------------------------------------------------------------------------

    def _read_header(self) -> tuple[int, int]:
        """Describe the header; returns where entries start and how far apart they can be."""
        data = self._source.read(layout.HEADER_BYTES, 0)
        header = structures.log_header(data)
        self._view.header = header.fields
        is_own = structures.is_own_log_header(data)
        if not header.is_right:
            self._report_header(data, header)
        if header.is_right or is_own:
            start = layout.HEADER_BYTES if is_own else int(header["header_size"])
            self._describe_header(header, data, is_own)
            return start, layout.ALIGNMENT if is_own else 1
        return next(
            (place for place in SEARCHES if self._reader.scan(place[0], stride=place[1]).entry_count), SEARCHES[0]
        )

    def _report_header(self, data: bytes, header: Structure) -> None:
        if self._is_newer(header):
            self._look.findings.append(newer_version(self._source, "log.version", header.fields[1]))
        elif any(data):
            self._look.findings += header.damage(self._source.path, _HEADER_ACTION)
        elif self._source.is_zero(self._end):
            self._add(Severity.NOTE, "log.never_written", 0, "preallocated, never written")
        else:
            wanted = show(layout.WAL_MAGIC)
            self._add(Severity.DAMAGE, "log.header", 0, "log header is zero", wanted, "zeroes", _HEADER_ACTION)

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

    def _find_entries(self, start: int, stride: int) -> LogScan:
        self._view.header_bytes = start
        if start > self._end:
            return LogScan(end=self._end, end_marked=True)
        if not self._deep:
            followed = self._follow_lengths(start)
            if followed is not None:
                return followed
        return self._reader.scan(start, stride=stride)

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
            self._add(Severity.WARNING, "log.entry_type", span.start, message, action="use the program that wrote it")
        error = check_payloads(body, header.slot_bitmap) if self._deep and is_bundle and not self._is_sealed else ""
        if error:
            message = f"entry {sequence}: {error}"
            self._add(Severity.DAMAGE, "log.payload", span.start, message, action=_SPAN_ACTION)
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
                self._add(Severity.DAMAGE, "log.entry", span.start, str(error), action=_SPAN_ACTION)
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

    def _report_span(self, span: Span) -> None:
        expected, found = self._what_is_wrong(span.start)
        message = f"bytes {span.start} to {span.end} are damaged: no valid entry, but valid ones behind them"
        self._add(Severity.DAMAGE, "log.entry", span.start, message, expected, found, _SPAN_ACTION)

    def _what_is_wrong(self, offset: int) -> tuple[str, str]:
        """What was expected and found where an entry should start."""
        length = int.from_bytes(self._source.read(layout.ENTRY_LENGTH_BYTES, offset), "little")
        if not plausible_entry_length(length, self._end - offset - layout.ENTRY_LENGTH_BYTES):
            return "the length of an entry", str(length)
        value, at, left = 0, offset + layout.ENTRY_LENGTH_BYTES, length
        while left:
            piece = self._source.read(min(left, 1 << 20), at)
            value, at, left = crc32(piece, value), at + len(piece), left - len(piece)
        stored = int.from_bytes(self._source.read(layout.ENTRY_CRC.size, at), "little")
        return f"CRC-32 {stored:#010x} of {length} bytes", f"{value:#010x}"

    def _report_sequences(self, scan: LogScan) -> None:
        """Sequences rise by one from entry to entry; only behind damaged bytes some may be missing."""
        behind_damage = {span.end for span in scan.damaged}
        expected = self._view.next_sequence
        for span, sequence in zip(scan.entries, self._look.sequences, strict=True):
            jumps = expected is not None and sequence != expected
            if jumps and (span.start not in behind_damage or sequence < (expected or 0)):
                self._add(
                    Severity.DAMAGE,
                    "log.sequence",
                    span.start,
                    "entry is out of sequence",
                    f"sequence {expected}",
                    f"sequence {sequence}",
                    "look at the file with `quiver inspect`, and at those before and behind it",
                )
            expected = sequence + 1

    def _report_end(self, scan: LogScan) -> None:
        view = self._view
        view.behind = self._behind(scan)
        if view.behind == TORN_WRITE:
            expected, found = self._what_is_wrong(scan.end)
            if self._is_last:
                message = (
                    "torn write behind the last entry: being written now, or cut off by a crash and never acknowledged"
                )
                action = "nothing: the next open cuts it"
                self._add(Severity.NOTE, "log.torn_write", scan.end, message, expected, found, action)
            else:
                message = "damaged behind the last valid entry, in a file that was complete"
                action = (
                    "the entries from here on are lost, those before are kept: run `quiver repair`, or start the node"
                )
                self._add(Severity.DAMAGE, "log.end", scan.end, message, expected, found, action)
        elif view.behind == SEAL_TAIL:
            message = "the seal of this log was cut off"
            self._add(Severity.NOTE, "log.unfinished_seal", scan.end, message, action="nothing: the next open seals it")

    def _behind(self, scan: LogScan) -> str:
        rest = self._source.read(1 << 16, scan.end) if scan.end < self._source.size_bytes else b""
        if not rest:
            return END_OF_FILE
        if any(rest[: layout.END_MARK_BYTES]):
            return TORN_WRITE
        tail = self._source.read(segment_layout.TRAILER.size, self._source.size_bytes - segment_layout.TRAILER.size)
        return SEAL_TAIL if any(rest) or any(tail) else ZEROES
