"""The keys of idempotent producers in a sealed segment: read from the envelopes of its bundles, where `quiver.producers` is lost.

Reads only the envelopes, once the whole file's checksum was found right: a key that is not there must not be believed, or its bundle
would be taken for a duplicate. Memory: the envelopes of `_BATCHES_AT_ONCE` bundles.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import numpy as np
import pyarrow as pa

from quiver_actors.base.model import ENVELOPE_SLOT
from quiver_actors.errors import ArrowError
from quiver_actors.store.segment.arrow_ipc import END_OF_STREAM
from quiver_actors.store.segment.blocks import Spans
from quiver_actors.store.segment.check import run_to_end, verify_steps
from quiver_actors.store.segment.codec import decode_directory
from quiver_actors.store.segment.outline import Outline, Read, StreamOutline, read_messages, read_outline
from quiver_actors.store.segment.reader import SegmentReader, read_footer
from quiver_actors.store.staged.keys import KeyRun, carries_keys, key_in

_BATCHES_AT_ONCE = 1024


def keys_in_segment(read: Read, size_bytes: int, segment_seq: int) -> list[tuple[str, KeyRun]]:
    """The key of each bundle that has one, as (producer, place), in the order of the bundles.

    Raises:
        FormatError: by its subclasses: the file is damaged, or of another implementation, which writes no keys.
    """
    run_to_end(verify_steps(read, size_bytes))
    outline = read_outline(read, size_bytes)
    found = chain.from_iterable(
        _keys_in_stream(read, outline, stream_id)
        for stream_id, stream in enumerate(outline.streams)
        if stream.schema.slot_id == ENVELOPE_SLOT
    )
    sequences = outline.columns.sequence
    return [
        (producer, KeyRun(number, 1, segment_seq, index, int(sequences[index])))
        for index, producer, number in sorted(found)
    ]


def keys_of_other_writer(read: Read, size_bytes: int, segment_seq: int) -> list[tuple[str, KeyRun]]:
    """The same of a segment that another implementation has made of a log: it hands on envelopes as any other slot, and keeps no sequences,
    so the bundles are counted instead. Whoever calls has found the file's checksum right.

    Raises:
        FormatError: by its subclasses: it cannot be read.
    """
    footer = read_footer(read, size_bytes)
    directory = decode_directory(read(footer.directory_length, footer.directory_offset))
    if all(stream.slot_id != ENVELOPE_SLOT for stream in directory.values()):
        return []
    reader = SegmentReader(read(size_bytes, 0), segment_seq=segment_seq)
    with_envelope = [index for index in range(reader.bundle_count) if ENVELOPE_SLOT in reader.manifest.slot_ids(index)]
    found = ((index, key_in(reader.batch(index, ENVELOPE_SLOT))) for index in with_envelope)
    return [(key[0], KeyRun(key[1], 1, segment_seq, index, index)) for index, key in found if key]


def _keys_in_stream(read: Read, outline: Outline, stream_id: int) -> Iterator[tuple[int, str, int]]:
    """The keys in one stream, as (bundle index, producer, number)."""
    stream, columns = outline.streams[stream_id], outline.columns
    if not _has_keys(stream):
        return
    is_mine = columns.refs[:, 1] == stream_id
    indexes = np.repeat(np.arange(len(columns.slot_counts)), columns.slot_counts)[is_mine].tolist()
    chunks = columns.refs[is_mine, 2]
    for first in range(0, len(indexes), _BATCHES_AT_ONCE):
        last = first + _BATCHES_AT_ONCE
        envelopes = _batches(read, stream, stream.batches[chunks[first:last]])
        for index, envelope in zip(indexes[first:last], envelopes, strict=True):
            if key := key_in(envelope):
                yield index, *key


def _has_keys(stream: StreamOutline) -> bool:
    try:
        return carries_keys(pa.ipc.read_schema(pa.py_buffer(stream.schema.message)))
    except (pa.ArrowException, OSError) as error:
        raise ArrowError(f"the schema of a stream of envelopes cannot be decoded: {error}") from error


def _batches(read: Read, stream: StreamOutline, spans: Spans) -> list[pa.RecordBatch]:
    brought = [*read_messages(read, stream.dictionaries), *read_messages(read, spans)]
    laid = b"".join([stream.schema.message, *brought, END_OF_STREAM])
    try:
        return list(pa.ipc.open_stream(laid))
    except (pa.ArrowException, OSError) as error:
        raise ArrowError(f"envelopes cannot be decoded: {error}") from error
