"""Finds what is left of a damaged segment that was compacted: the bundles whose own checksum holds. Pure.

In-place segments do not need this: their entries are still there, each with its checksum. A contiguous segment without the column
`bundle_crc32` (the Rust implementation's) proves nothing about single bundles: batches that decode may hold wrong values.

Where a batch stands is looked up twice, in the Arrow footer's blocks and by walking from message to message: damage to one of them is
made up for by the other, and the checksum says which is right. What has no second copy is the directory, and the numbering, offsets and
metadata of the manifest (about 8 bytes a bundle): damage there costs the segment, unless it is one flipped bit, which the CRC of the whole
file finds (`flips`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from quiver_actors.base.checksum import crc32
from quiver_actors.errors import FormatError, InvalidFormat
from quiver_actors.store.segment.arrow_file import FILE_START, read_file_footer
from quiver_actors.store.segment.arrow_ipc import MessageSpan, walk_messages
from quiver_actors.store.segment.blocks import Spans, are_inside, unpack_blocks
from quiver_actors.store.segment.codec import StreamInfo
from quiver_actors.store.segment.compaction import bundle_checksums
from quiver_actors.store.segment.manifest import ManifestColumns
from quiver_actors.store.segment.outline import Ending, Outline, Read, StreamOutline, read_ending
from quiver_actors.store.segment.placement import StreamSchema

_MESSAGE_BYTES_MIN = 16
"""The size of the shortest Arrow message: a stream that claims more batches than fit is not believed, and gets no memory."""


class _Found(NamedTuple):
    """A stream whose bytes before the first batch can be walked."""

    schema: StreamSchema
    byte_offset: int
    dictionaries: Spans
    head_crc: int
    placements: tuple[Spans, Spans]
    """The batches by the footer's blocks, and by walking: as many as the directory says, with zeroes for those that are not found."""


def salvage(read: Read, size_bytes: int) -> Outline:
    """An outline of what is proven to be as it was written; bundles that are not have no slots in it.

    Raises:
        FormatError: nothing can be proven.
    """
    ending = read_ending(read, size_bytes)
    columns = ending.columns
    if columns.bundle_crc32 is None:
        raise InvalidFormat("the segment holds no checksums of its bundles: all of them count as lost")
    streams = [_find_stream(read, size_bytes, info) for info in ending.directory]
    by_blocks, by_walking = (_place_references(columns, streams, witness) for witness in (0, 1))
    sound, sound_too = (_sound_bundles(read, columns, streams, spans) for spans in (by_blocks, by_walking))
    spans = np.where(np.repeat(sound, columns.slot_counts)[:, None], by_blocks, by_walking)
    return _outline_of(read, ending, streams, spans, sound | sound_too)


def _find_stream(read: Read, size_bytes: int, info: StreamInfo) -> _Found | None:
    start, end = info.byte_offset, info.byte_offset + info.byte_length
    if end > size_bytes or info.chunk_count > info.byte_length // _MESSAGE_BYTES_MIN:
        return None
    walked = _walk(read, start + len(FILE_START), end)
    first = next((number for number, message in enumerate(walked) if message.is_batch), len(walked))
    if not first:
        return None
    head_end = sum(walked[first - 1][1:4])
    # The magic is known; damage to it is no damage to the stream.
    head = FILE_START + read(head_end - start, start)[len(FILE_START) :]
    message = head[len(FILE_START) : len(FILE_START) + walked[0].metadata_bytes]
    schema = StreamSchema(info.slot_id, info.schema_fingerprint, message)
    placements = (_from_blocks(read, info), _to_spans(walked[first:], info.chunk_count))
    return _Found(schema, start, _to_spans(walked[1:first], first - 1), crc32(head), placements)


def _walk(read: Read, start: int, end: int) -> list[MessageSpan]:
    """The messages up to the first that is damaged."""
    found: list[MessageSpan] = []
    messages = walk_messages(read, start, end)
    while True:
        try:
            found.append(next(messages))
        except (StopIteration, FormatError):
            return found


