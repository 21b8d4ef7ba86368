"""Offsets: one text for one place, and back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiver_actors.base.model import SEGMENT_BUNDLES_MAX
from quiver_actors.errors import ConfigError
from quiver_actors.spark.offsets import (
    Place,
    bundle_of,
    from_json,
    in_archive,
    last_bundle_before,
    logs_of,
    parse_offsets,
    position,
    stores_of,
    to_json,
)

offsets = st.dictionaries(
    st.builds(Place, st.from_regex(r"[a-z][a-z0-9./-]{0,8}", fullmatch=True), st.integers(0, 99)),
    st.integers(0, 1 << 62),
)


@given(offsets)
def test_offsets_come_back_and_their_text_is_one(given_offsets: dict[Place, int]) -> None:
    text = json.dumps(to_json(given_offsets))
    shuffled = dict(reversed(list(given_offsets.items())))
    assert json.dumps(to_json(shuffled)) == text
    assert from_json(json.loads(text)) == given_offsets
    assert list(json.loads(text)["cores"]) == [str(place) for place in sorted(given_offsets)]


def test_stores_are_named_where_something_was_read_of_them() -> None:
    a, b, c = (Place("node", core) for core in range(3))
    value = to_json({b: 7, a: 7, c: 0}, {b: "bb", a: "aa", c: "cc"})
    assert stores_of(json.loads(json.dumps(value))) == {a: "aa", b: "bb"}
    assert stores_of(to_json({a: 7})) == {}
    for wrong in ("aa", {"node/0": 7}):
        with pytest.raises(ConfigError, match="not offsets"):
            stores_of({"stores": wrong})


def test_log_positions_are_named_where_they_are_known() -> None:
    a, b, c = (Place("node", core) for core in range(3))
    value = to_json({a: 7, b: 8, c: 0}, {a: "aa"}, {c: 0, a: 70})
    assert logs_of(json.loads(json.dumps(value))) == {a: 70, c: 0}
    assert list(value) == ["cores", "logs", "stores", "v"]
    assert from_json(value) == {a: 7, b: 8, c: 0}
    assert logs_of(to_json({a: 7})) == {}
    for wrong in (7, {"node/0": "7"}, {"node/0": -1}):
        with pytest.raises(ConfigError, match=r"not offsets|expected a position"):
            logs_of({"logs": wrong})


def test_offsets_say_which_of_them_lie_in_the_archive() -> None:
    assert in_archive({"archive": ["node/0"]}) == {Place("node", 0)}
    assert in_archive(to_json({Place("node", 0): 7})) == set()
    for wrong in ("node/0", [1]):
        with pytest.raises(ConfigError, match="not offsets"):
            in_archive({"archive": wrong})


@given(st.integers(0, 1 << 40), st.integers(0, SEGMENT_BUNDLES_MAX - 1))
def test_a_position_names_its_bundle(segment_seq: int, index: int) -> None:
    assert bundle_of(position(segment_seq, index)) == (segment_seq, index)
    assert last_bundle_before(position(segment_seq, index) + 1) == (segment_seq, index)


def test_the_end_of_a_segment_is_the_start_of_the_next_number() -> None:
    assert position(7, 5, 5) == position(8, 0)
    segment_seq, index = last_bundle_before(position(8, 0)) or (0, 0)
    assert segment_seq == 7
    assert index >= SEGMENT_BUNDLES_MAX - 1
    assert last_bundle_before(0) is None


@pytest.mark.parametrize(
    "text",
    [
        "soon",
        "[]",
        "{}",
        '{"v":2,"cores":{}}',
        '{"v":1,"cores":{"a":1}}',
        '{"v":1,"cores":{"a/0":-1}}',
        '{"v":1,"cores":{"a/0":true}}',
    ],
)
def test_what_is_no_offset_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_offsets(text)
