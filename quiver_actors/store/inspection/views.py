"""The views of inspected files: the documents of `quiver inspect --json`. Plain structs, no I/O.

Lists that may be long are cut at the limit of the look; a count beside them says how many there are.
"""

from __future__ import annotations

import msgspec

from quiver_actors.store.inspection.findings import Finding


class FieldView(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One field of a fixed structure."""

    offset: int
    """Where the field begins, in bytes from the start of the file."""
    size_bytes: int
    name: str
    value: int | str
    expected: str | None = None
    """The expected value; None if the value is right."""


class SlotView(msgspec.Struct, kw_only=True):
    """One slot of a log entry."""

    slot_id: int
    fingerprint: str
    row_count: int
    payload_offset: int
    payload_bytes: int


class EntryView(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One entry of a log file."""

    offset: int
    size_bytes: int
    entry_type: int
    sequence: int
    ingestion_ts_nanos: int
    slots: list[SlotView] = []
    error: str = ""
    """Why its payloads cannot be used; empty if they can."""


class SpanView(msgspec.Struct, kw_only=True):
    """Bytes `[start, end)` of a file."""

    start: int
    end: int


class LogView(msgspec.Struct, kw_only=True):
    """A log file, or the log inside a segment that was sealed in place."""

    header: list[FieldView] = []
    header_bytes: int = 0
    """Where the first entry is looked for."""
    cfg_hash: str = ""
    position_start: int | None = None
    """Log position of the first entry; None where the header cannot be read."""
    position_end: int | None = None
    segment_seq: int | None = None
    """Number of the segment that the file becomes; None where another writer made the file, or its header cannot be read."""
    next_sequence: int | None = None
    """The sequence that the header promises for the first entry; None where `segment_seq` is."""
    incarnation: str | None = None
    entry_count: int = 0
    first_sequence: int | None = None
    last_sequence: int | None = None
    written_end: int = 0
    """File offset behind the last valid entry."""
    behind: str = ""
    """Kind of the bytes that follow: `end of file`, `zeroes`, `torn write`, `tail of a seal`."""
    damaged: list[SpanView] = []
    entries: list[EntryView] = []


class StreamView(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One row of a segment's stream directory."""

    stream_id: int
    slot_id: int
    fingerprint: str
    byte_offset: int
    byte_length: int
    row_count: int
    chunk_count: int
    schema: list[str] = []
    """One line a field; empty where it was not asked for or cannot be read."""


class SlotRefView(msgspec.Struct, kw_only=True):
    """Place of one slot of a bundle in a segment: its stream and its chunk there."""

    slot_id: int
    stream_id: int
    chunk_index: int


class BundleView(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One row of a segment's manifest."""

    index: int
    sequence: int | None = None
    ingestion_ts_nanos: int | None = None
    item_count: int | None = None
    byte_count: int | None = None
    slots: list[SlotRefView] = []
    """Empty for a bundle that was lost to damage before the segment was sealed."""


class SegmentView(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A segment in `quiver inspect --json`: layout, trailer, footer, streams and bundles."""

    layout: str = ""
    """How the segment is laid out: `sealed in place` or `contiguous`."""
    trailer: list[FieldView] = []
    footer: list[FieldView] = []
    stream_count: int = 0
    bundle_count: int = 0
    row_count: int = 0
    lost_bundles: int = 0
    first_sequence: int | None = None
    last_sequence: int | None = None
    position_start: int | None = None
    position_end: int | None = None
    incarnation: str | None = None
    streams: list[StreamView] = []
    bundles: list[BundleView] = []
    log: LogView | None = None
    """What the file was before it was sealed in place."""


class SegmentProgressView(msgspec.Struct, kw_only=True):
    """One entry of a progress file."""

    offset: int
    segment_seq: int
    bundle_count: int
    resolved_count: int
    bitmap: str
    """One character a bundle: `#` resolved, `.` not; cut at the limit of the look."""


class ProgressView(msgspec.Struct, kw_only=True):
    """A progress file in `quiver inspect --json`: header, entries and checksum."""

    header: list[FieldView] = []
    subscriber: str | None = None
    """The subscriber that the file's name says."""
    oldest_incomplete_seg: int | None = None
    is_trusted: bool = False
    checksum: str = ""
    """Name the checksum at the end of the file: `CRC-32C`, `CRC-32` (of another writer) or `wrong`."""
    entry_count: int = 0
    entries: list[SegmentProgressView] = []


class GapNoticeView(msgspec.Struct, kw_only=True):
    """One record of a gap file."""

    offset: int
    notice: int
    segment_seq: int
    bundle_index_first: int
    bundle_count: int
    """0: unknown, the whole segment."""
    row_count: int
    """-1: unknown."""
    reason: str
    is_told: bool
    """Whether a consumer has acknowledged it."""


class GapsView(msgspec.Struct, kw_only=True):
    """A gap file in `quiver inspect --json`: header, notices and checksum."""

    header: list[FieldView] = []
    subscriber: str | None = None
    """The subscriber that the file's name says."""
    checksum: str = ""
    """Which checksum the file ends in: `CRC-32C` or `wrong`."""
    notice_count: int = 0
    notices: list[GapNoticeView] = []


class MessageView(msgspec.Struct, kw_only=True):
    """One Arrow message of a file whose own directory cannot be read."""

    offset: int
    kind: str
    metadata_bytes: int
    body_bytes: int


class FileView(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One file: which parts are there depends on its kind."""

    path: str
    kind: str
    recognised_by: str
    """What told the file's kind: `content`, or `name` where the content does not say."""
    size_bytes: int
    fields: list[FieldView] = []
    """The fields of a cursor or a core file; empty for files of other kinds."""
    text: str | None = None
    """What a text file or a record says; None for files of other kinds."""
    log: LogView | None = None
    segment: SegmentView | None = None
    progress: ProgressView | None = None
    gaps: GapsView | None = None
    messages: list[MessageView] = []
    message_count: int = 0
    findings: list[Finding] = []
