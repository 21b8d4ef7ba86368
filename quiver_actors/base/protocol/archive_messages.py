"""The messages between a client and the archiver of its node, by which bundles are read that are no longer on the disk.

    module                tags of the client  tags of the archiver
    archive_messages      200-203             210-212
    messages                                  67 (Refused), 68 (Done)

The frames are those of a connection to a worker; there is no greeting. A request is answered before the next one is read. `ArchivedOpened`
carries a descriptor as ancillary data. The archiver fetches what is wanted into a file of the node's host, and the client maps that file:
it needs no credentials of the object store.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec

from quiver_actors.base.protocol.base import Message
from quiver_actors.base.protocol.messages import Done, Refused, SegmentColumns, SegmentInfo
from quiver_actors.errors import ProtocolError

ARCHIVE_SOCKET = "archive.sock"
"""Name of the archiver's socket in the run directory."""
BLOCKS_MAX = 1 << 16
"""The most blocks that one request may ask for."""

# --- client to archiver ------------------------------------------------------------------------------------------------


class ListArchived(Message, tag=200, frozen=True):
    """Ask what is archived of a topic on one core, from a segment on. Answer: `ArchivedList`."""

    topic: str
    core: int
    incarnation: str
    """Incarnation of the core's directory."""
    first_segment_seq: int = 0
    with_columns: bool = False
    """Whether the columns of the segments are wanted, too."""


class OpenArchived(Message, tag=201, frozen=True):
    """Ask for the file of an archived segment, of which nothing need be there. Answer: `ArchivedOpened`."""

    topic: str
    core: int
    incarnation: str
    segment_seq: int
    copy: int = 0
    """0: the object that the manifest names; 1 and more: other copies. Refused with `not_stored`: there are no more."""


class FetchArchived(Message, tag=202, frozen=True):
    """Ask for blocks of a file that this connection has opened; answered by Done when they are in the file, each with its checksum."""

    topic: str
    file: int
    blocks: list[int]
    """Rising numbers."""


class ListRetired(Message, tag=203, frozen=True):
    """Ask which cores of a topic the node has or has had. Answer: `RetiredList`. Asked only if `node.json` names retired cores."""

    topic: str


# --- archiver to client ------------------------------------------------------------------------------------------------


class ArchivedHole(msgspec.Struct, array_like=True, frozen=True):
    """Bundles of a segment that the archive will never have. A count of 0: nobody knows how many; the whole segment is gone."""

    segment_seq: int
    first_bundle: int
    bundle_count: int
    reason: str


class ArchivedList(Message, tag=210, frozen=True):
    """Answer to `ListArchived`: segments and holes, oldest first."""

    segments: list[SegmentInfo]
    """Segments of which nothing is archived are among them, with 0 bytes."""
    holes: list[ArchivedHole]
    archived_through: int
    """Each segment up to this number is listed, or nothing ever had its number; -1: none is."""
    is_cut: bool = False
    """There is more behind that number: ask again from the next one on."""
    schemas: tuple[tuple[int, bytes], ...] = ()
    columns: tuple[SegmentColumns, ...] = ()
    """The columns of segments, as in `StatisticsList`, if they were asked for and are recorded."""


class ArchivedOpened(Message, tag=211, frozen=True):
    """Answer to `OpenArchived`: carries a read-only descriptor of the file, which has the segment's size."""

    file: int
    """Number of the file on this connection."""
    size_bytes: int
    block_bytes: int
    checksums: bytes
    """CRC-32 of each block, u32, little-endian."""


class RetiredCore(msgspec.Struct, array_like=True, frozen=True):
    """A core of a topic that the node does not have any more, as the directory says that is left of it."""

    core: int
    incarnation: str
    """Incarnation of the directory, under which the archive has its segments."""
    next_segment_seq: int = -1
    """No segment had this number or a higher one; -1: not known."""
    position_end: int = -1
    """The log position behind all of its bundles; -1: not known."""


class RetiredList(Message, tag=212, frozen=True):
    """Answer to `ListRetired`."""

    cores: list[RetiredCore]
    """Cores by rising number. Some may have a worker: who asks knows which these are."""


ArchiveRequest = ListArchived | OpenArchived | FetchArchived | ListRetired
ArchiveAnswer = ArchivedList | ArchivedOpened | RetiredList | Done | Refused

_requests: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(cast(Any, ArchiveRequest))
_answers: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(cast(Any, ArchiveAnswer))


def decode_archive_request(frame: memoryview | bytes) -> ArchiveRequest:
    """Decode what a client sent. Raises ProtocolError."""
    request: ArchiveRequest = _decoded(_requests, frame, "the client")
    return request


def decode_archive_answer(frame: memoryview | bytes) -> ArchiveAnswer:
    """Decode what the archiver sent. Raises ProtocolError."""
    answer: ArchiveAnswer = _decoded(_answers, frame, "the archiver")
    return answer


def _decoded(decoder: msgspec.msgpack.Decoder[Any], frame: memoryview | bytes, who: str) -> Any:
    try:
        return decoder.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtocolError(f"{who} sent a frame of {len(frame)} bytes that is not a message: {error}") from error
