"""One inspected file as text for people. Pure: a view in, lines out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from quiver_actors.cli.storage import counted, finding_text
from quiver_actors.store.inspection.views import (
    BundleView,
    EntryView,
    FieldView,
    FileView,
    GapsView,
    LogView,
    MessageView,
    ProgressView,
    SegmentView,
    StreamView,
)

UNKNOWN = "-"
_SECOND_NS = 1_000_000_000
_TIMES = ("ts_nanos",)
_STREAM_HEADINGS = ("STREAM", "SLOT", "OFFSET", "LENGTH", "ROWS", "CHUNKS", "FINGERPRINT", "SCHEMA")
_NOTICE_HEADINGS = ("OFFSET", "NOTICE", "SEGMENT", "FIRST", "BUNDLES", "ROWS", "REASON", "TOLD")
_BUNDLE_HEADINGS = ("BUNDLE", "SEQUENCE", "INGESTED", "ITEMS", "BYTES", "SLOT:STREAM/CHUNK")


def render(view: FileView) -> str:
    """All that a view shows, without a final newline."""
    by_name = " (by its name: the content does not say)" if view.recognised_by == "name" else ""
    lines = [f"{view.path}: {view.kind}{by_name}, {counted(view.size_bytes, 'byte')}"]
    if view.text is not None:
        lines.append(f"  {view.text}")
    lines += _fields("fields", view.fields)
    if view.segment is not None:
        lines += _segment(view.segment)
    if view.log is not None:
        lines += _log(view.log)
    if view.progress is not None:
        lines += _progress(view.progress)
    if view.gaps is not None:
        lines += _gaps(view.gaps)
    if view.message_count:
        lines += _section(
            "Arrow messages, as the directory of the streams cannot be read",
            ("OFFSET", "KIND", "METADATA", "BODY"),
            [_message(message) for message in view.messages],
            view.message_count,
        )
    lines += [finding_text(finding) for finding in view.findings]
    return "\n".join(lines)


def _fields(title: str, fields: Sequence[FieldView]) -> list[str]:
    if not fields:
        return []
    rows = [
        [
            str(field.offset),
            str(field.size_bytes),
            field.name,
            _field_value(field) + (f"   <- expected {field.expected}" if field.expected is not None else ""),
        ]
        for field in fields
    ]
    return _section(title, ("OFFSET", "SIZE", "FIELD", "VALUE"), rows, len(rows))


def _field_value(field: FieldView) -> str:
    is_time = isinstance(field.value, int) and field.name.endswith(_TIMES)
    return f"{field.value} ({_time(int(field.value))})" if is_time else str(field.value)


# --- logs ------------------------------------------------------------------------------------------------------------------------


def _log(log: LogView) -> list[str]:
    lines = _fields("log header", log.header)
    lines.append(
        f"  written up to byte {log.written_end}, {log.behind or 'entries not looked at'} behind; positions "
        f"{_or_unknown(log.position_start)} to {_or_unknown(log.position_end)}; sequences "
        f"{_or_unknown(log.first_sequence)} to {_or_unknown(log.last_sequence)}"
    )
    lines += [f"  damaged: bytes {span.start} to {span.end}" for span in log.damaged]
    headings = ("OFFSET", "SIZE", "SEQUENCE", "INGESTED", "SLOTS")
    return lines + _section("log entries", headings, [_entry(entry) for entry in log.entries], log.entry_count)


def _entry(entry: EntryView) -> list[str]:
    slots = ", ".join(f"{slot.slot_id}: {counted(slot.row_count, 'row')}" for slot in entry.slots)
    if entry.entry_type and not entry.slots:
        slots = f"type {entry.entry_type}"
    return [
        str(entry.offset),
        str(entry.size_bytes),
        str(entry.sequence),
        _time(entry.ingestion_ts_nanos),
        f"{slots}   <- {entry.error}" if entry.error else slots,
    ]


# --- segments --------------------------------------------------------------------------------------------------------------------


def _segment(segment: SegmentView) -> list[str]:
    lost = f", {segment.lost_bundles} of them lost to damage" if segment.lost_bundles else ""
    lines = [
        f"  {segment.layout}: {counted(segment.bundle_count, 'bundle')}{lost}, {counted(segment.row_count, 'row')} in "
        f"{counted(segment.stream_count, 'stream')}"
    ]
    lines += _fields("footer", segment.footer)
    lines += _fields("trailer", segment.trailer)
    lines += _section("streams", _STREAM_HEADINGS, [_stream(each) for each in segment.streams], segment.stream_count)
    lines += _section("bundles", _BUNDLE_HEADINGS, [_bundle(each) for each in segment.bundles], segment.bundle_count)
    return lines + (_log(segment.log) if segment.log is not None else [])


def _stream(stream: StreamView) -> list[str]:
    numbers = (stream.stream_id, stream.slot_id, stream.byte_offset, stream.byte_length, stream.row_count)
    return [
        *map(str, numbers),
        str(stream.chunk_count),
        f"{stream.fingerprint[:12]}...",
        "; ".join(stream.schema),
    ]


def _bundle(bundle: BundleView) -> list[str]:
    slots = " ".join(f"{ref.slot_id}:{ref.stream_id}/{ref.chunk_index}" for ref in bundle.slots)
    return [
        str(bundle.index),
        _or_unknown(bundle.sequence),
        UNKNOWN if bundle.ingestion_ts_nanos is None else _time(bundle.ingestion_ts_nanos),
        _or_unknown(bundle.item_count),
        _or_unknown(bundle.byte_count),
        slots or "lost to damage",
    ]


def _message(message: MessageView) -> list[str]:
    return [str(message.offset), message.kind, str(message.metadata_bytes), str(message.body_bytes)]


# --- progress --------------------------------------------------------------------------------------------------------------------


def _progress(progress: ProgressView) -> list[str]:
    trusted = "" if progress.is_trusted else " (not to be trusted: another writer's)"
    lines = [
        f"  subscriber {_or_unknown(progress.subscriber)}: oldest incomplete segment "
        f"{_or_unknown(progress.oldest_incomplete_seg)}{trusted}; checksum {progress.checksum}"
    ]
    lines += _fields("header", progress.header)
    rows = [
        [
            str(entry.offset),
            str(entry.segment_seq),
            f"{entry.resolved_count}/{entry.bundle_count}",
            entry.bitmap + ("..." if len(entry.bitmap) < entry.bundle_count else ""),
        ]
        for entry in progress.entries
    ]
    return lines + _section("segments", ("OFFSET", "SEGMENT", "RESOLVED", "BUNDLES"), rows, progress.entry_count)


# --- gap notices -----------------------------------------------------------------------------------------------------------------


def _gaps(gaps: GapsView) -> list[str]:
    lines = [f"  subscriber {_or_unknown(gaps.subscriber)}; checksum {gaps.checksum}", *_fields("header", gaps.header)]
    rows = [
        [
            str(each.offset),
            str(each.notice),
            str(each.segment_seq),
            str(each.bundle_index_first),
            str(each.bundle_count) if each.bundle_count else UNKNOWN,
            str(each.row_count) if each.row_count >= 0 else UNKNOWN,
            each.reason,
            "yes" if each.is_told else "no",
        ]
        for each in gaps.notices
    ]
    return lines + _section("notices", _NOTICE_HEADINGS, rows, gaps.notice_count)


# --- text ------------------------------------------------------------------------------------------------------------------------


def _section(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], count: int) -> list[str]:
    """A title and a table; how many rows are left out where not all are there. Nothing for an empty one."""
    if not count:
        return []
    lines = [f"  {title}"]
    if rows:
        widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
        is_number = [all(cell.isdecimal() or cell == UNKNOWN for cell in column) for column in zip(*rows, strict=True)]
        lines += [_line(cells, widths, is_number) for cells in (headings, *rows)]
    if len(rows) < count:
        lines.append(f"    ... {count - len(rows):,} more")
    return lines


def _line(cells: Iterable[str], widths: Iterable[int], is_number: Iterable[bool]) -> str:
    placed = (
        cell.rjust(width) if number else cell.ljust(width)
        for cell, width, number in zip(cells, widths, is_number, strict=True)
    )
    return f"    {'  '.join(placed)}".rstrip()


def _time(unix_ns: int) -> str:
    """UTC to the microsecond; the bare number where it is no time of this calendar."""
    try:
        moment = datetime.fromtimestamp(unix_ns // _SECOND_NS, UTC)
    except (ValueError, OverflowError, OSError):
        return str(unix_ns)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{unix_ns % _SECOND_NS // 1000:06}Z"


def _or_unknown(value: object) -> str:
    return UNKNOWN if value is None else str(value)
