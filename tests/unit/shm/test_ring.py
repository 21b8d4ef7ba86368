"""Placement of spans in a ring, case by case; the property test compares it with a plain model."""

from __future__ import annotations

import pytest

from quiver_actors.shm.errors import ShmError
from quiver_actors.shm.ring import RingAllocator, align_up

KIB = 1024


def put(ring: RingAllocator, size_bytes: int, released: int = 0) -> tuple[int, int]:
    """Reserve and commit; returns (offset, position behind)."""
    offset = ring.reserve(size_bytes, released)
    assert offset is not None
    return offset, ring.commit(size_bytes)


@pytest.mark.parametrize(("size_bytes", "expected"), [(0, 0), (1, 64), (64, 64), (65, 128)])
def test_align_up_goes_to_the_next_line(size_bytes: int, expected: int) -> None:
    assert align_up(size_bytes, 64) == expected


def test_ring_spans_follow_each_other_on_lines() -> None:
    ring = RingAllocator(4 * KIB)
    assert put(ring, 100) == (0, 128)
    assert put(ring, 64) == (128, 192)
    assert put(ring, 1) == (192, 256)


def test_ring_full_refuses_until_released() -> None:
    ring = RingAllocator(4 * KIB)
    put(ring, 4 * KIB)
    assert ring.reserve(1, released=0) is None
    assert ring.reserve(1, released=4 * KIB) == 0


def test_ring_commit_of_less_gives_the_rest_back() -> None:
    ring = RingAllocator(4 * KIB)
    assert ring.reserve(4 * KIB, 0) == 0
    assert ring.commit(10) == 64
    assert put(ring, 4 * KIB - 64) == (64, 4 * KIB)


def test_ring_span_that_misses_the_end_starts_the_next_lap_where_that_is_free() -> None:
    ring = RingAllocator(4 * KIB)
    put(ring, KIB)
    put(ring, 2 * KIB)
    assert ring.reserve(2 * KIB, released=KIB) is None
    assert ring.reserve(KIB + 64, released=KIB) is None
    assert put(ring, KIB, released=KIB) == (3 * KIB, 4 * KIB)
    assert put(ring, KIB, released=KIB) == (0, 5 * KIB)
    assert ring.reserve(1, released=KIB) is None


def test_ring_positions_do_not_count_skipped_bytes() -> None:
    ring = RingAllocator(4 * KIB)
    put(ring, KIB)
    put(ring, KIB)
    put(ring, KIB + 64)
    offset, position = put(ring, 2 * KIB, released=2 * KIB)
    assert (offset, position) == (0, 5 * KIB + 64)
    assert ring.head - 2 * KIB == KIB + 64 + 2 * KIB


def test_ring_two_laps_in_use_keep_apart() -> None:
    ring = RingAllocator(4 * KIB)
    put(ring, 2 * KIB)
    put(ring, 2 * KIB)
    assert put(ring, KIB, released=2 * KIB) == (0, 5 * KIB)
    assert ring.reserve(KIB + 64, released=2 * KIB) is None
    assert put(ring, KIB, released=2 * KIB) == (KIB, 6 * KIB)
    assert put(ring, 2 * KIB, released=4 * KIB) == (2 * KIB, 8 * KIB)


@pytest.mark.parametrize("head_bytes", [64, KIB, 2 * KIB, 4 * KIB - 64])
def test_ring_empty_takes_a_span_of_its_whole_size_wherever_the_head_stands(head_bytes: int) -> None:
    ring = RingAllocator(4 * KIB)
    _, position = put(ring, head_bytes)
    assert put(ring, 4 * KIB, released=position) == (0, position + 4 * KIB)
    assert ring.reserve(1, released=position) is None


def test_ring_empty_starts_over_behind_the_hot_bytes() -> None:
    ring = RingAllocator(64 * KIB, hot_bytes=4 * KIB)
    released = 0
    offsets = []
    for _ in range(6):
        offset, released = put(ring, 2 * KIB, released)
        offsets.append(offset)
    assert offsets == [0, 2 * KIB, 0, 2 * KIB, 0, 2 * KIB]


def test_ring_in_use_starts_over_only_once_half_of_the_lap_is_free() -> None:
    ring = RingAllocator(64 * KIB, hot_bytes=4 * KIB)
    for _ in range(4):
        put(ring, 2 * KIB)
    assert put(ring, 2 * KIB, released=2 * KIB)[0] == 8 * KIB
    assert put(ring, 2 * KIB, released=6 * KIB)[0] == 0


def test_ring_cancelled_reservation_leaves_no_trace() -> None:
    ring = RingAllocator(4 * KIB)
    put(ring, 3 * KIB)
    assert ring.reserve(2 * KIB, released=3 * KIB) == 0
    ring.cancel()
    ring.cancel()
    assert put(ring, KIB, released=3 * KIB) == (3 * KIB, 4 * KIB)


def test_ring_goes_on_from_a_given_position() -> None:
    ring = RingAllocator(4 * KIB, head=12345 * 64)
    assert put(ring, 4 * KIB, released=12345 * 64) == (0, 12345 * 64 + 4 * KIB)


def test_ring_span_over_its_size_can_never_fit() -> None:
    ring = RingAllocator(4 * KIB)
    for size_bytes in (0, -1, 4 * KIB + 1):
        with pytest.raises(ShmError, match="expected 1 to the ring's 4096"):
            ring.reserve(size_bytes, 0)


def test_ring_second_open_reservation_is_refused() -> None:
    ring = RingAllocator(4 * KIB)
    ring.reserve(64, 0)
    with pytest.raises(ShmError, match="a reservation is open"):
        ring.reserve(64, 0)


def test_ring_commit_must_fit_its_reservation() -> None:
    ring = RingAllocator(4 * KIB)
    with pytest.raises(ShmError, match="reservation of 0"):
        ring.commit(1)
    ring.reserve(64, 0)
    for used_bytes in (0, -1, 65):
        with pytest.raises(ShmError, match="reservation of 64"):
            ring.commit(used_bytes)


def test_ring_released_ahead_of_the_head_is_refused() -> None:
    with pytest.raises(ShmError, match="position 64 is released"):
        RingAllocator(4 * KIB).reserve(64, released=64)


@pytest.mark.parametrize("size_bytes", [0, 63, 100, -64])
def test_ring_of_no_whole_lines_is_refused(size_bytes: int) -> None:
    with pytest.raises(ShmError, match="expected a multiple of 64"):
        RingAllocator(size_bytes)
