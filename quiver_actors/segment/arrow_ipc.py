"""Arrow IPC framing without decoding: where the messages of a stream are, and the footer of a file that points at them.

Pure functions over bytes. Payloads are encoded once, by the producer; everything behind that works on message spans, because
decoding and encoding a batch again costs 9-14 us whatever its size and walking its stream about 4.

    encapsulated message      u32 0xFFFFFFFF | u32 metadata length | flatbuffer `Message`, padded to 8 | body, padded to 8
    end of stream             u32 0xFFFFFFFF | u32 0
    end of a file             flatbuffer `Footer` | i32 its length | `ARROW1`

Offsets inside a flatbuffer are relative, so a schema message's whole flatbuffer is copied behind a `Footer` table written
here by hand, whose `schema` field points at the `Schema` table inside that copy.

Invariants:
- Every read is checked: bytes that end early raise Truncated, anything else that is not Arrow IPC raises ArrowError.
- Messages are multiples of 8 bytes long; that is what Arrow demands of the blocks of a file.

Source: Apache Arrow `format/Message.fbs`, `format/File.fbs`, `format/Schema.fbs`.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from quiver_actors.errors import ArrowError, Truncated

if TYPE_CHECKING:
    from typing_extensions import Buffer

ARROW_MAGIC = b"ARROW1"
FILE_START = b"ARROW1\0\0"
END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"

BLOCK = struct.Struct("<qiiq")
"""One flatbuffer `Block`: offset from the file's start, metadata length with its 8-byte prefix, padding, body length."""

DICTIONARIES_MAX = 10_000
"""Of one payload or stream; also bounds what a hostile schema can make us walk."""

_CONTINUATION = 0xFFFFFFFF
_SCHEMA, _DICTIONARY_BATCH, _RECORD_BATCH = 1, 2, 3
_METADATA_V4, _METADATA_V5 = 3, 4
_NESTING_MAX = 64

_U8 = struct.Struct("<B").unpack_from
_U16 = struct.Struct("<H").unpack_from
_I16 = struct.Struct("<h").unpack_from
_U32 = struct.Struct("<I").unpack_from
_I32 = struct.Struct("<i").unpack_from
_I64 = struct.Struct("<q").unpack_from
_PREFIX = struct.Struct("<II").unpack_from
_MESSAGE_VTABLE = struct.Struct("<6H").unpack_from

# root offset, vtable (its size, table size, then version, schema, dictionaries, recordBatches), table (distance to the vtable,
# version, schema, dictionaries, recordBatches), count of dictionary blocks. The blocks follow at 40, a multiple of 8.
_FOOTER_HEAD = struct.Struct("<I6Hih2xIIII")
_FOOTER_TABLE, _FOOTER_SCHEMA, _FOOTER_DICTIONARIES, _FOOTER_BATCHES = 16, 24, 28, 32
_COUNT_BEHIND_PADDING = struct.Struct("<4xI")
_FOOTER_END = struct.Struct("<i6s")

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
    """A record batch; else a schema or a dictionary."""
    offset: int
    metadata_bytes: int
    body_bytes: int
    row_count: int
    """Of a record batch."""


class FooterCounts(NamedTuple):
    """How many blocks the footer of an Arrow file lists."""

    dictionaries: int
    batches: int


class FileFooter(NamedTuple):
    """What the footer of an Arrow file says."""

    schema_message: bytes | None
    """The whole schema message, where the footer was written by `encode_footer`; None in others."""
    dictionary_blocks: bytes
    """Packed `BLOCK`s, as `batch_blocks`; offsets from the start of the file, not checked."""
    batch_blocks: bytes


class _Message(NamedTuple):
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
    while message.kind == _DICTIONARY_BATCH and len(dictionaries) < DICTIONARIES_MAX:
        dictionary_id, is_delta = _dictionary_header(message)
        dictionaries.append(DictionarySpan(dictionary_id, is_delta, at, message.metadata_bytes, message.body_bytes))
        at += message.metadata_bytes + message.body_bytes
        message = _require_message(stream, at)
    if message.kind != _RECORD_BATCH:
        raise ArrowError(
            f"Arrow message at offset {at} has kind {message.kind}: expected the stream's one record batch"
        )
    row_count = _integer(message.flatbuffer, message.header, 0)
    batch = BatchSpan(at, message.metadata_bytes, message.body_bytes)
    at += message.metadata_bytes + message.body_bytes
    if _read_message(stream, at) is not None:
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
            message = _read_message(head, 0, body_room=end - at)
            rows = _integer(message.flatbuffer, message.header, 0) if message else 0
        except struct.error as error:
            raise ArrowError(f"Arrow message at offset {at} has a broken flatbuffer: {error}") from error
        if message is None:
            return
        yield MessageSpan(message.kind == _RECORD_BATCH, at, message.metadata_bytes, message.body_bytes, rows)
        at += message.metadata_bytes + message.body_bytes


