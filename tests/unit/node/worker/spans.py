"""The bytes and rows of a Push, encoded in a test: bundles as unfinished log entries."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pyarrow as pa

from quiver_actors.base.checksum import crc32
from quiver_actors.base.protocol import messages as m

END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


def fingerprint_of(schema: pa.Schema) -> bytes:
    return hashlib.blake2b(schema.serialize().to_pybytes(), digest_size=32).digest()


class Span:
    """Bundles encoded as unfinished log entries: the bytes and the rows of one Push."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.entries = b""
        self.slots = b""

    def add(
        self,
        slots: Sequence[tuple[int, int, pa.RecordBatch]],
        item_count: int = -1,
        compression: str | None = None,
    ) -> None:
        """`slots`: schema handle, slot id, batch; ascending slot ids."""
        start, bitmap, rows = len(self.data), 0, 0
        self.data += bytes(29)
        for number, (handle, slot_id, batch) in enumerate(slots):
            pad_to = 53 if number == len(slots) - 1 else 22
            self._add_slot(start, handle, slot_id, batch, pad_to, compression)
            bitmap |= 1 << slot_id
            rows += batch.num_rows
        crc = crc32(bytes(self.data[start + 29 :]))
        self.data += bytes(4)
        self.entries += m.ENTRY_ROW.pack(len(self.data) - start, crc, bitmap, item_count, 0, len(slots), rows)

    def _add_slot(
        self, start: int, handle: int, slot_id: int, batch: pa.RecordBatch, pad_to: int, compression: str | None
    ) -> None:
        schema, message = batch.schema.serialize().to_pybytes(), _message_of(batch, compression)
        payload = bytearray(schema + message + END_OF_STREAM)
        at = len(self.data) + 42
        payload += bytes((pad_to - (57 + at + len(payload))) % 64)
        head = slot_id.to_bytes(2, "little") + fingerprint_of(batch.schema)
        self.data += head + batch.num_rows.to_bytes(4, "little") + len(payload).to_bytes(4, "little") + payload
        metadata = 8 + int.from_bytes(message[4:8], "little")
        self.slots += m.SLOT_ROW.pack(
            handle, at - start, len(payload), batch.num_rows, len(schema), metadata, len(message) - metadata, 0
        )


def _message_of(batch: pa.RecordBatch, compression: str | None) -> bytes:
    """The batch's own message of a stream, which begins with that of its schema."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()[len(batch.schema.serialize()) : -len(END_OF_STREAM)]
