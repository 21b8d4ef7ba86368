"""The keys of idempotent producers in a sealed segment: read from the envelopes of its bundles, where `quiver.producers` is lost.

Reads only the envelopes, once the whole file's checksum was found right: a key that is not there must not be believed, or its bundle
would be taken for a duplicate. Memory: the envelopes of `_BATCHES_AT_ONCE` bundles.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import numpy as np
import pyarrow as pa

from quiver_actors.errors import ArrowError
from quiver_actors.model import ENVELOPE_SLOT
from quiver_actors.segment.arrow_ipc import END_OF_STREAM
from quiver_actors.segment.check import run_to_end, verify_steps
from quiver_actors.segment.outline import Outline, Read, Spans, StreamOutline, read_messages, read_outline
from quiver_actors.transactions.keys import KeyRun, carries_keys, key_in

_BATCHES_AT_ONCE = 1024


def keys_in_segment(read: Read, size_bytes: int, segment_seq: int) -> list[tuple[str, KeyRun]]:
    """(producer, place) of each bundle that has a key, in the order of the bundles.

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


def _keys_in_stream(read: Read, outline: Outline, stream_id: int) -> Iterator[tuple[int, str, int]]:
    """(bundle index, producer, number)."""
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