def _require_message(stream: memoryview, at: int) -> _Message:
    message = _read_message(stream, at)
    if message is None:
        raise ArrowError(f"Arrow stream ends at offset {at}: expected a schema, dictionaries and one record batch")
    return message


def _read_message(stream: memoryview, at: int, *, body_room: int | None = None) -> _Message | None:
    """The message at `at`, or None for the end-of-stream mark.

    Args:
        body_room: bytes from `at` on that there are; None: what `stream` holds.
    """
    room = stream.nbytes - at - 8
    if room < 0:
        raise Truncated(f"Arrow stream ends at {stream.nbytes}: expected a message or the end mark at offset {at}")
    continuation, length = _PREFIX(stream, at)
    if continuation != _CONTINUATION:
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
    return _Message(kind, 8 + length, body_bytes, flatbuffer, version, header)


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
        found = _read_message(view, 0, body_room=1 << 62)
        if found is None or found.kind != _RECORD_BATCH:
            raise ArrowError("expected a record-batch message")
        flatbuffer, header = found.flatbuffer, found.header
        table = _U32(flatbuffer, 0)[0]
        body_at, kind_at = _field(flatbuffer, table, 3), _field(flatbuffer, table, 1)
        header_at, version_at = _field(flatbuffer, table, 2), _field(flatbuffer, table, 0)
        rows_at = _field(flatbuffer, header, 0)
        vtables = [(at, _U16(flatbuffer, at)[0]) for at in (_vtable(flatbuffer, table), _vtable(flatbuffer, header))]
    except struct.error as error:
        raise ArrowError(f"Arrow record batch has a broken flatbuffer: {error}") from error
    if not (body_at and rows_at):
        return None
    read = [(0, 4), (table, 4), (header, 4), (version_at, 2), (kind_at, 1), (header_at, 4), *vtables]
    places = {8 + at for start, size in read for at in range(start, start + size)}
    return sorted(places | set(range(8))), 8 + rows_at, 8 + body_at


def _message_fields(flatbuffer: memoryview) -> tuple[int, int, int, int]:
    """version, header type, header position and body length of a flatbuffer `Message`."""
    table = _U32(flatbuffer, 0)[0]
    vtable = _vtable(flatbuffer, table)
    size = _U16(flatbuffer, vtable)[0]
    if size >= 12:
        _, _, version_at, kind_at, header_at, body_at = _MESSAGE_VTABLE(flatbuffer, vtable)
    else:
        # Trailing fields that have their default value are left out: a schema message has no body length.
        slots = [_U16(flatbuffer, vtable + at)[0] if at < size else 0 for at in (4, 6, 8, 10)]
        version_at, kind_at, header_at, body_at = slots
    if not (version_at and kind_at and header_at):
        raise ArrowError("Arrow message lacks its version, kind or header")
    version = _I16(flatbuffer, table + version_at)[0]
    if version not in (_METADATA_V4, _METADATA_V5):
        raise ArrowError(f"Arrow message has metadata version {version}: expected V4 or V5")
    header = table + header_at
    header += _U32(flatbuffer, header)[0]
    body_bytes = _I64(flatbuffer, table + body_at)[0] if body_at else 0
    return version, _U8(flatbuffer, table + kind_at)[0], header, body_bytes


def _dictionary_header(message: _Message) -> tuple[int, bool]:
    flatbuffer, table = message.flatbuffer, message.header
    delta_at = _field(flatbuffer, table, 2)
    is_delta = bool(delta_at and _U8(flatbuffer, delta_at)[0])
    return _integer(flatbuffer, table, 0), is_delta


def _vtable(flatbuffer: memoryview, table: int) -> int:
    vtable = table - int(_I32(flatbuffer, table)[0])
    if vtable < 0:
        raise ArrowError("Arrow message has a flatbuffer table that points before its start")
    return vtable


def _field(flatbuffer: memoryview, table: int, index: int) -> int:
    """Position of a table's field, 0 if it is absent."""
    vtable = _vtable(flatbuffer, table)
    slot = 4 + 2 * index
    if slot >= _U16(flatbuffer, vtable)[0]:
        return 0
    offset = int(_U16(flatbuffer, vtable + slot)[0])
    return table + offset if offset else 0


def _integer(flatbuffer: memoryview, table: int, index: int) -> int:
    """An i64 field, which flatbuffers leave out when it is 0."""
    at = _field(flatbuffer, table, index)
    return int(_I64(flatbuffer, at)[0]) if at else 0


