"""A look at the small files of an engine: cursor, core file, progress. Each is read whole, and as far as it goes."""

from __future__ import annotations

from dataclasses import dataclass, field

from quiver_actors.core_file import CoreFile, decode_core
from quiver_actors.errors import FormatError
from quiver_actors.inspection import structures
from quiver_actors.inspection.fields import Structure
from quiver_actors.inspection.findings import Finding, Severity
from quiver_actors.inspection.source import Source
from quiver_actors.inspection.views import FieldView, ProgressView, SegmentProgressView
from quiver_actors.subscriber.bitmap import WORD_BITS, word_count
from quiver_actors.subscriber.progress import (
    BITMAP_WORDS_MAX,
    FLAG_TRUSTED_WATERMARK,
    SubscriberProgress,
    decode_progress,
    subscriber_of,
)
from quiver_actors.wal.codec import decode_cursor

BYTES_MAX = 64 << 20
"""More than any of them can have; what is behind is not looked at."""

_CURSOR_ACTION = "start the node, or run `quiver repair`: it is derived and made anew"
_CORE_ACTION = "start the node, or run `quiver repair`: numbers go on behind all that are in use"
_PROGRESS_ACTION = (
    "start the node, or run `quiver repair`: the subscriber is kept and gets everything that is still there once more"
)
_HEADER_BYTES = 32
_ENTRY_BYTES = 14
_ENTRIES_SHOWN_TO_BREAK = 100_000


@dataclass(slots=True)
class CursorLook:
    fields: list[FieldView]
    findings: list[Finding]
    position: int | None


@dataclass(slots=True)
class CoreLook:
    fields: list[FieldView]
    findings: list[Finding]
    core: CoreFile | None


@dataclass(slots=True)
class ProgressLook:
    view: ProgressView
    findings: list[Finding] = field(default_factory=list)
    progress: SubscriberProgress | None = None


def examine_cursor(source: Source) -> CursorLook:
    data = source.read(BYTES_MAX, 0)
    structure = structures.cursor(data)
    findings = structure.damage(source.path, _CURSOR_ACTION)
    try:
        position: int | None = decode_cursor(data)
    except FormatError as error:
        position = None
        findings = findings or [_damage(source, "cursor", 0, str(error), _CURSOR_ACTION)]
    if not findings and len(data) > structure["size"]:
        findings.append(_behind(source, "cursor", structure["size"], len(data)))
    return CursorLook(structure.fields, findings, position)


def examine_core(source: Source) -> CoreLook:
    data = source.read(BYTES_MAX, 0)
    structure = structures.core(data)
    findings = structure.damage(source.path, _CORE_ACTION)
    if structures.is_newer_core(data):
        return CoreLook(structure.fields, [newer_version(source, "core.version", structure.fields[1])], None)
    try:
        core: CoreFile | None = decode_core(data)
    except FormatError as error:
        core = None
        findings = findings or [_damage(source, "core", 0, str(error), _CORE_ACTION)]
    if not findings and len(data) > structure["size"]:
        findings.append(_behind(source, "core file", structure["size"], len(data)))
    return CoreLook(structure.fields, findings, core)


def examine_progress(source: Source, *, limit: int) -> ProgressLook:
    """Look at a progress file.

    Args:
        limit: how many entries, and how many bundles of each, to show.
    """
    data = source.read(BYTES_MAX, 0)
    header = structures.progress_header(data)
    view = ProgressView(header=header.fields, subscriber=subscriber_of(source.name))
    look = ProgressLook(view)
    _check_checksum(look, source, data)
    if header.is_whole:
        _describe(look, source, header)
        if header["header_size"] >= _HEADER_BYTES:
            _read_entries(look, source, data, header, limit)
    try:
        look.progress = decode_progress(data)
    except FormatError as error:
        if not look.findings:
            look.findings.append(_damage(source, "progress", 0, str(error), _PROGRESS_ACTION))
    return look


def _check_checksum(look: ProgressLook, source: Source, data: bytes) -> None:
    """The checksum first: whatever it covers is right if it matches, unknown flags and versions too."""
    header = structures.progress_header(data)
    if not header.is_whole or len(data) < _HEADER_BYTES + 4:
        look.view.checksum = "wrong"
        look.findings += header.damage(source.path, _PROGRESS_ACTION)
        if header.is_whole:
            message = "progress file ends too early"
            look.findings.append(
                _damage(source, "progress", len(data), message, _PROGRESS_ACTION, "a checksum", f"{len(data)} bytes")
            )
        return
    kind, stored, computed = structures.progress_checksum(data)
    look.view.checksum = kind
    if kind == "wrong":
        look.findings += header.damage(source.path, _PROGRESS_ACTION)
        message = "progress file: neither the CRC-32C nor the CRC-32 of its contents"
        expected, found = f"{computed:#010x}", f"{stored:#010x}"
        look.findings.append(
            _damage(source, "progress.checksum", len(data) - 4, message, _PROGRESS_ACTION, expected, found)
        )


