"""The fixed structures of FORMATS as tables of fields: log header, cursor, core file, progress header, segment footer and trailer.

Pure. `layout` modules draw the same bytes for the engine; here each field carries what it should hold.
"""

from __future__ import annotations

import zlib

import crc32c

from quiver_actors.checksum import crc32
from quiver_actors.core_file import CORE_BYTES, CORE_MAGIC, CORE_VERSION
from quiver_actors.inspection.fields import Rule, Structure, at_least, at_most, equals, one_of, zero
from quiver_actors.segment import layout as segment_layout
from quiver_actors.subscriber.progress import ENTRIES_MAX, FLAG_TRUSTED_WATERMARK, VERSION
from quiver_actors.wal import layout

PROGRESS_MAGIC = b"QUIVSUB\0"

_LOG_HEADER = (
    Rule("magic", "10s", equals(layout.WAL_MAGIC)),
    Rule("version", "H", equals(layout.WAL_VERSION)),
    Rule("header_size", "H", at_least(layout.HEADER_BYTES_V1)),
    Rule("segment_cfg_hash", "16s"),
    Rule("wal_position_start", "Q"),
)
_OWN_LOG_HEADER = (
    *_LOG_HEADER[:2],
    Rule("header_size", "H", equals(layout.HEADER_BYTES)),
    *_LOG_HEADER[3:],
    Rule("zeroes", "26s", zero),
    Rule("arrow_magic", "8s", equals(layout.ARROW_MAGIC)),
    Rule("segment_seq", "Q"),
    Rule("first_sequence", "Q"),
    Rule("incarnation", "16s"),
    Rule("crc32", "I"),
    Rule("zeroes_behind", "13s", zero),
)
_CURSOR = (
    Rule("magic", "8s", equals(layout.CURSOR_MAGIC)),
    Rule("version", "H", at_least(1)),
    Rule("size", "H", at_least(layout.CURSOR_BYTES)),
    Rule("wal_position", "Q"),
    Rule("crc32", "I"),
)
_CORE = (
    Rule("magic", "8s", equals(CORE_MAGIC)),
    Rule("version", "H", equals(CORE_VERSION)),
    Rule("size", "H", at_least(CORE_BYTES)),
    Rule("incarnation", "16s"),
    Rule("core_id", "I"),
    Rule("next_segment_seq_reserved", "Q"),
    Rule("next_sequence_reserved", "Q"),
    Rule("clean_shutdown", "B", one_of(0, 1)),
    Rule("crc32", "I"),
)
_PROGRESS = (
    Rule("magic", "8s", equals(PROGRESS_MAGIC)),
    Rule("version", "H", equals(VERSION)),
    Rule("header_size", "H", at_least(32)),
    Rule("flags", "H", at_most(FLAG_TRUSTED_WATERMARK)),
    Rule("oldest_incomplete_seg", "Q"),
    Rule("entry_count", "I", at_most(ENTRIES_MAX)),
    Rule("zeroes", "6s", zero),
)
_TRAILER = (
    Rule("footer_size", "I", at_least(segment_layout.FOOTER.size)),
    Rule("magic", "8s", equals(segment_layout.SEGMENT_MAGIC)),
    Rule("crc32", "I"),
)
_FOOTER = (
    Rule("version", "H", equals(segment_layout.SEGMENT_VERSION)),
    Rule("stream_count", "I", at_most(segment_layout.STREAMS_MAX)),
    Rule("bundle_count", "I"),
    Rule("directory_offset", "Q"),
    Rule("directory_length", "I"),
    Rule("manifest_offset", "Q"),
    Rule("manifest_length", "I"),
)
_EXTENSION = (
    Rule("extension_size", "H", at_least(segment_layout.EXTENSION.size)),
    Rule("wal_position_start", "Q"),
    Rule("wal_position_end", "Q"),
    Rule("first_sequence", "Q"),
    Rule("last_sequence", "Q"),
    Rule("first_ingestion_ts_nanos", "q"),
    Rule("last_ingestion_ts_nanos", "q"),
    Rule("row_count", "Q"),
    Rule("incarnation", "16s"),
)


def is_own_log_header(data: bytes) -> bool:
    """Whether our writer made it: by its size, or by the Arrow magic where only our files have one."""
    arrow = data[layout.ARROW_OFFSET : layout.ARROW_OFFSET + len(layout.ARROW_MAGIC)]
    size = int.from_bytes(data[12:14], "little")
    return arrow == layout.ARROW_MAGIC or (size == layout.HEADER_BYTES and len(data) >= layout.HEADER_BYTES)


