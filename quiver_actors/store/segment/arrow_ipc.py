"""Arrow IPC framing without decoding: where the messages of a stream are, and what their metadata says.

Pure functions over bytes. Payloads are encoded once, by the producer; everything behind that works on message spans, because
decoding and encoding a batch again costs 9-14 us whatever its size and walking its stream about 4.

    encapsulated message      u32 0xFFFFFFFF | u32 metadata length | flatbuffer `Message`, padded to 8 | body, padded to 8
    end of stream             u32 0xFFFFFFFF | u32 0

Invariants:
- Every read is checked: bytes that end early raise Truncated, anything else that is not Arrow IPC raises ArrowError.
- Messages are multiples of 8 bytes long; that is what Arrow demands of the blocks of a file (`arrow_file`).

Source: Apache Arrow `format/Message.fbs`, `format/Schema.fbs`.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from quiver_actors.errors import ArrowError, Truncated
from quiver_actors.store.segment.flatbuffers import I16, I64, U8, U16, U32, field_at, integer_in, target_of, vtable_of

if TYPE_CHECKING:
    from typing_extensions import Buffer

END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"

DICTIONARIES_MAX = 10_000
"""The most dictionaries of one payload or stream; bounds also what a hostile schema can make us walk."""

CONTINUATION = 0xFFFFFFFF
_SCHEMA, DICTIONARY_BATCH, RECORD_BATCH = 1, 2, 3
METADATA_V4, _METADATA_V5 = 3, 4
_NESTING_MAX = 64

_PREFIX = struct.Struct("<II").unpack_from
_MESSAGE_VTABLE = struct.Struct("<6H").unpack_from

# Prefix and root offset; `Message`: its vtable (version, header type, header, body length), distance to it, header, body length,
# version, header type, padding; `DictionaryBatch`: its vtable (id, data), padding, distance to it, data, id. Each vtable right before
# its table: polars does not find one that stands before the table which refers to its own.
_DICTIONARY_HEAD = struct.Struct("<III6HiIqhBx4H4xiIq")
_DICTIONARY_MESSAGE, _DICTIONARY_VTABLE, _DICTIONARY_TABLE = 16, 36, 48
_DICTIONARY_FLATBUFFER_BYTES = _DICTIONARY_HEAD.size - 8


class DictionarySpan(NamedTuple):
    """One dictionary message of a stream; `offset` from the stream's start."""

    id: int
    is_delta: bool
    offset: int
    metadata_bytes: int
    body_bytes: int


class BatchSpan(NamedTuple):
    """The record batch message of a stream; `offset` from the stream's start."""

    offset: int
    metadata_bytes: int
    body_bytes: int


class StreamLayout(NamedTuple):
    """Where the messages of one payload are. All offsets are relative to the payload's start."""

    schema_length: int
    """The schema message is `[0, schema_length)`."""
    dictionaries: tuple[DictionarySpan, ...]
    batch: BatchSpan
    row_count: int
    end: int
    """One past the end-of-stream mark; what follows in the payload is padding."""


class MessageSpan(NamedTuple):
    """One message of a stream or file; `offset` from where reading begins."""

    is_batch: bool
    """Whether it is a record batch; else it is a schema or a dictionary."""
    offset: int
    metadata_bytes: int
    body_bytes: int
    row_count: int
    """The number of rows, if it is a record batch."""


class Message(NamedTuple):
    """Properties of a message from its metadata."""

    kind: int
    metadata_bytes: int
    body_bytes: int
    flatbuffer: memoryview
    version: int
    header: int
    """Position in the flatbuffer of the table that `kind` names."""


def walk_stream(memory: Buffer, start: int, end: int) -> StreamLayout:
    """Find the messages of the Arrow IPC stream at `memory[start:end]`.

    The stream holds a schema, dictionaries, exactly one record batch and the end-of-stream mark; bytes behind it are ignored.

    Raises:
        Truncated: the stream goes on behind `end`.
        ArrowError: it is no such stream.
    """
    view = memoryview(memory)
    if not 0 <= start <= end <= view.nbytes:
        raise Truncated(f"Arrow stream at [{start}, {end}) lies outside its {view.nbytes} bytes")
    stream = view[start:end]
    try:
        return _walk(stream)
    except struct.error as error:
        raise ArrowError(f"Arrow stream at offset {start} has a broken flatbuffer: {error}") from error


