"""What the manifest of a node says, as one state: its streams, and the segments and holes of each.

The head is read anew by `refresh`; parts never change, so each is read once. A part that is gone was replaced since the head was read:
then the head is read again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from quiver_actors.archive.headless import no_archive
from quiver_actors.archive.keys import HEAD_NAME, StreamKey
from quiver_actors.archive.manifest import Head, Hole, Part, PartRef, Segment, StreamRef, merged
from quiver_actors.archive.manifest_store import read_head, read_part
from quiver_actors.base.locks import new_lock
from quiver_actors.errors import InvalidFormat
from quiver_actors.store.objects.errors import ArchiveUnavailable
from quiver_actors.store.objects.object_store import ObjectStore

_ATTEMPTS = 5


class StreamContents(NamedTuple):
    """The archived bundles of one topic on one core, of one incarnation. Both lists are in order, and end where the archive has a gap."""

    key: StreamKey
    segments: tuple[Segment, ...]
    holes: tuple[Hole, ...]
    archived_through: int
    """Each segment number up to this one is in one of the lists, or was never used, or has expired; -1: no segment is archived."""
    expired_through: int = -1
    """Segments up to this number have expired in the archive; -1: none has."""
    schemas: Mapping[str, bytes] = {}
    """The schemas that the segments name, by fingerprint."""


class NodeContents:
    """The archive of one node, read through its manifest. Any thread may ask.

    Raises:
        UsageError: the archive has nothing of such a node.
        ArchiveError: the store cannot be read.
        FormatError: the manifest is damaged, or newer than this program.
    """

    def __init__(self, store: ObjectStore, node: str) -> None:
        self.node = node
        self._store = store
        self._parts: dict[str, Part] = {}
        self._merged: dict[StreamKey, tuple[StreamRef, StreamContents]] = {}
        """What the parts of a stream amount to; it is asked for with each segment that is opened."""
        self._lock = new_lock()
        self._head = self._read_head()

    def refresh(self) -> None:
        """Read the head anew. Raises as the constructor."""
        head = self._read_head()
        named = {ref.key for stream in head.streams for ref in stream.parts}
        with self._lock:
            self._head = head
            self._parts = {key: part for key, part in self._parts.items() if key in named}
            refs = {stream.key: stream for stream in head.streams}
            self._merged = {key: known for key, known in self._merged.items() if refs.get(key) == known[0]}

    @property
    def streams(self) -> tuple[StreamRef, ...]:
        """The streams that the archive has, of all topics, cores and incarnations."""
        return self._head.streams

    def stream(self, topic: str, core: int, incarnation: str | None = None) -> StreamRef | None:
        """The stream of an incarnation, None for the one that was written to last; None where there is none."""
        found = [each for each in self.streams if (each.topic, each.core) == (topic, core)]
        if incarnation is not None:
            found = [each for each in found if each.incarnation == incarnation]
        return max(found, key=_last_ingestion_unix_ns, default=None)

    def contents(self, key: StreamKey) -> StreamContents:
        """The segments and holes of a stream; none where the archive has nothing of it. Raises as the constructor."""
        for _ in range(_ATTEMPTS):
            stream = self._head.stream(key)
            if stream is None:
                return StreamContents(key, (), (), -1)
            known = self._merged.get(key)
            if known is not None and known[0] == stream:
                return known[1]
            commit = self._head.commit
            try:
                return self._noted(stream, _contents(stream, [self._part(ref) for ref in stream.parts]))
            except InvalidFormat:
                self.refresh()
                if self._head.commit == commit:
                    raise
        raise ArchiveUnavailable(f"the manifest of node {self.node!r} changes faster than it can be read: try again")

    def _noted(self, stream: StreamRef, found: StreamContents) -> StreamContents:
        with self._lock:
            self._merged[stream.key] = stream, found
        return found

    def _read_head(self) -> Head:
        found = read_head(self._store, self.node)
        if found is None:
            raise no_archive(self._store, self.node)
        return found

    def _part(self, ref: PartRef) -> Part:
        with self._lock:
            known = self._parts.get(ref.key)
        if known is not None:
            return known
        part = read_part(self._store, ref)
        with self._lock:
            self._parts[ref.key] = part
        return part


def nodes_in(store: ObjectStore) -> list[str]:
    """The names of the nodes that an archive has, sorted. Raises ArchiveError."""
    return [name for name in store.directories("") if store.head(f"{name}/{HEAD_NAME}") is not None]


def _contents(stream: StreamRef, parts: list[Part]) -> StreamContents:
    if not parts:
        return StreamContents(stream.key, (), (), stream.archived_through, stream.expired_through)
    whole, through = merged(parts), stream.archived_through
    # What lies behind is archived too, but something in front of it is not.
    segments = tuple(each for each in whole.segments if each.segment_seq <= through)
    holes = tuple(each for each in whole.holes if each.segment_seq <= through)
    return StreamContents(stream.key, segments, holes, through, stream.expired_through, whole.schemas)


def _last_ingestion_unix_ns(stream: StreamRef) -> int:
    return max((part.last_ingestion_unix_ns for part in stream.parts), default=0)
