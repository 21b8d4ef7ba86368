"""Which bundles each partition of a read covers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple


class StoredSegment(NamedTuple):
    """What planning needs to know of one sealed segment."""

    core: int
    segment_seq: int
    bundle_count: int
    size_bytes: int


class BundleRange(NamedTuple):
    """Bundles `[bundle_start, bundle_end)` of one segment."""

    core: int
    segment_seq: int
    bundle_start: int
    bundle_end: int


def plan_partitions(segments: Iterable[StoredSegment], bytes_max: int) -> list[list[BundleRange]]:
    """Cut segments into partitions of about `bytes_max` stored bytes: big segments are split evenly, small ones of a core share one.

    Every bundle is in exactly one partition, and within a partition bundles come in the order in which they were stored.
    """
    partitions: list[list[BundleRange]] = []
    room_bytes, room_core = 0, -1
    for segment in sorted(segments):
        for piece, size_bytes in _pieces(segment, bytes_max):
            if piece.core != room_core or size_bytes > room_bytes:
                partitions.append([])
                room_bytes, room_core = bytes_max, piece.core
            partitions[-1].append(piece)
            room_bytes -= size_bytes
    return partitions


def _pieces(segment: StoredSegment, bytes_max: int) -> Iterator[tuple[BundleRange, int]]:
    """Even ranges of a segment's bundles with about `bytes_max` bytes at most, and what each is taken to weigh."""
    bundles = segment.bundle_count
    count = min(bundles, -(-segment.size_bytes // bytes_max))
    for index in range(count):
        start, end = bundles * index // count, bundles * (index + 1) // count
        yield BundleRange(segment.core, segment.segment_seq, start, end), segment.size_bytes * (end - start) // bundles
