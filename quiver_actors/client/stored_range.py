"""A range of stored bundles: an iterator over them, and their rows as one Arrow stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

from quiver_actors.base.conform import conform
from quiver_actors.base.model import ENVELOPE_SLOT
from quiver_actors.base.widening import widen
from quiver_actors.client.bundle import StoredBundle
from quiver_actors.errors import InvalidBundle


class StoredRange(Iterator[StoredBundle]):
    """The bundles of a range in their order, each mapped when the iterator comes to it.

    Polars, DuckDB, pandas and others take it as a table (`__arrow_c_stream__`): all rows of the range from its start, whatever the iterator
    has given out, in the one schema to which all its bundles conform. It is read twice then: for the schema, and for the rows.
    """

    def __init__(self, bundles: Callable[[], Iterator[StoredBundle]]) -> None:
        self._bundles = bundles
        self._rest = bundles()

    def __next__(self) -> StoredBundle:
        return next(self._rest)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The rows of the only slot that the bundles have.

        Raises:
            InvalidBundle: they have several: ask for one, `read(..., slots=[...])`.
            SchemaConflict: their schemas have no common one.
            And as reading the bundles.
        """
        schema = self._schema()
        batches = (conform(batch, schema) for _, batch in _batches(self._bundles()))
        return pa.RecordBatchReader.from_batches(schema, batches).__arrow_c_stream__(requested_schema)

    def _schema(self) -> pa.Schema:
        held_by: dict[pa.Schema, str] = {}
        slot_ids: set[int] = set()
        for bundle, batch in _batches(self._bundles()):
            held_by.setdefault(
                batch.schema, f"bundle {bundle.bundle_id.bundle_index} of segment {bundle.bundle_id.segment_seq}"
            )
            slot_ids.update(bundle.slot_ids)
        slot_ids.discard(ENVELOPE_SLOT)
        if len(slot_ids) > 1:
            raise InvalidBundle(f"the bundles have the slots {sorted(slot_ids)}: ask for one, read(..., slots=[slot])")
        return widen(held_by, list(held_by.values()))


def _batches(bundles: Iterator[StoredBundle]) -> Iterator[tuple[StoredBundle, pa.RecordBatch]]:
    """The bundles that have a slot, with its batch."""
    for bundle in bundles:
        if any(slot_id != ENVELOPE_SLOT for slot_id in bundle.slot_ids):
            yield bundle, bundle.batch
