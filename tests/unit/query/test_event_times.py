"""`event_start` and `event_end` choose rows by the topic's column of event times, in any unit, and say what they lack."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import quiver_actors
from quiver_actors.errors import UsageError
from quiver_actors.query.event_times import event_span

HOUR_NS = 3_600_000_000_000
_KINDS = {
    pa.timestamp("s"): 10**9,
    pa.timestamp("ms", "UTC"): 10**6,
    pa.timestamp("us", "Europe/Berlin"): 10**3,
    pa.timestamp("ns"): 1,
    pa.date32(): 24 * HOUR_NS,
    pa.date64(): 10**6,
}


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(list(_KINDS)),
    st.lists(st.one_of(st.none(), st.integers(-3, 3)), max_size=6),
    st.one_of(st.none(), st.integers(-3 * 10**9, 3 * 10**9)),
    st.one_of(st.none(), st.integers(-3 * 10**9, 3 * 10**9)),
)
def test_rows_within_the_span_are_left(
    kind: pa.DataType, values: list[int | None], start_ns: int | None, end_ns: int | None
) -> None:
    unit_ns = _KINDS[kind]
    if pa.types.is_date64(kind):
        values = [None if value is None else value * 86_400_000 for value in values]
    numbers = pa.array(values, pa.int32() if pa.types.is_date32(kind) else pa.int64())
    table = pa.table({"at": numbers.view(kind), "n": range(len(values))})
    expression = event_span(table.schema, "at", start_ns, end_ns)
    found = table.filter(expression) if expression is not None else table
    assert found.column("n").to_pylist() == [
        number
        for number, value in enumerate(values)
        if expression is None
        or (
            value is not None
            and (start_ns is None or value * unit_ns >= start_ns)
            and (end_ns is None or value * unit_ns < end_ns)
        )
    ]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[quiver_actors.Store]:
    with quiver_actors.open(tmp_path / "data") as opened:
        yield opened


def test_a_dataset_has_the_rows_of_a_span(store: quiver_actors.Store) -> None:
    store.create_topic("flights", {"event_time": "departed"})
    day = datetime.datetime(2013, 1, 1, tzinfo=datetime.UTC)
    hours = [day + datetime.timedelta(hours=hour) for hour in range(6)]
    store.push(pa.record_batch({"departed": pa.array([*hours, None], pa.timestamp("us", "UTC"))}), topic="flights")
    found = store.dataset("flights", event_start=hours[2], event_end=hours[4])
    assert found.to_table().column("departed").to_pylist() == hours[2:4]
    later = store.dataset("flights", event_start=hours[2], where="departed < '2013-01-01T05:00:00Z'")
    assert later.count_rows() == 3
    store.set_topic("flights", {"event_time": "gone"})
    with pytest.raises(UsageError, match="no column 'gone'"):
        store.dataset("flights", event_start=hours[2])


def test_what_is_missing_is_said(store: quiver_actors.Store) -> None:
    store.push(pa.record_batch({"n": [1]}))
    with pytest.raises(UsageError, match="no setting `event_time`"):
        store.dataset(event_end=0)
    store.set_topic("default", {"event_time": "n"})
    with pytest.raises(UsageError, match="'n' is int64, not times or dates"):
        store.dataset(event_end=0)
    assert store.dataset().count_rows() == 1
    with pytest.raises(UsageError, match="event_start='noon' is not possible"):
        event_span(pa.schema([("at", pa.date32())]), "at", "noon", None)  # type: ignore[arg-type]


def test_a_notebook_shows_the_columns_of_a_dataset(store: quiver_actors.Store) -> None:
    store.push(pa.record_batch({"<n>": [1]}))
    shown = store.dataset()._repr_html_()
    assert "slot 0: 1 segments" in shown
    assert "<td>&lt;n&gt;</td><td>int64</td>" in shown