def _walk(stream: memoryview) -> StreamLayout:
    schema = _require_message(stream, 0)
    if schema.kind != _SCHEMA or schema.body_bytes:
        raise ArrowError(f"Arrow stream starts with message kind {schema.kind}: expected a schema")
    dictionaries: list[DictionarySpan] = []
    at = schema.metadata_bytes
    message = _require_message(stream, at)
    while message.kind == DICTIONARY_BATCH and len(dictionaries) < DICTIONARIES_MAX:
        dictionary_id, is_delta = _dictionary_header(message)
        dictionaries.append(DictionarySpan(dictionary_id, is_delta, at, message.metadata_bytes, message.body_bytes))
        at += message.metadata_bytes + message.body_bytes
        message = _require_message(stream, at)
    if message.kind != RECORD_BATCH:
        raise ArrowError(
            f"Arrow message at offset {at} has kind {message.kind}: expected the stream's one record batch"
        )
    row_count = integer_in(message.flatbuffer, message.header, 0)
    batch = BatchSpan(at, message.metadata_bytes, message.body_bytes)
    at += message.metadata_bytes + message.body_bytes
    if read_message(stream, at) is not None:
        raise ArrowError(f"Arrow stream goes on at offset {at}: expected its end behind the first record batch")
    if row_count < 0:
        raise ArrowError(f"Arrow record batch claims {row_count} rows")
    return StreamLayout(schema.metadata_bytes, tuple(dictionaries), batch, row_count, at + 8)


def walk_messages(read: Callable[[int, int], bytes], start: int, end: int) -> Iterator[MessageSpan]:
    """The messages that stand one behind the other from `start` up to an end mark, by reading their heads alone.

    Raises:
        Truncated, ArrowError: what stands behind the last one found is no message that ends before `end`.
    """
    at = start
    while True:
        length = int.from_bytes(read(8, at)[4:], "little")
        if at + 8 + length > end:
            raise Truncated(f"Arrow message at offset {at} has {length} bytes of metadata: its stream ends at {end}")
        head = memoryview(read(8 + length, at))
        try:
            message = read_message(head, 0, body_room=end - at)
            rows = integer_in(message.flatbuffer, message.header, 0) if message else 0
        except struct.error as error:
            raise ArrowError(f"Arrow message at offset {at} has a broken flatbuffer: {error}") from error
        if message is None:
            return
        yield MessageSpan(message.kind == RECORD_BATCH, at, message.metadata_bytes, message.body_bytes, rows)
        at += message.metadata_bytes + message.body_bytes


def _require_message(stream: memoryview, at: int) -> Message:
    message = read_message(stream, at)
    if message is None:
        raise ArrowError(f"Arrow stream ends at offset {at}: expected a schema, dictionaries and one record batch")
    return message


def read_message(stream: memoryview, at: int, *, body_room: int | None = None) -> Message | None:
    """The message at `at`, or None for the end-of-stream mark.

    Args:
        body_room: bytes from `at` on that there are; None: what `stream` holds.
    """
    room = stream.nbytes - at - 8
    if room < 0:
        raise Truncated(f"Arrow stream ends at {stream.nbytes}: expected a message or the end mark at offset {at}")
    continuation, length = _PREFIX(stream, at)
    if continuation != CONTINUATION:
        raise ArrowError(f"no Arrow message at offset {at}: expected 0xffffffff, found {continuation:#010x}")
    if length == 0:
        return None
    if length > room:
        raise Truncated(f"Arrow message at offset {at} has {length} bytes of metadata: {room} are left")
    flatbuffer = stream[at + 8 : at + 8 + length]
    version, kind, header, body_bytes = _message_fields(flatbuffer)
    if body_room is not None:
        room = body_room - 8
    if not 0 <= body_bytes <= room - length:
        raise Truncated(f"Arrow message at offset {at} has a body of {body_bytes} bytes: {room - length} are left")
    if (length | body_bytes) & 7:
        raise ArrowError(f"Arrow message at offset {at} is {length} + {body_bytes} bytes: expected multiples of 8")
    return Message(kind, 8 + length, body_bytes, flatbuffer, version, header)


def batch_layout(message: Buffer) -> tuple[list[int], int, int] | None:
    """Which bytes of a record-batch message say where its row count and body length stand, and what kind of message it is.

    Another message of the same length that has the same bytes in those places has its row count and body length in the same places too.

    Args:
        message: its metadata is enough.

    Returns:
        Those places, rising, then that of the row count and that of the body length, both i64; None where either is left out (0).

    Raises:
        Truncated, ArrowError: it is no record-batch message.
    """
    view = memoryview(message)
    try:
        found = read_message(view, 0, body_room=1 << 62)
        if found is None or found.kind != RECORD_BATCH:
            raise ArrowError("expected a record-batch message")
        flatbuffer, header = found.flatbuffer, found.header
        table = U32(flatbuffer, 0)[0]
        body_at, kind_at = field_at(flatbuffer, table, 3), field_at(flatbuffer, table, 1)
        header_at, version_at = field_at(flatbuffer, table, 2), field_at(flatbuffer, table, 0)
        rows_at = field_at(flatbuffer, header, 0)
        vtables = [(at, U16(flatbuffer, at)[0]) for at in (vtable_of(flatbuffer, table), vtable_of(flatbuffer, header))]
    except struct.error as error:
        raise ArrowError(f"Arrow record batch has a broken flatbuffer: {error}") from error
    if not (body_at and rows_at):
        return None
    read = [(0, 4), (table, 4), (header, 4), (version_at, 2), (kind_at, 1), (header_at, 4), *vtables]
    places = {8 + at for start, size in read for at in range(start, start + size)}
    return sorted(places | set(range(8))), 8 + rows_at, 8 + body_at


