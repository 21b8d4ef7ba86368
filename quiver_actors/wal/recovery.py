"""What an engine does with the log files that it finds when it opens. The decisions are pure; `recover_logs` carries them out.

| header                | entries | behind them        | decision                                                       |
|-----------------------|---------|--------------------|----------------------------------------------------------------|
| ours                  | any     | valid trailer      | FINISH: the seal was complete, only its rename is missing      |
| ours                  | some    | zero, torn, tail   | SEAL: cut behind the last valid entry, seal under its number   |
| ours                  | none    | zero or torn       | DROP: nothing was ever acknowledged in it                      |
| other writer          | some    | anything           | ADOPT: entries that no segment covers are laid into a new log  |
| other writer          | none    | zero or torn       | DROP                                                           |
| unreadable            | some    | anything           | ADOPT, and the file goes to quarantine/                        |
| unreadable, all zero  | none    | -                  | DROP: a file that was never written                            |
| unreadable            | none    | something          | QUARANTINE                                                     |
| newer version         | -       | -                  | refused: UnsupportedVersion                                    |

A damaged span with valid entries behind it is copied to quarantine/ and counted; its bundles keep their numbers as lost
bundles of the segment, so that each subscriber is told. Bytes behind the last valid entry are a torn write: they are cut.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from quiver_actors.errors import FormatError, UnsupportedVersion
from quiver_actors.segment.builder import SlotPlacement, check_dictionaries, place_payload
from quiver_actors.wal import layout
from quiver_actors.wal.codec import LogHeader, decode_entry_header, decode_header, decode_slots
from quiver_actors.wal.reader import LogReader, LogScan, Span


class Decision(enum.Enum):
    FINISH = "finish"
    SEAL = "seal"
    ADOPT = "adopt"
    DROP = "drop"
    QUARANTINE = "quarantine"


class HeaderState(enum.Enum):
    OURS = "ours"
    FOREIGN = "other writer"
    UNREADABLE = "unreadable"
    ZERO = "zero"


def decide(header: HeaderState, has_entries: bool, has_valid_trailer: bool, has_other_bytes: bool) -> Decision:
    """The table of this module.

    Args:
        has_valid_trailer: the file ends in a segment trailer whose footer is whole.
        has_other_bytes: something that is neither header, entry nor zero stands in the file.
    """
    if header is HeaderState.OURS:
        if has_valid_trailer:
            return Decision.FINISH
        return Decision.SEAL if has_entries else Decision.DROP
    if has_entries:
        return Decision.ADOPT
    if header is HeaderState.UNREADABLE and has_other_bytes:
        return Decision.QUARANTINE
    return Decision.DROP


@dataclass(slots=True)
class FoundLog:
    """One log file of the directory, read but not touched."""

    name: str
    size_bytes: int
    header_state: HeaderState
    header: LogHeader | None
    scan: LogScan = field(default_factory=LogScan)
    decision: Decision = Decision.DROP
    last_sequence: int = -1
    """Of the last valid entry; -1 without entries."""

    @property
    def position_start(self) -> int:
        return self.header.position_start if self.header else 0

    @property
    def position_end(self) -> int:
        if self.header is None or not self.scan.entries:
            return self.position_start
        return self.header.position_start + self.scan.end - self.header.header_bytes


def examine_log(name: str, reader: LogReader, size_bytes: int, has_valid_trailer: bool) -> FoundLog:
    """Read one log file and decide about it.

    Raises:
        UnsupportedVersion: written by a newer version; nothing may be touched.
    """
    head = bytes(reader.bytes_at(0, min(layout.HEADER_BYTES, size_bytes)))
    state, header = _read_header(head)
    found = FoundLog(name, size_bytes, state, header)
    if state is not HeaderState.OURS or not has_valid_trailer:
        aligned = header is None or header.identity is not None
        start = header.header_bytes if header else layout.HEADER_BYTES
        identity = header.identity if header else None
        last_sequence = identity.first_sequence - 1 if identity else None
        stride = layout.ALIGNMENT if aligned else 1
        found.scan = reader.scan(start, stride=stride, last_sequence=last_sequence)
    if found.scan.entries:
        found.last_sequence = decode_entry_header(reader.body(found.scan.entries[-1])).sequence
    other = state is HeaderState.UNREADABLE or not found.scan.end_marked
    found.decision = decide(state, bool(found.scan.entries), has_valid_trailer, other)
    return found


def _read_header(head: bytes) -> tuple[HeaderState, LogHeader | None]:
    if not any(head):
        return HeaderState.ZERO, None
    try:
        header = decode_header(head)
    except UnsupportedVersion:
        raise
    except FormatError:
        return HeaderState.UNREADABLE, None
    return (HeaderState.OURS if header.identity else HeaderState.FOREIGN), header


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
    body = reader.body(span)
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
