"""Reading all of an archive, segment by segment, while its node goes on: segments are merged and expire meanwhile.

A segment that is not where the manifest named it is looked for where the manifest names it by now. So what is reported is damaged or
missing, and not moved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from quiver_actors.archive.checking import check_segment, read_segment
from quiver_actors.archive.keys import StreamKey
from quiver_actors.archive.manifest import Segment, key_of
from quiver_actors.archive.manifest_store import read_head, read_state
from quiver_actors.archive.node_state import decode_state
from quiver_actors.archive.reading.contents import NodeContents
from quiver_actors.errors import FormatError
from quiver_actors.store.objects.object_store import ObjectMissing, ObjectStore


class Problem(NamedTuple):
    """An object, or the segments of a topic on one core, that are not as they should be."""

    key: str
    problem: str


def verify(store: ObjectStore, node: str, streams: Iterable[StreamKey]) -> tuple[int, list[Problem]]:
    """Read segments and the state of a node. Returns how many segments were read, and what is wrong.

    Raises:
        UsageError: the archive has nothing of such a node. ArchiveError: the store cannot be read.
    """
    contents = NodeContents(store, node)
    count, problems = 0, _state_problems(store, node)
    for stream in streams:
        for place, found in _listed(contents, stream):
            if isinstance(found, str):
                problems.append(Problem(place, found))
                continue
            count += 1
            problem = check_segment(store, place, found)
            moved = _moved(contents, stream, found) if problem else found
            if moved is not None and moved != found:
                place = key_of(node, stream, moved)
                problem = check_segment(store, place, moved)
            if problem and moved is not None:
                problems.append(Problem(place, problem))
    return count, problems


def proven_segments(store: ObjectStore, node: str, stream: StreamKey) -> Iterator[tuple[int, bytes | str]]:
    """Yield the number of each archived segment with its content, or with what is wrong with it. One that expires meanwhile is left out.

    Raises:
        As `verify`.
    """
    contents = NodeContents(store, node)
    for place, found in _listed(contents, stream):
        if isinstance(found, str):
            yield -1, f"{place}: {found}"
            continue
        try:
            yield found.segment_seq, read_segment(store, place, found)
        except (ObjectMissing, FormatError) as error:
            moved, problem = _moved(contents, stream, found), f"{place}: {error}"
            if moved is not None and moved != found:
                yield found.segment_seq, _content_or_problem(store, key_of(node, stream, moved), moved)
            elif moved is not None:
                yield found.segment_seq, problem


def _content_or_problem(store: ObjectStore, key: str, segment: Segment) -> bytes | str:
    try:
        return read_segment(store, key, segment)
    except (ObjectMissing, FormatError) as error:
        return f"{key}: {error}"


def _listed(contents: NodeContents, stream: StreamKey) -> Iterator[tuple[str, Segment | str]]:
    """Yield each segment of a stream and the key of its object; or the stream, and why its manifest cannot be read."""
    try:
        segments = contents.contents(stream).segments
    except FormatError as error:
        yield f"topic {stream.topic}, core {stream.core}", str(error)
        return
    for segment in segments:
        yield key_of(contents.node, stream, segment), segment


def _moved(contents: NodeContents, stream: StreamKey, segment: Segment) -> Segment | None:
    """The row that the manifest has of a segment now, or had, if it cannot be read any more; None: the segment has expired."""
    contents.refresh()
    try:
        segments = contents.contents(stream).segments
    except FormatError:
        return segment
    return next((each for each in segments if each.segment_seq == segment.segment_seq), None)


def _state_problems(store: ObjectStore, node: str) -> list[Problem]:
    """Return what is wrong with the state: without it nothing can be restored, however whole the segments are."""
    head = read_head(store, node)
    if head is None or head.state is None:
        return []
    try:
        decode_state(read_state(store, head.state))
    except FormatError as error:
        again = read_head(store, node)
        if again is not None and again.state != head.state:
            return _state_problems(store, node)
        return [Problem(head.state.key, str(error))]
    return []
