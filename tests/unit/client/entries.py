"""Reads entries as `store.wal.layout` draws them, with struct, zlib and pyarrow only: the encoder's judge."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field

import pyarrow as pa

from quiver_actors.base.protocol.messages import DICTIONARY_ROW, ENTRY_ROW, SLOT_ROW

FILE_OFFSET = 121
"""Where the first entry of a log file of ours stands; 57 mod 64."""


@dataclass
class ParsedEntry:
    size_bytes: int
    bitmap: int
    item_count: int
    row_count: int
    batches: dict[int, pa.RecordBatch] = field(default_factory=dict)
    fingerprints: dict[int, bytes] = field(default_factory=dict)
    schema_messages: dict[int, bytes] = field(default_factory=dict)


def parse_span(span: bytes, entries: bytes, slots: bytes, dictionaries: bytes) -> list[ParsedEntry]:
    """All entries of a Push, every byte and every row of it checked."""
    slot_rows = list(SLOT_ROW.iter_unpack(slots))[::-1]
    dictionary_rows = list(DICTIONARY_ROW.iter_unpack(dictionaries))[::-1]
    parsed = []
    start = 0
    for row in ENTRY_ROW.iter_unpack(entries):
        size_bytes = row[0]
        parsed.append(_parse_entry(span[start : start + size_bytes], row, slot_rows, dictionary_rows))
        start += size_bytes
    assert start == len(span), "entries leave no gap and end with the span"
    assert not slot_rows
    assert not dictionary_rows
    return parsed


def _parse_entry(
    entry: bytes, row: tuple[int, ...], slot_rows: list[tuple[int, ...]], dictionary_rows: list[tuple[int, ...]]
) -> ParsedEntry:
    size_bytes, crc, bitmap, item_count, ingestion_ts, slot_count, row_count = row
    assert len(entry) == size_bytes
    assert entry[:29] == bytes(29), "length field and header are left to the worker"
    assert entry[-4:] == bytes(4), "the CRC is left to the worker"
    assert (FILE_OFFSET + size_bytes) % 64 == 57, "the next entry starts where it should"
    assert zlib.crc32(entry[29:-4]) == crc
    assert ingestion_ts == 0
    assert bitmap.bit_count() == slot_count
    parsed = ParsedEntry(size_bytes, bitmap, item_count, row_count)
    at = 29
    for _ in range(slot_count):
        at = _parse_slot(entry, at, parsed, slot_rows.pop(), dictionary_rows)
    assert at == size_bytes - 4
    assert list(parsed.batches) == sorted(parsed.batches)
    assert sum(1 << slot_id for slot_id in parsed.batches) == bitmap
    assert sum(batch.num_rows for batch in parsed.batches.values()) == row_count
    return parsed


def _parse_slot(
    entry: bytes, at: int, parsed: ParsedEntry, row: tuple[int, ...], dictionary_rows: list[tuple[int, ...]]
) -> int:
    _, payload_offset, payload_bytes, rows, batch_offset, metadata_bytes, body_bytes, dictionary_count = row
    slot_id, fingerprint, head_rows, head_bytes = struct.unpack_from("<H32sII", entry, at)
    payload_start = at + 42
    assert (payload_start, payload_bytes, rows) == (payload_offset, head_bytes, head_rows)
    assert (FILE_OFFSET + payload_start) % 64 == 0, "payloads stand on 64-byte file offsets"
    payload = entry[payload_start : payload_start + payload_bytes]
    stream = pa.BufferReader(payload)
    reader = pa.ipc.open_stream(stream)
    parsed.batches[slot_id] = reader.read_next_batch()
    assert next(iter(reader), None) is None
    end = stream.tell()
    assert payload[end - 8 : end] == b"\xff\xff\xff\xff\0\0\0\0"
    assert payload[end:] == bytes(payload_bytes - end), "padding is zero"
    assert payload_bytes - end < 64
    schema_bytes = 8 + struct.unpack_from("<I", payload, 4)[0]
    parsed.fingerprints[slot_id] = fingerprint
    parsed.schema_messages[slot_id] = payload[:schema_bytes]
    spans = [(batch_offset, metadata_bytes, body_bytes)]
    expected_at = schema_bytes
    for _ in range(dictionary_count):
        dictionary_id, offset, metadata, body = dictionary_rows.pop()
        assert dictionary_id >= 0, "a whole stream carries whole dictionaries"
        spans.insert(-1, (offset, metadata, body))
    for offset, metadata, body in spans:
        assert (offset, metadata % 8) == (expected_at, 0)
        assert struct.unpack_from("<II", payload, offset) == (0xFFFFFFFF, metadata - 8)
        expected_at = offset + metadata + body
    assert expected_at == end - 8
    return payload_start + payload_bytes
