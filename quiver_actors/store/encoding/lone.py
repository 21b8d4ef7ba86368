"""The entry of a bundle that travels alone: one batch in one slot, small, and without dictionaries.

The same bytes as `entries.plan` and `entries.write` make, in a tenth of the calls (docs/performance.md): what does not depend on the batch
is kept with its stream, Arrow encodes the batch in one call, and one CRC goes over the slot.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

from quiver_actors.base.checksum import crc32
from quiver_actors.store.encoding.entries import CRC_BYTES, ENTRY_HEAD_BYTES, MESSAGE_PREFIX_BYTES
from quiver_actors.store.encoding.streams import END_OF_STREAM, EncodedStream, StreamTable
from quiver_actors.store.wal.layout import SLOT_HEAD

LONE_BYTES_MAX = 64 << 10
"""The largest entry that travels alone: with more bytes the calls no longer count."""

_BUFFERS_BYTES_MAX = LONE_BYTES_MAX - (4 << 10)
_ITEMS_MAX = (1 << 63) - 1
_ENTRY_HEAD = bytes(ENTRY_HEAD_BYTES)
_TAILS = tuple(END_OF_STREAM + bytes(padding + CRC_BYTES) for padding in range(64))
_metadata_length = struct.Struct("<4xI").unpack_from
_pack_head = SLOT_HEAD.pack


class LoneEntry(NamedTuple):
    """An unfinished log entry (`entries`) of one slot, and what a worker is told of it."""

    entry: bytearray
    stream: EncodedStream
    crc: int
    """CRC of the slot."""
    row_count: int
    metadata_bytes: int
    """Metadata bytes of the record-batch message, its prefix included."""
    body_bytes: int
    padding_bytes: int
    """Zeroes between the end of stream and the CRC field."""
    item_count: int
    """-1: unknown."""


# Without the constructor's Python code.
_new_entry: Callable[[tuple[object, ...]], LoneEntry] = partial(tuple.__new__, LoneEntry)


def lone_entry(batch: Any, slot_id: int | None, streams: StreamTable, item_count: int | None) -> LoneEntry | None:
    """Encode a bundle that is one batch alone; None: it has to go the general way, which also says what is wrong with it.

    Args:
        slot_id: of a batch that comes without its slot; None: there is none.
    """
    if type(batch) is not pa.RecordBatch or slot_id is None or batch.get_total_buffer_size() > _BUFFERS_BYTES_MAX:
        return None
    items = -1 if item_count is None else item_count
    if type(items) is not int or not -1 <= items <= _ITEMS_MAX or (items < 0 and item_count is not None):
        return None
    stream = streams.stream(slot_id, batch.schema)
    if stream.has_dictionaries:
        return None
    try:
        buffer = batch.serialize()
    except pa.ArrowException:
        return None
    size, rows = buffer.size, batch.num_rows
    stream_bytes = stream.frame_bytes + size
    padding = (53 - stream_bytes) & 63
    head = _pack_head(slot_id, stream.fingerprint, rows, stream_bytes + padding)
    entry = bytearray().join((_ENTRY_HEAD, head, stream.message, buffer, _TAILS[padding]))
    if len(entry) > LONE_BYTES_MAX:
        return None
    metadata_bytes = MESSAGE_PREFIX_BYTES + _metadata_length(buffer)[0]
    crc = crc32(memoryview(entry)[ENTRY_HEAD_BYTES:-CRC_BYTES])
    return _new_entry((entry, stream, crc, rows, metadata_bytes, size - metadata_bytes, padding, items))
