"""Keys of archived objects: they come back, sort as the segments do, and never clash with the manifest."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from quiver_actors.archive.keys import (
    SegmentKey,
    StreamKey,
    crc_key,
    head_key,
    parse_segment_key,
    part_key,
    segment_key,
)

_IDS = st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True)


@given(_IDS, _IDS, st.integers(0, 1023), st.integers(0, 2**63), st.integers(0, 99))
def test_keys_come_back(topic: str, incarnation: str, core: int, segment_seq: int, generation: int) -> None:
    stream = StreamKey(topic, incarnation, core)
    key = segment_key("node.1", stream, segment_seq, generation)
    assert parse_segment_key(key) == SegmentKey("node.1", stream, segment_seq, generation)
    assert parse_segment_key(crc_key(key)) is None


@given(st.lists(st.integers(0, 2**63), max_size=20))
def test_keys_sort_as_the_segments_do(numbers: list[int]) -> None:
    stream = StreamKey("topic", "1", 0)
    assert sorted(segment_key("n", stream, each, 0) for each in numbers) == [
        segment_key("n", stream, each, 0) for each in sorted(numbers)
    ]


def test_the_manifest_lies_where_no_topic_can() -> None:
    assert parse_segment_key(head_key("node")) is None
    assert parse_segment_key(part_key("node", 1, "00000000")) is None
    assert all("." in key.split("/")[1] for key in (head_key("node"), part_key("node", 1, "00000000")))
