"""The part of an Arrow IPC file that a stream lacks: the footer, which says where the messages are.

    file      `ARROW1`, padded to 8 | stream | footer
    footer    flatbuffer `Footer` | i32 its length | `ARROW1`

Offsets inside a flatbuffer are relative, so a schema message's whole flatbuffer is copied behind a `Footer` table written
here by hand, whose `schema` field points at the `Schema` table inside that copy.

Source: Apache Arrow `format/File.fbs`.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from quiver_actors.errors import ArrowError, Truncated
from quiver_actors.store.segment.arrow_ipc import CONTINUATION, schema_in
from quiver_actors.store.segment.flatbuffers import U32, target_of
from quiver_actors.store.segment.layout import Part

if TYPE_CHECKING:
    from typing_extensions import Buffer

ARROW_MAGIC = b"ARROW1"
FILE_START = b"ARROW1\0\0"

BLOCK = struct.Struct("<qiiq")
"""One flatbuffer `Block`: offset from the file's start, metadata length with its 8-byte prefix, padding, body length."""

# root offset, vtable (its size, table size, then version, schema, dictionaries, recordBatches), table (distance to the vtable,
# version, schema, dictionaries, recordBatches), count of dictionary blocks. The blocks follow at 40, a multiple of 8.
_FOOTER_HEAD = struct.Struct("<I6Hih2xIIII")
_FOOTER_TABLE, _FOOTER_SCHEMA, _FOOTER_DICTIONARIES, _FOOTER_BATCHES = 16, 24, 28, 32
_COUNT_BEHIND_PADDING = struct.Struct("<4xI")
_FOOTER_END = struct.Struct("<i6s")


class FooterCounts(NamedTuple):
    """How many blocks the footer of an Arrow file lists."""

    dictionaries: int
    batches: int


class FileFooter(NamedTuple):
    """The contents of an Arrow file's footer."""

    schema_message: bytes | None
    """The whole schema message, where the footer was written by `encode_footer`; None in others."""
    dictionary_blocks: bytes
    """Packed `BLOCK`s, as `batch_blocks`; offsets from the start of the file, not checked."""
    batch_blocks: bytes


class _FooterSchema(NamedTuple):
    version: int
    flatbuffer: bytes
    table: int


@functools.lru_cache(maxsize=1024)
def _footer_schema(schema_message: bytes) -> _FooterSchema:
    message = schema_in(schema_message)
    return _FooterSchema(message.version, bytes(message.flatbuffer), message.header)


def encode_footer(schema_message: bytes, dictionary_blocks: Part, batch_blocks: Part) -> list[Part]:
    """The end of an Arrow IPC file: footer, its length, and the magic; in parts, because the blocks of small batches are megabytes.

    Args:
        schema_message: the whole encapsulated schema message, as at the start of a stream.
        dictionary_blocks: packed `BLOCK`s, in the order in which a reader is to load them.
        batch_blocks: packed `BLOCK`s. All block offsets are from the start of the file, multiples of 8.
    """
    schema = _footer_schema(schema_message)
    batches_at = _FOOTER_HEAD.size + len(dictionary_blocks) + 4
    schema_at = batches_at + 4 + len(batch_blocks)
    head = _FOOTER_HEAD.pack(
        _FOOTER_TABLE,
        *(12, 20, 4, _FOOTER_SCHEMA - 16, _FOOTER_DICTIONARIES - 16, _FOOTER_BATCHES - 16),
        *(_FOOTER_TABLE - 4, schema.version),
        schema_at + schema.table - _FOOTER_SCHEMA,
        _FOOTER_HEAD.size - 4 - _FOOTER_DICTIONARIES,
        batches_at - _FOOTER_BATCHES,
        len(dictionary_blocks) // BLOCK.size,
    )
    count = _COUNT_BEHIND_PADDING.pack(len(batch_blocks) // BLOCK.size)
    footer: list[Part] = [head, dictionary_blocks, count, batch_blocks, schema.flatbuffer]
    return [*footer, _FOOTER_END.pack(sum(map(len, footer)), ARROW_MAGIC)]


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
        table = U32(footer, 0)[0]
        vectors = [target_of(footer, table, index) for index in (2, 3)]
        counts = [U32(footer, at)[0] if at else 0 for at in vectors]
    except struct.error as error:
        raise ArrowError(f"Arrow file that ends at offset {end} has a broken footer: {error}") from error
    return FooterCounts(*counts)


def read_file_footer(read: Callable[[int, int], bytes], start: int, end: int) -> FileFooter:
    """The footer of the Arrow IPC file at `[start, end)` of what `read(length, offset)` reads; nothing else of it is read.

    Raises:
        Truncated, ArrowError: there is no footer where the file ends.
    """
    if end - start < 2 * len(FILE_START) + _FOOTER_END.size:
        raise Truncated(f"Arrow file at [{start}, {end}) is too short for an Arrow file")
    tail = read(_FOOTER_END.size, end - _FOOTER_END.size)
    length, magic = _FOOTER_END.unpack(tail) if len(tail) == _FOOTER_END.size else (0, b"")
    room = end - start - _FOOTER_END.size - len(FILE_START)
    if magic != ARROW_MAGIC or not 0 < length <= room:
        raise ArrowError(f"Arrow file that ends at offset {end} has no footer (magic {magic!r}, length {length})")
    footer = memoryview(read(length, end - _FOOTER_END.size - length))
    try:
        table = U32(footer, 0)[0]
        schema = target_of(footer, table, 1)
        (dictionaries, _), (batches, behind) = (_block_vector(footer, table, index) for index in (2, 3))
        message = _schema_message_at(footer, behind, schema)
    except struct.error as error:
        raise ArrowError(f"Arrow file that ends at offset {end} has a broken footer: {error}") from error
    return FileFooter(message, dictionaries, batches)


def _block_vector(footer: memoryview, table: int, index: int) -> tuple[bytes, int]:
    """The blocks of a footer's field, and the position behind them."""
    at = target_of(footer, table, index)
    if not at:
        return b"", 0
    first = at + 4
    end = first + U32(footer, at)[0] * BLOCK.size
    if end > footer.nbytes:
        raise ArrowError(f"Arrow footer of {footer.nbytes} bytes lists blocks up to {end}")
    return bytes(footer[first:end]), end


def _schema_message_at(footer: memoryview, at: int, schema: int) -> bytes | None:
    """The schema message that `encode_footer` puts behind the blocks, if it is the one that the footer's field points into."""
    flatbuffer = footer[at:]
    if not at or flatbuffer.nbytes < _FOOTER_TABLE or flatbuffer.nbytes & 7:
        return None
    message = struct.pack("<II", CONTINUATION, flatbuffer.nbytes) + bytes(flatbuffer)
    try:
        found = schema_in(message)
    except (ArrowError, Truncated):
        return None
    return message if at + found.header == schema else None
