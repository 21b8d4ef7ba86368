"""The bytes that turn a log file into a segment. Pure.

A segment sealed in place is the former log file and, behind its entries: the end mark, one Arrow footer a stream, stream directory,
batch manifest, footer, trailer (`store.segment.layout`). Nothing of the entries is read: blocks point back at them, and the CRC of the
whole file continues the CRC of the entries.
"""

from __future__ import annotations

from quiver_actors.base.checksum import crc32
from quiver_actors.store.segment.arrow_file import encode_footer
from quiver_actors.store.segment.builder import SegmentBuilder, Stream
from quiver_actors.store.segment.codec import (
    FooterExtension,
    SegmentFooter,
    StreamInfo,
    encode_directory,
    encode_footer_and_trailer,
    encode_manifest,
)
from quiver_actors.store.segment.layout import (
    CRC,
    END_MARK,
    IN_PLACE_STREAM_OFFSET,
    INCARNATION_BYTES,
    STREAM_ALIGNMENT,
    Part,
)


def encode_tail(
    builder: SegmentBuilder,
    *,
    entries_end: int,
    crc32_of_entries: int,
    wal_position_start: int,
    wal_position_end: int,
    incarnation: bytes,
) -> list[Part]:
    """Everything that follows the entries of a file sealed in place.

    Args:
        builder: has the segment's bundles, all of which are written to the file.
        entries_end: file offset behind the last entry; the result belongs exactly there.
        crc32_of_entries: CRC-32 of the file's bytes `[0, entries_end)`, header included.
        wal_position_start: log position of the first entry.
        wal_position_end: log position behind the last entry.
        incarnation: 16 bytes that name the engine's directory.

    Returns:
        Parts to be written one behind the other.
    """
    footers, streams = _encode_stream_footers(builder.streams, entries_end + len(END_MARK))
    body: list[Part] = [END_MARK, *footers]
    extension = _extension(builder, wal_position_start, wal_position_end, incarnation)
    parts = [*body, *_encode_end(builder, streams, entries_end + sum(map(len, body)), extension)]
    crc = crc32_of_entries
    for part in parts:
        crc = crc32(part, crc)
    return [*parts, CRC.pack(crc)]


def _encode_stream_footers(streams: list[Stream], start: int) -> tuple[list[Part], list[StreamInfo]]:
    """The Arrow footers of all streams in parts, to be placed at file offset `start`. Parts, because copies of megabytes of blocks
    are what a seal of small bundles would spend most of its time on."""
    parts: list[Part] = []
    infos: list[StreamInfo] = []
    at = start
    for stream in streams:
        padding = bytes(-at % STREAM_ALIGNMENT)
        footer = encode_footer(stream.schema.message, stream.dictionary_blocks, stream.batch_blocks)
        parts += (padding, *footer)
        at += len(padding) + sum(map(len, footer))
        infos.append(_describe(stream, IN_PLACE_STREAM_OFFSET, at - IN_PLACE_STREAM_OFFSET))
    return parts, infos


def _describe(stream: Stream, byte_offset: int, byte_length: int) -> StreamInfo:
    """The directory's row of a stream that lies at `[byte_offset, byte_offset + byte_length)`."""
    slot_id, fingerprint, _ = stream.schema
    counts = (stream.row_count, stream.chunk_count)
    return StreamInfo(stream.stream_id, slot_id, fingerprint, byte_offset, byte_length, *counts)


def _extension(
    builder: SegmentBuilder, wal_position_start: int, wal_position_end: int, incarnation: bytes
) -> FooterExtension:
    if len(incarnation) != INCARNATION_BYTES:
        raise ValueError(f"incarnation has {len(incarnation)} bytes: expected {INCARNATION_BYTES}")
    return FooterExtension(
        wal_position_start,
        wal_position_end,
        builder.first_sequence,
        builder.last_sequence,
        builder.first_ingestion_ts_nanos,
        builder.last_ingestion_ts_nanos,
        builder.row_count,
        incarnation,
    )


def _encode_end(
    builder: SegmentBuilder, streams: list[StreamInfo], offset: int, extension: FooterExtension
) -> list[Part]:
    """Directory, manifest, footer and trailer without its CRC, to be placed at file offset `offset`."""
    directory = encode_directory(streams)
    manifest = encode_manifest(builder.manifest_columns())
    footer = SegmentFooter(
        stream_count=len(streams),
        bundle_count=builder.bundle_count,
        directory_offset=offset,
        directory_length=len(directory),
        manifest_offset=offset + len(directory),
        manifest_length=len(manifest),
        extension=extension,
        crc32=0,
    )
    return [directory, manifest, encode_footer_and_trailer(footer)]