def _to_spans(messages: Sequence[MessageSpan], count: int) -> Spans:
    spans = np.zeros((count, 3), np.int64)
    for number, message in enumerate(messages[:count]):
        spans[number] = (message.offset, message.metadata_bytes, message.body_bytes)
    return spans


def _from_blocks(read: Read, info: StreamInfo) -> Spans:
    spans = np.zeros((info.chunk_count, 3), np.int64)
    try:
        footer = read_file_footer(read, info.byte_offset, info.byte_offset + info.byte_length)
    except FormatError:
        return spans
    found = unpack_blocks(footer.batch_blocks)[: info.chunk_count]
    inside = are_inside(found, info.byte_length)
    spans[: len(found)][inside] = found[inside] + [info.byte_offset, 0, 0]
    return spans


def _place_references(columns: ManifestColumns, streams: Sequence[_Found | None], witness: int) -> Spans:
    """Where each slot reference's batch is by one witness; all zero where it does not know."""
    spans = np.zeros((len(columns.refs), 3), np.int64)
    for number, (slot_id, stream_id, chunk) in enumerate(columns.refs.tolist()):
        stream = streams[stream_id] if stream_id < len(streams) else None
        if stream is not None and stream.schema.slot_id == slot_id and chunk < len(stream.placements[witness]):
            spans[number] = stream.placements[witness][chunk]
    return spans


def _sound_bundles(
    read: Read, columns: ManifestColumns, streams: Sequence[_Found | None], spans: Spans
) -> npt.NDArray[np.bool_]:
    """Which bundles have the checksum that the manifest says, with their batches taken from there."""
    checksums = np.zeros(len(spans), np.uint32)
    for number, (offset, metadata_bytes, body_bytes) in enumerate(spans.tolist()):
        stream = streams[columns.refs[number, 1]] if metadata_bytes else None
        if stream is not None:
            checksums[number] = crc32(read(metadata_bytes + body_bytes, offset), stream.head_crc)
    found_until = np.cumsum(np.append(0, spans[:, 1] > 0))
    ends = np.cumsum(columns.slot_counts, dtype=np.int64)
    all_found = found_until[ends] - found_until[ends - columns.slot_counts] == columns.slot_counts
    return np.asarray(all_found & (bundle_checksums(columns, checksums) == columns.bundle_crc32), np.bool_)


def _outline_of(
    read: Read, ending: Ending, streams: Sequence[_Found | None], spans: Spans, kept: npt.NDArray[np.bool_]
) -> Outline:
    """The segment with only the kept bundles in it, and only the streams that they need."""
    columns = ending.columns
    kept_refs = np.repeat(kept, columns.slot_counts)
    refs, spans = columns.refs[kept_refs], spans[kept_refs]
    used = np.unique(refs[:, 1])
    outlines = [
        _outline_stream(read, streams[stream_id], spans[refs[:, 1] == stream_id]) for stream_id in used.tolist()
    ]
    new_refs = refs.copy()
    for new_id, stream_id in enumerate(used):
        mine = refs[:, 1] == stream_id
        new_refs[mine, 1], new_refs[mine, 2] = new_id, np.arange(mine.sum())
    times = columns.ingestion_ts_nanos[kept & (columns.slot_counts > 0)]
    extension = ending.extension._replace(
        row_count=sum(stream.row_count for stream in outlines),
        first_ingestion_ts_nanos=int(times.min()) if len(times) else 0,
        last_ingestion_ts_nanos=int(times.max()) if len(times) else 0,
    )
    new_columns = columns._replace(slot_counts=np.where(kept, columns.slot_counts, 0).astype(np.int32), refs=new_refs)
    return Outline(ending.footer, extension, tuple(outlines), new_columns)


def _outline_stream(read: Read, stream: _Found | None, batches: Spans) -> StreamOutline:
    assert stream is not None, "a bundle is kept only if its streams were found"
    rows = sum(
        next(walk_messages(read, offset, offset + metadata_bytes + body_bytes)).row_count
        for offset, metadata_bytes, body_bytes in batches.tolist()
    )
    return StreamOutline(stream.schema, stream.byte_offset, rows, stream.dictionaries, batches)
