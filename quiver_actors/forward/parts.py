"""The rows that become one Parquet file: which bundles they come from, in which schema, and how they are written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from quiver_actors.base.conform import conform
from quiver_actors.client.delivery import Delivery
from quiver_actors.errors import UnsupportedType
from quiver_actors.forward.bundle_files import RUNS_KEY, BundleIndex, Origin, Place, encode_runs, runs_of

ROW_GROUP_ROWS = 1 << 20


class Part(NamedTuple):
    """Rows that one bundle adds to one file. All parts of a file have one schema when they are written."""

    delivery: Delivery
    place: Place
    batch: pa.RecordBatch


def conformed(parts: Iterable[Part], schema: pa.Schema) -> tuple[list[Part], list[Part]]:
    """Return the parts with their rows in `schema`, and apart from them, as they came, those with a value that does not fit it."""
    fitting, others = [], []
    for part in parts:
        try:
            fitting.append(part._replace(batch=conform(part.batch, schema)))
        except UnsupportedType:
            others.append(part)
    return fitting, others


def missing_parts(index: BundleIndex, origin: Origin, parts: Iterable[Part]) -> dict[Place, Part]:
    """Return the parts, each bundle once and in the order of their places, that no file of `index` holds.

    Raises:
        InvalidFormat, OSError, ArchiveError: a file that may hold one of them cannot be read.
    """
    by_place = {part.place: part for part in parts}
    return {place: part for place, part in sorted(by_place.items()) if not index.holds(origin, place)}


def write_parquet(sink: Any, parts: Mapping[Place, Part], compression: str) -> None:
    """Write one Parquet file to a path or an Arrow stream, with the runs of its bundles in the metadata.

    Raises:
        pa.ArrowException, OSError: it cannot be written.
    """
    table = pa.Table.from_batches([part.batch for part in parts.values()])
    table = table.replace_schema_metadata({**(table.schema.metadata or {}), RUNS_KEY: encode_runs(runs_of(parts))})
    pq.write_table(table, sink, compression=compression, row_group_size=ROW_GROUP_ROWS)


def verify(parts: Iterable[Part]) -> None:
    """Prove that the bundles are still what was stored: they point into segment files, and have waited.

    Raises:
        ChecksumMismatch: one is not.
    """
    for part in parts:
        part.delivery.verify()


def row_count(parts: Mapping[Place, Part]) -> int:
    """The rows of all parts together."""
    return sum(part.batch.num_rows for part in parts.values())


def by_schema(parts: Sequence[Part]) -> list[tuple[pa.Schema, list[Part]]]:
    """Return the parts of each exact schema."""
    found: dict[pa.Schema, list[Part]] = {}
    for part in parts:
        found.setdefault(part.batch.schema, []).append(part)
    return list(found.items())
