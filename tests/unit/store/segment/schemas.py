"""Schema messages that no Arrow library writes: changed by hand, of the same length."""

from __future__ import annotations

import struct

from quiver_actors.store.segment.arrow_ipc import schema_in
from quiver_actors.store.segment.flatbuffers import field_at, vtable_of

NOWHERE = 1 << 30


def big_endian(message: bytes) -> bytes:
    """A schema of one field, of values whose first byte is the highest."""
    found = schema_in(message)
    one = bytes(found.flatbuffer).index(struct.pack("<I", 1), found.header)
    slot = vtable_of(found.flatbuffer, found.header) + 4
    return _changed(message, slot, struct.pack("<H", one - found.header))


def with_a_vtable_nowhere(message: bytes) -> bytes:
    """A schema whose table says that the list of its fields is behind the message's end."""
    return _changed(message, schema_in(message).header, struct.pack("<i", -NOWHERE))


def without_its_fields(message: bytes) -> bytes:
    """A schema that refers to fields behind its end."""
    found = schema_in(message)
    return _changed(message, field_at(found.flatbuffer, found.header, 1), struct.pack("<I", NOWHERE))


def _changed(message: bytes, at: int, piece: bytes) -> bytes:
    """The message with a piece of its flatbuffer replaced."""
    return message[: 8 + at] + piece + message[8 + at + len(piece) :]
