"""A bundle of a sealed segment is made one that Arrow cannot decode, in a file whose checksum is right: as another writer may leave it."""

from __future__ import annotations

from quiver_actors.base.checksum import crc32
from quiver_actors.store.segment.arrow_file import BLOCK, read_file_footer
from quiver_actors.store.segment.codec import decode_manifest
from quiver_actors.store.segment.layout import CRC
from quiver_actors.store.segment.reader import SegmentReader


def with_undecodable_bundle(content: bytes, index: int) -> bytes:
    """Return the segment file with the metadata of one bundle's first batch overwritten."""
    reader = SegmentReader(content)
    footer = reader.footer
    manifest = decode_manifest(content[footer.manifest_offset : footer.manifest_offset + footer.manifest_length])
    ref = manifest.ref_ends[index]
    stream = {each.stream_id: each for each in reader.streams}[manifest.ref_streams[ref]]
    start, end = stream.byte_offset, stream.byte_offset + stream.byte_length
    blocks = read_file_footer(lambda length, offset: content[offset : offset + length], start, end).batch_blocks
    offset, metadata_bytes, _, _ = list(BLOCK.iter_unpack(blocks))[manifest.ref_chunks[ref]]
    changed = bytearray(content)
    first = start + offset + 8
    changed[first : start + offset + metadata_bytes] = b"\xff" * (metadata_bytes - 8)
    changed[-CRC.size :] = crc32(changed[: -CRC.size]).to_bytes(CRC.size, "little")
    return bytes(changed)
