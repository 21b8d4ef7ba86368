"""The struct of a push that travels alone, and the struct that acknowledges it, instead of messages of msgpack.

Both are frames as all others (`framing`): a u32 length, then that many bytes. The first of these is a byte with which no msgpack begins, so
that either side tells a struct from a message, in any order with messages. A client sends the struct only to a worker whose `Welcome` says
`LONE_PUSHES`, and a worker answers with its struct only who has sent one.

A push of one bundle with one slot, whose schema was declared on the connection for one topic and has no dictionaries. Everything that
`Push` says of such a bundle follows from these fields.
"""

from __future__ import annotations

import struct

from quiver_actors.base.protocol.base import Message
from quiver_actors.base.protocol.push_messages import ENTRY_ROW, SLOT_ROW, Push
from quiver_actors.errors import ProtocolError

LONE_PUSHES = 1
"""Bit of `Welcome.features`: the worker understands `LONE_PUSH`."""
LONE_MARK = 0xC1
"""First byte of a struct; msgpack never uses it."""

LONE_PUSH = struct.Struct("<IBBHIQQQIIIIIq")
"""length of what follows, mark, kind, zeroes behind the end of stream, CRC of the slot, tag, offset in the arena, ring position behind
the span, bytes of the entry, schema handle, rows, metadata bytes of the record-batch message, patience in milliseconds, item count (-1
unknown)."""
LONE_ACK = struct.Struct("<IBBHIQQQ")
"""length of what follows, mark, kind, durability, bundle index, tag, segment number, sequence."""
LONE_PUSH_LENGTH = LONE_PUSH.size - 4
LONE_ACK_LENGTH = LONE_ACK.size - 4
KIND_PUSH, KIND_ACK = 1, 2
_KIND_OFFSET = 1

LoneFields = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int, int]
"""The fields of `LONE_PUSH`."""
LoneAck = tuple[int, int, int, int, int, int, int, int]
"""The fields of `LONE_ACK`."""

_SLOT_OFFSET = 71
"""Where the payload of an entry of one slot begins."""
_PAYLOAD_REST = _SLOT_OFFSET + 4
"""Bytes of such an entry beside its payload."""
_EOS_BYTES = 8


class LonePush(Message, frozen=True):
    """A `LONE_PUSH` that came by the general way. Never sent as a message."""

    padding_bytes: int
    crc: int
    tag: int
    offset: int
    end_position: int
    length: int
    handle: int
    row_count: int
    metadata_bytes: int
    patience_ms: int
    item_count: int

    def push(self, topic: str, slot_id: int, message_bytes: int) -> Push:
        """The `Push` that says the same.

        Args:
            message_bytes: length of the encoded schema message.
        """
        payload_bytes = max(0, self.length - _PAYLOAD_REST)
        body_bytes = payload_bytes - message_bytes - self.metadata_bytes - _EOS_BYTES - self.padding_bytes
        if body_bytes < 0:
            raise ProtocolError(f"push {self.tag}: an entry of {self.length} bytes cannot hold what it says")
        entry = ENTRY_ROW.pack(self.length, self.crc, 1 << slot_id, self.item_count, 0, 1, self.row_count)
        slot = SLOT_ROW.pack(
            self.handle,
            _SLOT_OFFSET,
            payload_bytes,
            self.row_count,
            message_bytes,
            self.metadata_bytes,
            body_bytes,
            0,
        )
        place = self.offset, self.length, self.end_position
        return Push(self.tag, topic, *place, entry, slot, b"", self.patience_ms)


def decode_lone_push(frame: memoryview | bytes) -> LonePush:
    """The push in a frame that begins with `LONE_MARK`. Raises ProtocolError: it is none."""
    if len(frame) != LONE_PUSH_LENGTH or frame[_KIND_OFFSET] != KIND_PUSH:
        raise _no_message("client", len(frame), "a push", LONE_PUSH_LENGTH, KIND_PUSH)
    return LonePush(*_after_length_of_push(frame))


def decode_lone_ack(frame: memoryview | bytes) -> tuple[int, int, int, int, int]:
    """Durability, bundle index, tag, segment number and sequence in a frame that begins with `LONE_MARK`.

    Raises:
        ProtocolError: it is no acknowledgement.
    """
    if len(frame) != LONE_ACK_LENGTH or frame[_KIND_OFFSET] != KIND_ACK:
        raise _no_message("worker", len(frame), "an acknowledgement", LONE_ACK_LENGTH, KIND_ACK)
    durability, bundle_index, tag, segment_seq, sequence = _after_length_of_ack(frame)
    return durability, bundle_index, tag, segment_seq, sequence


def _no_message(side: str, size_bytes: int, expected: str, expected_bytes: int, kind: int) -> ProtocolError:
    return ProtocolError(
        f"the {side} sent a frame of {size_bytes} bytes that is not a message: it begins with {LONE_MARK:#x}, as {expected} that travels "
        f"alone does, and that has {expected_bytes} bytes and kind {kind}"
    )


_after_length_of_push = struct.Struct("<2xHIQQQIIIIIq").unpack
_after_length_of_ack = struct.Struct("<2xHIQQQ").unpack
