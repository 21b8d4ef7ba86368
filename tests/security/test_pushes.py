"""Bundles of another user: mutated, lying, changing while they are checked. The worst they do is to be refused."""

from __future__ import annotations

import fcntl
import os
import struct
import threading
from collections.abc import Callable, Iterator
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.calls import CallCounter
from quiver_actors.base.protocol import messages as m
from quiver_actors.base.units import MIB
from quiver_actors.node.worker.lone_lane import LoneLane
from tests.security.guest import AS_ROOT, Besieged, besieged
from tests.unit.node.worker.harness import WireClient, table
from tests.unit.node.worker.lone import lone_push
from tests.unit.node.worker.spans import Span

MUTATIONS = int(os.environ.get("MUTATED_BUNDLES", "100_000"))
_ENTRY, _SLOT = m.ENTRY_ROW, m.SLOT_ROW
BIG = 1 << 62


@pytest.fixture(scope="module")
def node() -> Iterator[Besieged]:
    with besieged(max_connections=900, max_arena_bytes=2 << 30) as started:
        yield started


@pytest.fixture
def guest(node: Besieged) -> Iterator[WireClient]:
    made = node.guest_producer()
    yield made
    made.close()
    node.check_undisturbed()


def good_span(bundles: int = 1) -> Span:
    span = Span()
    for number in range(bundles):
        span.add([(0, 0, table(number, number + 1))])
    return span


def with_entry(span: Span, **fields: int) -> Span:
    """The span with fields of its first entry row changed."""
    names = ("entry_bytes", "crc", "bitmap", "item_count", "ingestion_ts", "slot_count", "row_count")
    values = dict(zip(names, _ENTRY.unpack_from(span.entries), strict=True)) | fields
    span.entries = _ENTRY.pack(*values.values()) + span.entries[_ENTRY.size :]
    return span


def with_slot(span: Span, **fields: int) -> Span:
    names = ("handle", "payload", "payload_bytes", "rows", "batch", "metadata", "body", "dictionaries")
    values = dict(zip(names, _SLOT.unpack_from(span.slots), strict=True)) | fields
    span.slots = _SLOT.pack(*values.values()) + span.slots[_SLOT.size :]
    return span


def test_a_lone_push_of_a_guest_is_checked_and_answered_like_its_other_pushes(guest: WireClient) -> None:
    tag, frame = lone_push(guest, 1)
    guest.socket.sendall(frame)
    assert guest.expect(m.Acked).runs[0].tag == tag
    tag, frame = lone_push(guest, 2, crc_flip=1)
    guest.socket.sendall(frame)
    assert guest.expect(m.Refused).tag == tag
    guest.push_and_wait(table(3), topic="open")


@AS_ROOT
def test_lone_pushes_of_the_own_user_alone_take_the_short_way() -> None:
    """The short way spends no budget, and so it is for nobody who has one."""
    counter = CallCounter()
    counter.watch()
    try:
        with besieged() as node:
            ways: dict[str, int] = {}
            for name, client in (("owner", node.honest), ("guest", node.guest_producer())):
                client.push_and_wait(table(0), topic="open")
                counter.calls.clear()
                for number in (1, 2, 3):
                    tag, frame = lone_push(client, number)
                    client.socket.sendall(frame)
                    assert client.expect(m.Acked).runs[0].tag == tag
                ways[name] = counter.calls[LoneLane.push.__code__]
    finally:
        counter.end()
    assert ways["guest"] == 0
    assert ways["owner"] > 0


LYING_ROWS: dict[str, Callable[[], Span]] = {
    "entry of no bytes": lambda: with_entry(good_span(), entry_bytes=0),
    "entry that is not aligned": lambda: with_entry(good_span(), entry_bytes=100),
    "entry past the span": lambda: with_entry(good_span(), entry_bytes=1 << 20),
    "entry of 4 GiB": lambda: with_entry(good_span(), entry_bytes=0xFFFFFFC0),
    "wrong CRC": lambda: with_entry(good_span(), crc=1),
    "bitmap of another slot": lambda: with_entry(good_span(), bitmap=2),
    "bitmap of all slots": lambda: with_entry(good_span(), bitmap=(1 << 64) - 1),
    "no slots": lambda: with_entry(good_span(), slot_count=0, bitmap=0),
    "65 slots": lambda: with_entry(good_span(), slot_count=65),
    "negative item count": lambda: with_entry(good_span(), item_count=-2),
    "negative time": lambda: with_entry(good_span(), ingestion_ts=-1),
    "unknown handle": lambda: with_slot(good_span(), handle=77),
    "payload elsewhere": lambda: with_slot(good_span(), payload=0),
    "payload past the entry": lambda: with_slot(good_span(), payload_bytes=1 << 31),
    "other row count": lambda: with_slot(good_span(), rows=9),
    "batch outside": lambda: with_slot(good_span(), batch=1 << 30),
    "batch that is not aligned": lambda: with_slot(good_span(), batch=3),
    "no metadata": lambda: with_slot(good_span(), metadata=0),
    "other metadata": lambda: with_slot(good_span(), metadata=64),
    "body outside": lambda: with_slot(good_span(), body=BIG),
    "dictionaries without rows": lambda: with_slot(good_span(), dictionaries=3),
    "a dictionary too many": lambda: with_slot(good_span(), dictionaries=0xFFFFFFFF),
}


