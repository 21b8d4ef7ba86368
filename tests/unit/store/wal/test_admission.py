"""What the door of the log refuses: one thing is wrong at a time, and the error says which."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pytest

from quiver_actors.base.checksum import crc32
from quiver_actors.base.protocol.messages import DICTIONARY_ROW, ENTRY_ROW, SLOT_ROW, Push
from quiver_actors.errors import ProtocolError
from quiver_actors.store.segment.placement import StreamSchema
from quiver_actors.store.wal import layout
from quiver_actors.store.wal.admission import PUSH_ENTRIES_MAX, PUSH_SLOTS_MAX, check_push
from quiver_actors.store.wal.codec import decode_entry_header
from quiver_actors.store.wal.uniform import UNIFORM_ENTRIES_MIN, UniformEntries, complete
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver, numbered_batch

SPAN_BYTES, CRC, BITMAP, ITEMS, TIME, SLOTS = range(6)
"""Fields of an entry's row."""
HANDLE, PAYLOAD, PAYLOAD_BYTES, ROWS, BATCH, METADATA, BODY, DICTIONARIES = range(8)
"""Fields of a slot's row."""


class Sent(NamedTuple):
    span: bytes
    push: Push
    schemas: dict[int, StreamSchema]

    def with_entry(self, field: int, value: int, row: int = 0) -> Sent:
        return self._with("entries", ENTRY_ROW, row, field, value)

    def with_slot(self, field: int, value: int, row: int = 0) -> Sent:
        return self._with("slots", SLOT_ROW, row, field, value)

    def _with(self, name: str, packed: object, row: int, field: int, value: int) -> Sent:
        rows = [list(each) for each in packed.iter_unpack(getattr(self.push, name))]  # type: ignore[attr-defined]
        rows[row][field] = value
        content = b"".join(packed.pack(*each) for each in rows)  # type: ignore[attr-defined]
        return self._replace(push=msgspec.structs.replace(self.push, **{name: content}))

    def with_rows(self, **rows: bytes) -> Sent:
        return self._replace(push=msgspec.structs.replace(self.push, **rows))

    def with_bytes(self, change: Callable[[bytearray], None], entry: int = 0) -> Sent:
        """Return the push with the slots of one entry changed; the CRC of the entry fits."""
        span = bytearray(self.span)
        change(span)
        start, end = self.bounds(entry)
        crc = crc32(span[start + layout.ENTRY_HEAD.size : end - layout.ENTRY_CRC.size])
        return self._replace(span=bytes(span)).with_entry(CRC, crc, entry)

    def bounds(self, entry: int) -> tuple[int, int]:
        """Return where that entry begins and ends in the span."""
        sizes = [int(row[SPAN_BYTES]) for row in ENTRY_ROW.iter_unpack(self.push.entries)]
        return sum(sizes[:entry]), sum(sizes[: entry + 1])

    def slot(self, field: int) -> int:
        return int(next(SLOT_ROW.iter_unpack(self.push.slots))[field])


def sent(*slots: pa.RecordBatch, count: int = 1) -> Sent:
    """Return a push of `count` bundles with these batches in slots 0, 1 ..."""
    return sent_together([dict(enumerate(slots))] * count)


def sent_together(bundles: list[dict[int, pa.RecordBatch]]) -> Sent:
    """Return a push of these bundles."""
    memory, push, schemas = EngineDriver(SimDisk()).layout(bundles)
    return Sent(bytes(memory), push, schemas)


