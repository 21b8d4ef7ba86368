"""Conditions on rows: what they mean, and what they refuse."""

from __future__ import annotations

import pyarrow as pa
import pytest

from quiver_actors.errors import ConfigError, UsageError
from quiver_actors.query.conditions import parse_terms, wanted_mask

BATCH = pa.record_batch(
    {
        "n": pa.array([0, 1, 2, 3]),
        "id": pa.array([1, 2, 3, None], pa.int64()),
        "name": pa.array(["a", "it's", None, "c"]),
        "flag": pa.array([True, False, None, True]),
        "price": pa.array([1.5, float("nan"), 2.5, None]),
        "day": pa.array([0, 1, 2, None], pa.date32()),
        "at": pa.array([0, 1_000_000, 2_000_000, None], pa.timestamp("us", "UTC")),
        "ancient": pa.array([-62_135_596_801, 0, None, 1], pa.timestamp("s")),
        "kind": pa.array(["a", "b", "a", None]).dictionary_encode(),
        "view": pa.array(["a", "b", "c", None], pa.string_view()),
        "odd name": pa.array([1, 1, 2, 2], pa.int32()),
    }
)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("id >= 2", [1, 2]),
        ("id>=2 and id<3", [1]),
        ("id != 2", [0, 2]),
        ("id <> -2", [0, 1, 2]),
        ("id IN (1, 3)", [0, 2]),
        ("id IS NULL", [3]),
        ("id is not null AND name IS NULL", [2]),
        ("name = 'it''s'", [1]),
        ("name IN ('a', 'c')", [0, 3]),
        ("flag = true", [0, 3]),
        ("price > 1e0", [0, 2]),
        ("day == '1970-01-02'", [1]),
        ("at > '1970-01-01T00:00:00Z'", [1, 2]),
        ("ancient IN ('0000-12-31 23:59:59')", [0]),  # Python has no such time
        ("`odd name` = 2 AND id = 3", [2]),
        ("kind = 'a' AND n > 0", [2]),
        ("kind IN ('b', 'a')", [0, 1, 2]),
        ("kind IS NULL", [3]),
        ("view = 'c'", [2]),
        ("id = 7", []),
    ],
)
def test_rows_that_are_wanted(text: str, rows: list[int]) -> None:
    terms = parse_terms(text)
    for term in terms:
        term.check(BATCH.schema.field(term.column).type)
    assert [row for row, is_wanted in enumerate(wanted_mask(BATCH, terms).to_pylist()) if is_wanted] == rows
    assert wanted_mask(BATCH.slice(0, 0), terms).to_pylist() == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "id",
        "id >",
        "id > 1 AND",
        "id > 1 OR id < 0",
        "id IN 1",
        "id IN (1",
        "id > other",
        "1 < id",
        "id ~ 1",
        "id IS 1",
    ],
)
def test_what_is_not_understood_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected comparisons"):
        parse_terms(text)


@pytest.mark.parametrize(
    "text", ["id = __import__", "id = (1)", "id = 1; drop", "__class__.x = 1", "lambda: 1", "id = 'a"]
)
def test_code_is_no_condition(text: str) -> None:
    with pytest.raises(ConfigError, match="expected comparisons"):
        parse_terms(text)


@pytest.mark.parametrize(
    ("text", "message"), [("id = 'x'", "id is int64"), ("at > '1970-01-01'", "at is timestamp"), ("flag > 'x'", "bool")]
)
def test_literals_that_do_not_fit_the_type_of_their_column_are_refused(text: str, message: str) -> None:
    (term,) = parse_terms(text)
    with pytest.raises(UsageError, match=message):
        term.check(BATCH.schema.field(term.column).type)