def _message_fields(flatbuffer: memoryview) -> tuple[int, int, int, int]:
    """version, header type, header position and body length of a flatbuffer `Message`."""
    table = U32(flatbuffer, 0)[0]
    vtable = vtable_of(flatbuffer, table)
    size = U16(flatbuffer, vtable)[0]
    if size >= 12:
        _, _, version_at, kind_at, header_at, body_at = _MESSAGE_VTABLE(flatbuffer, vtable)
    else:
        # Trailing fields that have their default value are left out: a schema message has no body length.
        slots = [U16(flatbuffer, vtable + at)[0] if at < size else 0 for at in (4, 6, 8, 10)]
        version_at, kind_at, header_at, body_at = slots
    if not (version_at and kind_at and header_at):
        raise ArrowError("Arrow message lacks its version, kind or header")
    version = I16(flatbuffer, table + version_at)[0]
    if version not in (METADATA_V4, _METADATA_V5):
        raise ArrowError(f"Arrow message has metadata version {version}: expected V4 or V5")
    header = table + header_at
    header += U32(flatbuffer, header)[0]
    body_bytes = I64(flatbuffer, table + body_at)[0] if body_at else 0
    return version, U8(flatbuffer, table + kind_at)[0], header, body_bytes


def _dictionary_header(message: Message) -> tuple[int, bool]:
    flatbuffer, table = message.flatbuffer, message.header
    delta_at = field_at(flatbuffer, table, 2)
    is_delta = bool(delta_at and U8(flatbuffer, delta_at)[0])
    return integer_in(flatbuffer, table, 0), is_delta


# --- schemas -------------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1024)
def dictionary_ids(schema_message: bytes) -> tuple[int, ...]:
    """The ids of all dictionaries that batches of a schema refer to, nested ones included, in the order of its fields.

    Raises:
        Truncated, ArrowError: the bytes are no schema message.
    """
    message = schema_in(schema_message)
    ids: dict[int, None] = {}
    try:
        _collect_dictionary_ids(message.flatbuffer, target_of(message.flatbuffer, message.header, 1), ids, 0)
    except struct.error as error:
        raise ArrowError(f"Arrow schema has a broken flatbuffer: {error}") from error
    return tuple(ids)


def _collect_dictionary_ids(flatbuffer: memoryview, fields: int, ids: dict[int, None], depth: int) -> None:
    if depth > _NESTING_MAX:
        raise ArrowError(f"Arrow schema nests deeper than {_NESTING_MAX} levels")
    if not fields:
        return
    for index in range(U32(flatbuffer, fields)[0]):
        at = fields + 4 + 4 * index
        field = at + U32(flatbuffer, at)[0]
        encoding = target_of(flatbuffer, field, 4)
        if encoding:
            ids[integer_in(flatbuffer, encoding, 0)] = None
        _collect_dictionary_ids(flatbuffer, target_of(flatbuffer, field, 5), ids, depth + 1)


def schema_in(schema_message: bytes) -> Message:
    """The one message that the bytes are.

    Raises:
        Truncated, ArrowError: they are no schema message.
    """
    try:
        message = read_message(memoryview(schema_message), 0)
    except struct.error as error:
        raise ArrowError(f"Arrow schema has a broken flatbuffer: {error}") from error
    if message is None or message.kind != _SCHEMA or message.metadata_bytes != len(schema_message):
        raise ArrowError(f"{len(schema_message)} bytes are not one Arrow schema message")
    return message


# --- dictionaries ---------------------------------------------------------------------------------------------------------


def encode_dictionary(dictionary_id: int, values: Buffer) -> bytes:
    """A dictionary message.

    Args:
        values: the record batch message of a batch whose one column is the dictionary's values.
    """
    batch = _require_message(memoryview(values), 0)
    flatbuffer_bytes = _DICTIONARY_FLATBUFFER_BYTES + batch.flatbuffer.nbytes
    message, table = _DICTIONARY_MESSAGE, _DICTIONARY_TABLE
    head = _DICTIONARY_HEAD.pack(
        *(CONTINUATION, flatbuffer_bytes, message),
        *(12, 20, 16, 18, 4, 8),
        *(message - 4, table - message - 4, batch.body_bytes, batch.version, DICTIONARY_BATCH),
        *(8, 16, 8, 4),
        *(table - _DICTIONARY_VTABLE, _DICTIONARY_FLATBUFFER_BYTES + batch.header - table - 4, dictionary_id),
    )
    return b"".join((head, batch.flatbuffer, memoryview(values)[batch.metadata_bytes :]))
