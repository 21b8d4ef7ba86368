"""Many entries at once or one by one: the same pushes are taken, and the same bytes and numbers come of them."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pytest

from quiver_actors.base.checksum import crc32
from quiver_actors.base.protocol.messages import ENTRY_ROW, SLOT_ROW, Push
from quiver_actors.errors import ProtocolError
from quiver_actors.store.encoding.entries import PushRows, plan, write
from quiver_actors.store.encoding.streams import StreamTable
from quiver_actors.store.segment.placement import StreamSchema
from quiver_actors.store.segment.tail import encode_tail
from quiver_actors.store.wal import layout
from quiver_actors.store.wal.admission import CheckedEntries, check_each, check_push
from quiver_actors.store.wal.codec import Identity
from quiver_actors.store.wal.log import Log
from quiver_actors.store.wal.uniform import UNIFORM_ENTRIES_MIN, UniformEntries, check_uniform
from tests.disks.simulated import SimDisk

MUTANTS = 2_000
INTERESTING = (
    0,
    1,
    7,
    8,
    16,
    63,
    64,
    128,
    1 << 28,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
)
SCHEMA = pa.schema([pa.field("n", pa.int64()), pa.field("text", pa.string())], metadata={"k": "v"})

Schemas = dict[int, StreamSchema]


@dataclass
class Specimen:
    """One push, open to damage."""

    span: bytearray
    entries: bytearray
    slots: bytearray
    dictionaries: bytes = b""

    def push(self) -> Push:
        size = len(self.span)
        return Push(1, "t", 0, size, size, bytes(self.entries), bytes(self.slots), self.dictionaries)

    def mend(self) -> None:
        """Let the rows say the CRCs that the entries have now, as far as the entries are inside the span."""
        start = 0
        for at in range(0, len(self.entries), ENTRY_ROW.size):
            (size,) = struct.unpack_from("<I", self.entries, at)
            struct.pack_into("<I", self.entries, at + 4, crc32(self.span[start + 29 : start + size - 4]))
            start += size


def lay_out(slot_ids: int | tuple[int, ...], count: int, rng: random.Random) -> tuple[Specimen, Schemas]:
    """Bundles with those slots. Every other one has a shorter schema."""
    table, rows, span = StreamTable("t"), PushRows(), bytearray()
    for _ in range(count):
        of_slots = slot_ids if isinstance(slot_ids, tuple) else (slot_ids,)
        slots = [(slot_id, batch_of(rng).select([0, 1][: 2 - at % 2])) for at, slot_id in enumerate(of_slots)]
        planned = plan(slots, table, rng.choice((None, 0, 7, (1 << 63) - 1)))
        memory = bytearray(planned.entry_bytes)
        write(planned, memoryview(memory), 0, rows)
        span += memory
    return Specimen(span, bytearray(b"".join(rows.entries)), bytearray(b"".join(rows.slots))), rows.schemas()


def batch_of(rng: random.Random) -> pa.RecordBatch:
    n = rng.choice((0, 1, 3, 20, 200))
    return pa.record_batch([list(range(n)), [f"text {number}" for number in range(n)]], schema=SCHEMA)


def flip(content: bytearray, rng: random.Random) -> None:
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)


def set_field(content: bytearray, rng: random.Random) -> None:
    form = rng.choice(("<I", "<Q"))
    size = struct.calcsize(form)
    value = rng.choice(INTERESTING) & ((1 << 8 * size) - 1)
    struct.pack_into(form, content, rng.randrange(len(content) // size) * size, value)


def change_row(specimen: Specimen, rng: random.Random) -> None:
    rng.choice((flip, set_field))(rng.choice((specimen.entries, specimen.slots)), rng)


def change_span(specimen: Specimen, rng: random.Random) -> None:
    flip(specimen.span, rng)


def change_head(specimen: Specimen, rng: random.Random) -> None:
    """Near an entry's start, the CRC being right: what only the comparison with the rows and the schema finds."""
    sizes = [row[0] for row in ENTRY_ROW.iter_unpack(specimen.entries)]
    entry = rng.randrange(len(sizes))
    slots = [*SLOT_ROW.iter_unpack(specimen.slots)]
    slot_count = len(slots) // len(sizes)
    (_, payload_offset, payload_bytes, *_) = rng.choice(slots[entry * slot_count : (entry + 1) * slot_count])
    place = rng.randrange(payload_offset - 42, payload_offset + min(payload_bytes, 630))
    specimen.span[sum(sizes[:entry]) + place] ^= 1 << rng.randrange(8)
    specimen.mend()