def refusal_of(guest: WireClient, span: Span) -> m.Refused:
    push = guest.place(span, "open")
    guest.send(push)
    return guest.expect(m.Refused, lambda refused: refused.tag == push.tag)


@pytest.mark.parametrize("make", LYING_ROWS.values(), ids=LYING_ROWS)
def test_rows_that_lie_are_refused_and_the_next_push_is_taken(guest: WireClient, make: Callable[[], Span]) -> None:
    assert refusal_of(guest, make()).code == "protocol"
    guest.acked(guest.push(table(1), topic="open"))


@pytest.mark.parametrize("field", ["entries", "slots"])
@pytest.mark.parametrize(
    "change", [lambda rows: b"", lambda rows: rows[:-1], lambda rows: rows * 2, lambda rows: rows + b"x"]
)
def test_rows_of_a_wrong_length(guest: WireClient, field: str, change: Callable[[bytes], bytes]) -> None:
    span = good_span()
    setattr(span, field, change(getattr(span, field)))
    assert refusal_of(guest, span).code == "protocol"


def test_too_many_entries(guest: WireClient) -> None:
    span = good_span()
    span.entries *= 9000
    assert refusal_of(guest, span).code == "protocol"


SPANS = {
    "past the arena": (1 << 20, 64),
    "past the arena's end": ((1 << 20) - 32, 64),
    "far away": (BIG, 64),
    "negative offset": (-64, 64),
    "negative length": (0, -64),
    "whole address space": (0, BIG),
    "sum that wraps": (BIG, BIG),
}


@pytest.mark.parametrize(("offset", "length"), SPANS.values(), ids=SPANS)
def test_spans_outside_the_arena_end_the_connection(guest: WireClient, offset: int, length: int) -> None:
    span = good_span()
    guest.send(m.Push(5, "open", offset, length, 64, span.entries, span.slots, b""))
    guest.expect(m.Refused)
    assert guest.receive() is None


def test_a_span_of_nothing_is_refused(guest: WireClient) -> None:
    guest.send(m.Push(5, "open", 0, 0, 0, b"", b"", b""))
    assert guest.expect(m.Refused).tag == 5


def push_that_ends_at(guest: WireClient, end: int) -> m.Push:
    push = guest.place(good_span(), "open")
    guest.send(m.Push(push.tag, "open", push.offset, push.length, end, push.entries, push.slots, b""))
    return push


@pytest.mark.parametrize("end", [-1, BIG, (1 << 64) - 1])
def test_ring_positions_that_were_never_reached_end_the_connection(guest: WireClient, end: int) -> None:
    push_that_ends_at(guest, end)
    guest.expect(m.Refused)
    assert guest.receive() is None


@pytest.mark.parametrize("end", [0, 1, 63])
def test_a_producer_may_give_back_less_than_it_used(guest: WireClient, end: int) -> None:
    guest.acked(push_that_ends_at(guest, end))


def test_the_arena_can_be_neither_shrunk_nor_grown(node: Besieged) -> None:
    guest = node.guest()
    guest.send(m.AttachArena(1, 1 << 20))
    guest.expect(m.ArenaAttached)
    descriptor = guest.descriptors.popleft()
    size = os.fstat(descriptor).st_size
    for target in (0, size - 4096, size * 2):
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, target)
    with pytest.raises(PermissionError):
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    os.close(descriptor)


def test_bytes_that_change_while_they_are_checked(node: Besieged) -> None:
    """A worker stores the copy that it checked. Whatever the race gives, a bundle is whole or refused."""
    guest = node.guest_producer()
    assert guest.arena is not None
    ring, stop = guest.arena.ring, threading.Event()

    def scribble() -> None:
        random = Random(1)
        while not stop.is_set():
            ring[random.randrange(1 << 19)] = random.randrange(256)

    thread = threading.Thread(target=scribble)
    thread.start()
    outcomes: dict[type, int] = {m.Acked: 0, m.Refused: 0}
    try:
        for _ in range(300):
            guest.send(guest.place(good_span(4), "open"))
            while type(message := guest.receive()) not in outcomes:
                assert message is not None
            outcomes[type(message)] += 1
    finally:
        stop.set()
        thread.join()
        guest.close()
    assert sum(outcomes.values()) == 300
    node.check_undisturbed()
    node.honest.flush("open")
    node.honest.register("reader", topic="open", credit=100_000)
    stored = node.honest.values(4 * outcomes[m.Acked], "reader")
    assert all(len(values) in (1, 2) for _, _, values in stored)


