"""The outline of a sealed segment of ours: its messages as spans, its manifest as numbers. It decodes no Arrow data.

Invariants of an `Outline`: every span lies inside its stream and is aligned as Arrow demands, and every reference of the manifest
names a stream and a batch that exist. Whether the bytes are the right ones, only a checksum can say.

Memory: the ends of the file (footers, directory, manifest), and about 24 bytes a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from quiver_actors.errors import InvalidFormat, Truncated
from quiver_actors.store.segment.arrow_file import read_file_footer
from quiver_actors.store.segment.arrow_ipc import DICTIONARIES_MAX
from quiver_actors.store.segment.blocks import Spans, are_inside, unpack_blocks
from quiver_actors.store.segment.codec import (
    FooterExtension,
    SegmentFooter,
    StreamInfo,
    decode_directory,
    decode_manifest,
)
from quiver_actors.store.segment.manifest import Manifest, ManifestColumns
from quiver_actors.store.segment.placement import StreamSchema
from quiver_actors.store.segment.reader import read_footer

Read = Callable[[int, int], bytes]
"""`read(length, offset)`, like `DiskFile.read`."""

READ_BYTES = 512 << 10
"""Messages that lie close are read together, up to about so much; one that is larger is read alone."""
_GAP_BYTES_MAX = 4 << 10
_ROWS_MAX = 1 << 48
"""The most rows that a stream may have: sums of such counts fit where the formats keep them."""


class StreamOutline(NamedTuple):
    """Where one stream is, and where its messages are."""

    schema: StreamSchema
    byte_offset: int
    row_count: int
    dictionaries: Spans
    batches: Spans


class Outline(NamedTuple):
    """Where everything of one segment is."""

    footer: SegmentFooter
    extension: FooterExtension
    streams: tuple[StreamOutline, ...]
    """The streams by their ids."""
    columns: ManifestColumns


def read_outline(read: Read, size_bytes: int) -> Outline:
    """Find out where everything is.

    Raises:
        FormatError: by its subclasses: damaged, or written by another implementation. Which bytes are damaged is not known then.
    """
    footer, extension, directory, columns = read_ending(read, size_bytes)
    streams = tuple(_outline_stream(read, info, footer.directory_offset) for info in directory)
    _check_references(columns, streams)
    return Outline(footer, extension, streams, columns)


class Ending(NamedTuple):
    """The decoded part behind the streams. Its references are not checked."""

    footer: SegmentFooter
    extension: FooterExtension
    directory: tuple[StreamInfo, ...]
    columns: ManifestColumns


def read_ending(read: Read, size_bytes: int) -> Ending:
    """Read directory and manifest. Raises as `read_outline`."""
    footer = read_footer(read, size_bytes)
    if footer.extension is None:
        raise InvalidFormat("the segment was written by another implementation: its footer lacks our extension")
    directory = decode_directory(read(footer.directory_length, footer.directory_offset))
    manifest = decode_manifest(read(footer.manifest_length, footer.manifest_offset))
    counts = (len(directory), manifest.bundle_count)
    if counts != (footer.stream_count, footer.bundle_count) or list(directory) != list(range(len(directory))):
        raise InvalidFormat(
            f"{len(directory)} streams and {manifest.bundle_count} bundles: the footer says {footer.stream_count} and "
            f"{footer.bundle_count}"
        )
    return Ending(footer, footer.extension, tuple(directory.values()), manifest_columns(manifest))


def _outline_stream(read: Read, info: StreamInfo, streams_end: int) -> StreamOutline:
    end = info.byte_offset + info.byte_length
    if end > streams_end:
        raise InvalidFormat(f"stream {info.stream_id} ends at {end}, behind the streams' end at {streams_end}")
    footer = read_file_footer(read, info.byte_offset, end)
    if footer.schema_message is None:
        raise InvalidFormat(f"stream {info.stream_id} has an Arrow footer that another implementation wrote")
    dictionaries = _spans(footer.dictionary_blocks, info)
    batches = _spans(footer.batch_blocks, info)
    if info.row_count > _ROWS_MAX:
        raise InvalidFormat(f"stream {info.stream_id} claims {info.row_count} rows")
    if len(batches) != info.chunk_count or len(dictionaries) > DICTIONARIES_MAX:
        raise InvalidFormat(f"stream {info.stream_id}: {len(batches)} batches, the directory says {info.chunk_count}")
    schema = StreamSchema(info.slot_id, info.schema_fingerprint, footer.schema_message)
    return StreamOutline(schema, info.byte_offset, info.row_count, dictionaries, batches)


def _spans(blocks: bytes, info: StreamInfo) -> Spans:
    spans = unpack_blocks(blocks)
    if not are_inside(spans, info.byte_length).all():
        raise InvalidFormat(f"stream {info.stream_id} refers to messages outside its {info.byte_length} bytes")
    spans[:, 0] += info.byte_offset
    return spans


def manifest_columns(manifest: Manifest) -> ManifestColumns:
    """Return a manifest that this program wrote as numpy columns.

    Raises:
        InvalidFormat: it lacks a column that every manifest of this program has.
    """
    own = (manifest.byte_count, manifest.sequence, manifest.ingestion_ts_nanos)
    if any(column is None or None in _nullable(column) for column in own):
        raise InvalidFormat("the manifest lacks the byte counts, sequences or times that our own segments have")
    ends = np.asarray(manifest.ref_ends, dtype=np.int64)
    columns = (manifest.ref_slots, manifest.ref_streams, manifest.ref_chunks)
    refs = np.stack([np.asarray(column, dtype=np.uint32) for column in columns], axis=1)[ends[0] : ends[-1]]
    items = [-1] * manifest.bundle_count if manifest.item_count is None else manifest.item_count
    return ManifestColumns(
        np.diff(ends).astype(np.int32),
        refs,
        # This program writes no count above the range; as an unknown one it costs only its bundle's checksum.
        item_count=np.array([-1 if count is None or count >> 63 else count for count in items], dtype=np.int64),
        byte_count=np.asarray(manifest.byte_count, dtype=np.uint64),
        sequence=np.asarray(manifest.sequence, dtype=np.uint64),
        ingestion_ts_nanos=np.asarray(manifest.ingestion_ts_nanos, dtype=np.int64),
        bundle_crc32=_checksums(manifest.bundle_crc32),
    )


def _nullable(column: Sequence[int | None]) -> Sequence[int | None]:
    """The column if it may hold None; only lists do."""
    return column if isinstance(column, list) else ()


def _checksums(column: Sequence[int | None] | None) -> npt.NDArray[np.uint32] | None:
    if column is None or None in _nullable(column):
        return None
    return np.asarray(column, dtype=np.uint32)


def _check_references(columns: ManifestColumns, streams: Sequence[StreamOutline]) -> None:
    slots = np.array([stream.schema.slot_id for stream in streams], dtype=np.uint32)
    chunks = np.array([len(stream.batches) for stream in streams], dtype=np.uint32)
    stream_ids = columns.refs[:, 1]
    if (stream_ids >= len(streams)).any():
        raise InvalidFormat("the manifest refers to a stream that the directory does not list")
    if (slots[stream_ids] != columns.refs[:, 0]).any() or (chunks[stream_ids] <= columns.refs[:, 2]).any():
        raise InvalidFormat("the manifest refers to a batch that its stream does not hold")


def read_messages(read: Read, spans: Spans) -> Iterator[memoryview]:
    """The messages one after another, those that lie close read together; each keeps what it was read with alive.

    Raises:
        Truncated: the file ends before one of them does.
    """
    offsets = spans[:, 0].tolist()
    ends = spans.sum(axis=1).tolist()
    first, count = 0, len(offsets)
    while first < count:
        start, last = offsets[first], first + 1
        while last < count and _is_close(ends[last - 1], offsets[last]) and ends[last] - start <= READ_BYTES:
            last += 1
        piece = memoryview(read(ends[last - 1] - start, start))
        if piece.nbytes < ends[last - 1] - start:
            raise Truncated(f"the file ends at {start + piece.nbytes}, inside a message up to {ends[last - 1]}")
        for index in range(first, last):
            yield piece[offsets[index] - start : ends[index] - start]
        first = last


def _is_close(end: int, next_offset: int) -> bool:
    return 0 <= next_offset - end <= _GAP_BYTES_MAX
