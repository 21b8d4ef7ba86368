"""Partitions of a read cover every bundle once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from quiver_actors.spark.plan import BundleRange, StoredSegment, plan_partitions

segments = st.lists(
    st.builds(StoredSegment, st.integers(0, 2), st.integers(0, 50), st.integers(0, 40), st.integers(1, 1000)),
    unique_by=lambda segment: (segment.core, segment.segment_seq),
)


def test_small_segments_share_a_partition_and_a_big_one_is_split() -> None:
    stored = [
        StoredSegment(0, 1, 10, 100),
        StoredSegment(0, 2, 4, 30),
        StoredSegment(0, 3, 4, 30),
        StoredSegment(1, 1, 1, 9),
    ]
    assert plan_partitions(stored, 64) == [
        [BundleRange(0, 1, 0, 5)],
        [BundleRange(0, 1, 5, 10)],
        [BundleRange(0, 2, 0, 4), BundleRange(0, 3, 0, 4)],
        [BundleRange(1, 1, 0, 1)],
    ]


def test_one_huge_bundle_is_one_partition() -> None:
    assert plan_partitions([StoredSegment(0, 0, 1, 10**9)], 64) == [[BundleRange(0, 0, 0, 1)]]


@given(segments, st.integers(1, 500))
def test_every_bundle_is_read_exactly_once_and_in_order(stored: list[StoredSegment], bytes_max: int) -> None:
    planned = [
        (piece.core, piece.segment_seq, index)
        for partition in plan_partitions(stored, bytes_max)
        for piece in partition
        for index in range(piece.bundle_start, piece.bundle_end)
    ]
    assert planned == [(s.core, s.segment_seq, index) for s in sorted(stored) for index in range(s.bundle_count)]


@given(segments, st.integers(1, 500))
def test_a_partition_stays_on_one_core_and_below_the_limit_if_bundles_allow(
    stored: list[StoredSegment], bytes_max: int
) -> None:
    sizes = {(s.core, s.segment_seq): s for s in stored}
    for partition in plan_partitions(stored, bytes_max):
        assert len({piece.core for piece in partition}) == 1
        if len(partition) > 1:
            weights = [
                sizes[piece.core, piece.segment_seq].size_bytes
                * (piece.bundle_end - piece.bundle_start)
                // sizes[piece.core, piece.segment_seq].bundle_count
                for piece in partition
            ]
            assert sum(weights) <= bytes_max
