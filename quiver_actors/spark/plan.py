"""Which bundles each partition of a read covers. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from quiver_actors.flight.contract import BundleRange, SlotRows
from quiver_actors.spark.offsets import Place


class StoredRange(NamedTuple):
    """Bundles `[bundle_start, bundle_end)` of one sealed segment, and what planning needs to know of it."""

    place: Place
    segment_seq: int
    bundle_start: int
    bundle_end: int
    bundle_count: int
    """Of the whole segment."""
    size_bytes: int
    """Of the whole segment."""


class PlannedPartition(NamedTuple):
    """What one task reads: ranges of one worker of one node, in the order in which they were stored."""

    place: Place
    ranges: list[BundleRange]


def plan_partitions(stored: Iterable[StoredRange], bytes_max: int, count_min: int = 1) -> list[PlannedPartition]:
    """Cut ranges into partitions of about `bytes_max` stored bytes: big ones are split evenly, small ones of a worker share one.

    Every bundle is in exactly one partition. With `count_min` partitions get smaller until there are as many, as far as there are bundles.
    """
    ranges = sorted(stored)
    if count_min > 1:
        total_bytes = sum(_weight(piece) for piece in ranges)
        bytes_max = max(1, min(bytes_max, total_bytes // count_min))
    partitions: list[PlannedPartition] = []
    room_bytes = 0
    for piece in ranges:
        for cut, size_bytes in _pieces(piece, bytes_max):
            if not partitions or piece.place != partitions[-1].place or size_bytes > room_bytes:
                partitions.append(PlannedPartition(piece.place, []))
                room_bytes = bytes_max
            partitions[-1].ranges.append(cut)
            room_bytes -= size_bytes
    return partitions


def _weight(stored: StoredRange) -> int:
    return stored.size_bytes * (stored.bundle_end - stored.bundle_start) // max(1, stored.bundle_count)


def _pieces(stored: StoredRange, bytes_max: int) -> Iterator[tuple[BundleRange, int]]:
    """Even parts of a range with about `bytes_max` bytes at most, and what each is taken to weigh."""
    bundles = stored.bundle_end - stored.bundle_start
    count = min(bundles, max(1, -(-_weight(stored) // bytes_max)))
    for index in range(count):
        start, end = bundles * index // count, bundles * (index + 1) // count
        weight = stored.size_bytes * (end - start) // max(1, stored.bundle_count)
        yield (
            BundleRange(stored.place.core, stored.segment_seq, stored.bundle_start + start, stored.bundle_start + end),
            weight,
        )


class Extent(NamedTuple):
    """A sealed segment as one core has it."""

    segment_seq: int
    bundle_count: int
    size_bytes: int


def ranges_between(
    place: Place, segments: Sequence[Extent], start: tuple[int, int], end: tuple[int, int]
) -> list[StoredRange]:
    """The parts of sealed segments from bundle `start` up to and not including `end`, both (segment, bundle)."""
    found = []
    for segment_seq, bundle_count, size_bytes in segments:
        first = max((segment_seq, 0), start)
        last = min((segment_seq, bundle_count), end)
        if first < last:
            found.append(StoredRange(place, segment_seq, first[1], last[1], bundle_count, size_bytes))
    return found


def segments_of(stored: Iterable[StoredRange], node: str) -> dict[int, list[int]]:
    """The segments that the ranges of a node lie in, by core."""
    found: dict[int, list[int]] = {}
    for piece in stored:
        if piece.place.node == node:
            found.setdefault(piece.place.core, []).append(piece.segment_seq)
    return found


def having_slots(
    stored: Iterable[StoredRange], rows: Mapping[str, SlotRows], selected: Collection[int], required: Collection[int]
) -> list[StoredRange]:
    """Ranges of segments that have rows in a selected slot, and in every required one.

    One that its node (the key of `rows`) did not find stays: whoever reads it says what became of it.
    """

    def may_have_rows(piece: StoredRange) -> bool:
        found = rows[piece.place.node].by_core.get(piece.place.core, {}).get(piece.segment_seq)
        return found is None or (any(map(found.get, selected)) and all(map(found.get, required)))

    return [piece for piece in stored if may_have_rows(piece)]
