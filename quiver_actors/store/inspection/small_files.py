"""A look at the small files of an engine: cursor, core file, progress. Each is read whole, and as far as it goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from quiver_actors.errors import FormatError
from quiver_actors.store.files.core_file import CORE, CoreFile, decode_core
from quiver_actors.store.format.framing import CRC, Framing
from quiver_actors.store.inspection import structures
from quiver_actors.store.inspection.fields import Structure
from quiver_actors.store.inspection.findings import Finding, damage, warning
from quiver_actors.store.inspection.source import Source
from quiver_actors.store.inspection.views import FieldView, ProgressView, SegmentProgressView
from quiver_actors.store.subscriber.bitmap import WORD_BITS, word_count
from quiver_actors.store.subscriber.progress import (
    BITMAP_WORDS_MAX,
    ENTRY_TABLE,
    FLAG_TRUSTED_WATERMARK,
    PROGRESS,
    PROGRESS_TABLE,
    SubscriberProgress,
    decode_progress,
    subscriber_of,
)
from quiver_actors.store.wal.codec import CURSOR, decode_cursor

BYTES_MAX = 64 << 20
"""More bytes than any small file can have; what stands behind them is not looked at."""

_CURSOR_ACTION = "start the node, or run `quiver repair`: it is derived and made anew"
_CORE_ACTION = "start the node, or run `quiver repair`: numbers go on behind all that are in use"
_PROGRESS_ACTION = (
    "start the node, or run `quiver repair`: the subscriber is kept and gets everything that is still there once more"
)
_ENTRIES_SHOWN_TO_BREAK = 100_000
_NEWER_ACTION = "use the program that wrote it"
T = TypeVar("T")


@dataclass(slots=True)
class FixedLook(Generic[T]):
    """A look at a file that is one structure. `value` is what the file says, None where it cannot be read."""

    fields: list[FieldView]
    findings: list[Finding]
    value: T | None = None


@dataclass(slots=True)
class ProgressLook:
    """Result of looking at a progress file: the view to show, the findings, and the progress if it could be decoded."""

    view: ProgressView
    findings: list[Finding] = field(default_factory=list)
    progress: SubscriberProgress | None = None


def examine_cursor(source: Source) -> FixedLook[int]:
    """Look at the cursor file."""
    return _examine_fixed(source, CURSOR, "cursor", _CURSOR_ACTION, decode_cursor)


def examine_core(source: Source) -> FixedLook[CoreFile]:
    """Look at `quiver.core`."""
    return _examine_fixed(source, CORE, "core", _CORE_ACTION, decode_core)


def _examine_fixed(
    source: Source, framing: Framing, code: str, action: str, decode: Callable[[bytes], T]
) -> FixedLook[T]:
    data = source.read(BYTES_MAX, 0)
    structure = structures.fixed_file(framing, code, data)
    look: FixedLook[T] = FixedLook(structure.fields, structure.damage(source.path, action))
    try:
        look.value = decode(data)
    except FormatError as error:
        if framing.is_newer(data):
            look.findings = [newer_version(source, f"{code}.version", structure.field("version"))]
        look.findings = look.findings or [damage(code, source.path, 0, str(error), action)]
    if not look.findings and len(data) > structure["size"]:
        message, size = f"{structure.name} is followed by bytes that nobody reads", structure["size"]
        there = f"{len(data)} bytes"
        look.findings.append(warning("file.bytes_behind", source.path, size, message, "", f"{size} bytes", there))
    return look


def examine_progress(source: Source, *, limit: int) -> ProgressLook:
    """Look at a progress file.

    Args:
        limit: how many entries, and how many bundles of each, to show.
    """
    data = source.read(BYTES_MAX, 0)
    header = Structure("progress.header", data, 0, PROGRESS_TABLE)
    view = ProgressView(header=header.fields, subscriber=subscriber_of(source.name))
    look = ProgressLook(view)
    _check_checksum(look, source, data, header)
    if header.is_whole:
        _describe(look, source, header)
        if header["header_size"] >= PROGRESS_TABLE.size:
            _read_entries(look, source, data, header, limit)
    try:
        look.progress = decode_progress(data)
    except FormatError as error:
        if not look.findings:
            look.findings.append(damage("progress", source.path, 0, str(error), _PROGRESS_ACTION))
    return look


def _check_checksum(look: ProgressLook, source: Source, data: bytes, header: Structure) -> None:
    """The checksum first: whatever it covers is right if it matches, unknown flags and versions too."""
    path, end = source.path, len(data) - CRC.size
    found = PROGRESS.checksum_of(data) if end >= PROGRESS_TABLE.size else None
    look.view.checksum = "wrong" if found is None else "CRC-32C" if found is PROGRESS.checksums[0] else "CRC-32"
    if found is not None:
        return
    look.findings += header.damage(path, _PROGRESS_ACTION)
    if header.is_whole and end < PROGRESS_TABLE.size:
        message, there = "progress file ends too early", f"{len(data)} bytes"
        look.findings.append(damage("progress", path, len(data), message, _PROGRESS_ACTION, "a checksum", there))
    elif header.is_whole:
        message = "progress file: neither the CRC-32C nor the CRC-32 of its contents"
        expected, stored = (f"{value:#010x}" for value in (PROGRESS.checksums[0](data[:end]), *CRC.unpack(data[end:])))
        look.findings.append(damage("progress.checksum", path, end, message, _PROGRESS_ACTION, expected, stored))


def _describe(look: ProgressLook, source: Source, header: Structure) -> None:
    view = look.view
    view.oldest_incomplete_seg = header["oldest_incomplete_seg"]
    view.is_trusted = bool(header["flags"] & FLAG_TRUSTED_WATERMARK)
    view.entry_count = header["entry_count"]
    unknown = header["flags"] & ~FLAG_TRUSTED_WATERMARK
    if look.view.checksum == "wrong":
        return
    if header["version"] > PROGRESS.version:
        look.findings.append(newer_version(source, "progress.version", header.field("version")))
    if unknown:
        message, flags = "flags that this version does not know", header.field("flags")
        look.findings.append(
            warning("progress.flags", source.path, flags.offset, message, _NEWER_ACTION, "0 or 1", f"{unknown:#x}")
        )


def _read_entries(look: ProgressLook, source: Source, data: bytes, header: Structure, limit: int) -> None:
    """Read the entries one by one, until one does not fit."""
    end = len(data) - CRC.size
    at = int(header["header_size"])
    for number in range(min(header["entry_count"], _ENTRIES_SHOWN_TO_BREAK)):
        start = at + ENTRY_TABLE.size
        if start > end:
            message, there = f"progress entry {number} of {header['entry_count']} is missing", str(max(0, end - at))
            _break(look, source, at, message, f"{ENTRY_TABLE.size} bytes", there)
            return
        segment_seq, bundle_count, words = ENTRY_TABLE.struct.unpack_from(data, at)
        if words != word_count(bundle_count) or words > BITMAP_WORDS_MAX:
            wanted = f"{word_count(bundle_count)} bitmap words for {bundle_count} bundles"
            message = f"progress entry {number} (segment {segment_seq}) is wrong"
            _break(look, source, at + ENTRY_TABLE.offsets["bitmap_words"], message, wanted, str(words))
            return
        bitmap = data[start : min(end, start + words * WORD_BITS // 8)]
        if len(look.view.entries) < limit:
            look.view.entries.append(_entry_view(at, segment_seq, bundle_count, bitmap, limit))
        at = start + words * WORD_BITS // 8


def _break(look: ProgressLook, source: Source, offset: int, message: str, expected: str, found: str) -> None:
    look.findings.append(damage("progress.entry", source.path, offset, message, _PROGRESS_ACTION, expected, found))


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


def newer_version(source: Source, code: str, version: FieldView) -> Finding:
    """The finding about a newer version that a matching checksum covers: it is no damage, but this program cannot read it."""
    message = "a newer version, which this program cannot read"
    return warning(code, source.path, version.offset, message, _NEWER_ACTION, version.expected, str(version.value))
