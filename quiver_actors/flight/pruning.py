"""Which sealed segments certainly have none of the rows that a read wants, by their statistics: none of them is opened for that."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow.compute as pc

from quiver_actors.client.statistics import SegmentStatistics
from quiver_actors.flight.contract import WantedRows, schema_of
from quiver_actors.query.conditions import Term, expression_of
from quiver_actors.query.guarantees import matching, values_guarantee


def unmatched(known: Mapping[int, Mapping[int, SegmentStatistics]], wanted: WantedRows) -> dict[int, list[int]]:
    """Return the segments by core that have none of the wanted rows.

    Args:
        known: the statistics of a topic's sealed segments, by core and segment.

    Raises:
        UsageError: a column of the terms is not in the schema, or cannot be compared with its values.
    """
    schema = schema_of(wanted.schema)
    terms = [Term(each.column, each.kind, each.values) for each in wanted.terms]
    columns = {term.column for term in terms}
    guaranteed: dict[str, pc.Expression] = {
        f"{core}/{segment_seq}": values_guarantee(schema, columns, wanted.slot, found.streams)
        for core, segments in known.items()
        for segment_seq, found in segments.items()
    }
    left = matching(guaranteed, schema, expression_of(terms, schema))
    return {
        core: [segment_seq for segment_seq in sorted(segments) if f"{core}/{segment_seq}" not in left]
        for core, segments in known.items()
    }
