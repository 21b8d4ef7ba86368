"""Checks the payload of another user's producer before it is logged: it must be Arrow that cannot hurt a reader. Pure.

A producer of the worker's own user can spoil only what is its own anyway; one of another user could hand a subscriber offsets that
point outside its buffers, bodies that swell when they are decompressed, or types whose construction runs code. Each payload is
therefore decoded once and checked in full, and some things that are good Arrow are not let in at all:

- compressed bodies: what they become is not bounded by what was sent;
- extension types, also unregistered ones: a reader would look for code by a name that the producer chose;
- schemas of more than `FIELDS_MAX` fields, or nested deeper than `store.segment.arrow_ipc` walks.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping

import pyarrow as pa

from quiver_actors.base.protocol.messages import ENTRY_ROW, SLOT_ROW, Push
from quiver_actors.errors import ArrowError, FormatError, ProtocolError
from quiver_actors.store.segment.arrow_ipc import dictionary_ids
from quiver_actors.store.segment.bodies import is_compressed
from quiver_actors.store.segment.placement import StreamSchema
from quiver_actors.store.wal.admission import check_push

FIELDS_MAX = 4096
"""The most fields that one schema may have, nested ones included."""
_EXTENSION_NAME = b"ARROW:extension:name"


def check_foreign_push(span: memoryview, push: Push, schemas: Mapping[int, StreamSchema]) -> None:
    """Check a push of another user's producer before it is staged: all that `check_push` does, then every payload in full.

    Args:
        span: private copy of the arena bytes.
        schemas: what the connection declared, by handle.

    Raises:
        ProtocolError: it is not to be let in; says where and why.
    """
    check_push(span, 0, push, schemas)
    start = 0
    slot_rows = SLOT_ROW.iter_unpack(push.slots)
    for entry_bytes, _, _, _, _, slot_count, _ in ENTRY_ROW.iter_unpack(push.entries):
        for handle, offset, payload_bytes, row_count, *_ in itertools.islice(slot_rows, slot_count):
            payload = span[start + offset : start + offset + payload_bytes]
            try:
                check_payload(payload, schemas[handle].message, row_count)
            except ArrowError as error:
                slot_id = schemas[handle].slot_id
                raise ProtocolError(f"push {push.tag}, slot {slot_id} at byte {start} of the span: {error}") from error
        start += entry_bytes


def check_payload(payload: memoryview, schema_message: bytes, row_count: int) -> None:
    """Decode and check everything in a payload: one Arrow IPC stream of one record batch.

    Args:
        payload: private memory, padding behind the stream included.
        schema_message: what was declared, and stands at the payload's start.
        row_count: what the producer says the batch has.

    Raises:
        ArrowError: it is not to be let in; says why.
    """
    check_schema(schema_message)
    try:
        compressed = is_compressed(payload)
    except FormatError as error:
        raise ArrowError(f"the payload is not a stream of one record batch: {error}") from error
    if compressed:
        raise ArrowError("a body is compressed: send it uncompressed")
    try:
        batch = _only_batch(payload)
        batch.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, NotImplementedError, OverflowError) as error:
        raise ArrowError(f"the payload is not valid Arrow: {_first_line(error)}") from error
    if batch.num_rows != row_count:
        raise ArrowError(f"the record batch has {batch.num_rows} rows: its row says {row_count}")


@functools.lru_cache(maxsize=1024)
def check_schema(schema_message: bytes) -> None:
    """Check a schema alone, as it is declared.

    Raises:
        ArrowError: it is not to be let in.
    """
    try:
        # Walked by hand first: that bounds how deep pyarrow descends.
        dictionary_ids(schema_message)
        schema = pa.ipc.read_schema(pa.py_buffer(schema_message))
    except (FormatError, pa.ArrowException, OSError, ValueError, KeyError, TypeError, NotImplementedError) as error:
        raise ArrowError(f"the schema is not valid Arrow: {_first_line(error)}") from error
    for index, field in enumerate(_all_fields(schema)):
        if index >= FIELDS_MAX:
            raise ArrowError(f"the schema has more than {FIELDS_MAX} fields")
        if isinstance(field.type, pa.BaseExtensionType) or _EXTENSION_NAME in (field.metadata or {}):
            raise ArrowError(f"field {field.name!r} has an extension type: other users may push plain Arrow types only")


def _only_batch(payload: memoryview) -> pa.RecordBatch:
    with pa.ipc.open_stream(pa.py_buffer(payload)) as reader:
        return reader.read_next_batch()


def _all_fields(schema: pa.Schema) -> Iterator[pa.Field]:
    waiting = list(schema)
    while waiting:
        field = waiting.pop()
        yield field
        waiting.extend(_children(field.type))


def _children(kind: pa.DataType) -> Iterator[pa.Field]:
    if isinstance(kind, pa.DictionaryType):
        yield pa.field("values", kind.value_type)
    else:
        yield from (kind.field(index) for index in range(kind.num_fields))


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
