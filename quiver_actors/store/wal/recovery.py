"""Reads the log files that an engine finds when it opens, and changes nothing. `decisions` says what becomes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from quiver_actors.base.model import SEGMENT_BUNDLES_MAX
from quiver_actors.errors import FormatError
from quiver_actors.store.format.framing import DAMAGE
from quiver_actors.store.segment.placement import SlotPlacement, check_dictionaries, place_payload
from quiver_actors.store.wal import layout
from quiver_actors.store.wal.codec import Identity, LogHeader, decode_entry_header, decode_header, decode_slots
from quiver_actors.store.wal.decisions import Behind, Cursor, Entries, Header, Held, LogCase
from quiver_actors.store.wal.reader import LogReader, LogScan, Span, Take


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
    """Sequence of the last valid entry; -1 without entries."""
    has_foreign: bool = False
    """Whether it is a log of ours of which some entries are another writer's."""
    proven_end: int = 0
    """Where its entries ended when the next log was begun, if that is behind what is left of them; else 0."""
    proven_sequence_end: int = 0
    """The sequence behind its last entry at that time."""
    found_as: str = ""
    """Name under which a start has found it, by which an operator knows it."""

    def __post_init__(self) -> None:
        self.found_as = self.found_as or self.name

    @property
    def position_start(self) -> int:
        """Log position of the first entry; 0 if the header cannot be read."""
        return self.header.position_start if self.header else 0

    @property
    def position_end(self) -> int:
        """Log position behind the last entry that was found."""
        if self.header is None or not self.has_entries:
            return self.position_start
        return self.header.position_start + self.end - self.header.header_bytes

    @property
    def has_entries(self) -> bool:
        """Whether the log has entries, or is known to have had some of which none is left."""
        return self.scan.entry_count > 0 or self.proven_end > 0

    @property
    def end(self) -> int:
        """File offset where its entries end, the damaged ones included."""
        return max(self.scan.end, self.proven_end)

    @property
    def sequence_end(self) -> int:
        """Sequence behind the last bundle that the log had, lost ones included."""
        return max(self.last_sequence + 1, self.proven_sequence_end)

    @property
    def damaged(self) -> list[Span]:
        """Spans with bytes that were entries."""
        lost_end = [Span(self.scan.end, self.proven_end)] if self.proven_end else []
        return [*self.scan.damaged, *lost_end]

    @property
    def entries(self) -> Entries:
        """The state of the log's entries, in the words of the table of decisions."""
        if self.behind is Behind.TAIL and self.header_state is Header.OURS:
            return Entries.WHOLE  # the checksum of the tail proves them
        if not self.has_entries:
            return Entries.NONE
        if self.has_foreign:
            return Entries.MIXED
        return Entries.DAMAGED if self.damaged else Entries.WHOLE

    def learn_from(self, following: FoundLog) -> None:
        """Learn where this log ended from the next one, which was begun when this one was complete and synced."""
        mine, theirs = self.identity, following.identity
        if mine is None or theirs is None or self.behind is Behind.TAIL or mine.incarnation != theirs.incarnation:
            return
        assert self.header is not None
        end = min(self.size_bytes, following.position_start - self.position_start + self.header.header_bytes)
        if theirs.segment_seq == mine.segment_seq + 1 and end > self.scan.end:
            self.proven_end = end
            self.proven_sequence_end = min(theirs.first_sequence, mine.first_sequence + SEGMENT_BUNDLES_MAX)

    @property
    def identity(self) -> Identity | None:
        """What a header of ours says of the log; None in a log of another writer."""
        return self.header.identity if self.header else None

    def case(self, cursor_position: int | None, held: Held, *, is_clean: bool) -> LogCase:
        """The row of the decision table for this log. `cursor_position`: None if there is no cursor that can be read."""
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
    state, claimed = _read_header(head)
    if has_valid_trailer and state is Header.OURS:
        return FoundLog(name, size_bytes, state, claimed, behind=Behind.TAIL)
    header, start = find_start(claimed, reader)
    found = FoundLog(name, size_bytes, state, header)
    identity = header.identity if header else None
    take = begin(head, identity) if begin and identity else None
    found.scan = reader.scan(*start, take=take)
    if found.scan.entry_count:
        found.last_sequence = reader.sequence_at(found.scan.last.start)
    found.behind = Behind.TAIL if has_valid_trailer else what_follows(found.scan, start, reader)
    return found


