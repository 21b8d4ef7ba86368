"""The origin of a dead letter, as columns in the envelope of the bundle, slot 63.

A dead letter is the bundle as it was, with these columns behind those that its envelope had. Every row says the same. So a dead letter
can be turned back into the very bundle (`restored`), and two of them for one bundle, which a crash can leave behind, can be recognised.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from quiver_actors.base.model import ENVELOPE_SLOT

PREFIX = "dead_letter."
REASON = "max_deliveries"

COLUMNS = pa.schema(
    [
        pa.field("dead_letter.topic", pa.string(), nullable=False),
        pa.field("dead_letter.core", pa.uint32(), nullable=False),
        pa.field("dead_letter.segment_seq", pa.uint64(), nullable=False),
        pa.field("dead_letter.bundle_index", pa.uint32(), nullable=False),
        pa.field("dead_letter.subscriber", pa.string(), nullable=False),
        pa.field("dead_letter.delivery_count", pa.uint32(), nullable=False),
        pa.field("dead_letter.reason", pa.string(), nullable=False),
        pa.field("dead_letter.ingestion_ts_nanos", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class Origin:
    """The bundle that a dead letter is made of, and who could not take it."""

    topic: str
    core: int
    segment_seq: int
    bundle_index: int
    subscriber: str
    delivery_count: int
    reason: str = REASON
    ingestion_ts_nanos: int | None = None


def envelope_of(origin: Origin, present: pa.RecordBatch | None) -> pa.RecordBatch:
    """The envelope of a dead letter.

    Args:
        present: the envelope that the bundle had. Its columns stay in front, and its rows stay; one without rows has nothing to keep.
    """
    kept = None if present is None or not present.num_rows else _without(present)
    row_count = kept.num_rows if kept is not None else 1
    values = (getattr(origin, field.name.removeprefix(PREFIX)) for field in COLUMNS)
    columns = [pa.array([value] * row_count, field.type) for value, field in zip(values, COLUMNS, strict=True)]
    if kept is None or not kept.num_columns:
        return pa.record_batch(columns, schema=COLUMNS)
    return pa.record_batch([*kept.columns, *columns], schema=pa.schema([*kept.schema, *COLUMNS], kept.schema.metadata))


def origin_of(slots: Mapping[int, pa.RecordBatch]) -> Origin | None:
    """The origin of a bundle, if the bundle is a dead letter; else None."""
    envelope = slots.get(ENVELOPE_SLOT)
    if envelope is None or not envelope.num_rows:
        return None
    indexes = [envelope.schema.get_field_index(field.name) for field in COLUMNS]
    if -1 in indexes or any(
        envelope.schema.field(i).type != field.type for i, field in zip(indexes, COLUMNS, strict=True)
    ):
        return None
    row = [envelope.column(index)[0].as_py() for index in indexes]
    return None if None in row[:-1] else Origin(*row)


def restored(slots: Mapping[int, pa.RecordBatch]) -> dict[int, pa.RecordBatch]:
    """The bundle that a dead letter was made of."""
    found = dict(slots)
    envelope = _without(found.pop(ENVELOPE_SLOT))
    if envelope.num_columns:
        found[ENVELOPE_SLOT] = envelope
    return found


def _without(envelope: pa.RecordBatch) -> pa.RecordBatch:
    """An envelope without the columns of a dead letter."""
    return envelope.select([i for i, name in enumerate(envelope.schema.names) if not name.startswith(PREFIX)])
