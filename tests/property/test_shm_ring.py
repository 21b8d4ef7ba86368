"""The ring against a plain model: which bytes are in use is kept as a list of spans and looked through each time."""

from __future__ import annotations

from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st

from quiver_actors.shm.ring import SPAN_ALIGNMENT_BYTES, RingAllocator, align_up

RING_BYTES = 32 * SPAN_ALIGNMENT_BYTES

OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.integers(1, RING_BYTES), st.integers(0, 3)),
        st.tuples(st.just("cancel"), st.integers(1, RING_BYTES), st.just(0)),
        st.tuples(st.just("release"), st.integers(1, 8), st.just(0)),
    ),
    max_size=80,
)


class Model:
    """Spans in use, oldest first, as (offset, length, position behind)."""

    def __init__(self) -> None:
        self.spans: deque[tuple[int, int, int]] = deque()
        self.released = 0
        self.end = 0
        """Offset behind the newest span."""

    def is_free(self, start: int, length: int) -> bool:
        return start + length <= RING_BYTES and all(
            start + length <= offset or offset + size <= start for offset, size, _ in self.spans
        )

    def in_use_bytes(self) -> int:
        return sum(length for _, length, _ in self.spans)

    def release(self, count: int) -> None:
        for _ in range(min(count, len(self.spans))):
            self.released = self.spans.popleft()[2]


def push(ring: RingAllocator, model: Model, size_bytes: int, offset: int, used_bytes: int) -> None:
    length = align_up(used_bytes, SPAN_ALIGNMENT_BYTES)
    position = ring.commit(used_bytes)
    model.spans.append((offset, length, position))
    model.end = offset + length
    assert position - model.released == model.in_use_bytes() <= RING_BYTES


@settings(max_examples=300, deadline=None)
@given(OPERATIONS, st.sampled_from([1, 4 * SPAN_ALIGNMENT_BYTES, RING_BYTES, 2 * RING_BYTES]))
def test_ring_never_hands_out_bytes_in_use_and_never_sticks(
    operations: list[tuple[str, int, int]], hot_bytes: int
) -> None:
    ring, model = RingAllocator(RING_BYTES, hot_bytes=hot_bytes), Model()
    for operation, number, shrink in operations:
        if operation == "release":
            model.release(number)
            continue
        offset = ring.reserve(number, model.released)
        if offset is None:
            assert model.spans, "an empty ring takes every span"
            continue
        assert offset % SPAN_ALIGNMENT_BYTES == 0
        assert model.is_free(offset, number)
        if operation == "cancel":
            ring.cancel()
        else:
            push(ring, model, number, offset, max(1, number >> shrink))


@settings(max_examples=300, deadline=None)
@given(OPERATIONS)
def test_ring_without_hot_bytes_uses_every_place_that_keeps_the_order(operations: list[tuple[str, int, int]]) -> None:
    """Behind the newest span if that is free, else at the beginning if that is free, else nowhere."""
    ring, model = RingAllocator(RING_BYTES, hot_bytes=RING_BYTES), Model()
    for operation, number, shrink in operations:
        if operation == "release":
            model.release(number)
            continue
        places = [place for place in (model.end, 0) if model.is_free(place, number)]
        offset = ring.reserve(number, model.released)
        assert offset == (places[0] if places else None)
        if offset is not None and operation == "push":
            push(ring, model, number, offset, max(1, number >> shrink))
        ring.cancel()
