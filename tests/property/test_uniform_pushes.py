"""Many entries at once or one by one: the same pushes are taken, and the same bytes and numbers come of them."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pytest

from quiver_actors.checksum import crc32
from quiver_actors.disk.simulated import SimDisk
from quiver_actors.encoding.entries import PushRows, plan, write
from quiver_actors.encoding.streams import StreamTable
from quiver_actors.errors import ProtocolError
from quiver_actors.protocol.messages import ENTRY_ROW, SLOT_ROW, Push
from quiver_actors.segment.builder import StreamSchema
from quiver_actors.segment.tail import encode_tail
from quiver_actors.wal import layout
from quiver_actors.wal.admission import CheckedEntries, check_each, check_push
from quiver_actors.wal.codec import Identity
from quiver_actors.wal.log import Log
from quiver_actors.wal.uniform import UNIFORM_ENTRIES_MIN, UniformEntries, check_uniform

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


def lay_out(slot_id: int, count: int, rng: random.Random) -> tuple[Specimen, Schemas]:
    table, rows, span = StreamTable("t"), PushRows(), bytearray()
    for _ in range(count):
        n = rng.choice((0, 1, 3, 20, 200))
        batch = pa.record_batch([list(range(n)), [f"text {number}" for number in range(n)]], schema=SCHEMA)
        planned = plan([(slot_id, batch)], table, rng.choice((None, 0, 7, (1 << 63) - 1)))
        memory = bytearray(planned.entry_bytes)
        write(planned, memoryview(memory), 0, rows)
        span += memory
    schemas = {stream.handle: StreamSchema(slot_id, stream.fingerprint, stream.message) for stream in rows.streams}
    return Specimen(span, bytearray(b"".join(rows.entries)), bytearray(b"".join(rows.slots))), schemas


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
    start = sum(sizes[: rng.randrange(len(sizes))])
    specimen.span[start + rng.randrange(29, 700)] ^= 1 << rng.randrange(8)
    specimen.mend()


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


@pytest.mark.parametrize("slot_id", [0, 5, 63])
@pytest.mark.parametrize("count", [UNIFORM_ENTRIES_MIN, 100])
def test_right_pushes_are_taken_at_once_and_come_out_the_same(slot_id: int, count: int) -> None:
    specimen, schemas = lay_out(slot_id, count, random.Random(slot_id))
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
    mixed = Specimen(few.span + other.span, few.entries + other.entries, few.slots + other.slots)
    for specimen in (few, mixed):
        assert check_uniform(memoryview(specimen.span), specimen.push(), schemas | others) is None
        assert compare(specimen, schemas | others)


def test_every_byte_of_slot_heads_and_schema_messages_is_compared() -> None:
    specimen, schemas = lay_out(3, 24, random.Random(5))
    (schema,) = schemas.values()
    start = ENTRY_ROW.unpack_from(specimen.entries)[0]
    for at in range(start + 29, start + 71 + len(schema.message) + 8):
        mutant = Specimen(bytearray(specimen.span), bytearray(specimen.entries), specimen.slots)
        mutant.span[at] ^= 0x80
        mutant.mend()
        assert not compare(mutant, schemas), f"byte {at - start} of an entry"


def test_pushes_that_are_laid_out_as_the_last_one_are_compared_as_well() -> None:
    specimen, schemas = lay_out(3, 24, random.Random(8))
    (schema,) = schemas.values()
    start = ENTRY_ROW.unpack_from(specimen.entries)[0]
    for at in range(start + 29, start + 71 + len(schema.message) + 8, 3):
        for _ in range(3):
            assert compare(specimen, schemas), "what is kept of a push is not spoilt by those between"
        mutant = Specimen(bytearray(specimen.span), bytearray(specimen.entries), specimen.slots)
        mutant.span[at] ^= 0x80
        assert not compare(mutant, schemas), f"byte {at - start} of an entry, its CRC being wrong"
        mutant.mend()
        assert not compare(mutant, schemas), f"byte {at - start} of an entry, its CRC being right"
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


def test_a_message_that_is_only_a_prefix_is_refused() -> None:
    specimen, schemas = lay_out(3, 24, random.Random(7))
    payload_offset, _, _, batch_offset = SLOT_ROW.unpack_from(specimen.slots)[1:5]
    struct.pack_into("<I", specimen.span, payload_offset + batch_offset + 4, 0)
    struct.pack_into("<I", specimen.slots, 20, 8)
    specimen.mend()
    assert not compare(specimen, schemas)


def test_mutants_meet_the_same_fate() -> None:
    rng = random.Random(20)
    specimens = [lay_out(slot_id, count, rng) for slot_id, count in ((0, 24), (7, 40), (63, 25))]
    taken = 0
    for _ in range(MUTANTS):
        original, schemas = rng.choice(specimens)
        mutant = Specimen(bytearray(original.span), bytearray(original.entries), bytearray(original.slots))
        rng.choice(CHANGES)(mutant, rng)
        taken += compare(mutant, schemas)
    assert MUTANTS // 50 < taken < MUTANTS // 2, "the changes are to be refused and harmless ones"
    assert SLOT_ROW.size == ENTRY_ROW.size