def _target(flatbuffer: memoryview, table: int, index: int) -> int:
    """Position of the table or vector that a field refers to, 0 if it is absent."""
    at = _field(flatbuffer, table, index)
    return at + int(_U32(flatbuffer, at)[0]) if at else 0


def has_compressed_body(batch: Buffer) -> bool:
    """Whether the buffers of a record batch or dictionary message are compressed; its metadata is enough.

    Raises:
        Truncated, ArrowError: it is no such message.
    """
    view = memoryview(batch)
    try:
        message = _read_message(view, 0, body_room=1 << 62)
        if message is None or message.kind not in (_RECORD_BATCH, _DICTIONARY_BATCH):
            raise ArrowError("expected a record batch or dictionary message")
        data = message.header
        if message.kind == _DICTIONARY_BATCH:
            data = _target(message.flatbuffer, message.header, 1)
        return bool(data and _target(message.flatbuffer, data, 3))
    except struct.error as error:
        raise ArrowError(f"Arrow record batch has a broken flatbuffer: {error}") from error


# --- schemas -------------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1024)
def dictionary_ids(schema_message: bytes) -> tuple[int, ...]:
    """The ids of all dictionaries that batches of a schema refer to, nested ones included, in the order of its fields.

    Raises:
        Truncated, ArrowError: the bytes are no schema message.
    """
    message = _schema(schema_message)
    ids: dict[int, None] = {}
    try:
        _collect_dictionary_ids(message.flatbuffer, _target(message.flatbuffer, message.header, 1), ids, 0)
    except struct.error as error:
        raise ArrowError(f"Arrow schema has a broken flatbuffer: {error}") from error
    return tuple(ids)


def _collect_dictionary_ids(flatbuffer: memoryview, fields: int, ids: dict[int, None], depth: int) -> None:
    if depth > _NESTING_MAX:
        raise ArrowError(f"Arrow schema nests deeper than {_NESTING_MAX} levels")
    if not fields:
        return
    for index in range(_U32(flatbuffer, fields)[0]):
        at = fields + 4 + 4 * index
        field = at + _U32(flatbuffer, at)[0]
        encoding = _target(flatbuffer, field, 4)
        if encoding:
            ids[_integer(flatbuffer, encoding, 0)] = None
        _collect_dictionary_ids(flatbuffer, _target(flatbuffer, field, 5), ids, depth + 1)


def _schema(schema_message: bytes) -> _Message:
    try:
        message = _read_message(memoryview(schema_message), 0)
    except struct.error as error:
        raise ArrowError(f"Arrow schema has a broken flatbuffer: {error}") from error
    if message is None or message.kind != _SCHEMA or message.metadata_bytes != len(schema_message):
        raise ArrowError(f"{len(schema_message)} bytes are not one Arrow schema message")
    return message


# --- the footer of a file --------------------------------------------------------------------------------------------------


class _FooterSchema(NamedTuple):
    version: int
    flatbuffer: bytes
    table: int


@functools.lru_cache(maxsize=1024)
def _footer_schema(schema_message: bytes) -> _FooterSchema:
    message = _schema(schema_message)
    return _FooterSchema(message.version, bytes(message.flatbuffer), message.header)


