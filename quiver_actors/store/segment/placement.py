"""The place of a bundle's payload in a segment, and the check that its dictionaries fit the stream.

Source: docs/formats.md section 6.2, "Dictionaries that grow".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from quiver_actors.errors import ArrowError
from quiver_actors.store.segment.arrow_ipc import dictionary_ids, walk_stream
from quiver_actors.store.segment.dictionaries import DictionaryPlacement

if TYPE_CHECKING:
    from typing_extensions import Buffer


def check_dictionaries(
    schema: StreamSchema, placements: Sequence[DictionaryPlacement]
) -> Sequence[DictionaryPlacement]:
    """The dictionaries that a payload's batch refers to: a later one of the same id replaces an earlier one, a delta adds to it.

    Raises:
        ArrowError: they are not those that the schema names.
    """
    current: dict[int, list[DictionaryPlacement]] = {}
    for placement in placements:
        if not placement.is_delta:
            current[placement.id] = [placement]
        elif placement.id in current:
            current[placement.id].append(placement)
        else:
            raise ArrowError(f"slot {schema.slot_id} has a dictionary delta for id {placement.id} without a dictionary")
    expected = schema.dictionary_ids
    if current.keys() != set(expected):
        raise ArrowError(
            f"slot {schema.slot_id} has dictionaries {sorted(current)}: its schema names {sorted(expected)}"
        )
    if len(placements) == len(current):
        return placements
    return [placement for same_id in current.values() for placement in same_id]


def place_payload(
    memory: Buffer, start: int, end: int, *, file_offset: int, slot_id: int, fingerprint: bytes
) -> SlotPlacement:
    """Find out what `append` needs from the payload `memory[start:end]`, which stands at `file_offset` of the file.

    Recovery calls this; producers send the same numbers along with their bundles. Dictionary messages are borrowed from `memory`.

    Raises:
        Truncated, ArrowError: the payload is no Arrow stream of one record batch.
    """
    view = memoryview(memory)
    layout = walk_stream(view, start, end)
    dictionaries = tuple(
        DictionaryPlacement(
            span.id,
            span.is_delta,
            file_offset + span.offset,
            span.metadata_bytes,
            span.body_bytes,
            view[start + span.offset : start + span.offset + span.metadata_bytes + span.body_bytes],
        )
        for span in layout.dictionaries
    )
    schema = StreamSchema(slot_id, fingerprint, bytes(view[start : start + layout.schema_length]))
    batch = layout.batch
    return schema, layout.row_count, file_offset + batch.offset, batch.metadata_bytes, batch.body_bytes, dictionaries


class StreamSchema(NamedTuple):
    """The slot and the schema that a payload is encoded with. Equal by value; hashing costs 0.1 us because bytes remember their hash."""

    slot_id: int
    fingerprint: bytes
    message: bytes
    """The whole encapsulated schema message, as at the start of every payload."""

    @property
    def dictionary_ids(self) -> tuple[int, ...]:
        """Ids of the dictionaries that a payload must bring along (ArrowError if the message is no schema)."""
        return dictionary_ids(self.message)

    @property
    def has_dictionaries(self) -> bool:
        """Whether payloads bring dictionaries along."""
        return bool(dictionary_ids(self.message))


SlotPlacement = tuple[StreamSchema, int, int, int, int, tuple[DictionaryPlacement, ...]]
"""Schema, rows, then file offset, metadata bytes and body bytes of the record batch message, then the dictionaries."""
