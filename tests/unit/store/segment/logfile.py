"""A log file laid out by hand as `store.wal.layout` draws it, and sealed in place: what the engine does, without the engine."""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterable, Mapping
from itertools import chain

import pyarrow as pa

from quiver_actors.store.segment.builder import SegmentBuilder
from quiver_actors.store.segment.compaction import Rewriting
from quiver_actors.store.segment.outline import read_outline
from quiver_actors.store.segment.placement import SlotPlacement, place_payload
from quiver_actors.store.segment.reader import SegmentReader
from quiver_actors.store.segment.tail import encode_tail

HEADER_BYTES = 121
INCARNATION = bytes(range(16))
POSITION_START = 4096
TIME = 1_700_000_000_000_000_000


def encode_stream(batch: pa.RecordBatch, options: pa.ipc.IpcWriteOptions | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    encoded: bytes = sink.getvalue().to_pybytes()
    return encoded


def fingerprint_of(schema: pa.Schema) -> bytes:
    return hashlib.blake2b(schema.serialize(), digest_size=32).digest()


class LogFile:
    """Entries one behind the other; `builder` is told of each."""

    def __init__(self, segment_seq: int = 7, first_sequence: int = 100) -> None:
        header = struct.pack("<10sHH16sQ", b"QUIVER\0WAL", 1, HEADER_BYTES, b"QUIVER_SEGCFG\0\0\0", POSITION_START)
        self.data = bytearray(header.ljust(64, b"\0") + b"ARROW1\0\0").ljust(HEADER_BYTES, b"\0")
        self.builder = SegmentBuilder(segment_seq, lambda offset, length: bytes(self.data[offset : offset + length]))
        self.pushed: list[dict[int, pa.RecordBatch]] = []
        self._first_sequence = first_sequence

    def push(
        self,
        bundle: Mapping[int, pa.RecordBatch],
        item_count: int = -1,
        fingerprints: Mapping[int, bytes] | None = None,
        options: pa.ipc.IpcWriteOptions | None = None,
    ) -> int:
        payloads = {slot: encode_stream(batch, options) for slot, batch in bundle.items()}
        known = {slot: fingerprint_of(batch.schema) for slot, batch in bundle.items()} | dict(fingerprints or {})
        rows = {slot: batch.num_rows for slot, batch in bundle.items()}
        self.pushed.append(dict(sorted(bundle.items())))
        return self.push_payloads(payloads, known, rows, item_count)

    def push_payloads(
        self,
        payloads: Mapping[int, bytes],
        fingerprints: Mapping[int, bytes],
        rows: Mapping[int, int],
        item_count: int = -1,
    ) -> int:
        start = len(self.data)
        assert start % 64 == 57
        sequence = self.builder.bundle_count + self._first_sequence
        slots = sorted(payloads)
        body = bytearray(struct.pack("<BqQQ", 0, TIME + sequence, sequence, sum(1 << slot for slot in slots)))
        placements: list[SlotPlacement] = []
        for slot in slots:
            payload = payloads[slot]
            padding = bytes(((53 if slot == slots[-1] else 22) - len(payload)) % 64)
            body += struct.pack("<H32sII", slot, fingerprints[slot], rows[slot], len(payload) + len(padding))
            offset = start + 4 + len(body)
            assert offset % 64 == 0
            body += payload + padding
            placed = place_payload(
                payload, 0, len(payload), file_offset=offset, slot_id=slot, fingerprint=fingerprints[slot]
            )
            placements.append(placed)
        self.data += struct.pack("<I", len(body)) + body + struct.pack("<I", zlib.crc32(body))
        return self.builder.append(sequence, TIME + sequence, item_count, len(body) + 8, placements)

    def seal(self) -> bytes:
        tail = encode_tail(
            self.builder,
            entries_end=len(self.data),
            crc32_of_entries=zlib.crc32(self.data),
            wal_position_start=POSITION_START,
            wal_position_end=POSITION_START + len(self.data) - HEADER_BYTES,
            incarnation=INCARNATION,
        )
        return bytes(self.data) + b"".join(tail)

    def compacted(self) -> bytes:
        """The segment as compaction writes it: each stream is an Arrow file in one piece."""
        data = self.seal()

        def read(length: int, offset: int) -> bytes:
            return data[offset : offset + length]

        return b"".join(chain.from_iterable(Rewriting(read_outline(read, len(data)), read).parts()))

    def sealed(self) -> SegmentReader:
        return SegmentReader(self.seal(), segment_seq=self.builder.segment_seq)


def contiguous(bundles: Iterable[Mapping[int, pa.RecordBatch]], segment_seq: int = 7) -> bytes:
    """A segment of these bundles whose streams are contiguous Arrow files."""
    log = LogFile(segment_seq)
    for bundle in bundles:
        log.push(bundle)
    return log.compacted()
