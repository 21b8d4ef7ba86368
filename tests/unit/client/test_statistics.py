"""A segment is left out only where no row can have the value, whatever is known of it and however it is asked for."""

from __future__ import annotations

import datetime
import decimal
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import quiver_actors
from quiver_actors.base.model import OTAP_SLOTS
from quiver_actors.client.statistics import ColumnStatistics, SegmentStatistics, StreamStatistics
from quiver_actors.store.segment.statistics import ColumnSums, decode_statistics, encode_statistics


def of(*streams: pa.RecordBatch, slot_id: int = 0) -> SegmentStatistics:
    found = []
    for batch in streams:
        sums = ColumnSums(batch.schema)
        sums.add([batch])
        (columns,) = decode_statistics(encode_statistics([sums.packed()]), [batch.schema])
        found.append(StreamStatistics(slot_id, batch.schema, batch.num_rows, columns))
    return SegmentStatistics(tuple(found))


SEGMENT = of(
    pa.record_batch({"n": [1, 5], "t": ["b", "d"], "none": pa.nulls(2, pa.int8())}),
    pa.record_batch({"n": [10.5, None], "at": [datetime.datetime(2013, 1, 1), None]}),
)
CASES: list[tuple[str, Any, Any, bool]] = [
    ("n", 5, None, True),
    ("n", 11, None, False),
    ("n", None, 0, False),
    ("n", 6, 10, False),
    ("n", 6, 10.5, True),
    ("n", decimal.Decimal(11), None, False),
    ("n", "text", None, True),
    ("n", None, None, True),
    ("t", "e", None, False),
    ("t", "a", "c", True),
    ("t", pa.scalar("e"), None, False),
    ("none", None, None, False),
    ("missing", None, None, False),
    ("at", datetime.datetime(2014, 1, 1), None, False),
    ("at", datetime.datetime(2014, 1, 1, tzinfo=datetime.UTC), None, True),
    ("at", pa.scalar(1, pa.timestamp("ns")), None, True),
]


@pytest.mark.parametrize(("column", "smallest", "largest", "expected"), CASES)
def test_what_may_be_there(column: str, smallest: Any, largest: Any, expected: bool) -> None:
    assert SEGMENT.may_have(0, column, smallest, largest) == expected
    assert not SEGMENT.may_have(1, column, smallest, largest)


def test_what_is_not_known_may_be_there() -> None:
    schema = pa.schema([("n", pa.int64())])
    unknown = ColumnStatistics(0, None, None)
    for columns in (None, {}, {"n": unknown}):
        assert SegmentStatistics((StreamStatistics(0, schema, 1, columns),)).may_have(0, "n", 99)
    assert SEGMENT.row_count(0) == 4


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.one_of(st.none(), st.integers(-20, 20)), min_size=1, max_size=8),
    st.one_of(st.none(), st.integers(-25, 25)),
    st.one_of(st.none(), st.integers(-25, 25)),
)
def test_no_segment_is_left_out_that_has_a_row(
    values: list[int | None], smallest: int | None, largest: int | None
) -> None:
    segment = of(pa.record_batch({"n": pa.array(values, pa.int32())}))
    has_one = any(
        value is not None and (smallest is None or value >= smallest) and (largest is None or value <= largest)
        for value in values
    )
    assert segment.may_have(0, "n", smallest, largest) or not has_one


def test_a_store_makes_them_and_keeps_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quiver_actors.store.engine.summaries.STATISTICS_AGE_NS", 0)
    batches = [pa.record_batch({"n": range(first, first + 10)}) for first in (0, 100, 200)]
    with quiver_actors.open(tmp_path) as store:
        for batch in batches:
            store.push(batch)
            store.flush()
        deadline = time.monotonic() + 60
        while sum(found.may_have(0, "n", 105, 300) for found in store.statistics()[0].values()) != 2:
            assert time.monotonic() < deadline
            store.push(batches[0], topic="default")
        assert [store.statistics()[0][number].row_count(0) for number in range(3)] == [10, 10, 10]
    with quiver_actors.open(tmp_path) as store:
        known = store.statistics()[0]
        assert [number for number in range(3) if known[number].may_have(0, "n", 105, 300)] == [1, 2]


def test_signals_are_told_by_the_slots_that_have_rows() -> None:
    def segment(*rows: tuple[int, int]) -> SegmentStatistics:
        schema = pa.schema([("n", pa.int64())])
        return SegmentStatistics(tuple(StreamStatistics(slot, schema, count, None) for slot, count in rows))

    slots = OTAP_SLOTS
    assert segment((slots["logs"], 3), (slots["resource_attrs"], 1)).signals == {"logs"}
    assert segment((slots["span_links"], 1), (slots["otlp_metrics"], 1), (slots["logs"], 0)).signals == {
        "metrics",
        "traces",
    }
    assert segment((slots["scope_attrs"], 5)).signals == set()
    named = {name: segment((slot, 1)).signals for name, slot in slots.items()}
    assert [name for name, signals in named.items() if len(signals) != 1] == ["resource_attrs", "scope_attrs"]
