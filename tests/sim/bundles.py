"""What the simulated producers push: seeded bundles of every shape that takes a path of its own through the log and the seal."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from random import Random

import pyarrow as pa

from quiver_actors.base.checksum import crc32
from quiver_actors.base.protocol.messages import DICTIONARY_ROW, ENTRY_ROW, SLOT_ROW, Push
from quiver_actors.store.segment.placement import StreamSchema, place_payload
from quiver_actors.store.wal import layout

Slots = dict[int, pa.RecordBatch]

WORDS = ("ash", "birch", "cedar", "dogwood", "elder", "fir", "gorse", "hazel")


def plain(number: int, random: Random) -> Slots:
    rows = random.randint(1, 3)
    return {0: pa.record_batch({"number": pa.array([number] * rows), "text": pa.array([f"{number}"] * rows)})}


def tiny(number: int, slot_count: int = 1) -> Slots:
    """Always the same layout."""
    return {slot: pa.record_batch({"number": pa.array([number + slot])}) for slot in range(slot_count)}


def several_slots(number: int, random: Random) -> Slots:
    extra = pa.record_batch({"weight": pa.array([number / 7, None])})
    return plain(number, random) | {5: extra, 62: extra.slice(1)}


def with_dictionary(number: int, random: Random) -> Slots:
    """Three kinds of dictionary: one that grows, one that does not fit the one before, one inside a list."""
    words = WORDS[: random.randint(1, len(WORDS))] if random.random() < 0.7 else (f"{number}", "yew")
    column = pa.DictionaryArray.from_arrays(pa.array([0, len(words) - 1], pa.int8()), pa.array(words))
    columns = {"number": pa.array([number] * 2), "word": column}
    if random.random() < 0.3:
        columns["words"] = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), column)
    return {1: pa.record_batch(columns)}


def recurring_dictionary(number: int, random: Random) -> Slots:
    """One of more dictionaries than the builder keeps in memory; no two of them fit into one stream."""
    column = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), pa.array([f"{random.randrange(14)}", "yew"]))
    return {1: pa.record_batch({"number": pa.array([number] * 2), "word": column})}


def without_rows(number: int, random: Random) -> Slots:
    return {0: pa.record_batch({"number": pa.array([], pa.int64())})}


def other_schema(number: int, random: Random) -> Slots:
    """Differs from `plain` in nullability or metadata only."""
    nullable = random.random() < 0.5
    schema = pa.schema(
        [pa.field("number", pa.int64(), nullable=nullable), pa.field("text", pa.string())],
        metadata={b"variant": b"%d" % random.randrange(3)},
    )
    return {0: pa.record_batch([pa.array([number]), pa.array([f"{number}"])], schema=schema)}


def big(number: int, random: Random) -> Slots:
    size = random.choice((3_000, 9_000, 30_000, 90_000))
    return {0: pa.record_batch({"number": pa.array([number]), "blob": pa.array([random.randbytes(size)])})}


SHAPES = (plain, plain, plain, several_slots, with_dictionary, with_dictionary, without_rows, other_schema)


def any_bundle(number: int, random: Random, *, big_share: float = 0.05, dictionary_share: float = 0.0) -> Slots:
    if random.random() < big_share:
        return big(number, random)
    shape = recurring_dictionary if random.random() < dictionary_share else random.choice(SHAPES)
    return shape(number, random)


def same_slots(found: Mapping[int, pa.RecordBatch], pushed: Mapping[int, pa.RecordBatch]) -> bool:
    """Slot by slot the same schema, metadata included, and the same values."""
    return found.keys() == pushed.keys() and all(_same_batch(found[slot], pushed[slot]) for slot in pushed)


def _same_batch(found: pa.RecordBatch, pushed: pa.RecordBatch) -> bool:
    if not found.schema.equals(pushed.schema, check_metadata=True):
        return False
    # A dictionary may have grown since, so values are compared where one is involved.
    return bool(found.equals(pushed)) or found.to_pylist() == pushed.to_pylist()


class Producer:
    """Lays bundles out as unfinished log entries (`store.wal.layout`), slowly and without the client's code."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._tag = 0
        self._handles: dict[StreamSchema, int] = {}

    def lay_out(self, bundles: Sequence[Slots]) -> tuple[memoryview, Push, dict[int, StreamSchema]]:
        """One push of all bundles: the span, the message, and the schemas by handle."""
        self._slots, self._dictionaries = b"", b""
        span, entries = bytearray(), b""
        for slots in bundles:
            entry = self._entry(slots)
            crc = crc32(entry[layout.ENTRY_HEAD.size : -layout.ENTRY_CRC.size])
            bitmap = sum(1 << slot for slot in slots)
            rows = sum(batch.num_rows for batch in slots.values())
            entries += ENTRY_ROW.pack(len(entry), crc, bitmap, -1, 0, len(slots), rows)
            span += entry
        self._tag += 1
        push = Push(self._tag, self._topic, 0, len(span), len(span), entries, self._slots, self._dictionaries)
        return memoryview(span), push, {handle: schema for schema, handle in self._handles.items()}

    def _entry(self, slots: Slots) -> bytes:
        entry, last = bytearray(layout.ENTRY_HEAD.size), max(slots)
        for slot_id, batch in sorted(slots.items()):
            payload = _stream_bytes(batch)
            payload += bytes(((53 if slot_id == last else 22) - len(payload)) % layout.ALIGNMENT)
            fingerprint = hashlib.blake2b(batch.schema.serialize(), digest_size=32).digest()
            entry += layout.SLOT_HEAD.pack(slot_id, fingerprint, batch.num_rows, len(payload))
            self._add_rows(slot_id, fingerprint, payload, len(entry))
            entry += payload
        return bytes(entry) + bytes(layout.ENTRY_CRC.size)

    def _add_rows(self, slot_id: int, fingerprint: bytes, payload: bytes, offset: int) -> None:
        schema, row_count, batch, *sizes, dictionaries = place_payload(
            payload, 0, len(payload), file_offset=0, slot_id=slot_id, fingerprint=fingerprint
        )
        handle = self._handles.setdefault(schema, len(self._handles) + 1)
        self._slots += SLOT_ROW.pack(handle, offset, len(payload), row_count, batch, *sizes, len(dictionaries))
        for placed in dictionaries:
            id_ = ~placed.id if placed.is_delta else placed.id
            self._dictionaries += DICTIONARY_ROW.pack(id_, placed.file_offset, placed.metadata_bytes, placed.body_bytes)


def _stream_bytes(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    encoded: bytes = sink.getvalue().to_pybytes()
    return encoded
