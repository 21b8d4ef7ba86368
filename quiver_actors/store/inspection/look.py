"""One file, whatever it is: recognised by its content, and shown as far as it goes."""

from __future__ import annotations

from quiver_actors.errors import DiskError
from quiver_actors.store.files.paths import segment_seq_of
from quiver_actors.store.inspection.findings import Finding, damage, warning
from quiver_actors.store.inspection.gap_files import examine_gaps
from quiver_actors.store.inspection.logs import examine_log
from quiver_actors.store.inspection.messages import walk_messages
from quiver_actors.store.inspection.recognise import FileKind, is_plain_arrow, recognise
from quiver_actors.store.inspection.segments import examine_segment
from quiver_actors.store.inspection.small_files import examine_core, examine_cursor, examine_progress
from quiver_actors.store.inspection.source import SECTOR_BYTES, Source
from quiver_actors.store.inspection.staged import RECORD_KINDS, examine_record
from quiver_actors.store.inspection.views import FileView
from quiver_actors.store.wal import layout

_TEXT_BYTES = 200
_UNREADABLE_ACTION = (
    "look at the disk and at the kernel's log; `quiver repair` saves the rest and moves the file to quarantine/"
)


def look_at(source: Source, *, deep: bool, limit: int) -> FileView:
    """Everything that one file shows. Never fails on what it holds, nor on a part that cannot be read.

    Args:
        deep: check CRCs and decode what is stored, which reads the whole file.
        limit: how many entries, streams, bundles and messages to show.
    """
    view = FileView(path=source.path, kind=str(FileKind.UNKNOWN), recognised_by="content", size_bytes=source.size_bytes)
    try:
        kind, view.recognised_by = recognise(source)
        view.kind = str(kind)
        _fill(view, kind, source, deep, limit)
    except DiskError as error:
        view.findings.append(unreadable(source.path, error))
    view.findings += bad_sectors(source)
    return view


def unreadable_view(path: str, error: DiskError) -> FileView:
    """What a file shows that cannot even be opened."""
    findings = [unreadable(path, error)]
    return FileView(path=path, kind=str(FileKind.UNKNOWN), recognised_by="content", size_bytes=0, findings=findings)


def unreadable(path: str, error: DiskError) -> Finding:
    """The finding that the file system does not give the bytes of a file."""
    return damage("file.unreadable", path, None, f"cannot be read: {error}", action=_UNREADABLE_ACTION)


def bad_sectors(source: Source) -> list[Finding]:
    """Findings about the sectors that the disk did not give back during a look."""
    if not source.bad_sectors:
        return []
    return [
        damage(
            "file.unreadable",
            source.path,
            min(source.bad_sectors),
            f"the disk does not give back {len(source.bad_sectors)} sectors of {SECTOR_BYTES} bytes; they count as zeroes",
            action=_UNREADABLE_ACTION,
        )
    ]


def _fill(view: FileView, kind: FileKind, source: Source, deep: bool, limit: int) -> None:
    if kind is FileKind.LOG:
        is_last = layout.rotation_number(source.name) is None
        log = examine_log(source, deep=deep, limit=limit, is_last=is_last)
        view.log, view.findings = log.view, log.findings
    elif kind is FileKind.SEGMENT:
        segment = examine_segment(source, segment_seq_of(source.name), deep=deep, limit=limit)
        view.segment, view.findings = segment.view, segment.findings
        if segment.log is None and not segment.has_tables:
            _add_messages(view, source, limit)
    elif kind is FileKind.ARROW:
        _add_messages(view, source, limit)
        if not is_plain_arrow(source):
            view.findings.append(_lost_its_end(source))
    elif kind is FileKind.UNKNOWN:
        view.findings.append(_unknown(source))
    else:
        _fill_small(view, kind, source, limit)


def _fill_small(view: FileView, kind: FileKind, source: Source, limit: int) -> None:
    """Look at a file that is read whole. One that is empty or all zeroes shows nothing."""
    if kind is FileKind.PROGRESS:
        progress = examine_progress(source, limit=limit)
        view.progress, view.findings = progress.view, progress.findings
    elif kind is FileKind.GAPS:
        gaps = examine_gaps(source, limit=limit)
        view.gaps, view.findings = gaps.view, gaps.findings
    elif kind in (FileKind.CURSOR, FileKind.CORE):
        fixed = examine_core(source) if kind is FileKind.CORE else examine_cursor(source)
        view.fields, view.findings = fixed.fields, fixed.findings
    elif kind is FileKind.VERSION:
        view.text = source.read(_TEXT_BYTES, 0).decode("ascii", "backslashreplace").strip()
    elif kind in RECORD_KINDS:
        view.text, view.findings = examine_record(source, kind)


def _add_messages(view: FileView, source: Source, limit: int) -> None:
    messages, breaks = walk_messages(source)
    view.messages, view.message_count = messages[:limit], len(messages)
    view.findings += breaks


def _lost_its_end(source: Source) -> Finding:
    return damage(
        "arrow.end",
        source.path,
        source.size_bytes,
        "starts as an Arrow file and ends as nothing known",
        expected="ARROW1, or the trailer of a segment",
        found="other bytes",
    )


def _unknown(source: Source) -> Finding:
    head = source.read(16, 0)
    return warning(
        "file.unknown",
        source.path,
        0,
        "not a file of Quiver, or damaged beyond recognition",
        expected="a magic of Quiver, or a valid log entry anywhere",
        found=head.hex(),
    )
