"""Rewriting a sealed segment into contiguous streams by moving its encoded messages. Pure: reads through a function, gives parts.

Schema and dictionaries once a stream instead of once a bundle; streams that differ only in dictionaries become one (`unify`). Bundle
indexes, item counts, sequences, times, lost bundles, and what a reader gets of each bundle stay as they were.

A segment sealed in place has a checksum in every entry, a contiguous one has none but that of the whole file. So that damage goes
on costing only the bundles that it touches, the manifest gets a column more, nullable and unknown to other readers:

    bundle_crc32  uint32    CRC-32 of: u64 sequence | i64 ingestion_ts_nanos | i64 item_count (-1 unknown) | u64 byte_count, then for
                            each slot reference: u32 slot_id | u32 CRC-32 of the stream's bytes before its first batch (magic,
                            schema, dictionaries) and of the bundle's batch message

Memory: about 1 MiB at a time (or the largest message), the dictionaries of one schema, 30 bytes a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from quiver_actors.checksum import crc32
from quiver_actors.errors import InvalidFormat
from quiver_actors.segment.arrow_ipc import BLOCK, END_OF_STREAM, FILE_START, encode_footer
from quiver_actors.segment.builder import StreamSchema
from quiver_actors.segment.codec import (
    FooterExtension,
    ManifestColumns,
    SegmentFooter,
    StreamInfo,
    encode_directory,
    encode_footer_and_trailer,
    encode_manifest,
)
from quiver_actors.segment.layout import CRC, IN_PLACE_STREAM_OFFSET, STREAM_ALIGNMENT
from quiver_actors.segment.outline import BLOCKS, READ_BYTES, Outline, Read, read_messages
from quiver_actors.segment.unify import Member, remapped_messages, unify

SMALL_ENTRY_BYTES = 4 << 10
OVERHEAD_SHARE_MIN = 0.25
SAVING_BYTES_MIN = 64 << 10
"""A rewriting costs two syncs and two readings of the file: it has to bring something."""
EXTRA_STREAMS_MIN = 8
"""Streams beyond one per slot and fingerprint from which on bringing them together pays."""

# What an entry carries beside its message and a new stream does not: entry head and CRC; slot head, padding on average, end of stream.
_ENTRY_OVERHEAD_BYTES = 33
_SLOT_OVERHEAD_BYTES = 42 + 32 + 8
_FOOTER_OVERHEAD_BYTES = 64
"""Of an Arrow footer, beside its blocks and its schema: its own fields, and padding on average."""

_BUNDLE_FIELDS = np.dtype([("sequence", "<u8"), ("time", "<i8"), ("item_count", "<i8"), ("byte_count", "<u8")])
_REF_FIELDS = np.dtype([("slot_id", "<u4"), ("crc", "<u4")])


class Verdict(NamedTuple):
    """Whether a segment is to be compacted, and why."""

    pays: bool
    reason: str
    saving_bytes: int = 0
    """At least so much would go; dictionaries that were sent again and again come on top."""


def judge(footer: SegmentFooter, streams: Sequence[StreamInfo]) -> Verdict:
    """Decide from the end of the file alone. A segment is compacted once: contiguous ones are left as they are."""
    extension = footer.extension
    if extension is None or not streams:
        return Verdict(False, "written by another implementation" if streams else "empty")
    if any(stream.byte_offset != IN_PLACE_STREAM_OFFSET for stream in streams):
        return Verdict(False, "contiguous already")
    entries_bytes = extension.wal_position_end - extension.wal_position_start
    saving = _saving_bytes(footer, streams, entries_bytes)
    extra = len(streams) - len({(stream.slot_id, stream.schema_fingerprint) for stream in streams})
    if extra >= EXTRA_STREAMS_MIN:
        return Verdict(True, f"{extra} streams more than schemas", saving)
    if entries_bytes >= SMALL_ENTRY_BYTES * footer.bundle_count:
        return Verdict(False, f"entries of {entries_bytes // max(1, footer.bundle_count)} bytes on average", saving)
    if saving < max(SAVING_BYTES_MIN, OVERHEAD_SHARE_MIN * entries_bytes):
        return Verdict(False, f"only {saving} bytes of {entries_bytes} would go", saving)
    return Verdict(True, f"{saving} bytes of {entries_bytes} are schemas and padding", saving)


def _saving_bytes(footer: SegmentFooter, streams: Sequence[StreamInfo], entries_bytes: int) -> int:
    """What is repeated. The Arrow footers stand one behind the other, so their lengths tell those of the schemas."""
    chunks = np.array([stream.chunk_count for stream in streams])
    ends = np.array([stream.byte_offset + stream.byte_length for stream in streams])
    begins = np.concatenate([[footer.directory_offset - int(ends[-1] - ends[0]) - int(ends[0])], ends[:-1]])
    begins[0] = min(int(ends[0]), IN_PLACE_STREAM_OFFSET * 2 + entries_bytes)
    schemas = np.maximum(0, ends - begins - BLOCK.size * chunks - _FOOTER_OVERHEAD_BYTES)
    repeated = int((schemas * np.maximum(0, chunks - 1)).sum())
    overhead = footer.bundle_count * _ENTRY_OVERHEAD_BYTES + int(chunks.sum()) * _SLOT_OVERHEAD_BYTES
    return max(0, min(entries_bytes, repeated + overhead))
