"""Deletes from the archive what is over age: first from the manifest, and an hour later from the store, so that no reader meets a hole."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from typing import NamedTuple

import msgspec

from quiver_actors.archive.keys import crc_key
from quiver_actors.archive.manifest import Part, PartRef, Segment, StreamRef, own_key
from quiver_actors.archive.manifest_store import ManifestWriter, read_part
from quiver_actors.archive.packs import left_without
from quiver_actors.base.clock import Clock
from quiver_actors.store.objects.object_store import Metadata


class UnhurriedClock:
    """Tells the time by which the archive's segments age: a clock that is set ahead while this lives makes nothing older.

    Guarantee: `unix_ns` is never later than the clock says, and goes on no faster than the monotonic clock.

    Args:
        other_unix_ns: the present time by another clock, which is believed if it is earlier; 0: there is none.
    """

    def __init__(self, clock: Clock, other_unix_ns: int = 0) -> None:
        self._clock = clock
        now_unix_ns = clock.unix_ns()
        self._ahead_ns = min(now_unix_ns, other_unix_ns or now_unix_ns) - clock.monotonic_ns()

    def unix_ns(self) -> int:
        """UNIX nanoseconds."""
        return min(self._clock.unix_ns(), self._clock.monotonic_ns() + self._ahead_ns)


class OverAge(NamedTuple):
    """The segments of one part of the manifest that are over age."""

    ref: PartRef
    part: Part
    segments: tuple[Segment, ...]
    """The first ones of the part."""


def over_age(store: Metadata, stream: StreamRef, before_unix_ns: int) -> Iterator[OverAge]:
    """The oldest segments of a stream, up to the first one that is not over age. Raises as `read_part`.

    Args:
        before_unix_ns: segments whose newest bundle was ingested before this time are over age.
    """
    for ref in stream.parts:
        part = read_part(store, ref)
        going = tuple(takewhile(lambda each: each.last_ingestion_unix_ns < before_unix_ns, part.segments))
        if going:
            yield OverAge(ref, part, going)
        if len(going) < len(part.segments):
            return


def expire_stream(store: Metadata, writer: ManifestWriter, stream: StreamRef, before_unix_ns: int) -> int:
    """Take the segments of a stream that are over age out of the manifest. Returns how many.

    Args:
        stream: as it was found; what the writer's head says of it by now counts.
        before_unix_ns: as in `over_age`.

    Raises:
        ArchiveError: the manifest was not changed, or not for all parts.
    """
    count, present = 0, writer.head.stream(stream.key)
    for ref, part, going in () if present is None else over_age(store, present, before_unix_ns):
        count += len(going)
        left = part.segments[len(going) :]
        through = going[-1].segment_seq
        holes = tuple(hole for hole in part.holes if hole.segment_seq > through)
        # Those that lie in packs may have objects of their own still.
        keys = [own_key(writer.head.node, stream.key, segment) for segment in going]
        new = msgspec.structs.replace(part, segments=left, holes=holes) if left or holes else None
        writer.expire(stream.key, [ref], new, through, [*keys, *map(crc_key, keys), *left_without(going, left)])
    return count
