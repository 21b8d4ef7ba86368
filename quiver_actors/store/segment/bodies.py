"""What the metadata of a message says of its body, without decoding it: whether it is compressed, and where its buffers are.

Nothing bounds what a compressed body becomes: what others send is looked at here before Arrow decodes it.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from quiver_actors.errors import ArrowError
from quiver_actors.store.segment.arrow_ipc import (
    DICTIONARY_BATCH,
    METADATA_V4,
    RECORD_BATCH,
    Message,
    read_message,
    walk_stream,
)
from quiver_actors.store.segment.flatbuffers import U32, field_at, integer_in, target_of

if TYPE_CHECKING:
    from typing_extensions import Buffer

_PAIR = struct.Struct("<qq")


class BatchBuffers(NamedTuple):
    """What the metadata of a record batch says of its body."""

    metadata_bytes: int
    body_bytes: int
    row_count: int
    nodes: list[tuple[int, int]]
    """Rows and nulls of each column, nested ones included."""
    buffers: list[tuple[int, int]]
    """Offset from the start of the body, and size, of each buffer; not checked."""


def has_compressed_body(batch: Buffer) -> bool:
    """Whether the buffers of a record batch or dictionary message are compressed; its metadata is enough.

    Raises:
        Truncated, ArrowError: it is no such message.
    """
    view = memoryview(batch)
    try:
        message = read_message(view, 0, body_room=1 << 62)
        if message is None or message.kind not in (RECORD_BATCH, DICTIONARY_BATCH):
            raise ArrowError("expected a record batch or dictionary message")
        data = message.header
        if message.kind == DICTIONARY_BATCH:
            data = target_of(message.flatbuffer, message.header, 1)
        return bool(data and _says_compressed(message, data))
    except struct.error as error:
        raise ArrowError(f"Arrow record batch has a broken flatbuffer: {error}") from error


def is_compressed(payload: Buffer) -> bool:
    """Whether the batch of a payload, or one of its dictionaries, is compressed.

    Raises:
        Truncated, ArrowError: it is no stream of one batch.
    """
    view = memoryview(payload)
    layout = walk_stream(view, 0, view.nbytes)
    messages = [(span.offset, span.metadata_bytes) for span in layout.dictionaries]
    messages.append((layout.batch.offset, layout.batch.metadata_bytes))
    return any(has_compressed_body(view[offset : offset + size_bytes]) for offset, size_bytes in messages)


def batch_buffers(metadata: Buffer) -> BatchBuffers | None:
    """Return the places of the buffers of a record batch; None if they are compressed.

    Raises:
        Truncated, ArrowError: it is not the metadata of a record batch.
    """
    try:
        message = read_message(memoryview(metadata), 0, body_room=1 << 62)
        if message is None or message.kind != RECORD_BATCH:
            raise ArrowError("expected a record-batch message")
        flatbuffer, batch = message.flatbuffer, message.header
        if _says_compressed(message, batch):
            return None
        nodes, buffers = (_pairs(flatbuffer, target_of(flatbuffer, batch, field)) for field in (1, 2))
        row_count = integer_in(flatbuffer, batch, 0)
    except struct.error as error:
        raise ArrowError(f"Arrow record batch has a broken flatbuffer: {error}") from error
    return BatchBuffers(message.metadata_bytes, message.body_bytes, row_count, nodes, buffers)


def _pairs(flatbuffer: memoryview, vector: int) -> list[tuple[int, int]]:
    """A vector of structs of two i64; struct.error if it goes on behind the end."""
    size_bytes = U32(flatbuffer, vector)[0] * _PAIR.size if vector else 0
    pairs = flatbuffer[vector + 4 :][:size_bytes]
    if pairs.nbytes < size_bytes:
        raise struct.error(f"a vector of {size_bytes} bytes of which {pairs.nbytes} are there")
    return list(_PAIR.iter_unpack(pairs))


def _says_compressed(message: Message, batch: int) -> bool:
    """Whether bodies are compressed, as the batch says, or may be: Arrow 0.17 wrote metadata V4 and said it in metadata of the message.

    Arrow still decompresses such messages, so with V4 any metadata of a message counts.
    """
    flatbuffer = message.flatbuffer
    if target_of(flatbuffer, batch, 3):
        return True
    return message.version == METADATA_V4 and bool(field_at(flatbuffer, U32(flatbuffer, 0)[0], 4))
