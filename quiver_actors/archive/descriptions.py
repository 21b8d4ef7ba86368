"""The description of a segment's contents in the manifest: its schemas, rows, and the bounds of its columns and event times.

It is derived from the segment when that is uploaded. A reader leaves out by it what cannot match, without a request to the store. What
cannot be described is recorded without a description, and is always read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from typing import NamedTuple

import msgspec
import pyarrow as pa
from pyarrow import types

from quiver_actors.archive.manifest import Segment
from quiver_actors.base.protocol.messages import SegmentColumns, StatisticsList
from quiver_actors.client.statistics import StreamStatistics, statistics_in
from quiver_actors.query.event_times import unit_ns_of
from quiver_actors.store.files.summaries import StoredSchemas
from quiver_actors.store.jobs.statistics import compute_statistics


class Wanted(NamedTuple):
    """The part of the segments of a topic that is described.

    Args:
        bounded: the columns that get bounds; None: the first ones of each schema.
        event_time: the column of event times; empty: there is none.
    """

    bounded: Collection[str] | None = None
    event_time: str = ""


class Described(NamedTuple):
    """A segment with its description, and the schemas that it names by their fingerprints."""

    segment: Segment
    schemas: Mapping[str, bytes] = {}


def describe(segment: Segment, view: memoryview, wanted: Wanted) -> Described:
    """Describe a segment.

    Args:
        view: the whole file, which was found to have its checksum.
    """
    streams, statistics = compute_statistics(view, wanted.bounded)
    if not streams:
        return Described(segment)
    fingerprints = [fingerprint_of(schema.message) for schema, _ in streams]
    first, last = _event_span(streams, statistics, wanted.event_time)
    return Described(
        msgspec.structs.replace(
            segment,
            schema_fingerprints=tuple(fingerprints),
            streams=tuple((schema.slot_id, rows) for schema, rows in streams),
            statistics=statistics or None,
            first_event_unix_ns=first,
            last_event_unix_ns=last,
        ),
        {fingerprint: schema.message for fingerprint, (schema, _) in zip(fingerprints, streams, strict=True)},
    )


def fingerprint_of(message: bytes) -> str:
    """The fingerprint of an encapsulated Arrow schema message."""
    return hashlib.blake2b(message, digest_size=16).hexdigest()


# --- event times ---------------------------------------------------------------------------------------------------------


def _event_span(streams: StoredSchemas, statistics: bytes, column: str) -> tuple[int | None, int | None]:
    """The smallest and the largest event time, UNIX nanoseconds; None: they are not known, or there is none."""
    if not column or not statistics:
        return None, None
    schemas = [(schema.slot_id, schema.message) for schema, _ in streams]
    rows = [(number, count) for number, (_, count) in enumerate(streams)]
    found = statistics_in(StatisticsList(0, schemas, [SegmentColumns(0, rows, statistics)]))[0]
    spans = [_span_of(each, column) for each in found.streams if column in each.schema.names]
    if not spans or any(span is None for span in spans):
        return None, None
    known = [span for span in spans if span is not None]
    return min(low for low, _ in known), max(high for _, high in known)


def _span_of(stream: StreamStatistics, column: str) -> tuple[int, int] | None:
    known = None if stream.columns is None else stream.columns.get(column)
    if known is None or known.smallest is None or known.largest is None:
        return None
    unit_ns = unit_ns_of(known.smallest.type)
    if unit_ns is None:
        return None
    low, high = (each.cast(_integers(each.type)).as_py() * unit_ns for each in (known.smallest, known.largest))
    return low, high + unit_ns - 1


def _integers(kind: pa.DataType) -> pa.DataType:
    return pa.int32() if types.is_date32(kind) else pa.int64()
