"""The manifest of a node in its object store: reading it, owning it, and changing it by compare-and-swap.

Guarantees:
- Readers see the state before a commit or the one after it. Objects that a commit no longer refers to are deleted afterwards only.
- A commit whose answer was lost is recognised by its random id and not made twice.
- A writer that is not the owner any more changes nothing: the head that it would replace has another version by then.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

import msgspec

from quiver_actors.archive import garbage
from quiver_actors.archive.fencing import begun_by_another, fenced, head_gone
from quiver_actors.archive.headless import newest_commit
from quiver_actors.archive.keys import StreamKey, head_key, part_key, state_key
from quiver_actors.archive.manifest import (
    PACKED_VERSION,
    Head,
    Hole,
    Owner,
    Part,
    PartRef,
    Segment,
    StateRef,
    StreamRef,
    Unswept,
    decode_head,
    decode_part,
    encode,
    merged,
    part_ref,
)
from quiver_actors.base.checksum import crc32
from quiver_actors.errors import ChecksumMismatch, InvalidFormat
from quiver_actors.store.objects.creation import create_once
from quiver_actors.store.objects.errors import ArchiveError, ArchiveUnavailable
from quiver_actors.store.objects.object_store import Found, Metadata, ObjectChanged, ObjectExists, ObjectStore, Version

logger = logging.getLogger("quiver.archive")

SMALL_PARTS_MAX = 16
"""Number of small parts at the end of a stream that are merged into one."""
PART_ROWS_MAX = 1000
"""A part with this many segments and holes is no longer merged."""


class Addition(NamedTuple):
    """The segments and holes that a commit adds to one stream."""

    segments: Sequence[Segment]
    holes: Sequence[Hole]
    archived_through: int
    """See `StreamRef.archived_through`; it never goes back."""
    slots: Mapping[str, int] | None = None
    """The topic's slots by name; None: as they were."""
    event_time: str | None = None
    """The topic's column of event times; None: as it was."""
    schemas: Mapping[str, bytes] = {}
    """The schemas that the segments name, by fingerprint."""


class StateUpload(NamedTuple):
    """The state of the node, to be uploaded and named by the head."""

    content: bytes
    taken_unix_ns: int
    named: frozenset[str] = frozenset()
    """The keys of objects that the state names: they must not be deleted."""
    released: Sequence[str] = ()
    """The keys of objects that no state names any more."""


def read_head(store: Metadata, node: str) -> Head | None:
    """Read the head of a node's manifest; None if nothing was archived under that name.

    Raises:
        ArchiveError: the store cannot be read. InvalidFormat, UnsupportedVersion: the head is damaged, or newer than this program.
    """
    found = store.get(head_key(node))
    return None if found is None else _head_in(node, found)


def _head_in(node: str, found: Found) -> Head:
    try:
        return decode_head(found.content)
    except (InvalidFormat, ChecksumMismatch) as error:
        raise type(error)(
            f"{head_key(node)}: {error}. Bring the object back as it was, or build it again with `quiver archive repair`"
        ) from error


def read_part(store: Metadata, ref: PartRef) -> Part:
    """Read one part, proven against the head's checksum.

    Raises:
        ChecksumMismatch, InvalidFormat, UnsupportedVersion: it is missing, damaged or newer. ArchiveError: the store cannot be read.
    """
    found = store.get(ref.key)
    if found is None:
        raise InvalidFormat(
            f"part {ref.key} of the archive's manifest is gone: read the head again; if it stays so, bring the object back, or build it "
            "again with `quiver archive repair`"
        )
    if crc32(found.content) != ref.crc32:
        raise ChecksumMismatch(
            f"part {ref.key} of the archive's manifest does not have the checksum that the head says: bring the object back, or build it "
            "again with `quiver archive repair`"
        )
    return decode_part(found.content)


def read_parts(store: Metadata, stream: StreamRef) -> Iterator[Part]:
    """Read the parts of a stream, the lowest numbers first. Raises as `read_part`."""
    return (read_part(store, ref) for ref in stream.parts)