def log_header(data: bytes) -> Structure:
    """The header at the start of a log file; the longer form where it is ours."""
    if not is_own_log_header(data):
        return Structure("log header", "log.header", data, 0, _LOG_HEADER)
    header = Structure("log header", "log.header", data, 0, _OWN_LOG_HEADER)
    at = layout.HEADER_EXTENSION_OFFSET
    end = at + layout.HEADER_EXTENSION.size
    # An aligning writer that is not ours leaves the whole extension zero, its CRC too.
    if header.is_whole and any(data[at : end + layout.ENTRY_CRC.size]):
        header.check_crc("crc32", crc32(data[:end]))
    return header


def restored_log_header(data: bytes) -> bytes | None:
    """The header with its constants put right, if its CRC proves that nothing else is wrong; None if not, or if all is right."""
    if len(data) < layout.HEADER_BYTES:
        return None
    restored = bytearray(layout.HEADER_BYTES)
    at = layout.HEADER_EXTENSION_OFFSET
    end = at + layout.HEADER_EXTENSION.size
    _, _, _, cfg_hash, position_start = layout.HEADER.unpack_from(data)
    layout.HEADER.pack_into(
        restored, 0, layout.WAL_MAGIC, layout.WAL_VERSION, layout.HEADER_BYTES, cfg_hash, position_start
    )
    restored[layout.ARROW_OFFSET : layout.ARROW_OFFSET + 8] = layout.ARROW_MAGIC
    restored[at : end + layout.ENTRY_CRC.size] = data[at : end + layout.ENTRY_CRC.size]
    (stored,) = layout.ENTRY_CRC.unpack_from(data, end)
    is_proved = any(data[at:end]) and stored == crc32(restored[:end])
    return bytes(restored) if is_proved and restored != data[: layout.HEADER_BYTES] else None


def cursor(data: bytes) -> Structure:
    found = Structure("cursor", "cursor", data, 0, _CURSOR)
    if found.is_whole:
        size = found["size"]
        # A newer one may be longer: its CRC stands at the end of its own size.
        if found["version"] > layout.CURSOR_VERSION and layout.CURSOR_BYTES <= size <= len(data):
            stored = int.from_bytes(data[size - 4 : size], "little")
            if stored == crc32(data[: size - 4]):
                return found
        found.check_crc("crc32", crc32(data[: layout.CURSOR_BYTES - 4]))
        if found["version"] == layout.CURSOR_VERSION and size != layout.CURSOR_BYTES:
            found.fields[2].expected = str(layout.CURSOR_BYTES)
    return found


def core(data: bytes) -> Structure:
    found = Structure("core file", "core", data, 0, _CORE)
    if found.is_whole:
        found.check_crc("crc32", crc32(data[: CORE_BYTES - 4]))
        if found["size"] != CORE_BYTES:
            found.fields[2].expected = str(CORE_BYTES)
    return found


def is_newer_core(data: bytes) -> bool:
    """Whether a core file of another version is whole: damage does not hit version and CRC alike."""
    version, size = int.from_bytes(data[8:10], "little"), int.from_bytes(data[10:12], "little")
    if not data.startswith(CORE_MAGIC) or version <= CORE_VERSION or not CORE_BYTES <= size <= len(data):
        return False
    return int.from_bytes(data[size - 4 : size], "little") == crc32(data[: size - 4])


def progress_header(data: bytes) -> Structure:
    return Structure("progress header", "progress.header", data, 0, _PROGRESS)


def progress_checksum(data: bytes) -> tuple[str, int, int]:
    """Which checksum a progress file ends in (`CRC-32C`, `CRC-32` or `wrong`), the stored one, and the CRC-32C of its contents."""
    body, stored = data[:-4], int.from_bytes(data[-4:], "little")
    castagnoli = crc32c.crc32c(body)
    kind = "CRC-32C" if stored == castagnoli else "CRC-32" if stored == zlib.crc32(body) else "wrong"
    return kind, stored, castagnoli


def segment_trailer(tail: bytes, file_bytes: int) -> Structure:
    """The last 16 bytes of a segment."""
    start = max(0, file_bytes - segment_layout.TRAILER.size)
    found = Structure("segment trailer", "segment.trailer", tail, start, _TRAILER)
    room = file_bytes - segment_layout.TRAILER.size
    if found.is_whole and found["footer_size"] > room:
        found.fields[0].expected = f"at most {room}"
    return found


def segment_footer(data: bytes, start: int, trailer_start: int) -> Structure:
    found = Structure("segment footer", "segment.footer", data, start, _FOOTER)
    if found.is_whole:
        for name, index in (("directory", 3), ("manifest", 5)):
            end = found[f"{name}_offset"] + found[f"{name}_length"]
            if end > trailer_start:
                found.fields[index].expected = f"a {name} that ends before {trailer_start}, not at {end}"
    return found


def segment_extension(data: bytes, start: int) -> Structure | None:
    """Our part of the footer; None where there is none."""
    if len(data) < segment_layout.EXTENSION.size:
        return None
    return Structure("segment footer extension", "segment.footer", data, start, _EXTENSION)
