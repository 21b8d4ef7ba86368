"""The bundles that each partition of a read covers. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from quiver_actors.base.protocol.messages import SegmentInfo
from quiver_actors.flight.archived_contents import ArchivedNames
from quiver_actors.flight.contract import AskSlotRows, BundleRange, CoreContents, SlotRows, WantedRows
from quiver_actors.spark.offsets import Place


class StoredRange(NamedTuple):
    """Bundles `[bundle_start, bundle_end)` of one segment, and what planning needs to know of it."""

    place: Place
    segment_seq: int
    bundle_start: int
    bundle_end: int
    bundle_count: int
    """Number of bundles in the whole segment, as far as it can be read."""
    size_bytes: int
    """Size of these."""
    is_sealed: bool = True
    archived_as: str = ""
    """Incarnation of the directory under which the node's archive has the segment, where it has more of it than the disk; empty: it has
    not."""
    is_on_disk: bool = True
    """Whether the disk has the segment, though bundles of it may be lost there: these are read in the archive."""


class PlannedPartition(NamedTuple):
    """The work of one task: ranges of one worker of one node, in the order in which they were stored."""

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
    """A segment as one core has it, as far as it can be read."""

    segment_seq: int
    bundle_count: int
    size_bytes: int
    is_sealed: bool = True
    archived_as: str = ""
    """See `StoredRange.archived_as`."""
    is_on_disk: bool = True
    """See `StoredRange.is_on_disk`."""


def extents_of(core: CoreContents, segments: Iterable[SegmentInfo]) -> list[Extent]:
    """The extents of some segments of a core; rows are counted in sealed ones only."""
    archived = set() if core.archived is None else {info.segment_seq for info in core.archived.segments}
    here = {info.segment_seq for info in (*core.segments, *core.unsealed)}

    def extent(info: SegmentInfo) -> Extent:
        seq = info.segment_seq
        archived_as = core.incarnation if seq in archived else ""
        return Extent(seq, info.bundle_count, info.size_bytes, info.row_count >= 0, archived_as, seq in here)

    return [extent(info) for info in segments]


def ranges_between(
    place: Place, segments: Sequence[Extent], start: tuple[int, int], end: tuple[int, int]
) -> list[StoredRange]:
    """The parts of segments from bundle `start` up to and not including `end`, both (segment, bundle)."""
    found = []
    for extent in segments:
        first = max((extent.segment_seq, 0), start)
        last = min((extent.segment_seq, extent.bundle_count), end)
        if first < last:
            found.append(StoredRange(place, extent.segment_seq, first[1], last[1], *extent[1:]))
    return found


def rows_request(stored: Iterable[StoredRange], node: str, topic: str, wanted: WantedRows | None = None) -> AskSlotRows:
    """Ask a node for the rows of each slot in the ranges of it: of whole segments if they are sealed, else of the ranges alone."""
    segments: dict[int, list[int]] = {}
    ranges: list[BundleRange] = []
    pieces = [piece for piece in stored if piece.place.node == node]
    for piece in pieces:
        if piece.is_sealed and not piece.archived_as:
            segments.setdefault(piece.place.core, []).append(piece.segment_seq)
        elif not piece.is_sealed:
            ranges.append(BundleRange(piece.place.core, piece.segment_seq, piece.bundle_start, piece.bundle_end))
    return AskSlotRows(topic, segments, ranges, wanted, archived_names(pieces))


def archived_names(stored: Iterable[StoredRange]) -> dict[int, ArchivedNames]:
    """The segments of the ranges of one node of which its archive has more than its disk, by core."""
    found: dict[int, ArchivedNames] = {}
    for piece in stored:
        if piece.archived_as:
            names = found.setdefault(piece.place.core, ArchivedNames(piece.archived_as, {}))
            names.bundle_counts[piece.segment_seq] = piece.bundle_count
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


def matching_ranges(stored: Iterable[StoredRange], rows: Mapping[str, SlotRows]) -> list[StoredRange]:
    """Ranges of segments that may have wanted rows, as far as their nodes (the keys of `rows`) know."""
    left_out = {
        (Place(node, core), segment_seq)
        for node, found in rows.items()
        for core, segments in found.unmatched.items()
        for segment_seq in segments
    }
    return [piece for piece in stored if not piece.is_sealed or (piece.place, piece.segment_seq) not in left_out]