def test_end_positions_cannot_free_what_is_in_use(guest: WireClient) -> None:
    first = guest.place(good_span(), "open")
    second = guest.place(good_span(), "open")
    guest.send(
        m.Push(first.tag, "open", first.offset, first.length, second.end_position, first.entries, first.slots, b"")
    )
    guest.acked(first)
    guest.send(second)
    message = guest.receive()
    assert isinstance(message, m.Refused | m.Acked)


# --- contents --------------------------------------------------------------------------------------------------------------


def push_of(
    guest: WireClient, batch: pa.RecordBatch, handle: int, spoil: Callable[[bytes], bytes] | None = None
) -> m.Push:
    guest.declare(handle, batch.schema, topic="open")
    span = Span()
    span.add([(handle, 0, batch)])
    if spoil is not None:
        data = spoil(bytes(span.data))
        assert data != bytes(span.data)
        from quiver_actors.base.checksum import crc32

        span.data = bytearray(data)
        with_entry(span, crc=crc32(data[29:-4]))
    push = guest.place(span, "open")
    guest.send(push)
    return push


def offsets(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


SPOILT: dict[str, tuple[pa.Array, Callable[[bytes], bytes]]] = {
    "string outside": (
        pa.array(["abcdefgh", "ij"]),
        lambda data: data.replace(offsets(0, 8, 10), offsets(0, 800, 900)),
    ),
    "offsets fall": (pa.array(["abcdefgh", "ij"]), lambda data: data.replace(offsets(0, 8, 10), offsets(0, 8, 2))),
    "no UTF-8": (
        pa.array(["abcdefgh", "ij"]),
        lambda data: data.replace(b"abcdefgh", b"\xff\xfe\xff\xfe\xff\xfe\xff\xfe"),
    ),
    "list outside": (pa.array([[1], [2, 3]]), lambda data: data.replace(offsets(0, 1, 3), offsets(0, 1, 99))),
    "negative offset": (pa.array([[1], [2, 3]]), lambda data: data.replace(offsets(0, 1, 3), offsets(-5, 1, 3))),
}


@AS_ROOT
@pytest.mark.parametrize(("values", "spoil"), SPOILT.values(), ids=SPOILT)
def test_arrow_that_does_not_hold_together_is_refused(
    guest: WireClient, values: pa.Array, spoil: Callable[[bytes], bytes]
) -> None:
    batch = pa.record_batch({"x": values})
    guest.acked(push_of(guest, batch, 1))
    push = push_of(guest, batch.replace_schema_metadata({"other": "schema"}), 2, spoil)
    assert guest.expect(m.Refused).tag == push.tag


@AS_ROOT
@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_decompression_bombs_are_refused_packed(guest: WireClient, codec: str) -> None:
    bomb = pa.record_batch({"x": pa.array(np.zeros(8 * MIB, np.int64))})
    guest.declare(1, bomb.schema, topic="open")
    span = Span()
    span.add([(1, 0, bomb)], compression=codec)
    assert len(span.data) < MIB
    push = guest.place(span, "open")
    guest.send(push)
    refusal = guest.expect(m.Refused)
    assert refusal.tag == push.tag
    assert "compressed" in refusal.message


def test_the_nodes_own_user_is_not_validated_in_depth(node: Besieged) -> None:
    """Its bundles are its own business: the check would cost what it saves nobody."""
    values, spoil = SPOILT["no UTF-8"]
    node.honest.acked(push_of(node.honest, pa.record_batch({"x": values}), 9, spoil))


def test_mutated_bundles_disturb_nobody(node: Besieged) -> None:
    """Every one is stored or refused; no worker dies, and the honest producer is served all along."""
    random = Random(11)
    guest = node.guest_producer()
    stored = refused = 0
    for round_number in range(max(1, MUTATIONS // 50)):
        pushes = [guest.place(_mutated(random), "open") for _ in range(50)]
        guest.send(*pushes)
        answered = 0
        while answered < 50:
            message = guest.receive()
            assert message is not None, "the connection was cut"
            if isinstance(message, m.Acked):
                stored += len(message.runs)
                answered += len(message.runs)
            else:
                assert isinstance(message, m.Refused)
                refused += 1
                answered += 1
        if round_number % 100 == 0:
            node.check_undisturbed()
    guest.close()
    assert refused > stored


def _mutated(random: Random) -> Span:
    span = good_span()
    where = random.choice(("data", "data", "entries", "slots"))
    content = bytearray(getattr(span, where))
    for _ in range(random.randint(1, 3)):
        content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    setattr(span, where, content if where == "data" else bytes(content))
    return span
