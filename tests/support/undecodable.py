"""A bundle of a sealed segment is made one that nobody can read, in a file whose checksum is right: as another writer may leave it."""

from __future__ import annotations

from quiver_actors.base.checksum import crc32
from quiver_actors.store.segment.arrow_file import BLOCK, read_file_footer
from quiver_actors.store.segment.codec import decode_manifest
from quiver_actors.store.segment.layout import CRC
from quiver_actors.store.segment.reader import SegmentReader
from quiver_actors.store.wal.layout import ALIGNMENT, ENTRY_LENGTH_BYTES, HEADER_BYTES
from quiver_actors.store.wal.reader import LogReader


def with_undecodable_bundle(content: bytes, index: int) -> bytes:
    """Return the segment file with the metadata of one bundle's first batch overwritten; a log entry's checksum agrees with that."""
    start, metadata_bytes, _ = _first_batch(content, index)
    changed = bytearray(content)
    changed[start + 8 : start + metadata_bytes] = b"\xff" * (metadata_bytes - 8)
    entries = LogReader(lambda length, offset: content[offset : offset + length], len(content))
    for entry in entries.scan(HEADER_BYTES, stride=ALIGNMENT).entries:
        if entry.start < start < entry.end:
            body = changed[entry.start + ENTRY_LENGTH_BYTES : entry.end - CRC.size]
            changed[entry.end - CRC.size : entry.end] = CRC.pack(crc32(body))
    return _with_checksum(changed)


def with_unproven_bundle(content: bytes, index: int) -> bytes:
    """Return the segment file with a bit flipped in the values of one bundle's first batch, which can be decoded as well as before."""
    start, metadata_bytes, body_bytes = _first_batch(content, index)
    assert body_bytes
    changed = bytearray(content)
    changed[start + metadata_bytes] ^= 1
    return _with_checksum(changed)


def _first_batch(content: bytes, index: int) -> tuple[int, int, int]:
    """Where the message of the batch begins in the file, and the bytes of its metadata and of its body."""
    reader = SegmentReader(content)
    footer = reader.footer
    manifest = decode_manifest(content[footer.manifest_offset : footer.manifest_offset + footer.manifest_length])
    ref = manifest.ref_ends[index]
    stream = {each.stream_id: each for each in reader.streams}[manifest.ref_streams[ref]]
    start, end = stream.byte_offset, stream.byte_offset + stream.byte_length
    blocks = read_file_footer(lambda length, offset: content[offset : offset + length], start, end).batch_blocks
    offset, metadata_bytes, _, body_bytes = list(BLOCK.iter_unpack(blocks))[manifest.ref_chunks[ref]]
    return start + offset, metadata_bytes, body_bytes


def _with_checksum(changed: bytearray) -> bytes:
    changed[-CRC.size :] = CRC.pack(crc32(changed[: -CRC.size]))
    return bytes(changed)