def encode_footer(schema_message: bytes, dictionary_blocks: Buffer, batch_blocks: Buffer) -> bytes:
    """The end of an Arrow IPC file: footer, its length, and the magic.

    Args:
        schema_message: the whole encapsulated schema message, as at the start of a stream.
        dictionary_blocks: packed `BLOCK`s, in the order in which a reader is to load them.
        batch_blocks: packed `BLOCK`s. All block offsets are from the start of the file, multiples of 8.
    """
    schema = _footer_schema(schema_message)
    dictionaries, batches = bytes(dictionary_blocks), bytes(batch_blocks)
    batches_at = _FOOTER_HEAD.size + len(dictionaries) + 4
    schema_at = batches_at + 4 + len(batches)
    head = _FOOTER_HEAD.pack(
        _FOOTER_TABLE,
        *(12, 20, 4, _FOOTER_SCHEMA - 16, _FOOTER_DICTIONARIES - 16, _FOOTER_BATCHES - 16),
        *(_FOOTER_TABLE - 4, schema.version),
        schema_at + schema.table - _FOOTER_SCHEMA,
        _FOOTER_HEAD.size - 4 - _FOOTER_DICTIONARIES,
        batches_at - _FOOTER_BATCHES,
        len(dictionaries) // BLOCK.size,
    )
    count = _COUNT_BEHIND_PADDING.pack(len(batches) // BLOCK.size)
    footer = b"".join((head, dictionaries, count, batches, schema.flatbuffer))
    return footer + _FOOTER_END.pack(len(footer), ARROW_MAGIC)


def read_footer_counts(memory: Buffer, start: int, end: int) -> FooterCounts:
    """Count the blocks in the footer of the Arrow IPC file at `memory[start:end]`, before anything is allocated for them.

    Raises:
        Truncated, ArrowError: there is no footer where the file ends.
    """
    view = memoryview(memory)
    if not 0 <= start <= end <= view.nbytes or end - start < 2 * len(FILE_START) + _FOOTER_END.size:
        raise Truncated(f"Arrow file at [{start}, {end}) does not fit into {view.nbytes} bytes")
    length, magic = _FOOTER_END.unpack_from(view, end - _FOOTER_END.size)
    if magic != ARROW_MAGIC or not 0 < length <= end - start - _FOOTER_END.size - len(FILE_START):
        raise ArrowError(f"Arrow file that ends at offset {end} has no footer (magic {magic!r}, length {length})")
    footer_end = end - _FOOTER_END.size
    footer = view[footer_end - length : footer_end]
    try:
        table = _U32(footer, 0)[0]
        vectors = [_target(footer, table, index) for index in (2, 3)]
        counts = [_U32(footer, at)[0] if at else 0 for at in vectors]
    except struct.error as error:
        raise ArrowError(f"Arrow file that ends at offset {end} has a broken footer: {error}") from error
    return FooterCounts(*counts)


def read_file_footer(read: Callable[[int, int], bytes], start: int, end: int) -> FileFooter:
    """The footer of the Arrow IPC file at `[start, end)` of what `read(length, offset)` reads; nothing else of it is read.

    Raises:
        Truncated, ArrowError: there is no footer where the file ends.
    """
    if end - start < 2 * len(FILE_START) + _FOOTER_END.size:
        raise Truncated(f"Arrow file at [{start}, {end}) is too short to be one")
    tail = read(_FOOTER_END.size, end - _FOOTER_END.size)
    length, magic = _FOOTER_END.unpack(tail) if len(tail) == _FOOTER_END.size else (0, b"")
    room = end - start - _FOOTER_END.size - len(FILE_START)
    if magic != ARROW_MAGIC or not 0 < length <= room:
        raise ArrowError(f"Arrow file that ends at offset {end} has no footer (magic {magic!r}, length {length})")
    footer = memoryview(read(length, end - _FOOTER_END.size - length))
    try:
        table = _U32(footer, 0)[0]
        schema = _target(footer, table, 1)
        (dictionaries, _), (batches, behind) = (_block_vector(footer, table, index) for index in (2, 3))
        message = _schema_message_at(footer, behind, schema)
    except struct.error as error:
        raise ArrowError(f"Arrow file that ends at offset {end} has a broken footer: {error}") from error
    return FileFooter(message, dictionaries, batches)


def _block_vector(footer: memoryview, table: int, index: int) -> tuple[bytes, int]:
    """The blocks of a footer's field, and the position behind them."""
    at = _target(footer, table, index)
    if not at:
        return b"", 0
    first = at + 4
    end = first + _U32(footer, at)[0] * BLOCK.size
    if end > footer.nbytes:
        raise ArrowError(f"Arrow footer of {footer.nbytes} bytes lists blocks up to {end}")
    return bytes(footer[first:end]), end


def _schema_message_at(footer: memoryview, at: int, schema: int) -> bytes | None:
    """The schema message that `encode_footer` puts behind the blocks, if it is the one that the footer's field points into."""
    flatbuffer = footer[at:]
    if not at or flatbuffer.nbytes < _FOOTER_TABLE or flatbuffer.nbytes & 7:
        return None
    message = struct.pack("<II", _CONTINUATION, flatbuffer.nbytes) + bytes(flatbuffer)
    try:
        found = _schema(message)
    except (ArrowError, Truncated):
        return None
    return message if at + found.header == schema else None


def encode_dictionary(dictionary_id: int, values: Buffer) -> bytes:
    """A dictionary message.

    Args:
        values: the record batch message of a batch whose one column is the dictionary's values.
    """
    batch = _require_message(memoryview(values), 0)
    flatbuffer_bytes = _DICTIONARY_FLATBUFFER_BYTES + batch.flatbuffer.nbytes
    message, table = _DICTIONARY_MESSAGE, _DICTIONARY_TABLE
    head = _DICTIONARY_HEAD.pack(
        *(_CONTINUATION, flatbuffer_bytes, message),
        *(12, 20, 16, 18, 4, 8),
        *(message - 4, table - message - 4, batch.body_bytes, batch.version, _DICTIONARY_BATCH),
        *(8, 16, 8, 4),
        *(table - _DICTIONARY_VTABLE, _DICTIONARY_FLATBUFFER_BYTES + batch.header - table - 4, dictionary_id),
    )
    return b"".join((head, batch.flatbuffer, memoryview(values)[batch.metadata_bytes :]))
