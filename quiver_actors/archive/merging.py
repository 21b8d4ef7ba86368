"""Merges small archived segments into packs, beside the archiving.

Guarantees:
- The manifest names a segment in one place at any time: in its own object, or, from one commit on, in a pack. No bundle, row or id changes.
- A segment's own object goes `KEPT_NS` after that commit: readers of the former manifest go on, and look at the manifest anew later.
  The pack was read and found whole before.
- Killed at any moment, the next archiver chooses the same segments again and writes the same object.
- One pack is in memory at a time, `PACK_BYTES` and a segment. Requests run on a thread of their own; the archiver's thread only commits.

Owner: the archiver. Its thread calls `advance`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import msgspec

from quiver_actors.archive.checking import read_segment
from quiver_actors.archive.keys import StreamKey, crc_key, crc_of_pack
from quiver_actors.archive.manifest import PACKED_VERSION, Part, PartRef, Segment, StreamRef, Unswept, key_of, own_key
from quiver_actors.archive.manifest_store import PART_ROWS_MAX, ManifestWriter, read_part
from quiver_actors.archive.packs import Pack, pack
from quiver_actors.archive.uploads import Throttle, has_crc32, put_whole
from quiver_actors.base.checksum import crc32
from quiver_actors.base.units import MIB, SECOND_NS
from quiver_actors.errors import FormatError
from quiver_actors.store.objects.errors import ArchiveError
from quiver_actors.store.objects.object_store import ObjectMissing, ObjectStore

logger = logging.getLogger("quiver.archive")

PACK_SEGMENTS = 256
PACK_BYTES = 16 * MIB
"""A pack is made when there are so many small segments, or so many bytes of them, in one part of the manifest."""
REQUESTS_AT_ONCE = 4
KEPT_NS = 3600 * SECOND_NS
PAUSE_NS = 60 * SECOND_NS
"""How long nothing is merged after the store has failed."""


class Group(NamedTuple):
    """Segments of one part that are to be one pack."""

    stream: StreamKey
    segments: tuple[Segment, ...]


class Sweep(NamedTuple):
    """Objects of segments that lie in a pack."""

    stream: StreamKey
    pack_key: str
    keys: tuple[str, ...]


def group_in(ref: PartRef, part: Part, below_bytes: int) -> tuple[Segment, ...]:
    """The segments of a part that are to be the next pack; empty: there is none yet. Pure: the same of a part that has grown.

    Args:
        below_bytes: smaller segments are merged.
    """
    taken: list[Segment] = []
    size_bytes = 0
    for segment in part.segments:
        if segment.pack is not None or segment.size_bytes >= below_bytes:
            continue
        taken.append(segment)
        size_bytes += segment.size_bytes
        if len(taken) == PACK_SEGMENTS or size_bytes >= PACK_BYTES:
            return tuple(taken) if len(taken) > 1 else ()
    is_closed = ref.segment_count + ref.hole_count >= PART_ROWS_MAX
    return tuple(taken) if is_closed and len(taken) > 1 else ()


class Merging:
    """Merges small segments of one node into packs, and deletes their own objects afterwards. Owned by the archiver's thread.

    Args:
        below_bytes: smaller segments are merged; 0: none is.
        note: told how many segments were merged with one commit.
    """

    def __init__(
        self,
        store: ObjectStore,
        node: str,
        below_bytes: int,
        throttle: Throttle,
        note: Callable[[int], None],
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._store = store
        self._node = node
        self._below_bytes = below_bytes
        self._throttle = throttle
        self._note = note
        self._clock = clock
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="archive-merge")
        self._making: Future[Pack | None] | None = None
        self._group: Group | None = None
        self._deleting: Future[bool] | None = None
        self._sweep: Sweep | None = None
        self._passed: set[str] = set()
        """Parts of which there is nothing to merge; they never change."""
        self._unreadable: set[str] = set()
        """Packs that are damaged or missing, or whose segments nobody can name, as a part of the manifest is: their own objects stay."""
        self._seen_ns: dict[str, int] = {}
        """When a pack was first seen whose segments still have their own objects."""
        self._resume_ns = 0

    def advance(self, writer: ManifestWriter) -> bool:
        """Commit what is ready, and begin what is due. Does not wait for what it has begun. Returns whether something is under way.

        Raises:
            ArchiveFenced: the archive has another owner. ArchiveError: the manifest was not changed; the next call goes on.
        """
        self._finish_pack(writer)
        self._finish_sweep(writer)
        if self._clock() >= self._resume_ns and self._making is None and self._deleting is None:
            self._begin(writer)
        return self._making is not None or self._deleting is not None

    def wait(self) -> None:
        """Wait for what is under way."""
        for under_way in (self._making, self._deleting):
            if under_way is not None:
                under_way.exception()

    def close(self) -> None:
        """Begin nothing more. What is under way changes nothing that a reader sees."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    # --- beginning -----------------------------------------------------------------------------------------------------------

    def _begin(self, writer: ManifestWriter) -> None:
        self._sweep = self._next_sweep(writer)
        if self._sweep is not None:
            writer.check_owner()
            self._deleting = self._threads.submit(self._delete, self._sweep)
            return
        self._group = self._next_group(writer) if self._below_bytes else None
        if self._group is not None:
            self._making = self._threads.submit(self._make, self._group)

    def _next_group(self, writer: ManifestWriter) -> Group | None:
        """The next segments to be merged. Reads one part that was not looked at yet, at most."""
        for stream in writer.head.streams:
            for ref in stream.parts:
                if ref.key in self._passed or ref.segment_count < 2:
                    continue
                segments = self._group_in(ref)
                if segments:
                    return Group(stream.key, segments)
                self._passed.add(ref.key)
                return None
        self._passed.intersection_update(ref.key for stream in writer.head.streams for ref in stream.parts)
        return None

    def _group_in(self, ref: PartRef) -> tuple[Segment, ...]:
        try:
            return group_in(ref, read_part(self._store, ref), self._below_bytes)
        except FormatError as error:
            # Whoever reads these segments is told; what else there is can be merged.
            logger.warning("quiver.archive.part_not_merged error=%s", error)
            return ()

    def _next_sweep(self, writer: ManifestWriter) -> Sweep | None:
        unswept = [(stream, each) for stream in writer.head.streams for each in stream.unswept]
        now_ns = self._clock()
        self._seen_ns = {each.key: self._seen_ns.get(each.key, now_ns) for _, each in unswept}
        for stream, each in unswept:
            if now_ns - self._seen_ns[each.key] >= KEPT_NS and each.key not in self._unreadable:
                try:
                    return Sweep(stream.key, each.key, tuple(self._own_keys(stream, each)))
                except FormatError as error:
                    logger.warning("quiver.archive.not_swept pack=%s error=%s", each.key, error)
                    self._unreadable.add(each.key)
        return None

    def _own_keys(self, stream: StreamRef, unswept: Unswept) -> Iterator[str]:
        for ref in stream.parts:
            if ref.last_segment_seq < unswept.first_segment_seq or unswept.last_segment_seq < ref.first_segment_seq:
                continue
            for segment in read_part(self._store, ref).segments:
                if segment.pack is not None and segment.pack.key == unswept.key:
                    own = own_key(self._node, stream.key, segment)
                    yield from (own, crc_key(own))

    # --- on the thread -------------------------------------------------------------------------------------------------------

    def _make(self, group: Group) -> Pack | None:
        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
            contents = list(pool.map(lambda each: self._content(group.stream, each), group.segments))
        whole = [(segment, each) for segment, each in zip(group.segments, contents, strict=True) if each is not None]
        if len(whole) < 2:
            return None
        made = pack(self._node, group.stream, whole)
        pieces = self._throttle.paced(made.pieces())
        put_whole(self._store, made.key, pieces, made.size_bytes, has_crc32(crc_of_pack(made.key)))
        return made.without_content()

    def _content(self, stream: StreamKey, segment: Segment) -> bytes | None:
        """The content of a segment; None if it is damaged or missing: then its row stays as it is."""
        try:
            return read_segment(self._store, key_of(self._node, stream, segment), segment)
        except (ObjectMissing, FormatError) as error:
            logger.warning("quiver.archive.not_merged segment=%d error=%s", segment.segment_seq, error)
            return None

    def _delete(self, sweep: Sweep) -> bool:
        """Delete the segments' own objects, unless the pack is not what was written: then they are all that there is. Returns whether."""
        if not sweep.keys:
            return True  # all of them have expired
        found = self._store.get(sweep.pack_key)
        if found is None or crc32(found.content) != crc_of_pack(sweep.pack_key):
            problem = "missing" if found is None else "not what was written"
            logger.warning("quiver.archive.pack_damaged pack=%s problem=%s", sweep.pack_key, problem)
            return False
        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
            for _ in pool.map(self._store.delete, sweep.keys):
                continue
        return True

    # --- committing ----------------------------------------------------------------------------------------------------------

    def _finish_pack(self, writer: ManifestWriter) -> None:
        if self._making is None or self._group is None or not self._making.done():
            return
        if self._failure(self._making) is None:
            made, group = self._making.result(), self._group
            if made is None:
                # Nothing can be made of it: it is not tried again until the part changes.
                holding = _holding(writer.head.stream(group.stream), group.segments)
                self._passed.update(ref.key for ref in holding)
            else:
                self._place_whole(writer, group, made)
        self._making = self._group = None

    def _place_whole(self, writer: ManifestWriter, group: Group, made: Pack) -> None:
        try:
            if self._place(writer, group, made):
                self._note(len(made.segments))
        except FormatError as error:
            # Nobody can tell whether the part names the pack, so it stays.
            logger.warning("quiver.archive.part_not_merged error=%s", error)

    def _place(self, writer: ManifestWriter, group: Group, made: Pack) -> bool:
        """Make the manifest name the segments in their pack. Returns False if it has other segments there by now."""
        packed = {segment.segment_seq: segment for segment in made.segments}
        before = {seq: msgspec.structs.replace(segment, pack=None) for seq, segment in packed.items()}
        is_named = False
        for ref in _holding(writer.head.stream(group.stream), group.segments):
            part = read_part(self._store, ref)
            known = {segment.segment_seq: segment for segment in part.segments}
            is_named |= any(known.get(seq) == segment for seq, segment in packed.items())
            if all(known.get(seq) == segment for seq, segment in before.items()):
                if not self._is_there(made):
                    return False
                rows = tuple(packed.get(segment.segment_seq, segment) for segment in part.segments)
                new = msgspec.structs.replace(part, version=PACKED_VERSION, segments=rows)
                writer.replace_part(group.stream, ref, new, made.key)
                return True
        if not is_named:
            writer.release(made.key)
        return False

    def _is_there(self, made: Pack) -> bool:
        """Whether the store has the pack still: one of the same key may have been given up, and its deletion may have come in between."""
        found = self._store.head(made.key)
        return found is not None and found.size_bytes == made.size_bytes

    def _finish_sweep(self, writer: ManifestWriter) -> None:
        if self._deleting is None or self._sweep is None or not self._deleting.done():
            return
        if self._failure(self._deleting) is None:
            if self._deleting.result():
                writer.note_swept(self._sweep.stream, self._sweep.pack_key)
            else:
                self._unreadable.add(self._sweep.pack_key)
        self._deleting = self._sweep = None

    def _failure(self, done: Future[Pack | None] | Future[bool]) -> BaseException | None:
        """The error of the store that ended a job; nothing is begun for a while then."""
        error = done.exception()
        if error is None:
            return None
        if not isinstance(error, ArchiveError):
            raise error
        logger.info("quiver.archive.merge_failed error=%s", error)
        self._resume_ns = self._clock() + PAUSE_NS
        return error


def _holding(stream: StreamRef | None, segments: tuple[Segment, ...]) -> list[PartRef]:
    """The parts of a stream that reach over all of the segments."""
    first, last = segments[0].segment_seq, segments[-1].segment_seq
    parts = () if stream is None else stream.parts
    return [ref for ref in parts if ref.first_segment_seq <= first and last <= ref.last_segment_seq]
