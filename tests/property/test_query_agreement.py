"""Whatever is stored, everybody who asks gets the same rows: a dataset, DuckDB, DataFusion, Polars, and whoever reads bundle by bundle.

`QUIVER_AGREEING_TOPICS=2000` tries more than the fifty topics of an ordinary run.
"""

from __future__ import annotations

import datetime
import itertools
import os
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import quiver_actors
from quiver_actors import Store
from quiver_actors.query.engines import ENGINES

Row = dict[str, Any]

_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6)
_INSTANT = st.datetimes(datetime.datetime(1971, 1, 1), datetime.datetime(2200, 1, 1), timezones=st.just(datetime.UTC))
_SECOND = _INSTANT.map(lambda time: time.replace(microsecond=0))
FAMILIES: tuple[tuple[tuple[pa.DataType, ...], st.SearchStrategy[Any]], ...] = (
    ((pa.int8(), pa.int16(), pa.uint8(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64()), st.integers(0, 127)),
    ((pa.float32(), pa.float64(), pa.int16(), pa.uint16()), st.integers(0, 1 << 15).map(lambda n: n // 2)),
    ((pa.decimal128(7, 2), pa.decimal128(12, 4), pa.int32()), st.integers(0, 9999)),
    ((pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string()), pa.string_view()), _TEXT),
    ((pa.binary(), pa.large_binary(), pa.binary(3)), st.binary(min_size=3, max_size=3)),
    ((pa.timestamp("s", "UTC"), pa.timestamp("ms", "UTC"), pa.timestamp("us", "UTC")), _SECOND),
    ((pa.timestamp("us", "UTC"),), _INSTANT),
    ((pa.bool_(),), st.booleans()),
    ((pa.date32(),), st.dates(datetime.date(1900, 1, 1), datetime.date(2200, 1, 1))),
    ((pa.list_(pa.int32()), pa.large_list(pa.int64())), st.lists(st.integers(-9, 9), max_size=3)),
    (
        (pa.struct([("x", pa.int32()), ("y", pa.string())]),),
        st.fixed_dictionaries({"x": st.integers(-9, 9), "y": _TEXT}),
    ),
)
"""Types that drift into each other, and values that all of them hold."""


@st.composite
def topics(draw: st.DrawFn) -> list[tuple[pa.RecordBatch, bool]]:
    """Bundles of one topic, each with whether its segment ends behind it. Columns come, go and change their types."""
    columns = draw(st.dictionaries(st.sampled_from("abcde"), st.sampled_from(FAMILIES), min_size=1, max_size=4))
    bundles = []
    for _ in range(draw(st.integers(1, 6))):
        names = draw(st.lists(st.sampled_from(sorted(columns)), min_size=1, unique=True))
        kinds = {name: draw(st.sampled_from(columns[name][0])) for name in names}
        row_count = draw(st.integers(0, 4))
        nothing = draw(st.sampled_from([st.none(), st.nothing()]))
        arrays = [
            pa.array(draw(st.lists(nothing | columns[name][1], min_size=row_count, max_size=row_count)), kind)
            for name, kind in kinds.items()
        ]
        repeats = draw(st.sampled_from([1, 1, 20]))  # Many bundles of one layout are read together.
        batch = pa.RecordBatch.from_arrays(arrays, list(kinds))
        bundles += [(batch, False)] * (repeats - 1) + [(batch, draw(st.booleans()))]
    return bundles


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    path: Path = tmp_path_factory.mktemp("agreement")
    with quiver_actors.open(path, settings={"segment.max_open_duration": "1h"}) as opened:
        yield opened


TOPICS = int(os.environ.get("QUIVER_AGREEING_TOPICS", "50"))
_numbers = itertools.count()


@pytest.mark.timeout(300 + 10 * TOPICS)
@settings(max_examples=TOPICS, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(bundles=topics())
def test_everybody_gets_the_same_rows(store: Store, bundles: list[tuple[pa.RecordBatch, bool]]) -> None:
    topic = f"topic{next(_numbers)}"
    store.create_topic(topic)
    segment: list[pa.RecordBatch] = []
    for batch, is_last in bundles:
        segment.append(batch)
        if is_last:
            store.push_many(segment, topic=topic)
            store.flush(topic)
            segment.clear()
    store.push_many(segment, topic=topic)
    dataset = store.dataset(topic)
    names = dataset.schema.names
    expected = [_full(row, names) for bundle in store.read(topic, 0) for row in bundle.batch.to_pylist()]
    assert expected == [_full(row, names) for batch, _ in bundles for row in batch.to_pylist()]
    assert _plain(dataset.to_table().to_pylist()) == _plain(expected)
    assert dataset.count_rows() == len(expected)
    for engine in ENGINES:
        found = store.sql(f"SELECT * FROM {topic}", engine=engine).read_all()
        assert _sorted(found.to_pylist()) == _sorted(expected), engine
    if expected:
        assert _plain(pl.DataFrame(dataset).to_dicts()) == _plain(expected)
        _agree_on_a_condition(store, topic, names[0], expected)
    store.delete_topic(topic)


def _agree_on_a_condition(store: Store, topic: str, name: str, expected: list[Row]) -> None:
    nulls = [row for row in expected if row[name] is None]
    assert store.dataset(topic, where=f"{name} IS NULL").count_rows() == len(nulls)
    for engine in ENGINES:
        counted = store.sql(f"SELECT count(*) AS n FROM {topic} WHERE {name} IS NOT NULL", engine=engine).read_all()
        assert counted.to_pydict() == {"n": [len(expected) - len(nulls)]}, engine


def _full(row: Row, names: list[str]) -> Row:
    return {name: row.get(name) for name in names}


def _plain(rows: list[Row]) -> list[list[str]]:
    return [[_text(value) for value in row.values()] for row in rows]


def _sorted(rows: list[Row]) -> list[list[str]]:
    return sorted(_plain(rows))


def _text(value: Any) -> str:
    """The same for equal values of types that drift into each other."""
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return f"{Decimal(value).normalize():f}"
    if isinstance(value, datetime.datetime):
        return str(value.astimezone(datetime.UTC))
    return repr(value)
