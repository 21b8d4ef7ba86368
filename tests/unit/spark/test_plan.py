"""Partitions of a read cover every bundle once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from quiver_actors.base.protocol.messages import SegmentInfo
from quiver_actors.flight.archived_contents import ArchivedNames, ArchivedPart
from quiver_actors.flight.contract import AskSlotRows, BundleRange, CoreContents, SlotRows
from quiver_actors.spark.offsets import Place
from quiver_actors.spark.plan import (
    Extent,
    StoredRange,
    archived_names,
    extents_of,
    having_slots,
    plan_partitions,
    ranges_between,
    rows_request,
)

A, B = Place("a", 0), Place("b", 1)


def whole(place: Place, segment_seq: int, bundles: int, size_bytes: int) -> StoredRange:
    return StoredRange(place, segment_seq, 0, bundles, bundles, size_bytes)


places = st.builds(Place, st.sampled_from("ab"), st.integers(0, 1))
segments = st.lists(
    st.builds(whole, places, st.integers(0, 50), st.integers(0, 40), st.integers(1, 1000)),
    unique_by=lambda stored: (stored.place, stored.segment_seq),
)


def test_small_segments_share_a_partition_and_a_big_one_is_split() -> None:
    stored = [whole(A, 1, 10, 100), whole(A, 2, 4, 30), whole(A, 3, 4, 30), whole(B, 1, 1, 9)]
    assert [(planned.place, planned.ranges) for planned in plan_partitions(stored, 64)] == [
        (A, [BundleRange(0, 1, 0, 5)]),
        (A, [BundleRange(0, 1, 5, 10)]),
        (A, [BundleRange(0, 2, 0, 4), BundleRange(0, 3, 0, 4)]),
        (B, [BundleRange(1, 1, 0, 1)]),
    ]


def test_one_huge_bundle_is_one_partition() -> None:
    (planned,) = plan_partitions([whole(A, 0, 1, 10**9)], 64)
    assert planned.ranges == [BundleRange(0, 0, 0, 1)]


def test_at_least_so_many_partitions_as_far_as_there_are_bundles() -> None:
    assert len(plan_partitions([whole(A, 0, 100, 1000)], 10**6, 8)) >= 8
    assert len(plan_partitions([whole(A, 0, 3, 1000)], 10**6, 8)) == 3


@given(segments, st.integers(1, 500), st.integers(1, 20))
def test_every_bundle_is_read_exactly_once_and_in_order(stored: list[StoredRange], bytes_max: int, count: int) -> None:
    planned = [
        (partition.place, piece.segment_seq, index)
        for partition in plan_partitions(stored, bytes_max, count)
        for piece in partition.ranges
        for index in range(piece.bundle_start, piece.bundle_end)
    ]
    assert planned == [(s.place, s.segment_seq, index) for s in sorted(stored) for index in range(s.bundle_count)]


@given(segments, st.integers(1, 500))
def test_a_partition_stays_below_the_limit_if_bundles_allow(stored: list[StoredRange], bytes_max: int) -> None:
    sizes = {(s.place, s.segment_seq): s for s in stored}
    for partition in plan_partitions(stored, bytes_max):
        of = [(sizes[partition.place, piece.segment_seq], piece) for piece in partition.ranges]
        if len(of) > 1:
            weights = [s.size_bytes * (p.bundle_end - p.bundle_start) // s.bundle_count for s, p in of]
            assert sum(weights) <= bytes_max


def test_a_range_takes_the_parts_of_segments_that_are_in_it() -> None:
    stored = [Extent(3, 4, 40), Extent(5, 4, 40), Extent(9, 4, 40)]
    found = ranges_between(A, stored, (3, 2), (9, 1))
    assert [(piece.segment_seq, piece.bundle_start, piece.bundle_end) for piece in found] == [
        (3, 2, 4),
        (5, 0, 4),
        (9, 0, 1),
    ]
    assert ranges_between(A, stored, (4, 0), (5, 0)) == []


def test_segments_without_the_wanted_slots_are_left_out_and_unknown_ones_stay() -> None:
    stored = [whole(A, 1, 1, 10), whole(A, 2, 1, 10), whole(A, 3, 1, 10), whole(B, 1, 1, 10)]
    assert rows_request(stored, "a", "t") == AskSlotRows("t", {0: [1, 2, 3]})
    rows = {"a": SlotRows({0: {1: {0: 5}, 2: {0: 5, 1: 2}}}), "b": SlotRows({1: {1: {0: 5, 1: 0}}})}
    assert having_slots(stored, rows, [0], []) == stored
    assert having_slots(stored, rows, [1], []) == stored[1:3]
    assert having_slots(stored, rows, [0, 1], [1]) == stored[1:3]


def test_archived_segments_are_named_by_their_directory_and_asked_for_apart() -> None:
    gone, here = SegmentInfo(1, 4, 9, 40, 0, 0), SegmentInfo(2, 3, 9, 30, 0, 0)
    core = CoreContents(0, [here], incarnation="a1", archived=ArchivedPart([gone], [], 1))
    stored = ranges_between(A, extents_of(core, core.readable), (1, 2), (9, 0))
    assert stored == [StoredRange(A, 1, 2, 4, 4, 40, True, "a1", False), StoredRange(A, 2, 0, 3, 3, 30)]
    names = {0: ArchivedNames("a1", {1: 4})}
    assert archived_names(stored) == names
    assert rows_request(stored, "a", "t") == AskSlotRows("t", {0: [2]}, archived=names)
    assert rows_request(stored, "b", "t") == AskSlotRows("t", {})