def _describe(look: ProgressLook, source: Source, header: Structure) -> None:
    view = look.view
    view.oldest_incomplete_seg = header["oldest_incomplete_seg"]
    view.is_trusted = bool(header["flags"] & FLAG_TRUSTED_WATERMARK)
    view.entry_count = header["entry_count"]
    unknown = header["flags"] & ~FLAG_TRUSTED_WATERMARK
    if look.view.checksum == "wrong":
        return
    if header["version"] > 1:
        look.findings.append(newer_version(source, "progress.version", header.fields[1]))
    if unknown:
        look.findings.append(
            Finding(
                severity=Severity.WARNING,
                code="progress.flags",
                path=source.path,
                offset=12,
                message="flags that this version does not know",
                expected="0 or 1",
                found=f"{unknown:#x}",
                action="use the program that wrote it",
            )
        )


def _read_entries(look: ProgressLook, source: Source, data: bytes, header: Structure, limit: int) -> None:
    """Entry by entry, until one does not fit."""
    end = len(data) - 4
    at = int(header["header_size"])
    for number in range(min(header["entry_count"], _ENTRIES_SHOWN_TO_BREAK)):
        if at + _ENTRY_BYTES > end:
            message = f"progress entry {number} of {header['entry_count']} is missing"
            _break(look, source, at, message, f"{_ENTRY_BYTES} bytes", f"{max(0, end - at)}")
            return
        segment_seq = int.from_bytes(data[at : at + 8], "little")
        bundle_count = int.from_bytes(data[at + 8 : at + 12], "little")
        words = int.from_bytes(data[at + 12 : at + 14], "little")
        if words != word_count(bundle_count) or words > BITMAP_WORDS_MAX:
            wanted = f"{word_count(bundle_count)} bitmap words for {bundle_count} bundles"
            _break(
                look, source, at + 12, f"progress entry {number} (segment {segment_seq}) is wrong", wanted, str(words)
            )
            return
        bitmap = data[at + _ENTRY_BYTES : min(end, at + _ENTRY_BYTES + words * WORD_BITS // 8)]
        if len(look.view.entries) < limit:
            look.view.entries.append(_entry_view(at, segment_seq, bundle_count, bitmap, limit))
        at += _ENTRY_BYTES + words * WORD_BITS // 8


def _break(look: ProgressLook, source: Source, offset: int, message: str, expected: str, found: str) -> None:
    look.findings.append(_damage(source, "progress.entry", offset, message, _PROGRESS_ACTION, expected, found))


def _entry_view(offset: int, segment_seq: int, bundle_count: int, bitmap: bytes, limit: int) -> SegmentProgressView:
    bits = int.from_bytes(bitmap, "little") & ((1 << bundle_count) - 1)
    shown = min(bundle_count, limit * WORD_BITS)
    return SegmentProgressView(
        offset=offset,
        segment_seq=segment_seq,
        bundle_count=bundle_count,
        resolved_count=bits.bit_count(),
        bitmap="".join("#" if bits >> index & 1 else "." for index in range(shown)),
    )


def _damage(
    source: Source,
    code: str,
    offset: int,
    message: str,
    action: str,
    expected: str | None = None,
    found: str | None = None,
) -> Finding:
    return Finding(
        severity=Severity.DAMAGE,
        code=code,
        path=source.path,
        offset=offset,
        message=message,
        expected=expected,
        found=found,
        action=action,
    )


def newer_version(source: Source, code: str, version: FieldView) -> Finding:
    """A version that a matching checksum covers: no damage, only nothing for this program."""
    return Finding(
        severity=Severity.WARNING,
        code=code,
        path=source.path,
        offset=version.offset,
        message="a newer version, which this program cannot read",
        expected=version.expected,
        found=str(version.value),
        action="use the program that wrote it",
    )


def _behind(source: Source, what: str, end: int, size: int) -> Finding:
    return Finding(
        severity=Severity.WARNING,
        code="file.bytes_behind",
        path=source.path,
        offset=end,
        message=f"{what} is followed by bytes that nobody reads",
        expected=f"{end} bytes",
        found=f"{size} bytes",
    )
