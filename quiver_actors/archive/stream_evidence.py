"""The segments and holes of one stream as what is left in the store proves them, when the head of the manifest is lost.

| what is found of a segment number                                   | in the stream that is built again                          |
|---------------------------------------------------------------------|------------------------------------------------------------|
| a row in a part that has its own checksum, and its object is there  | the row of the newest such part                            |
| a row in a part of an older program                                 | the row, made anew of its object, which must be the one    |
| an object, or a place in a whole pack, that no part names           | a row made of it, unless generations hold different bundles|
| a hole in a part                                                    | the hole, unless the segment is there                      |
| nothing, though there was something                                 | a hole of reason `damaged`                                 |

Parts that a later one has replaced are evidence too: the store has them for an hour. Of what has expired within that hour, some may come
back by this, and expires again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from quiver_actors.archive.checking import content_of
from quiver_actors.archive.keys import (
    StreamKey,
    crc_key,
    crc_of_pack,
    parse_pack_key,
    parse_segment_key,
)
from quiver_actors.archive.manifest import Hole, Part, Segment, decode_part, is_proven, key_of, own_key
from quiver_actors.archive.segment_rows import HOLES_MAX, bundles_of, holes_of, row_of, rows_of_pack
from quiver_actors.base.checksum import crc32
from quiver_actors.errors import FormatError
from quiver_actors.store.objects.object_store import ObjectInfo, ObjectMissing, ObjectStore

SKIPPED_MIN = 1 << 31
"""Length of a run of numbers from which on a restore has left them out (`restoring.small_files`), and nothing is lost."""


class FoundStream(NamedTuple):
    """One topic on one core, of one incarnation, as it is built again."""

    key: StreamKey
    segments: tuple[Segment, ...]
    holes: tuple[Hole, ...]
    lost_count: int
    """Segment numbers of which nothing that is whole was found, and no part says why."""
    unnamed: frozenset[int]
    """The numbers of segments that no part names."""
    problems: tuple[str, ...]
    """What an operator should know of it."""
    schemas: Mapping[str, bytes]
    slots: dict[str, int] | None
    event_time: str | None
    packs_to_sweep: tuple[tuple[str, int, int], ...]
    """Packs whose segments have objects of their own still: key, first and last segment."""


class StreamEvidence:
    """Collects what the store has of one stream. One thread.

    Args:
        objects: all objects of the node by their keys.
    """

    def __init__(self, store: ObjectStore, node: str, stream: StreamKey, objects: Mapping[str, ObjectInfo]) -> None:
        self._store = store
        self._node = node
        self._stream = stream
        self._objects = objects
        self._rows: dict[int, Segment] = {}
        self._holes: dict[tuple[int, int, int, str], Hole] = {}
        self._spans: list[tuple[int, int]] = []
        """The first and the last number of each part: numbers between them that it does not have were never recorded."""
        self._seen: set[int] = set()
        """Numbers of which a part or the name of an object tells."""
        self._unnamed: set[int] = set()
        self._problems: list[str] = []
        self._schemas: dict[str, bytes] = {}
        self._slots: dict[str, int] | None = None
        self._event_time: str | None = None

    def found(self, part_keys: Iterable[str], own: Sequence[str]) -> FoundStream:
        """Look at everything.

        Args:
            part_keys: the parts of the stream, the newest first.
            own: the keys of its segments, their checksums and its packs.

        Raises:
            ArchiveError: the store cannot be read. UnsupportedVersion: a newer program has written a part.
        """
        for key in part_keys:
            self._take_part(key)
        self._take_alone(own)
        self._take_packs(own)
        holes = [each for each in self._holes.values() if each.bundle_count or each.segment_seq not in self._rows]
        lost = list(self._lost({each.segment_seq for each in holes}))
        lost_count = sum(last + 1 - first for first, last in lost)
        made = [hole for each in lost for hole in holes_of(*each)]
        return FoundStream(
            self._stream,
            tuple(self._rows[number] for number in sorted(self._rows)),
            tuple(sorted([*holes, *made], key=lambda hole: (hole.segment_seq, hole.first_bundle))),
            lost_count,
            frozenset(self._unnamed),
            tuple(self._problems),
            self._schemas,
            self._slots,
            self._event_time,
            tuple(self._packs_to_sweep()),
        )

    # --- parts ---------------------------------------------------------------------------------------------------------------

    def _take_part(self, key: str) -> None:
        found = self._store.get(key)
        if found is None:
            return  # deleted since it was listed
        part, is_whole = decode_part(found.content), is_proven(found.content)
        for row in part.segments:
            self._seen.add(row.segment_seq)
            if row.segment_seq not in self._rows and self._is_there(row):
                proven = row if is_whole else self._proven(row)
                if proven is not None:
                    self._rows[row.segment_seq] = proven
        for hole in part.holes:
            self._holes.setdefault(hole.identity, hole)
        if is_whole:
            self._schemas = {**part.schemas, **self._schemas}
        self._take_facts(part)

    def _take_facts(self, part: Part) -> None:
        numbers = [*(each.segment_seq for each in part.segments), *(each.segment_seq for each in part.holes)]
        if numbers:
            self._spans.append((min(numbers), max(numbers)))
        self._slots = part.slots if self._slots is None else self._slots
        self._event_time = part.event_time if self._event_time is None else self._event_time

    def _is_there(self, row: Segment) -> bool:
        key = key_of(self._node, self._stream, row)
        info = self._objects.get(key)
        if info is None:
            return False
        if row.pack is not None:
            return row.pack.offset + row.size_bytes <= info.size_bytes
        return info.size_bytes == row.size_bytes and crc_key(key) in self._objects

    def _proven(self, row: Segment) -> Segment | None:
        """The row made anew of what it names; None if that is something else, or damaged."""
        key = key_of(self._node, self._stream, row)
        try:
            if row.pack is None:
                sums, content = self._whole(crc_key(key)), self._whole(key)
            else:
                begin = row.pack.offset
                ranges = [(row.pack.sums_offset, begin), (begin, begin + row.size_bytes)]
                sums, content = (bytes(each) for each in self._store.get_ranges(key, ranges))
            made = row_of(row.segment_seq, row.generation, self._objects[key], sums, memoryview(content), row.pack)
        except (FormatError, ObjectMissing):
            return None
        same = content_of(made)[:2] == content_of(row)[:2] and row.digest in ("", made.digest)
        return made if same else None

    def _whole(self, key: str) -> bytes:
        found = self._store.get(key)
        if found is None:
            raise ObjectMissing(f"{self._store.url}: object {key} is not there any more")
        return found.content

    # --- what no part names --------------------------------------------------------------------------------------------------

    def _take_alone(self, own: Iterable[str]) -> None:
        generations: dict[int, list[tuple[int, str]]] = {}
        for key in own:
            parsed = parse_segment_key(key)
            if parsed is not None and parsed.segment_seq not in self._rows:
                generations.setdefault(parsed.segment_seq, []).append((parsed.generation, key))
        for number, found in generations.items():
            self._seen.add(number)
            rows = [row for each in sorted(found) if (row := self._made(number, *each)) is not None]
            if len({bundles_of(row) for row in rows}) > 1:
                keys = ", ".join(key_of(self._node, self._stream, row) for row in rows)
                self._problems.append(
                    f"segment {number}: these objects hold different bundles, and nothing says whose: {keys}"
                )
            elif rows:
                self._rows[number] = rows[-1]
                self._unnamed.add(number)

    def _made(self, number: int, generation: int, key: str) -> Segment | None:
        try:
            content = memoryview(self._whole(key))
            return row_of(number, generation, self._objects[key], self._whole(crc_key(key)), content)
        except (FormatError, ObjectMissing) as error:
            self._problems.append(f"{key} is not used: {error}")
            return None

    def _take_packs(self, own: Iterable[str]) -> None:
        """Take segments of whole packs whose numbers follow each other: of others nothing says which number a segment has."""
        for key in own:
            span = parse_pack_key(key)
            if span is None:
                continue
            self._seen.update(span)
            numbers = range(span[0], span[1] + 1)
            if len(numbers) > HOLES_MAX or all(number in self._rows for number in numbers):
                continue
            for row in self._rows_of_pack(key, span):
                if row.segment_seq not in self._rows:
                    self._rows[row.segment_seq] = row
                    self._unnamed.add(row.segment_seq)

    def _rows_of_pack(self, key: str, span: tuple[int, int]) -> Sequence[Segment]:
        try:
            content = self._whole(key)
            if crc32(content) != crc_of_pack(key):
                self._problems.append(f"{key} is not used: it does not have the checksum that its name says")
                return ()
            rows = list(rows_of_pack(self._objects[key], span[0], memoryview(content)))
        except (FormatError, ObjectMissing) as error:
            self._problems.append(f"{key} is not used: {error}")
            return ()
        return rows if len(rows) == span[1] + 1 - span[0] else ()

    # --- what is lost --------------------------------------------------------------------------------------------------------

    def _lost(self, holes: set[int]) -> Iterator[tuple[int, int]]:
        """Yield the first and the last number of each run of segments of which there is nothing, and no reason."""
        told = self._rows.keys() | holes
        first = min(told, default=0)
        early = sorted(number for number in self._seen if number < first)
        if early:
            self._problems.append(
                f"segments {early[0]} to {early[-1]}: parts or objects name {len(early):,} of them, and none is there: they have expired, "
                "or are lost"
            )
        known = sorted(told | {number for number in self._seen if number >= first})
        yield from ((number, number) for number in known if number not in told)
        for before, after in pairwise(known):
            if 1 < after - before < SKIPPED_MIN and not self._is_unused(before, after):
                yield before + 1, after - 1

    def _is_unused(self, before: int, after: int) -> bool:
        """Whether nothing was stored under the numbers between two that are known."""
        if any(first <= before and after <= last for first, last in self._spans):
            return True
        low, high = self._rows.get(before), self._rows.get(after)
        return low is not None and high is not None and 0 < low.position_end == high.position_start

    def _packs_to_sweep(self) -> Iterator[tuple[str, int, int]]:
        packs: dict[str, list[int]] = {}
        for row in self._rows.values():
            if row.pack is not None and self._has_own(row):
                packs.setdefault(row.pack.key, []).append(row.segment_seq)
        for key, numbers in packs.items():
            yield key, min(numbers), max(numbers)

    def _has_own(self, row: Segment) -> bool:
        return own_key(self._node, self._stream, row) in self._objects