def without_dictionaries(case: Sent) -> Sent:
    """Return the push with rows that say that there are no dictionaries."""
    for row in range(len(case.push.slots) // SLOT_ROW.size):
        case = case.with_slot(DICTIONARIES, 0, row)
    return case.with_rows(dictionaries=b"")


ONE = sent(numbered_batch(1))
TWO = sent(numbered_batch(1), pa.record_batch({"x": [1]}))
MANY = sent(numbered_batch(1), count=UNIFORM_ENTRIES_MIN)
"""Looked at all at once, as long as they are right."""
MANY_TWO = sent(numbered_batch(1), pa.record_batch({"x": [1]}), count=UNIFORM_ENTRIES_MIN)
"""Two slots each; checked all at once too, as long as they are right."""
MANY_MIXED = sent_together(
    [{0: numbered_batch(1)}] * UNIFORM_ENTRIES_MIN + [{0: numbered_batch(1), 1: pa.record_batch({"x": [1]})}]
)
"""One of them has another slot, so that they are looked at one by one."""
WORDS_BATCH = pa.record_batch({"w": pa.array(["a", "b"]).dictionary_encode()})
WORDS = sent(WORDS_BATCH)
LONGER = ONE._replace(span=ONE.span[:-4] + bytes(64) + ONE.span[-4:]).with_entry(SPAN_BYTES, len(ONE.span) + 64)
"""A push with the same slots in a larger entry."""
PREFIX_AT = layout.ENTRY_HEAD.size + layout.SLOT_HEAD.size + ONE.slot(BATCH)


def spoil_prefix(span: bytearray) -> None:
    span[PREFIX_AT] = 0


@pytest.mark.parametrize(
    "case",
    [ONE, TWO, WORDS, MANY, MANY_TWO, MANY_MIXED],
    ids=["one", "two slots", "dictionary", "many", "many of two slots", "many of one or two slots"],
)
def test_what_is_right_is_let_in(case: Sent) -> None:
    entries, _ = check_push(memoryview(bytearray(case.span)), layout.HEADER_BYTES, case.push, case.schemas)
    assert len(entries) == len(case.push.entries) // ENTRY_ROW.size
    assert isinstance(entries, UniformEntries) == (case in (MANY, MANY_TWO))


def test_a_time_that_the_producer_gave_to_one_of_many_stays() -> None:
    case = MANY.with_entry(TIME, 5, row=3)
    span = memoryview(bytearray(case.span))
    entries, _ = check_push(span, layout.HEADER_BYTES, case.push, case.schemas)
    assert isinstance(entries, UniformEntries)
    times = complete(span, entries, layout.ENTRY_TYPE_BUNDLE, 100, 9)
    assert times.tolist() == [9, 9, 9, 5] + [9] * (UNIFORM_ENTRIES_MIN - 4)
    start, end = case.bounds(3)
    body = bytes(span[start + layout.ENTRY_LENGTH_BYTES : end - layout.ENTRY_CRC.size])
    header = decode_entry_header(body)
    assert (header.sequence, header.ingestion_ts_nanos) == (103, 5)
    assert layout.ENTRY_CRC.unpack_from(span, end - layout.ENTRY_CRC.size) == (crc32(body),)


def with_another_schema(span: bytearray) -> None:
    """Change the schema in the sixth of many entries."""
    span[MANY.bounds(5)[0] + PREFIX_AT - 1] ^= 1


REFUSED = {
    "rows cut off": (ONE.with_rows(entries=ONE.push.entries[:-1]), "wrong length"),
    "no entries": (ONE.with_rows(entries=b"", slots=b""), "0 entries"),
    "too many entries": (
        ONE.with_rows(entries=ONE.push.entries * (PUSH_ENTRIES_MAX + 1)),
        f"{PUSH_ENTRIES_MAX + 1} entries",
    ),
    "too many like entries": (
        MANY.with_rows(entries=MANY.push.entries * PUSH_ENTRIES_MAX, slots=MANY.push.slots * PUSH_ENTRIES_MAX),
        f"expected 1..{PUSH_ENTRIES_MAX}",
    ),
    "too many slots": (ONE.with_rows(slots=ONE.push.slots * (PUSH_SLOTS_MAX + 1)), f"at most {PUSH_SLOTS_MAX}"),
    "odd size": (ONE.with_entry(SPAN_BYTES, len(ONE.span) - 1), "expected a multiple of 64"),
    "beyond the span": (ONE.with_entry(SPAN_BYTES, len(ONE.span) + 64), "leaves the span"),
    "short of the span": (ONE._replace(span=ONE.span + bytes(64)), "belong to no entry"),
    "negative count": (ONE.with_entry(ITEMS, -2), "is negative"),
    "negative time": (ONE.with_entry(TIME, -1), "is negative"),
    "no slots": (ONE.with_entry(SLOTS, 0), "0 slots"),
    "slots and bitmap differ": (ONE.with_entry(BITMAP, 3), "1 slots against bitmap"),
    "another CRC": (ONE.with_entry(CRC, 1), "CRC of the slots"),
    "another slot": (ONE.with_entry(BITMAP, 2), "is not in the bitmap"),
    "another second slot": (TWO.with_entry(BITMAP, 5), "stands twice or out of order"),
    "bytes behind the last slot": (LONGER.with_bytes(lambda _: None), "64 bytes behind the last slot"),
    "payload shorter than it says": (ONE.with_slot(PAYLOAD_BYTES, ONE.slot(PAYLOAD_BYTES) - 64), "not what the row"),
    "payload elsewhere": (ONE.with_slot(PAYLOAD, ONE.slot(PAYLOAD) + 8), "does not follow its slot head"),
    "payload too long": (ONE.with_slot(PAYLOAD_BYTES, len(ONE.span)), "does not follow its slot head"),
    "too few slot rows": (TWO.with_rows(slots=TWO.push.slots[: SLOT_ROW.size]), "fewer slot rows"),
    "too many slot rows": (ONE.with_rows(slots=ONE.push.slots * 2), "more slot or dictionary rows"),
    "schema not declared": (ONE.with_slot(HANDLE, 77), "handle 77 was not declared"),
    "other row count": (ONE.with_slot(ROWS, 99), "not what the row and the declared schema say"),
    "message beyond the payload": (ONE.with_slot(BODY, 1 << 40), "does not fit its payload"),
    "message not aligned": (ONE.with_slot(BATCH, ONE.slot(BATCH) + 4), "does not fit its payload"),
    "no message there": (ONE.with_bytes(spoil_prefix), "no IPC message"),
    "too few dictionary rows": (WORDS.with_rows(dictionaries=b""), "fewer dictionary rows"),
    "too many dictionary rows": (
        WORDS.with_rows(dictionaries=WORDS.push.dictionaries * 2),
        "more slot or dictionary rows",
    ),
    "dictionary of no field": (
        WORDS.with_rows(dictionaries=DICTIONARY_ROW.pack(9, *DICTIONARY_ROW.unpack(WORDS.push.dictionaries)[1:])),
        "dictionar",
    ),
    "no dictionary": (without_dictionaries(WORDS), "dictionar"),
    "many alike short of the span": (MANY._replace(span=MANY.span + bytes(64)), "belong to no entry"),
    "many of no schema": (MANY.with_slot(HANDLE, 77), "handle 77 was not declared"),
    "one of many with another CRC": (MANY.with_entry(CRC, 1, row=7), "CRC of the slots"),
    "one of many with another schema": (MANY.with_bytes(with_another_schema, 5), "slot head and schema message"),
    "one of many second slots in another place": (
        MANY_TWO.with_slot(PAYLOAD, MANY_TWO.slot(PAYLOAD) + 64, row=9),
        "does not follow its slot head",
    ),
    "one of many second slots of no schema": (MANY_TWO.with_slot(HANDLE, 77, row=9), "handle 77 was not declared"),
    "the second slots of many are missing": (
        MANY_TWO.with_rows(slots=MANY_TWO.push.slots[: UNIFORM_ENTRIES_MIN * SLOT_ROW.size]),
        "payload at|bytes behind|not what the row|fewer slot rows",
    ),
    "one of many without its slot row": (MANY.with_rows(slots=MANY.push.slots[: -SLOT_ROW.size]), "fewer slot rows"),
    "many without slot rows": (MANY.with_rows(slots=b""), "fewer slot rows"),
    "one of many without its second slot": (MANY_TWO.with_entry(SLOTS, 1, row=4), "1 slots against bitmap"),
    "no dictionary in many alike": (without_dictionaries(sent(WORDS_BATCH, count=UNIFORM_ENTRIES_MIN)), "dictionar"),
}


@pytest.mark.parametrize(("case", "said"), REFUSED.values(), ids=REFUSED)
def test_what_is_wrong_is_refused_and_named(case: Sent, said: str) -> None:
    with pytest.raises(ProtocolError, match=said):
        check_push(memoryview(bytearray(case.span)), layout.HEADER_BYTES, case.push, case.schemas)
