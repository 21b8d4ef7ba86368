"""Builds parts of a manifest again that are damaged or were deleted, from the segments that lie in the store.

What a part said of a segment is in the segment and its checksums, but for what a reader may do without: the statistics of its columns,
and why bundles are missing. A segment whose object is damaged or missing too becomes a hole of reason `damaged`.

| what is found of a segment number                              | in the part that is built again                             |
|----------------------------------------------------------------|-------------------------------------------------------------|
| its object, whole by its checksums; of generations the newest  | a segment with an object of its own                         |
| a place in a whole pack whose segments follow each other       | a segment in the pack                                       |
| nothing                                                        | a hole, unless the part is known to have had no more rows   |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from quiver_actors.archive.keys import StreamKey, crc_key, crc_of_pack, parse_pack_key, parse_segment_key, stream_prefix
from quiver_actors.archive.manifest import (
    PACKED_VERSION,
    PLAIN_VERSION,
    Hole,
    Part,
    PartRef,
    Segment,
    StreamRef,
)
from quiver_actors.archive.manifest_store import ManifestWriter, read_part
from quiver_actors.archive.segment_rows import bundles_of, holes_of, row_of, rows_of_pack
from quiver_actors.base.checksum import crc32
from quiver_actors.errors import FormatError
from quiver_actors.store.objects.object_store import ObjectInfo, ObjectStore


class DamagedPart(NamedTuple):
    """A part of a manifest that cannot be read, and what can be put into its place."""

    stream: StreamKey
    ref: PartRef
    problem: str
    part: Part

    @property
    def lost_count(self) -> int:
        """Rows of segments that the part had and that were not found."""
        return max(0, self.ref.segment_count - len(self.part.segments))


def damaged_parts(store: ObjectStore, node: str, stream: StreamRef) -> Iterator[DamagedPart]:
    """Yield the parts of a stream that cannot be read, with what is found of their segments. Changes nothing.

    Raises:
        ArchiveError: the store cannot be read. UnsupportedVersion: a newer program has written a part.
    """
    for ref in stream.parts:
        problem = _problem(store, ref)
        if problem:
            yield DamagedPart(stream.key, ref, problem, _built_again(store, node, stream, ref))


def repair(writer: ManifestWriter, damaged: DamagedPart) -> None:
    """Put the part that was built again into the place of the damaged one. Raises as `ManifestWriter.commit`."""
    writer.expire(damaged.stream, [damaged.ref], damaged.part, -1, [])


def _problem(store: ObjectStore, ref: PartRef) -> str:
    """Return what is wrong with a part; empty if it is not so twice: the way may have damaged it."""
    for _ in range(2):
        try:
            read_part(store, ref)
            return ""
        except FormatError as error:
            problem = str(error)
    return problem


def _built_again(store: ObjectStore, node: str, stream: StreamRef, ref: PartRef) -> Part:
    infos = list(store.objects(stream_prefix(node, stream.key)))
    segments = {each.segment_seq: each for each in _in_packs(store, infos, ref)}
    segments |= {each.segment_seq: each for each in _alone(store, infos, ref)}
    rows = tuple(segments[number] for number in sorted(segments))
    is_packed = any(each.pack is not None for each in rows)
    return Part(
        version=PACKED_VERSION if is_packed else PLAIN_VERSION,
        topic=stream.topic,
        incarnation=stream.incarnation,
        core=stream.core,
        segments=rows,
        holes=tuple(_holes(ref, segments.keys())),
        slots=stream.slots,
        event_time=stream.event_time,
    )


def _holes(ref: PartRef, found: Iterable[int]) -> Iterator[Hole]:
    numbers = set(found)
    if len(numbers) == ref.segment_count and not ref.hole_count:
        return
    yield from holes_of(ref.first_segment_seq, ref.last_segment_seq, numbers)


# --- segments ------------------------------------------------------------------------------------------------------------


def _alone(store: ObjectStore, infos: Iterable[ObjectInfo], ref: PartRef) -> Iterator[Segment]:
    """Yield the segments that have objects of their own, the newest generation of each. Where generations hold different bundles, as where
    a copy of the data directory has run as well, nothing says which one was meant, and none is taken."""
    found: dict[int, list[tuple[int, ObjectInfo]]] = {}
    for info in infos:
        key = parse_segment_key(info.key)
        if key is not None and ref.first_segment_seq <= key.segment_seq <= ref.last_segment_seq:
            found.setdefault(key.segment_seq, []).append((key.generation, info))
    for number, generations in found.items():
        rows = [row for each in sorted(generations) if (row := _whole_row(store, number, *each)) is not None]
        if rows and len({bundles_of(row) for row in rows}) == 1:
            yield rows[-1]


def _whole_row(store: ObjectStore, number: int, generation: int, info: ObjectInfo) -> Segment | None:
    content, sums = store.get(info.key), store.get(crc_key(info.key))
    try:
        if content is not None and sums is not None:
            return row_of(number, generation, info, sums.content, memoryview(content.content))
    except FormatError:
        pass
    return None


def _in_packs(store: ObjectStore, infos: Iterable[ObjectInfo], ref: PartRef) -> Iterator[Segment]:
    """Yield the segments of whole packs whose numbers follow each other: of others nothing says which number a segment has."""
    for info in infos:
        span = parse_pack_key(info.key)
        if span is None or span[1] < ref.first_segment_seq or ref.last_segment_seq < span[0]:
            continue
        found = store.get(info.key)
        if found is None or crc32(found.content) != crc_of_pack(info.key):
            continue
        rows = list(rows_of_pack(info, span[0], memoryview(found.content)))
        if len(rows) == span[1] + 1 - span[0]:
            yield from rows
