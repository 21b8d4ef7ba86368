"""The manifest of a node's archive: its contents, and its form as JSON. Pure.

Each node has one head object, which names the valid parts of the manifest; parts never change. A commit writes new parts, then replaces
the head by compare-and-swap, so everything that a reader finds through one head is one state. The head also names the owner of the node's
archive: its epoch, a number that rises with each start of an archiver, and the identity of the data directory that it archives. A process
that finds another owner there writes nothing.

A later version may add fields, each with a default that means "not recorded"; a reader ignores fields that it does not know. A change that
an older reader must not ignore raises `VERSION`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from quiver_actors.archive.keys import StreamKey, segment_key
from quiver_actors.base.checksum import crc32
from quiver_actors.errors import ChecksumMismatch, InvalidFormat, UnsupportedVersion

VERSION = 2
"""The newest version that this program reads."""
PLAIN_VERSION = 1
"""The version of heads and parts without packs."""
PACKED_VERSION = 2
"""The version of heads and parts with packs, which older programs do not find."""
INDEX_STRIDE = 1000
"""How many bundles lie between two entries of a segment's sparse index."""

_OWN_CHECKSUM = re.compile(rb',"crc32":"([0-9a-f]{8})"}\s*\Z')
_T = TypeVar("_T", bound="Head | Part")


class Packed(msgspec.Struct, frozen=True, kw_only=True):
    """The place of a segment in a pack; see `archive.packs`."""

    key: str
    sums_offset: int
    """Where the checksums of its blocks begin; they end where the segment begins."""
    offset: int
    """Where the segment begins."""


class Segment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One archived segment. Its bundles have the indexes from 0 up to and without `bundle_count`."""

    segment_seq: int
    generation: int
    bundle_count: int
    row_count: int
    size_bytes: int
    crc32: int
    """CRC-32 of the whole object: of any whole segment the same, as it ends with the CRC-32 of what is in front of that."""
    etag: str
    created_unix_ns: int
    """When it was uploaded."""
    first_ingestion_unix_ns: int
    last_ingestion_unix_ns: int
    position_start: int = 0
    position_end: int = 0
    """Log positions. If one segment ends where the next begins, nothing was stored in between. Both 0: unknown."""
    index: tuple[int, ...] = ()
    """The byte at which the bundles 0, 1000, 2000 and so on begin; -1: that bundle was lost. Empty: not recorded."""
    labels: tuple[str, ...] | None = None
    first_event_unix_ns: int | None = None
    last_event_unix_ns: int | None = None
    """The span of the column that the topic's setting `event_time` names; None: not known."""
    schema_fingerprints: tuple[str, ...] | None = None
    """The schemas of its bundles, which `Part.schemas` holds; None: not recorded."""
    streams: tuple[tuple[int, int], ...] | None = None
    """Slot and rows of each of these schemas."""
    statistics: bytes | None = None
    """Statistics of the columns of these schemas, as `store.segment.statistics` encodes them; None: not recorded."""
    digest: str = ""
    """XXH3-128 of the whole object, in hexadecimal digits; empty: not recorded."""
    pack: Packed | None = None
    """Where it lies in a pack; None: it has an object of its own. Since version 2."""


class Hole(msgspec.Struct, frozen=True, kw_only=True):
    """Bundles that will never be in the archive, and why."""

    segment_seq: int
    first_bundle: int
    bundle_count: int
    """0: nobody knows how many."""
    row_count: int
    """-1: nobody knows."""
    reason: str
    """The reason as gap notices have it: `damaged`, `evicted`, `expired` or `dropped`."""
    noted_unix_ns: int

    @property
    def identity(self) -> tuple[int, int, int, str]:
        """What tells the hole from others, whenever it was noted."""
        return self.segment_seq, self.first_bundle, self.bundle_count, self.reason


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What one part object holds: segments and holes of one stream, each in the order of its numbers."""

    version: int = PLAIN_VERSION
    topic: str
    incarnation: str
    core: int
    segments: tuple[Segment, ...] = ()
    holes: tuple[Hole, ...] = ()
    schemas: dict[str, bytes] = {}
    """The encapsulated Arrow schema messages that the segments name, by fingerprint."""
    slots: dict[str, int] | None = None
    """The topic's slots by name when the part was written, as `StreamRef.slots`; None: not recorded. By it a lost head is built again."""
    event_time: str | None = None
    """The topic's column of event times, as `StreamRef.event_time`; None: not recorded."""


class PartRef(msgspec.Struct, frozen=True, kw_only=True):
    """The head's entry of a part, with the facts by which a reader decides whether it needs the part."""

    key: str
    size_bytes: int
    crc32: int
    segment_count: int
    hole_count: int
    first_segment_seq: int
    last_segment_seq: int
    """The lowest and the highest number of its segments and holes."""
    first_ingestion_unix_ns: int
    last_ingestion_unix_ns: int
    """The times of its segments; both 0 where it has none."""
    bundle_count: int
    bytes_archived: int


class Unswept(msgspec.Struct, frozen=True, kw_only=True):
    """A pack whose segments still have objects of their own, for readers of a former manifest."""

    key: str
    first_segment_seq: int
    last_segment_seq: int


