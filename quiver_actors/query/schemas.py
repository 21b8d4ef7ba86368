"""The schema that all rows of a dataset conform to: of sealed segments from their summaries, or, where these say nothing, from their stream
directories; of open logs from their bundles. So a segment that a condition leaves out is not opened for its schema."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyarrow import types

from quiver_actors.base.model import ENVELOPE_SLOT
from quiver_actors.base.widening import ambiguous_columns, nullable_type, plain_type, unambiguous, widen
from quiver_actors.errors import FormatError, UsageError
from quiver_actors.query.rows import Rows
from quiver_actors.query.snapshot import Snapshot, SnapshotPart, names_of
from quiver_actors.store.wal.entry_reader import EntryReader

_NOT_FILTERED = (
    types.is_string_view,
    types.is_binary_view,
    types.is_list_view,
    types.is_large_list_view,
    types.is_run_end_encoded,
)


def chosen_slot(snapshot: Snapshot, slot: str | int | None) -> int:
    """The id of a slot, by default of the only one that the topic declares or, if it declares none, has stored.

    Raises:
        UnknownSlot: the topic has no such slot.
        UsageError: there are several.
    """
    if slot is not None:
        return snapshot.slots.resolve(slot)
    ids = slots_of(snapshot)
    if len(ids) > 1:
        raise UsageError(
            f"topic {snapshot.topic!r} has the slots {', '.join(names_of(snapshot.slots, ids))}: choose one"
        )
    return ids[0] if ids else 0


def stored_schema(rows: Rows) -> pa.Schema:
    """Return the one schema that holds all bundles of the rows' slot, and tell the rows which columns cannot be told apart, and where.

    Such a column has a type only where other bundles have it once; a scan that reads it raises.

    Raises:
        SchemaConflict: two bundles have types of one column that no type holds; names their segments.
        ChecksumMismatch, FormatError: a segment without a summary has a damaged table of contents, and damage is not skipped.
    """
    holders: dict[bytes, SnapshotPart] = {}
    ambiguous: dict[bytes, list[str]] = {}
    # Segments share the objects of their schemas, which are quicker told apart than schemas are compared.
    seen: dict[int, bytes] = {}
    for part in rows.snapshot.parts:
        for message in _messages_of(part, rows, seen):
            if message not in holders:
                holders[message] = part
                ambiguous[message] = ambiguous_columns(pa.ipc.read_schema(pa.py_buffer(message)))
            if ambiguous[message]:
                rows.cannot_tell_apart(ambiguous[message], part)
    schemas = [unambiguous(pa.ipc.read_schema(pa.py_buffer(message))) for message in holders]
    widest = widen(schemas, [str(part) for part in holders.values()])
    # An engine that counts rows reads the first column.
    fields = sorted(widest, key=lambda field: field.name in rows.ambiguous)
    return filterable(pa.schema(fields, widest.metadata))


def _messages_of(part: SnapshotPart, rows: Rows, seen: dict[int, bytes]) -> Iterator[bytes]:
    """The schemas of one part, as messages. `seen`: the messages of schema objects."""
    for stream in part.statistics or ():
        if stream.slot_id == rows.slot_id:
            message = seen.get(id(stream.schema))
            if message is None:
                message = seen[id(stream.schema)] = bytes(stream.schema.serialize())
            yield message
    if part.statistics is None:
        try:
            yield from _messages_in(part, rows)
        except FormatError as error:
            rows.pass_over(error, part)


def filterable(schema: pa.Schema) -> pa.Schema:
    """The schema in which a dataset shows rows that conform to a stored one."""
    return pa.schema([each.with_type(_filterable(each.type)) for each in schema], schema.metadata)


def _filterable(kind: pa.DataType) -> pa.DataType:
    """The type of the same values that Arrow can filter: it has no kernel for views and run-ends (pyarrow 26)."""
    return nullable_type(plain_type(kind)) if _has_view(kind) else kind


def _has_view(kind: pa.DataType) -> bool:
    if any(is_kind(kind) for is_kind in _NOT_FILTERED):
        return True
    if isinstance(kind, pa.BaseExtensionType):
        return _has_view(kind.storage_type)
    if types.is_dictionary(kind):
        return _has_view(kind.value_type)
    return any(_has_view(kind.field(number).type) for number in range(kind.num_fields))


def _messages_in(part: SnapshotPart, rows: Rows) -> Iterator[bytes]:
    reader = part.bundles.reader
    if not isinstance(reader, EntryReader):
        for stream in reader.streams:
            if stream.slot_id == rows.slot_id:
                yield bytes(reader.schema(stream.stream_id).serialize())
        return
    for index in range(part.first, part.end):
        try:
            reader.check(index)
            message = reader.schema_messages(index).get(rows.slot_id)
        except FormatError as error:
            rows.pass_over(error, part)
            continue
        if message is not None:
            yield bytes(pa.ipc.read_schema(pa.py_buffer(message)).serialize())


def slots_of(snapshot: Snapshot) -> list[int]:
    """The ids of the slots that the topic declares or, if it declares none, has stored."""
    if snapshot.slots.declared:
        return sorted(snapshot.slots.declared.values())
    found: set[int] = set()
    for part in snapshot.parts:
        if part.statistics is not None:
            found.update(stream.slot_id for stream in part.statistics)
            continue
        reader = part.bundles.reader
        if not isinstance(reader, EntryReader):
            found.update(stream.slot_id for stream in reader.streams)
        else:
            for index in range(part.first, part.end):
                found.update(reader.slot_ids(index))
    return sorted(found - {ENVELOPE_SLOT})
