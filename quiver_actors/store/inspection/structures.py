"""The fixed structures of stored files as they stand there, field by field, each with what it should hold. Pure."""

from __future__ import annotations

from quiver_actors.base.checksum import crc32
from quiver_actors.store.format.framing import CRC, Framing
from quiver_actors.store.inspection.fields import Structure
from quiver_actors.store.segment import layout as segment_layout
from quiver_actors.store.wal import layout
from quiver_actors.store.wal.codec import restored_header


def is_own_log_header(data: bytes) -> bool:
    """Whether our writer made it: by its size, or by the Arrow magic where only our files have one."""
    size = layout.HEADER.unpack_from(data)[2] if len(data) >= layout.HEADER_BYTES else 0
    return data.startswith(layout.ARROW_MAGIC, layout.ARROW_OFFSET) or size == layout.HEADER_BYTES


def log_header(data: bytes) -> Structure:
    """The header at the start of a log file; the longer form where it is ours."""
    if not is_own_log_header(data):
        return Structure("log.header", data, 0, layout.FOREIGN_HEADER_TABLE)
    header = Structure("log.header", data, 0, layout.HEADER_TABLE)
    # An aligning writer that is not ours leaves the whole extension zero, its CRC too.
    if header.is_whole and any(data[layout.HEADER_EXTENSION_OFFSET : layout.HEADER_CRC_OFFSET + CRC.size]):
        header.check_crc(crc32(data[: layout.HEADER_CRC_OFFSET]))
    return header


def restored_log_header(data: bytes) -> bytes | None:
    """The header with its constants put right, if its CRC proves that nothing else is wrong; None if not, or if all is right."""
    restored = restored_header(data)
    return None if restored == data[: layout.HEADER_BYTES] else restored


def fixed_file(framing: Framing, code: str, data: bytes) -> Structure:
    """A file that is nothing but its table."""
    found = Structure(code, data, 0, framing.table)
    if found.is_whole and not framing.is_newer(data):
        found.check_crc(crc32(data[: framing.table.offsets["crc32"]]))
        if found["version"] == framing.version and found["size"] != framing.table.size:
            found.field("size").expected = str(framing.table.size)
    return found


def segment_trailer(tail: bytes, file_bytes: int) -> Structure:
    """The last 16 bytes of a segment."""
    room = file_bytes - segment_layout.TRAILER.size
    found = Structure("segment.trailer", tail, max(0, room), segment_layout.TRAILER_TABLE)
    if found.is_whole and found["footer_size"] > room:
        found.field("footer_size").expected = f"at most {room}"
    return found


def segment_footer(data: bytes, start: int, trailer_start: int) -> Structure:
    """Return the fields of the footer at `start`, and mark a directory or manifest that would end behind `trailer_start`."""
    found = Structure("segment.footer", data, start, segment_layout.FOOTER_TABLE)
    if found.is_whole:
        for name in ("directory", "manifest"):
            end = found[f"{name}_offset"] + found[f"{name}_length"]
            if end > trailer_start:
                wanted = f"a {name} that ends before {trailer_start}, not at {end}"
                found.field(f"{name}_offset").expected = wanted
    return found


def segment_extension(data: bytes, start: int) -> Structure | None:
    """The extension of the footer that our segments have; None where there is none."""
    if len(data) < segment_layout.EXTENSION.size:
        return None
    return Structure("segment.footer", data, start, segment_layout.EXTENSION_TABLE)
