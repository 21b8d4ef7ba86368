"""Option `where`: what it means, what it leaves out unread, and what it refuses."""

from __future__ import annotations

import pyarrow as pa
import pytest

from quiver_actors.errors import UsageError
from quiver_actors.spark.offsets import Place
from quiver_actors.spark.where import parse_where

BATCH = pa.record_batch(
    {
        "n": pa.array([0, 1, 2, 3]),
        "id": pa.array([1, 2, 3, None], pa.int64()),
        "name": pa.array(["a", "it's", None, "c"]),
        "flag": pa.array([True, False, None, True]),
        "price": pa.array([1.5, float("nan"), 2.5, None]),
        "day": pa.array([0, 1, 2, None], pa.date32()),
        "at": pa.array([0, 1_000_000, 2_000_000, None], pa.timestamp("us", "UTC")),
        "odd name": pa.array([1, 1, 2, 2], pa.int32()),
    }
)


def test_batches_of_wanted_rows() -> None:
    where = parse_where("id >= 2 AND name IS NULL")
    where.check(BATCH.schema)
    found = where.filtered(iter([BATCH, BATCH.slice(0, 0), BATCH.slice(3)]))
    assert [batch.column("n").to_pylist() for batch in found] == [[2]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("other = 1", "'other' is not read: expected one of n, id, name"),
        ("_quiver_core = 1", "includeMetadata=true"),
        ("id = 'x'", "id is int64"),
        ("at > '1970-01-01'", "at is timestamp"),
    ],
)
def test_what_does_not_fit_the_columns_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_where(text).check(BATCH.schema)


@pytest.mark.parametrize(
    ("text", "is_read"),
    [
        ("_quiver_core = 1", True),
        ("_quiver_core > 1", False),
        ("_quiver_segment <= 4", False),
        ("_quiver_segment >= 5 AND _quiver_segment < 6", True),
        ("_quiver_node = 'a'", True),
        ("_quiver_node IN ('b', 'c')", False),
        ("_quiver_ingestion_time >= '1970-01-01T00:00:02Z'", True),
        ("_quiver_ingestion_time > '1970-01-01T00:00:03Z'", False),
        ("_quiver_ingestion_time < '1970-01-01T00:00:01Z'", False),
        ("id = 1", True),
    ],
)
def test_segments_that_cannot_hold_what_is_wanted_are_not_read(text: str, is_read: bool) -> None:
    assert parse_where(text).may_hold(Place("a", 1), 5, 1_000_000_000, 2_000_000_000) == is_read


@pytest.mark.parametrize(
    ("text", "slots"),
    [
        ("weather IS NOT NULL", [1]),
        ("weather IS NOT NULL AND flights IS NOT NULL", [0, 1]),
        ("weather IS NULL", []),
        ("temp > 3", []),
    ],
)
def test_slots_that_a_bundle_must_have(text: str, slots: list[int]) -> None:
    assert parse_where(text).required_slots({"flights": 0, "weather": 1}) == slots


def test_a_segment_without_times_is_read() -> None:
    assert parse_where("_quiver_ingestion_time > '2020-01-01T00:00:00Z'").may_hold(Place("a", 1), 5, 0, 0)
