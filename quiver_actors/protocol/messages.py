"""The typed messages between a client and a worker, and the packed rows that ride in them.

A frame is a u32 length and one msgpack array whose first element is the message's tag. Every request that wants an answer
carries a `tag` that the client chose; answers and refusals repeat it. Descriptors travel as ancillary data of the frame whose
message says so (`ArenaAttached`, `SegmentOpened`: one each), in order. Clients never send descriptors.

Trust: a worker believes nothing in a message before it has checked it against the bytes that it copied out of the arena.
"""

from __future__ import annotations

import struct

import msgspec

PROTOCOL_VERSION = 1
FRAME_BYTES_MAX = 16 << 20
"""A longer frame is a protocol error: the peer is broken or hostile, the connection is closed."""

# --- packed rows of a Push (little-endian) -------------------------------------------------------------------------------

ENTRY_ROW = struct.Struct("<IIQqqII")
"""entry_bytes (length field and CRC included), crc of body[25:] (all slot blocks), slot_bitmap, item_count (-1 unknown),
ingestion_ts_nanos (0 = the worker stamps it), slot_count, row_count summed over slots."""

SLOT_ROW = struct.Struct("<IIIIIIQI4x")
"""schema handle, payload offset from the entry's start, payload_len (padding included), row_count, offset of the record-batch
message from the payload's start, its metadata length (8-byte prefix included), its body length, dictionary message count."""

DICTIONARY_ROW = struct.Struct("<qIIQ")
"""dictionary id (bit 63 set never; a delta is sent as ~id), message offset from the payload's start, metadata length, body length."""


class Message(msgspec.Struct, array_like=True, frozen=True):
    """Root of all messages."""


# --- client to worker --------------------------------------------------------------------------------------------------


class Hello(Message, tag=1, frozen=True):
    """First message of every connection."""

    version: int
    pid: int
    client: str


class AttachArena(Message, tag=2, frozen=True):
    """Ask for an arena of at least `size_bytes` of ring, 0: of the configured size. It replaces the connection's arena, and is
    allowed only with nothing in flight."""

    tag: int
    size_bytes: int


class DeclareSchema(Message, tag=3, frozen=True):
    """Introduce a schema under a handle of this connection; must precede the first Push that names it. Answered only if refused
    (a `Refused` with tag 0 is followed by the connection's end)."""

    handle: int
    topic: str
    slot_id: int
    fingerprint: bytes
    schema: bytes
    """The whole encapsulated schema message, as it stands at the start of each payload."""


class Push(Message, tag=4, frozen=True):
    """Bundles laid out back to back as unfinished log entries in `arena[offset : offset + length]`.

    Unfinished: length field, 25-byte entry header and trailing CRC are left zero for the worker to fill.
    """

    tag: int
    topic: str
    offset: int
    length: int
    end_position: int
    """Ring position behind the span; the worker publishes it as released once it has copied the bytes out."""
    entries: bytes
    slots: bytes
    dictionaries: bytes


class Flush(Message, tag=5, frozen=True):
    """Seal the topic's open segment now; answered by Done once it is sealed and readable (at once if it is empty)."""

    tag: int
    topic: str


class ListSegments(Message, tag=6, frozen=True):
    tag: int
    topic: str


class OpenSegment(Message, tag=7, frozen=True):
    """Ask for one sealed segment's descriptor; answered by SegmentOpened."""

    tag: int
    topic: str
    segment_seq: int


class Register(Message, tag=8, frozen=True):
    """Attach this connection to a durable subscriber, creating it if needed; answered by Done once it is durable."""

    tag: int
    topic: str
    subscriber: str
    start: str
    """`latest` or `earliest`; only used when the subscriber is new."""


class Unregister(Message, tag=9, frozen=True):
    """Delete the subscriber and its progress; answered by Done once durable."""

    tag: int
    topic: str
    subscriber: str


class Credit(Message, tag=10, frozen=True):
    """Let the worker have at most `bundles` more bundles claimed for this connection and deliver them as they come."""

    topic: str
    subscriber: str
    bundles: int


class Resolve(Message, tag=11, frozen=True):
    """Finish claims of one segment. `outcome`: ack, reject or defer. Applied in order; answered by Refused only if some claim is
    not held (the others are applied)."""

    tag: int
    topic: str
    subscriber: str
    segment_seq: int
    outcome: str
    bundle_indexes: bytes
    """u32 array."""
    delay_ns: int = 0


class FlushProgress(Message, tag=12, frozen=True):
    """Answered by Done when every ack sent before it is durable."""

    tag: int
    topic: str
    subscriber: str


ClientMessage = (
    Hello
    | AttachArena
    | DeclareSchema
    | Push
    | Flush
    | ListSegments
    | OpenSegment
    | Register
    | Unregister
    | Credit
    | Resolve
    | FlushProgress
)

# --- worker to client ----------------------------------------------------------------------------------------------------


class TopicInfo(msgspec.Struct, array_like=True, frozen=True):
    name: str
    slots: dict[str, int]
    durability: str
    flush_interval_ns: int


class Welcome(Message, tag=64, frozen=True):
    version: int
    core: int
    incarnation: str
    pid: int
    topics: list[TopicInfo]


class ArenaAttached(Message, tag=65, frozen=True):
    """Carries the arena's descriptor."""

    tag: int
    size_bytes: int


class AckRun(msgspec.Struct, array_like=True, frozen=True):
    """`count` bundles in push order, from one Push, in one segment."""

    tag: int
    segment_seq: int
    bundle_index: int
    sequence: int
    count: int


class Acked(Message, tag=66, frozen=True):
    """Cumulative per connection and topic: runs in push order. `durability` is a `model.Durability`."""

    durability: int
    runs: list[AckRun]


class Refused(Message, tag=67, frozen=True):
    """The request with that tag was not carried out. `code` is the `code` of an error class."""

    tag: int
    code: str
    message: str
    retry_after_ns: int = 0


class Done(Message, tag=68, frozen=True):
    tag: int


class SegmentInfo(msgspec.Struct, array_like=True, frozen=True):
    segment_seq: int
    bundle_count: int
    row_count: int
    size_bytes: int
    first_ingestion_ts_nanos: int
    last_ingestion_ts_nanos: int


class SegmentList(Message, tag=69, frozen=True):
    tag: int
    segments: list[SegmentInfo]


class SegmentOpened(Message, tag=70, frozen=True):
    """Carries the segment file's descriptor, read-only. `tag` is 0 when it precedes the first Deliver of that segment."""

    tag: int
    topic: str
    segment_seq: int
    size_bytes: int


class Deliver(Message, tag=71, frozen=True):
    """Bundles of one segment, now claimed by this connection, in order."""

    topic: str
    subscriber: str
    segment_seq: int
    bundle_indexes: bytes
    """u32 array."""


class SegmentRetired(Message, tag=72, frozen=True):
    """This subscriber has resolved the whole segment: its mapping can go once no delivered batch points into it."""

    topic: str
    subscriber: str
    segment_seq: int


class Gap(Message, tag=73, frozen=True):
    """Bundles that this subscriber will never get, and why (`damaged`, `evicted`, `expired`, `dropped`)."""

    topic: str
    subscriber: str
    segment_seq: int
    bundle_index_first: int
    bundle_count: int
    reason: str


WorkerMessage = (
    Welcome | ArenaAttached | Acked | Refused | Done | SegmentList | SegmentOpened | Deliver | SegmentRetired | Gap
)

DESCRIPTORS_CARRIED: dict[type[Message], int] = {ArenaAttached: 1, SegmentOpened: 1}
