"""What an engine finds in its log files when it opens: read, not touched. `decisions` says what becomes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from quiver_actors.errors import FormatError, UnsupportedVersion
from quiver_actors.model import SEGMENT_BUNDLES_MAX
from quiver_actors.segment.builder import SlotPlacement, check_dictionaries, place_payload
from quiver_actors.wal import layout
from quiver_actors.wal.codec import Identity, LogHeader, decode_entry_header, decode_header, decode_slots
from quiver_actors.wal.decisions import Behind, Cursor, Entries, Header, Held, LogCase
from quiver_actors.wal.reader import LogReader, LogScan, Span, Take


@dataclass(slots=True)
class FoundLog:
    """One log file of the directory, read but not touched."""

    name: str
    size_bytes: int
    header_state: Header
    header: LogHeader | None
    scan: LogScan = field(default_factory=LogScan)
    behind: Behind = Behind.END
    last_sequence: int = -1
    """Of the last valid entry; -1 without entries."""
    proven_end: int = 0
    """Where its entries ended when the next log was begun, if that is behind what is left of them; else 0."""
    proven_sequence_end: int = 0
    """The sequence behind its last entry then."""

    @property
    def position_start(self) -> int:
        return self.header.position_start if self.header else 0

    @property
    def position_end(self) -> int:
        if self.header is None or not self.has_entries:
            return self.position_start
        return self.header.position_start + self.end - self.header.header_bytes

    @property
    def has_entries(self) -> bool:
        """Also where none is left of those that it is known to have had."""
        return self.scan.entry_count > 0 or self.proven_end > 0

    @property
    def end(self) -> int:
        """File offset where its entries end, the damaged ones included."""
        return max(self.scan.end, self.proven_end)

    @property
    def sequence_end(self) -> int:
        return max(self.last_sequence + 1, self.proven_sequence_end)

    @property
    def damaged(self) -> list[Span]:
        """Spans with bytes that were entries."""
        lost_end = [Span(self.scan.end, self.proven_end)] if self.proven_end else []
        return [*self.scan.damaged, *lost_end]

    @property
    def entries(self) -> Entries:
        if self.behind is Behind.TAIL and self.header_state is Header.OURS:
            return Entries.WHOLE  # the checksum of the tail proves them
        if not self.has_entries:
            return Entries.NONE
        return Entries.DAMAGED if self.damaged else Entries.WHOLE

    def learn_from(self, following: FoundLog) -> None:
        """The next log was begun when this one was complete and synced: it tells where this one ended."""
        mine, theirs = self._identity, following._identity
        if mine is None or theirs is None or self.behind is Behind.TAIL or mine.incarnation != theirs.incarnation:
            return
        assert self.header is not None
        end = min(self.size_bytes, following.position_start - self.position_start + self.header.header_bytes)
        if theirs.segment_seq == mine.segment_seq + 1 and end > self.scan.end:
            self.proven_end = end
            self.proven_sequence_end = min(theirs.first_sequence, mine.first_sequence + SEGMENT_BUNDLES_MAX)

    @property
    def _identity(self) -> Identity | None:
        return self.header.identity if self.header else None

    def case(self, cursor_position: int | None, held: Held, *, is_clean: bool) -> LogCase:
        """Its place in the table. `cursor_position`: None if there is no cursor that can be read."""
        return LogCase(
            self._cursor(cursor_position), self.header_state, self.entries, self.behind, held, is_clean=is_clean
        )

    def _cursor(self, position: int | None) -> Cursor:
        if position is None:
            return Cursor.NONE
        if position <= self.position_start:
            return Cursor.BEFORE
        return Cursor.BEHIND if position >= self.position_end else Cursor.INSIDE


def examine_log(
    name: str,
    reader: LogReader,
    size_bytes: int,
    has_valid_trailer: bool,
    begin: Callable[[bytes, Identity], Take] | None = None,
) -> FoundLog:
    """Read one log file.

    Args:
        begin: called with the header of a log of ours that is not sealed yet; what it returns gets the entries.

    Raises:
        UnsupportedVersion: written by a newer version; nothing may be touched.
    """
    head = bytes(reader.bytes_at(0, min(layout.HEADER_BYTES, size_bytes)))
    state, header = _read_header(head)
    found = FoundLog(name, size_bytes, state, header)
    if has_valid_trailer and state is Header.OURS:
        found.behind = Behind.TAIL
        return found
    aligned = header is None or header.identity is not None
    start = header.header_bytes if header else layout.HEADER_BYTES
    identity = header.identity if header else None
    last_sequence = identity.first_sequence - 1 if identity else None
    take = begin(head, identity) if begin and identity else None
    stride = layout.ALIGNMENT if aligned else 1
    found.scan = reader.scan(start, stride=stride, last_sequence=last_sequence, take=take)
    if found.scan.entry_count:
        found.last_sequence = reader.sequence_at(found.scan.last.start)
    if has_valid_trailer:
        found.behind = Behind.TAIL
    elif not found.scan.end_marked or not (found.scan.entry_count or reader.is_zero(start)):
        found.behind = Behind.OTHER
    return found


def _read_header(head: bytes) -> tuple[Header, LogHeader | None]:
    if not any(head):
        return Header.ZERO, None
    try:
        header = decode_header(head)
    except UnsupportedVersion:
        raise
    except FormatError:
        return Header.UNREADABLE, None
    return (Header.OURS if header.identity else Header.FOREIGN), header


@dataclass(frozen=True, slots=True)
class RecoveredEntry:
    """One entry as it stands in a log file, ready to be put into a segment builder. Offsets are file offsets."""

    span: Span
    entry_type: int
    sequence: int
    ingestion_ts_nanos: int
    placements: tuple[SlotPlacement, ...]
    error: str = ""
    """Why the payloads cannot be used, although the entry's CRC holds; empty if they can."""


def read_entry(reader: LogReader, span: Span) -> RecoveredEntry:
    """Take one valid entry apart. The sequence of a staged bundle is its index in the file."""
    return parse_entry(reader.body(span), span)


def parse_entry(body: bytes | memoryview, span: Span) -> RecoveredEntry:
    """The same of one whose body is in memory; dictionary messages are borrowed from there."""
    header = decode_entry_header(body)
    if header.entry_type not in (layout.ENTRY_TYPE_BUNDLE, layout.ENTRY_TYPE_STAGED):
        return RecoveredEntry(span, header.entry_type, header.sequence, header.ingestion_ts_nanos, ())
    body_offset = span.start + layout.ENTRY_LENGTH_BYTES
    placements: list[SlotPlacement] = []
    error = ""
    try:
        for block in sorted(decode_slots(body, header.slot_bitmap), key=lambda block: block.slot_id):
            start = block.payload_offset
            placement = place_payload(
                body,
                start,
                start + block.payload_bytes,
                file_offset=body_offset + start,
                slot_id=block.slot_id,
                fingerprint=block.fingerprint,
            )
            check_dictionaries(placement[0], placement[5])
            placements.append(placement)
    except FormatError as found:
        placements, error = [], str(found)
    return RecoveredEntry(span, header.entry_type, header.sequence, header.ingestion_ts_nanos, tuple(placements), error)