class StreamRef(msgspec.Struct, frozen=True, kw_only=True):
    """The head's entry of a stream: its parts in order, and how far it is archived."""

    topic: str
    incarnation: str
    core: int
    archived_through: int
    """The highest segment number below which, and with which, each segment is archived or a hole; -1: none is."""
    expired_through: int = -1
    """Segments up to this number were deleted in the archive by age; -1: none was."""
    parts: tuple[PartRef, ...] = ()
    slots: dict[str, int] | None = None
    """The topic's slots by name, empty if it declares none; None: not recorded."""
    event_time: str | None = None
    """The topic's column of event times, empty if it has none; None: not recorded."""
    unswept: tuple[Unswept, ...] = ()
    """Packs whose segments have objects of their own that are still to be deleted. Since version 2."""

    @property
    def key(self) -> StreamKey:
        """The stream's key."""
        return StreamKey(self.topic, self.incarnation, self.core)


class StateRef(msgspec.Struct, frozen=True, kw_only=True):
    """The head's entry of the state of the node, which `archive.node_state` describes."""

    key: str
    size_bytes: int
    crc32: int
    taken_unix_ns: int


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """The one start of an archiver that may change the archive of a node."""

    epoch: int
    """Rises with each start of an archiver."""
    directory: str
    """Random identity of the data directory."""
    start: str
    """Random identity of the archiver's start: it tells the owner from a copy of its data directory."""
    since_unix_ns: int


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The head object of a node."""

    version: int = PLAIN_VERSION
    node: str
    owner: Owner
    commit: int
    """Rises by one with each change of the head."""
    commit_id: str
    """Random: by it a writer whose answer was lost sees whether the change is its own."""
    streams: tuple[StreamRef, ...] = ()
    garbage: tuple[str, ...] = ()
    """Keys that nothing refers to any more, and that may not be deleted yet."""
    state: StateRef | None = None
    """What a restore needs beside the segments; None: it was not uploaded."""

    def stream(self, key: StreamKey) -> StreamRef | None:
        """The entry of a stream; None where nothing of it was archived."""
        return next((each for each in self.streams if each.key == key), None)


def encode(document: Head | Part) -> bytes:
    """The content of the object: one line of JSON. Its last field, `crc32`, is the CRC-32 of the line without that field."""
    body = msgspec.json.encode(document)
    return b'%b,"crc32":"%08x"}\n' % (body[:-1], crc32(body))


def decode_head(content: bytes) -> Head:
    """Read a head object. Raises InvalidFormat, ChecksumMismatch, UnsupportedVersion."""
    return _decode(content, Head, "the head of an archive's manifest")


def decode_part(content: bytes) -> Part:
    """Read a part object. Raises InvalidFormat, ChecksumMismatch, UnsupportedVersion."""
    return _decode(content, Part, "a part of an archive's manifest")


def is_proven(content: bytes) -> bool:
    """Whether a head or part has its own checksum; what older programs wrote has none."""
    found = _OWN_CHECKSUM.search(content)
    return found is not None and crc32(content[: found.start()] + b"}") == int(found[1], 16)


def _decode(content: bytes, kind: type[_T], what: str) -> _T:
    if _OWN_CHECKSUM.search(content) is not None and not is_proven(content):
        raise ChecksumMismatch(f"{what} does not have its own checksum: somebody or something has changed it")
    try:
        version = msgspec.json.decode(content, type=dict[str, Any]).get("version")
        if isinstance(version, int) and version > VERSION:
            raise UnsupportedVersion(
                f"{what} has version {version}: this program knows up to {VERSION}; use a newer one"
            )
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidFormat(f"{what} cannot be read: {error}") from error


def part_ref(part: Part, key: str, content: bytes, crc: int) -> PartRef:
    """The head's entry for a part that is stored under `key` as `content`."""
    numbers = [*(each.segment_seq for each in part.segments), *(each.segment_seq for each in part.holes)]
    return PartRef(
        key=key,
        size_bytes=len(content),
        crc32=crc,
        segment_count=len(part.segments),
        hole_count=len(part.holes),
        first_segment_seq=min(numbers),
        last_segment_seq=max(numbers),
        first_ingestion_unix_ns=min((each.first_ingestion_unix_ns for each in part.segments), default=0),
        last_ingestion_unix_ns=max((each.last_ingestion_unix_ns for each in part.segments), default=0),
        bundle_count=sum(each.bundle_count for each in part.segments),
        bytes_archived=sum(each.size_bytes for each in part.segments),
    )


def merged(parts: Iterable[Part]) -> Part:
    """Return one part with the segments and holes of several parts of one stream, in order and without repeats."""
    found = list(parts)
    segments = {each.segment_seq: each for part in found for each in part.segments}
    holes = dict.fromkeys(hole for part in found for hole in part.holes)
    named = {each for segment in segments.values() for each in segment.schema_fingerprints or ()}
    return msgspec.structs.replace(
        found[0],
        segments=tuple(segments[seq] for seq in sorted(segments)),
        holes=tuple(sorted(holes, key=lambda hole: (hole.segment_seq, hole.first_bundle))),
        version=max(part.version for part in found),
        schemas={name: message for part in found for name, message in part.schemas.items() if name in named},
    )


def key_of(node: str, stream: StreamKey, segment: Segment) -> str:
    """The key of the object that holds an archived segment: its own, or a pack."""
    return segment.pack.key if segment.pack is not None else own_key(node, stream, segment)


def own_key(node: str, stream: StreamKey, segment: Segment) -> str:
    """The key of a segment's own object, which is deleted some time after the segment was merged into a pack."""
    return segment_key(node, stream, segment.segment_seq, segment.generation)