def _read_header(head: bytes) -> tuple[Header, LogHeader | None]:
    if not any(head):
        return Header.ZERO, None
    try:
        header = decode_header(head)
    except DAMAGE:
        return Header.UNREADABLE, None
    return (Header.OURS if header.identity else Header.FOREIGN), header


class Start(NamedTuple):
    """Where the first entry of a log can start, and what is known of the entries."""

    offset: int
    stride: int
    """How far apart entries can start."""
    last_sequence: int | None = None
    """Sequence of the entry before the first one; None if it is not known."""


def find_start(header: LogHeader | None, reader: LogReader) -> tuple[LogHeader | None, Start]:
    """Find out where the entries of a log begin.

    Args:
        header: None if it cannot be read.

    Returns:
        The header, with another size where the entries prove that the size is damaged: headers of other writers have no checksum.
    """
    if header is not None and header.identity is not None:
        return header, Start(header.header_bytes, layout.ALIGNMENT, header.identity.first_sequence - 1)
    claimed = header.header_bytes if header else layout.HEADER_BYTES
    if not reader.has_entry_at(claimed) and reader.has_entry_at(layout.HEADER_BYTES_V1):
        return header and replace(header, header_bytes=layout.HEADER_BYTES_V1), Start(layout.HEADER_BYTES_V1, 1)
    return header, Start(claimed, 1 if header else layout.ALIGNMENT)


def what_follows(scan: LogScan, start: Start, reader: LogReader) -> Behind:
    """Tell an end of the entries from other bytes behind them, in a file that no finished seal ends."""
    is_end = scan.end_marked and (scan.entry_count or reader.is_zero(start.offset))
    return Behind.END if is_end else Behind.OTHER


@dataclass(frozen=True, slots=True)
class RecoveredEntry:
    """One entry as it stands in a log file, ready to be put into a segment builder. Offsets are file offsets."""

    span: Span
    entry_type: int
    sequence: int
    ingestion_ts_nanos: int
    placements: tuple[SlotPlacement, ...]
    is_aligned: bool = True
    """Each payload starts where those of ours do: the entry can become part of a segment as it stands."""
    error: str = ""
    """Why the payloads cannot be used, although the entry's CRC holds; empty if they can."""


def read_entry(reader: LogReader, span: Span) -> RecoveredEntry:
    """Take one valid entry apart. The sequence of a staged bundle is its index in the file."""
    return parse_entry(reader.body(span), span)


def parse_entry(body: bytes | memoryview, span: Span) -> RecoveredEntry:
    """Take apart a valid entry whose body is in memory; dictionary messages are borrowed from there."""
    header = decode_entry_header(body)
    if header.entry_type not in (layout.ENTRY_TYPE_BUNDLE, layout.ENTRY_TYPE_STAGED):
        return RecoveredEntry(span, header.entry_type, header.sequence, header.ingestion_ts_nanos, ())
    body_offset = span.start + layout.ENTRY_LENGTH_BYTES
    placements: list[SlotPlacement] = []
    error, is_aligned = "", True
    try:
        for block in sorted(decode_slots(body, header.slot_bitmap), key=lambda block: block.slot_id):
            start = block.payload_offset
            is_aligned = is_aligned and (body_offset + start) % layout.ALIGNMENT == 0
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
        placements, error, is_aligned = [], str(found), True
    taken = tuple(placements)
    return RecoveredEntry(
        span, header.entry_type, header.sequence, header.ingestion_ts_nanos, taken, is_aligned=is_aligned, error=error
    )
