"""The messages by which bundles get into a worker, and the packed rows that ride in them.

A bundle itself never travels in a message: the client lays it into its arena, and `Push` says where. A worker believes nothing in it
before it has checked it against the bytes that it copied out of the arena.
"""

from __future__ import annotations

import struct

import msgspec

from quiver_actors.base.protocol.base import Message

# --- packed rows of a Push (little-endian) -------------------------------------------------------------------------------

ENTRY_ROW = struct.Struct("<IIQqqII")
"""entry_bytes (length field and CRC included), crc of body[25:] (all slot blocks), slot_bitmap, item_count (-1 unknown),
ingestion_ts_nanos (0 = the worker stamps it), slot_count, row_count summed over slots."""

SLOT_ROW = struct.Struct("<IIIIIIQI4x")
"""schema handle, payload offset from the entry's start, payload_len (padding included), row_count, offset of the record-batch
message from the payload's start, its metadata length (8-byte prefix included), its body length, dictionary message count."""

DICTIONARY_ROW = struct.Struct("<qIIQ")
"""dictionary id (bit 63 set never; a delta is sent as ~id), message offset from the payload's start, metadata length, body length."""

# --- client to worker --------------------------------------------------------------------------------------------------


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
    patience_ms: int = 0
    """Milliseconds that the client waits for the acknowledgement; 0: unknown. The worker refuses the push a little before they end."""
    call: int = 0
    """Number, on this connection, of the call whose bundles are to stay in order; 0 = of none. Behind a push of it that was refused as
    `HardPressed` all others are, those under way too, until one says the number negated: the first of those that are sent again."""


class StagePush(Push, tag=41, frozen=True):
    """Bundles for a stage of this connection; acknowledged once they are written, which makes nothing durable."""

    stage: int = 0


class KeyedPush(Push, tag=48, frozen=True):
    """Bundles of an idempotent producer, numbered one after the other. Those that were stored before are acknowledged as they were
    then, and not stored again. Refused as a whole: `sequence_gap`, `sequence_too_old`."""

    producer: str = ""
    first_number: int = 0

    @property
    def entry_count(self) -> int:
        """Number of bundles that the push claims to hold."""
        return len(self.entries) // ENTRY_ROW.size


class Flush(Message, tag=5, frozen=True):
    """Seal the topic's open segment now; answered by Done once it is sealed and readable (at once if it is empty)."""

    tag: int
    topic: str


# --- worker to client --------------------------------------------------------------------------------------------------


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
    is_duplicate: bool = False
    """Whether the bundles were stored before; the run then names the first copy."""
    core: int = -1
    """Core that stored the bundles, if it is not the core of the worker that answers; -1: it is."""


class Acked(Message, tag=66, frozen=True):
    """Cumulative per connection and topic: runs in push order. `durability` is a `model.Durability`."""

    durability: int
    runs: list[AckRun]
    archives_as: str = ""
    """Where the topic's durability is `archived`: the incarnation under which the bundles are being archived, and whoever pushed them
    waits for that. Else empty."""
