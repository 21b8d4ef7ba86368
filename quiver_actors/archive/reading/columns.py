"""What the manifest says of the columns of archived segments, in the form in which a worker says it of its own. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from quiver_actors.archive.manifest import Segment
from quiver_actors.archive.reading.contents import StreamContents
from quiver_actors.base.protocol.messages import SegmentColumns, StatisticsList


def columns_in(contents: StreamContents, segments: Iterable[Segment]) -> StatisticsList:
    """The columns of those of the segments that have a description.

    Args:
        contents: of the stream of the segments.
    """
    places: dict[tuple[int, str], int] = {}
    found = list(_described(contents, segments, places))
    return StatisticsList(0, [(slot_id, contents.schemas[each]) for slot_id, each in places], found)


def _described(
    contents: StreamContents, segments: Iterable[Segment], places: dict[tuple[int, str], int]
) -> Iterator[SegmentColumns]:
    for segment in segments:
        fingerprints, streams = segment.schema_fingerprints, segment.streams
        if fingerprints is None or streams is None or len(fingerprints) != len(streams):
            continue
        if not contents.schemas.keys() >= set(fingerprints):
            continue
        rows = [
            (places.setdefault((slot_id, each), len(places)), count)
            for each, (slot_id, count) in zip(fingerprints, streams, strict=True)
        ]
        yield SegmentColumns(segment.segment_seq, rows, segment.statistics or b"")
