"""The check of an entry that travels alone, against what is known of its stream. Pure.

What passes here would pass `admission.check_push`, too, which is the judge of all others: whoever finds a doubt here asks it, and so has
its errors.
"""

from __future__ import annotations

import struct

from quiver_actors.base.checksum import crc32
from quiver_actors.store.segment.placement import StreamSchema
from quiver_actors.store.wal import layout

_HEAD_BYTES = layout.ENTRY_HEAD.size
_CRC_BYTES = layout.ENTRY_CRC.size
_PAYLOAD = _HEAD_BYTES + layout.SLOT_HEAD.size
_METADATA_BYTES_MIN = 16
_CONTINUATION = 0xFFFFFFFF
_read_counts = struct.Struct("<II").unpack_from
_COUNTS = _PAYLOAD - 8
"""Where row count and payload length stand in an entry of one slot."""


class LoneStream:
    """The common parts of all entries of one stream whose payloads bring no dictionaries along. Immutable."""

    __slots__ = ("bitmap", "head", "message", "message_end", "schema")

    def __init__(self, schema: StreamSchema) -> None:
        self.schema = schema
        self.head = schema.slot_id.to_bytes(2, "little") + schema.fingerprint
        """The first bytes of a slot head."""
        self.message = schema.message
        self.message_end = _PAYLOAD + len(schema.message)
        """Where the record-batch message stands in an entry."""
        self.bitmap = 1 << schema.slot_id


def is_sound(
    span: memoryview, stream: LoneStream, crc: int, row_count: int, metadata_bytes: int, body_bytes: int
) -> bool:
    """Whether a private copy of an unfinished entry is what its producer says of it, and may be logged. False: `check_push` says why not.

    Args:
        crc: of the slot, as the producer computed it.
        metadata_bytes, body_bytes: of its record-batch message.
    """
    end, at = len(span) - _CRC_BYTES, stream.message_end
    return (
        not len(span) & 63
        and at < end
        and metadata_bytes >= _METADATA_BYTES_MIN
        and not (at - _PAYLOAD | metadata_bytes | body_bytes) & 7
        and 0 <= body_bytes <= end - at - metadata_bytes
        and span[_HEAD_BYTES:_COUNTS] == stream.head
        and _read_counts(span, _COUNTS) == (row_count, end - _PAYLOAD)
        and span[_PAYLOAD:at] == stream.message
        and _read_counts(span, at) == (_CONTINUATION, metadata_bytes - 8)
        and crc32(span[_HEAD_BYTES:end]) == crc
    )