def move_slot(specimen: Specimen, rng: random.Random) -> None:
    """A slot's end, in its head and in its row, the CRC being right: what only the chain of the slots finds."""
    number = rng.randrange(len(specimen.slots) // SLOT_ROW.size)
    (_, payload_offset, payload_bytes, *_) = SLOT_ROW.unpack_from(specimen.slots, number * SLOT_ROW.size)
    sizes = [row[0] for row in ENTRY_ROW.iter_unpack(specimen.entries)]
    entry = number * len(sizes) // (len(specimen.slots) // SLOT_ROW.size)
    moved = max(0, payload_bytes + rng.choice((-64, -8, 8, 64, 106)))
    struct.pack_into("<I", specimen.slots, number * SLOT_ROW.size + 8, moved)
    struct.pack_into("<I", specimen.span, sum(sizes[:entry]) + payload_offset - 4, moved)
    specimen.mend()


def swap_rows(specimen: Specimen, rng: random.Random) -> None:
    """Two rows of slots."""
    rows = [specimen.slots[at : at + SLOT_ROW.size] for at in range(0, len(specimen.slots), SLOT_ROW.size)]
    first, second = rng.sample(range(len(rows)), 2)
    rows[first], rows[second] = rows[second], rows[first]
    specimen.slots = bytearray(b"".join(rows))


def change_size(specimen: Specimen, rng: random.Random) -> None:
    part = rng.choice(("span", "entries", "slots"))
    content = getattr(specimen, part)
    setattr(
        specimen,
        part,
        content[: -rng.choice((1, 4, 40, 64))] if rng.random() < 0.5 else content + bytes(rng.choice((1, 40, 64))),
    )


def add_dictionaries(specimen: Specimen, rng: random.Random) -> None:
    specimen.dictionaries = bytes(24)


CHANGES: tuple[Callable[[Specimen, random.Random], None], ...] = (
    change_row,
    change_row,
    change_row,
    change_span,
    change_head,
    move_slot,
    swap_rows,
    change_size,
    add_dictionaries,
)


def staged(specimen: Specimen, entries: CheckedEntries) -> tuple[bytes, bytes, int, int]:
    """What a log file and its segment become: file, tail, CRC, numbers."""
    disk = SimDisk()
    file = disk.create("log")
    log = Log(file, "log", 1 << 20)
    log.activate(bytes(16), 77, Identity(3, 1000, bytes(16)))
    log.stage(memoryview(bytearray(specimen.span)), entries, 1_700_000_000_000_000_000, 5)
    log.write()
    tail = encode_tail(
        log.builder,
        entries_end=log.end,
        crc32_of_entries=log.crc,
        wal_position_start=77,
        wal_position_end=log.position_end,
        incarnation=bytes(16),
    )
    return file.read(log.end, 0), b"".join(tail), log.crc, log.sequence_end


def compare(specimen: Specimen, schemas: Schemas) -> bool:
    """Both ways must agree; whether the push was taken."""
    push, span = specimen.push(), memoryview(specimen.span)
    at_once = check_uniform(span, push, schemas)
    try:
        entries, row_count = check_each(span, layout.HEADER_BYTES, push, schemas)
    except ProtocolError:
        assert at_once is None, "what is refused one by one must not be taken at once"
        with pytest.raises(ProtocolError):
            check_push(span, layout.HEADER_BYTES, push, schemas)
        return False
    if at_once is not None:
        assert at_once[1] == row_count
        assert staged(specimen, at_once[0]) == staged(specimen, entries)
    return True


@pytest.mark.parametrize("slot_ids", [0, 5, 63, (0, 63), (3, 4, 5, 40), tuple(range(64))], ids=str)
@pytest.mark.parametrize("count", [UNIFORM_ENTRIES_MIN, 100])
def test_right_pushes_are_taken_at_once_and_come_out_the_same(slot_ids: int | tuple[int, ...], count: int) -> None:
    specimen, schemas = lay_out(slot_ids, count, random.Random(count))
    entries, _ = check_push(memoryview(specimen.span), layout.HEADER_BYTES, specimen.push(), schemas)
    assert isinstance(entries, UniformEntries)
    assert compare(specimen, schemas)


def test_stamped_entries_keep_their_time() -> None:
    specimen, schemas = lay_out(1, 30, random.Random(2))
    struct.pack_into("<q", specimen.entries, 3 * ENTRY_ROW.size + 24, 12345)
    assert isinstance(check_push(memoryview(specimen.span), 121, specimen.push(), schemas)[0], UniformEntries)
    assert compare(specimen, schemas)


def test_mixed_schemas_few_entries_and_dictionaries_go_one_by_one() -> None:
    few, schemas = lay_out(1, UNIFORM_ENTRIES_MIN - 1, random.Random(3))
    other, others = lay_out(2, UNIFORM_ENTRIES_MIN, random.Random(4))
    two, of_two = lay_out((1, 2), UNIFORM_ENTRIES_MIN, random.Random(9))
    known = schemas | others | of_two
    mixed = [
        Specimen(few.span + more.span, few.entries + more.entries, few.slots + more.slots) for more in (other, two)
    ]
    for specimen in (few, *mixed):
        assert check_uniform(memoryview(specimen.span), specimen.push(), known) is None
        assert compare(specimen, known)


def heads_of(specimen: Specimen, schemas: Schemas, entry: int) -> Iterator[int]:
    """Places of all bytes of an entry's slot heads, schema messages and prefixes of record-batch messages."""
    sizes = [row[0] for row in ENTRY_ROW.iter_unpack(specimen.entries)]
    slots = [*SLOT_ROW.iter_unpack(specimen.slots)]
    slot_count, start = len(slots) // len(sizes), sum(sizes[:entry])
    for handle, payload_offset, *_ in slots[entry * slot_count : (entry + 1) * slot_count]:
        payload = start + payload_offset
        yield from range(payload - 42, payload + len(schemas[handle].message) + 8)


@pytest.mark.parametrize("slot_ids", [3, (3, 7, 63)], ids=str)
def test_every_byte_of_slot_heads_and_schema_messages_is_compared(slot_ids: int | tuple[int, ...]) -> None:
    specimen, schemas = lay_out(slot_ids, 24, random.Random(5))
    for at in heads_of(specimen, schemas, 1):
        mutant = Specimen(bytearray(specimen.span), bytearray(specimen.entries), specimen.slots)
        mutant.span[at] ^= 0x80
        mutant.mend()
        assert not compare(mutant, schemas), f"byte {at} of the span"


@pytest.mark.parametrize("slot_ids", [3, (3, 7, 63)], ids=str)
def test_pushes_that_are_laid_out_as_the_last_one_are_compared_as_well(slot_ids: int | tuple[int, ...]) -> None:
    specimen, schemas = lay_out(slot_ids, 24, random.Random(8))
    start = ENTRY_ROW.unpack_from(specimen.entries)[0]
    for at in [*heads_of(specimen, schemas, 1)][::5]:
        for _ in range(3):
            assert compare(specimen, schemas), "what is kept of a push is not spoilt by those between"
        mutant = Specimen(bytearray(specimen.span), bytearray(specimen.entries), specimen.slots)
        mutant.span[at] ^= 0x80
        assert not compare(mutant, schemas), f"byte {at} of the span, its CRC being wrong"
        mutant.mend()
        assert not compare(mutant, schemas), f"byte {at} of the span, its CRC being right"
    mutant = Specimen(bytearray(specimen.span), bytearray(specimen.entries), specimen.slots)
    mutant.span[start - 20] ^= 0x80
    assert not compare(mutant, schemas)
    mutant.mend()
    assert compare(mutant, schemas), "other content"
    struct.pack_into("<q", mutant.entries, 3 * ENTRY_ROW.size + 24, 12345)
    assert compare(mutant, schemas), "another time"
    mutant.span += bytes(64)
    assert not compare(mutant, schemas), "another length"


def test_an_entry_that_spoils_the_alignment_is_refused() -> None:
    specimen, schemas = lay_out(3, 24, random.Random(6))
    last, last_slot = len(specimen.entries) - ENTRY_ROW.size, len(specimen.slots) - SLOT_ROW.size
    (size,) = struct.unpack_from("<I", specimen.entries, last)
    (payload_bytes,) = struct.unpack_from("<I", specimen.slots, last_slot + 8)
    start = len(specimen.span) - size
    specimen.span = specimen.span[:-8]
    struct.pack_into("<I", specimen.entries, last, size - 8)
    struct.pack_into("<I", specimen.slots, last_slot + 8, payload_bytes - 8)
    struct.pack_into("<I", specimen.span, start + 67, payload_bytes - 8)
    specimen.mend()
    assert not compare(specimen, schemas)


def test_slots_out_of_order_or_twice_are_refused() -> None:
    """All being right but that: rows, heads and bitmap are those of the slots."""
    right, schemas = lay_out((3, 4), 24, random.Random(11))
    low, high = sorted(schemas, key=lambda handle: schemas[handle].slot_id)
    for first, second in ((3, 3), (4, 4), (4, 3), (63, 4)):
        declared = {low: schemas[low]._replace(slot_id=first), high: schemas[high]._replace(slot_id=second)}
        wrong = Specimen(bytearray(right.span), bytearray(right.entries), right.slots)
        start = 0
        for number, row in enumerate(ENTRY_ROW.iter_unpack(right.entries)):
            (_, second_offset, *_) = SLOT_ROW.unpack_from(right.slots, (2 * number + 1) * SLOT_ROW.size)
            struct.pack_into("<H", wrong.span, start + 29, first)
            struct.pack_into("<H", wrong.span, start + second_offset - 42, second)
            struct.pack_into("<Q", wrong.entries, number * ENTRY_ROW.size + 8, 1 << first | 1 << second)
            start += row[0]
        wrong.mend()
        assert not compare(wrong, declared)
    assert compare(right, schemas)


@pytest.mark.parametrize("slot_ids", [3, (3, 4)], ids=str)
def test_a_gap_in_front_of_the_first_slot_is_refused(slot_ids: int | tuple[int, ...]) -> None:
    specimen, schemas = lay_out(slot_ids, 24, random.Random(14))
    specimen.span[29:29] = bytes(64)
    struct.pack_into("<I", specimen.entries, 0, ENTRY_ROW.unpack_from(specimen.entries)[0] + 64)
    for at in range(0, len(schemas) * SLOT_ROW.size, SLOT_ROW.size):
        (_, payload_offset, *_) = SLOT_ROW.unpack_from(specimen.slots, at)
        struct.pack_into("<I", specimen.slots, at + 4, payload_offset + 64)
    specimen.mend()
    assert not compare(specimen, schemas)


@pytest.mark.parametrize("number", [0, 1])
def test_messages_that_are_not_aligned_are_refused(number: int) -> None:
    """Slot `number` of the first entry is misaligned."""
    specimen, schemas = lay_out((3, 4), 24, random.Random(15))
    row = SLOT_ROW.unpack_from(specimen.slots, number * SLOT_ROW.size)
    _, payload_offset, _, _, batch_offset, metadata_bytes, _, _ = row
    struct.pack_into("<I", specimen.slots, number * SLOT_ROW.size + 20, metadata_bytes - 4)
    struct.pack_into("<I", specimen.span, payload_offset + batch_offset + 4, metadata_bytes - 12)
    specimen.mend()
    assert not compare(specimen, schemas)


def test_rows_of_slots_beyond_the_sign_come_out_the_same() -> None:
    """Row counts above the signed range would, read as signed numbers, add up to the entry's count."""
    specimen, schemas = lay_out((3, 4), 24, random.Random(16))
    for number, rows in enumerate(((1 << 32) - 1, 3)):
        (_, payload_offset, *_) = SLOT_ROW.unpack_from(specimen.slots, number * SLOT_ROW.size)
        struct.pack_into("<I", specimen.slots, number * SLOT_ROW.size + 12, rows)
        struct.pack_into("<I", specimen.span, payload_offset - 8, rows)
    struct.pack_into("<I", specimen.entries, 36, 2)
    specimen.mend()
    assert compare(specimen, schemas)


def test_handles_of_a_stream_that_was_declared_twice_may_change_between_the_slots() -> None:
    specimen, schemas = lay_out((3, 4), 30, random.Random(12))
    again = {handle + 1000: schema for handle, schema in schemas.items()}
    (handle,) = struct.unpack_from("<I", specimen.slots)
    struct.pack_into("<I", specimen.slots, 0, handle + 1000)
    assert compare(specimen, schemas | again)


def test_rows_of_an_entry_that_are_not_those_of_its_slots_are_left_to_the_loop() -> None:
    specimen, schemas = lay_out((3, 4), 30, random.Random(13))
    (rows,) = struct.unpack_from("<I", specimen.entries, 36)
    struct.pack_into("<I", specimen.entries, 36, rows + 1)
    assert check_uniform(memoryview(specimen.span), specimen.push(), schemas) is None


def test_a_message_that_is_only_a_prefix_is_refused() -> None:
    specimen, schemas = lay_out(3, 24, random.Random(7))
    payload_offset, _, _, batch_offset = SLOT_ROW.unpack_from(specimen.slots)[1:5]
    struct.pack_into("<I", specimen.span, payload_offset + batch_offset + 4, 0)
    struct.pack_into("<I", specimen.slots, 20, 8)
    specimen.mend()
    assert not compare(specimen, schemas)


@pytest.mark.parametrize("slots", [(0, 7, 63), ((0, 63), (1, 2, 3, 4), (5, 6, 62))], ids=["one slot", "several"])
def test_mutants_meet_the_same_fate(slots: tuple[int | tuple[int, ...], ...]) -> None:
    rng = random.Random(20)
    specimens = [lay_out(slot_ids, count, rng) for slot_ids, count in zip(slots, (24, 40, 25), strict=True)]
    taken = 0
    for _ in range(MUTANTS):
        original, schemas = rng.choice(specimens)
        mutant = Specimen(bytearray(original.span), bytearray(original.entries), bytearray(original.slots))
        rng.choice(CHANGES)(mutant, rng)
        taken += compare(mutant, schemas)
    assert MUTANTS // 50 < taken < MUTANTS // 2, "the changes are to be refused and harmless ones"
    assert SLOT_ROW.size == ENTRY_ROW.size
