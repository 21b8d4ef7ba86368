"""Bundles as they travel between a remote client and a node: one row for each, with its batches as Arrow IPC streams.

Neither side copies a batch more than once: all streams of a message lie in one buffer, and what is read of it points into that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from quiver_actors.base.model import SLOTS_MAX
from quiver_actors.errors import FormatError, InvalidBundle, ProtocolError
from quiver_actors.store.segment.bodies import is_compressed

FRAMES = pa.schema(
    [
        pa.field("facts", pa.binary(), nullable=False),
        pa.field("slots", pa.binary(), nullable=False),
        pa.field("streams", pa.list_(pa.large_binary()), nullable=False),
    ]
)
"""Facts in msgpack, a byte for each slot id, and a stream for each slot."""

T = TypeVar("T")


class Frame(NamedTuple):
    """One bundle, or something else that came in its place and has no batches."""

    facts: Any
    """A struct of `remote_contract`."""
    batches: Mapping[int, pa.RecordBatch]


def framed(frames: Iterable[Frame]) -> pa.RecordBatch:
    """Encode frames as one batch of the schema `FRAMES`."""
    sink, ends, first_of = pa.BufferOutputStream(), [0], [0]
    facts, slots = [], []
    for frame in frames:
        facts.append(msgspec.msgpack.encode(frame.facts))
        slots.append(bytes(frame.batches))
        for batch in frame.batches.values():
            with pa.ipc.new_stream(sink, batch.schema) as stream:
                stream.write_batch(batch)
            ends.append(sink.tell())
        first_of.append(len(ends) - 1)
    offsets = pa.py_buffer(np.array(ends, np.int64))
    streams = pa.Array.from_buffers(pa.large_binary(), len(ends) - 1, [None, offsets, sink.getvalue()])
    lists = pa.ListArray.from_arrays(pa.array(first_of, pa.int32()), streams)
    columns = [pa.array(facts, pa.binary()), pa.array(slots, pa.binary()), lists]
    return pa.RecordBatch.from_arrays(columns, schema=FRAMES)


def unframed(batch: pa.RecordBatch, kind: type[T] | Any) -> Iterator[Frame]:
    """Decode what `framed` made; nothing that the peer sent is believed.

    Args:
        kind: type of the facts.

    Raises:
        ProtocolError: it is something else.
        InvalidBundle: a batch is not what Arrow allows.
    """
    if batch.schema != FRAMES:
        raise ProtocolError(f"bundles came with the columns {batch.schema.names[:8]}: expected {FRAMES.names}")
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid as error:
        raise ProtocolError(f"the message with the bundles is damaged: {error}") from error
    for facts, slots, streams in zip(*(batch.column(name) for name in FRAMES.names), strict=True):
        yield _frame(facts, slots, streams, kind)


def _frame(facts: pa.Scalar, slots: pa.Scalar, streams: pa.Scalar, kind: Any) -> Frame:
    if not (facts.is_valid and slots.is_valid and streams.is_valid):
        raise ProtocolError("a bundle came without facts or batches")
    ids, values = slots.as_py(), streams.values
    if len(ids) != len(values) or len(set(ids)) != len(ids) or any(slot_id >= SLOTS_MAX for slot_id in ids):
        raise ProtocolError(f"{len(values)} batches came for the slots {list(ids)[:SLOTS_MAX]}")
    try:
        decoded = msgspec.msgpack.decode(facts.as_buffer(), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtocolError(f"the facts of a bundle cannot be read: {error}") from error
    return Frame(decoded, {slot_id: _batch(slot_id, each) for slot_id, each in zip(ids, values, strict=True)})


def _batch(slot_id: int, stream: pa.Scalar) -> pa.RecordBatch:
    if not stream.is_valid:
        raise ProtocolError(f"nothing came for slot {slot_id}")
    payload = stream.as_buffer()
    try:
        if is_compressed(payload):
            raise InvalidBundle(
                f"slot {slot_id}: its batch came compressed, and nothing bounds what it becomes: send it uncompressed, as the client of "
                "this version does"
            )
        with pa.ipc.open_stream(payload) as reader:
            (batch,) = reader
        batch.validate(full=True)
    except (FormatError, pa.ArrowException, ValueError, OSError, EOFError) as error:
        raise InvalidBundle(f"slot {slot_id}: it is not one Arrow batch: {error}") from error
    return batch