def read_state(store: Metadata, ref: StateRef) -> bytes:
    """Read the state of a node, proven against the head's checksum; `archive.node_state` decodes it.

    Raises:
        ChecksumMismatch, InvalidFormat: it is damaged, or missing. ArchiveError: the store cannot be read.
    """
    found = store.get(ref.key)
    if found is None:
        raise InvalidFormat(
            f"state {ref.key} of the archive is gone: read the head again; if it stays so, the state is lost"
        )
    if crc32(found.content) != ref.crc32:
        raise ChecksumMismatch(f"state {ref.key} of the archive does not have the checksum that the head says")
    return found.content


class ManifestWriter:
    """The owner's view of a node's manifest. One thread at a time.

    Attributes:
        head: the state after the last commit of this writer.
    """

    def __init__(self, store: ObjectStore, head: Head, version: Version) -> None:
        """`own` makes it: `version` is the head's in the store."""
        self._store = store
        self.head = head
        self._version = version

    @classmethod
    def own(cls, store: ObjectStore, node: str, owner: Owner, expected: Owner | None) -> ManifestWriter:
        """Become the owner of a node's archive.

        Args:
            owner: this archiver's start; its epoch must be one above that of `expected`.
            expected: who must own it now; None: nobody, the archive is new. An owner that equals `owner` is accepted too: an earlier
                call has had its effect.

        Raises:
            ArchiveFenced: somebody else owns it.
            ArchiveError: the store cannot be read or written.
        """
        found = store.get(head_key(node))
        if found is None:
            if expected is not None:
                raise head_gone(store.url, node)
            # Behind what a lost head has named: of two objects the newer one has the higher commit.
            head = Head(node=node, owner=owner, commit=max(0, newest_commit(store, node)) + 1, commit_id=random_id())
            return cls(store, head, _create(store, head))
        writer = cls(store, _head_in(node, found), found.version)
        if writer.head.owner == owner:
            return writer
        if expected is None or writer.head.owner != expected:
            raise fenced(store.url, node, writer.head.owner)
        writer.hand_over(owner)
        return writer

    def hand_over(self, owner: Owner) -> None:
        """Make `owner` the owner of the archive. Raises as `commit`."""
        self._move(msgspec.structs.replace(self.head, owner=owner))

    def check_owner(self) -> None:
        """Look whether this is the owner still, and take up what a command has changed meanwhile. Raises ArchiveFenced, ArchiveError."""
        found = self._store.get(head_key(self.head.node))
        if found is None:
            raise head_gone(self._store.url, self.head.node)
        there = _head_in(self.head.node, found)
        if there.owner != self.head.owner:
            raise fenced(self._store.url, self.head.node, there.owner)
        self._take_up(there, found.version)

    def commit(self, additions: Mapping[StreamKey, Addition], state: StateUpload | None = None) -> None:
        """Record what was archived and what never will be, and the state of the node if there is a new one, all of it in one step.

        Segments that the manifest has already are left out: the same addition twice changes nothing.

        Raises:
            ArchiveFenced: this is not the owner any more; nothing was recorded.
            ArchiveError: the store did not take it; the same call may be made again.
        """
        streams = {each.key: each for each in self.head.streams}
        released = list(self.head.garbage)
        for key, addition in additions.items():
            before = streams.get(
                key, StreamRef(topic=key.topic, incarnation=key.incarnation, core=key.core, archived_through=-1)
            )
            streams[key] = self._extended(before, addition, released)
        head = msgspec.structs.replace(self.head, streams=tuple(streams.values()), garbage=tuple(released))
        self._move(head if state is None else self._with_state(head, state))

    def expire(
        self, stream: StreamKey, old: Sequence[PartRef], new: Part | None, through: int, released: Iterable[str]
    ) -> None:
        """Put one part, or nothing, into the place of parts of a stream whose first segments are deleted by age. Raises as `commit`.

        Args:
            through: the highest number of the segments that are deleted.
            released: the keys of their objects; `collect_garbage` deletes them.
        """
        found = self.head.stream(stream)
        if found is None or not set(old) <= set(found.parts):
            # Beside the part that holds the same segments by now, the new one would name some of them twice.
            raise ArchiveUnavailable(
                f"{self._store.url}: the manifest of topic {stream.topic}, core {stream.core}, was changed since it was read: try again"
            )
        kept = [ref for ref in found.parts if ref not in old]
        if new is not None:
            kept.append(self._put_part(new))
        parts = tuple(sorted(kept, key=lambda ref: ref.first_segment_seq))
        shorter = msgspec.structs.replace(found, parts=parts, expired_through=max(through, found.expired_through))
        streams = [shorter if each is found else each for each in self.head.streams]
        # A pack that was given up may be all that a repair has found.
        named = set() if new is None else {row.pack.key for row in new.segments if row.pack is not None}
        keys = dict.fromkeys([*self.head.garbage, *(ref.key for ref in old), *released])
        left = tuple(key for key in keys if key not in named)
        self._move(msgspec.structs.replace(self.head, streams=tuple(streams), garbage=left))

    def replace_part(self, stream: StreamKey, old: PartRef, new: Part, pack_key: str) -> None:
        """Put a part into the place of another one whose segments it has, some of them in a pack. Raises as `commit`."""
        found = self.head.stream(stream)
        if found is None or old not in found.parts:
            return
        ref = self._put_part(new)
        numbers = [each.segment_seq for each in new.segments if each.pack is not None and each.pack.key == pack_key]
        unswept = Unswept(key=pack_key, first_segment_seq=numbers[0], last_segment_seq=numbers[-1])
        changed = msgspec.structs.replace(
            found,
            parts=tuple(ref if each == old else each for each in found.parts),
            unswept=(*found.unswept, unswept),
        )
        # A pack of the same key may have been given up before.
        left = tuple(key for key in (*self.head.garbage, old.key) if key != pack_key)
        self._move(self._with_stream(changed, version=PACKED_VERSION, garbage=left))

    def note_swept(self, stream: StreamKey, pack_key: str) -> None:
        """Forget that the segments of a pack had objects of their own, which are deleted by now. Raises as `commit`."""
        found = self.head.stream(stream)
        if found is not None:
            left = tuple(each for each in found.unswept if each.key != pack_key)
            self._move(self._with_stream(msgspec.structs.replace(found, unswept=left)))

    def release(self, key: str) -> None:
        """Have an object deleted that nothing refers to. Raises as `commit`."""
        self._move(msgspec.structs.replace(self.head, garbage=(*self.head.garbage, key)))

    def record_state(self, state: StateUpload) -> None:
        """Upload the state of the node, and make the head refer to it instead of the one before. Raises as `commit`."""
        self._move(self._with_state(self.head, state))

    def collect_garbage(self, keys: Collection[str]) -> int:
        """Delete those of these objects that no head refers to any more, and forget their names. Returns how many. Raises as `commit`."""
        gone = [key for key in self.head.garbage if key in keys]
        if gone:
            self.check_owner()
            garbage.delete(self._store, gone)
            left = tuple(key for key in self.head.garbage if key not in keys)
            self._move(msgspec.structs.replace(self.head, garbage=left))
        return len(gone)

    def _with_stream(self, stream: StreamRef, **changes: object) -> Head:
        streams = tuple(stream if each.key == stream.key else each for each in self.head.streams)
        return msgspec.structs.replace(self.head, streams=streams, **changes)

    def _with_state(self, head: Head, state: StateUpload) -> Head:
        """The head with a state that is uploaded here."""
        key = state_key(head.node, self.head.commit + 1, os.urandom(4).hex())
        create_once(self._store, key, state.content)
        ref = StateRef(
            key=key, size_bytes=len(state.content), crc32=crc32(state.content), taken_unix_ns=state.taken_unix_ns
        )
        former = () if head.state is None else (head.state.key,)
        released = dict.fromkeys((*head.garbage, *former, *state.released))
        kept = tuple(key for key in released if key not in state.named)
        return msgspec.structs.replace(head, state=ref, garbage=kept)

    # --- below ---------------------------------------------------------------------------------------------------------------

    def _extended(self, stream: StreamRef, addition: Addition, released: list[str]) -> StreamRef:
        segments, holes = self._unknown(stream, addition)
        parts = list(stream.parts)
        slots = stream.slots if addition.slots is None else dict(addition.slots)
        event_time = stream.event_time if addition.event_time is None else addition.event_time
        if segments or holes:
            small = _small_tail(parts) if len(_small_tail(parts)) >= SMALL_PARTS_MAX else []
            part = Part(
                topic=stream.topic,
                incarnation=stream.incarnation,
                core=stream.core,
                segments=segments,
                holes=holes,
                schemas=dict(addition.schemas),
            )
            joined = merged([*(read_part(self._store, ref) for ref in small), part])
            joined = msgspec.structs.replace(joined, slots=slots, event_time=event_time)
            released += [ref.key for ref in small]
            parts = [*parts[: len(parts) - len(small)], self._put_part(joined)]
        through = max(stream.archived_through, addition.archived_through)
        return msgspec.structs.replace(
            stream, parts=tuple(parts), archived_through=through, slots=slots, event_time=event_time
        )

    def _unknown(self, stream: StreamRef, addition: Addition) -> tuple[tuple[Segment, ...], tuple[Hole, ...]]:
        """Return what of an addition the manifest does not have yet."""
        numbers = [*(each.segment_seq for each in addition.segments), *(each.segment_seq for each in addition.holes)]
        first = min(numbers, default=0)
        overlapping = [ref for ref in stream.parts if numbers and ref.last_segment_seq >= first]
        parts = [read_part(self._store, ref) for ref in overlapping]
        segments = {each.segment_seq for part in parts for each in part.segments}
        holes = {each.identity for part in parts for each in part.holes}
        return (
            tuple(each for each in addition.segments if each.segment_seq not in segments),
            tuple(each for each in addition.holes if each.identity not in holes),
        )

    def _put_part(self, part: Part) -> PartRef:
        content = encode(part)
        key = part_key(self.head.node, self.head.commit + 1, os.urandom(4).hex())
        create_once(self._store, key, content)
        return part_ref(part, key, content, crc32(content))

    def _move(self, head: Head) -> None:
        """Move the head by one commit."""
        commit, key = self.head.commit + 1, head_key(head.node)
        named = garbage.shortened(self._store, head.node, commit, head.garbage)
        new = msgspec.structs.replace(head, commit=commit, commit_id=random_id(), garbage=named)
        try:
            self._version = self._store.replace(key, encode(new), self._version)
        except (ObjectChanged, ArchiveUnavailable) as error:
            # It may have been written all the same: the request was sent twice, or its answer was lost.
            self._version = self._settled(new, error)
        self.head = new

    def _settled(self, new: Head, error: ArchiveError) -> Version:
        """The version of the head, if it is `new`; else raises what is to be known."""
        found = self._store.get(head_key(new.node))
        if found is None:
            raise head_gone(self._store.url, new.node) from error
        there = _head_in(new.node, found)
        if there.commit_id == new.commit_id:
            return found.version
        if there.owner not in (self.head.owner, new.owner):
            raise fenced(self._store.url, new.node, there.owner) from error
        self._take_up(there, found.version)
        raise ArchiveUnavailable(
            f"{self._store.url}: the manifest of node {new.node} was not changed: {error}"
        ) from error

    def _take_up(self, there: Head, version: Version) -> None:
        """Go on from a head of this very owner: a command has written it, or a commit that was given up after an error has had its effect
        later. One of an earlier commit was put back by somebody: it is replaced by what this writer knows."""
        if there.commit < self.head.commit:
            logger.warning("quiver.archive.earlier_head commit=%d expected=%d", there.commit, self.head.commit)
        elif there.commit_id != self.head.commit_id:
            self.head = there
        self._version = version


def _create(store: ObjectStore, head: Head) -> Version:
    try:
        return create_once(store, head_key(head.node), encode(head))
    except ObjectExists as error:
        raise begun_by_another(store.url, head.node) from error


def _small_tail(parts: Sequence[PartRef]) -> list[PartRef]:
    """The parts at the end that may still be merged."""
    small = takewhile(lambda ref: ref.segment_count + ref.hole_count < PART_ROWS_MAX, reversed(parts))
    return list(small)[::-1]


def random_id() -> str:
    """An identity for a commit or an owner."""
    return os.urandom(12).hex()
