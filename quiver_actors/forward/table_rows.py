"""Which bundles may be committed to a lake table next, and their rows in its types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import pyarrow as pa

from quiver_actors.base.model import BundleId
from quiver_actors.client.delivery import Delivery
from quiver_actors.errors import FormatError, UnsupportedType
from quiver_actors.forward.bundle_files import Origin, Place
from quiver_actors.forward.deliverer import Source
from quiver_actors.forward.lake import LakeTable, OutOfOrder
from quiver_actors.forward.table_types import evolved, storable, stored_rows

Errors = dict[int, Exception]
"""What has become of deliveries, by object identity."""


class OrderedSource(Source, Protocol):
    """The part of a `Subscription` that tells whether something older is still owed."""

    @property
    def subscriber(self) -> str:
        """Name of the durable subscriber."""

    @property
    def order(self) -> str:
        """The order of its bundles."""

    def pending_in_range(self, start: BundleId, end: BundleId, timeout: float = 10.0) -> int:
        """Unresolved bundles from `start` up to and not including `end`, both of one core."""


class Row(NamedTuple):
    """One bundle that waits for its commit."""

    delivery: Delivery
    origin: Origin
    place: Place
    batch: pa.RecordBatch | None
    """None: the bundle has nothing for this table."""


def committable(
    rows: Iterable[Row], positions: Mapping[Origin, Place], source: OrderedSource, errors: Errors
) -> list[Row]:
    """Return the rows that are not in the table yet, each bundle once and oldest first, as far as nothing older is owed to the subscriber.

    The others get OutOfOrder. Raises WorkerUnavailable.
    """
    found: list[Row] = []
    by_origin: dict[Origin, dict[Place, Row]] = {}
    for row in rows:
        position = positions.get(row.origin)
        if id(row.delivery) not in errors and (position is None or row.place > position):
            by_origin.setdefault(row.origin, {})[row.place] = row
    for origin, those in by_origin.items():
        ordered = [those[place] for place in sorted(those)]
        count = _count_in_order(ordered, positions.get(origin), source)
        found += ordered[:count]
        for row in ordered[count:]:
            errors[id(row.delivery)] = OutOfOrder(
                f"bundle {row.delivery.bundle_id} waits: an older one is owed to subscriber {source.subscriber!r} and not here. "
                "A table takes one consumer, oldest first"
            )
    return found


def _count_in_order(ordered: Sequence[Row], position: Place | None, source: OrderedSource) -> int:
    """How many of the rows, from the first on, have no unresolved bundle before them that is not among them."""
    expected = (0, 0) if position is None else _after(position)
    for number, row in enumerate(ordered):
        if row.place != expected and source.pending_in_range(_id(row.origin, expected), _id(row.origin, row.place)):
            return number
        expected = _after(row.place)
    return len(ordered)


def _after(place: Place) -> Place:
    return place[0], place[1] + 1


def _id(origin: Origin, place: Place) -> BundleId:
    return BundleId(origin.topic, origin.core, *place)


def common_schema(rows: Iterable[Row], schema: pa.Schema | None, table: LakeTable, errors: Errors) -> pa.Schema | None:
    """Return the schema that the table needs for these rows; None where none has columns. Rows that it cannot take get SchemaConflict
    or UnsupportedType.
    """
    known: dict[pa.Schema, UnsupportedType | None] = {}
    for row in rows:
        if row.batch is None:
            continue
        if row.batch.schema not in known:
            known[row.batch.schema] = None
            stored = storable(row.batch.schema, has_times=table.has_times)
            try:
                before = pa.schema([]) if schema is None else schema
                schema = evolved(before, stored, has_times=table.has_times, promotes=table.promotes)
            except UnsupportedType as conflict:
                known[row.batch.schema] = conflict
        error = known[row.batch.schema]
        if error is not None:
            errors[id(row.delivery)] = error
    return schema


def copied(rows: Sequence[Row], schema: pa.Schema, errors: Errors) -> pa.Table:
    """Return the rows in the table's schema, in memory of their own, proven to be what was stored.

    A row that does not fit, or whose bundle is damaged, gets its error; then what is returned is not to be used.
    """
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for row in rows:
            if row.batch is not None:
                try:
                    writer.write_batch(stored_rows(row.batch, schema))
                except UnsupportedType as error:
                    errors[id(row.delivery)] = error
    # They point into segment files and have waited; the copy is what was stored only if it still is.
    for row in rows:
        try:
            row.delivery.verify()
        except FormatError as error:
            errors[id(row.delivery)] = error
    return pa.ipc.open_stream(sink.getvalue()).read_all()
