"""Arena, words, sequence locks and counters between two real processes, one of which may be killed at any moment.

What each side does is a function of the seed; the interleaving is the machine's.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import select
import signal
import socket
import struct
import zlib
from collections import deque
from collections.abc import Iterator

import pytest

from quiver_actors.shm.arena import ArenaOwner, ArenaProducer
from quiver_actors.shm.counters import CountersPage, RegionSnapshot, RowWriter
from quiver_actors.shm.names import new_name
from quiver_actors.shm.ring import SPAN_ALIGNMENT_BYTES, align_up
from quiver_actors.shm.words import SequenceLock, Words, read_stable
from tests.unit.shm.children import DEADLINE_SECONDS, join, running

RING_BYTES = 64 * 1024
SPAN = struct.Struct("<IIQI")
"""Message of the producer about a span: offset, length, position behind it, CRC-32 of the content."""


# --- arena -----------------------------------------------------------------------------------------------------------


def produce(arena: ArenaOwner, peer: socket.socket, rng: random.Random, spans: Iterator[int]) -> None:
    """Write spans of random content and size; wait for a word from the owner whenever credit is used up."""
    producer = ArenaProducer.attach(arena.fd, arena.size_bytes)
    for _ in spans:
        size_bytes = rng.choice((1, 63, 64, 1000, 5000, 20_000, 30_000, RING_BYTES))
        content = rng.randbytes(rng.randint(1, size_bytes))
        while (offset := producer.reserve(size_bytes)) is None:
            assert peer.recv(4096), "the owner is gone"
        producer.ring[offset : offset + size_bytes] = b"\xee" * size_bytes
        if rng.random() < 0.1:
            producer.cancel()
            continue
        producer.ring[offset : offset + len(content)] = content
        position = producer.commit(len(content))
        peer.sendall(SPAN.pack(offset, len(content), position, zlib.crc32(content)))


class Consumer:
    """The owner's side: holds spans for a while, then checks that they are still what was announced, and releases them."""

    def __init__(self, arena: ArenaOwner, peer: socket.socket, rng: random.Random) -> None:
        self.arena = arena
        self.peer = peer
        self.rng = rng
        self.held: deque[tuple[int, int, int, int]] = deque()
        self.seen = 0
        self._unparsed = b""

    def receive(self) -> bool:
        """Take in what has been announced; False at the end of the connection."""
        try:
            data = self.peer.recv(4096)
        except ConnectionResetError:  # It ended without reading all of what we told it.
            data = b""
        self._unparsed += data
        whole = len(self._unparsed) // SPAN.size * SPAN.size
        for span in SPAN.iter_unpack(self._unparsed[:whole]):
            self.held.append(span)
            self.seen += 1
        self._unparsed = self._unparsed[whole:]
        in_use = sum(align_up(length, SPAN_ALIGNMENT_BYTES) for _, length, _, _ in self.held)
        assert in_use <= self.arena.size_bytes, "the producer went past its credit"
        return bool(data)

    def release(self, count: int) -> None:
        for _ in range(count):
            offset, length, position, checksum = self.held.popleft()
            assert zlib.crc32(self.arena.span(offset, length)) == checksum, "a span changed before it was released"
            self.arena.publish_released(position)

    def step(self) -> bool:
        """Receive if there is something, release some if there is nothing, or by chance; False at the end."""
        ready, _, _ = select.select([self.peer], [], [], 0 if self.held else DEADLINE_SECONDS)
        assert ready or self.held, "the producer says nothing"
        alive = self.receive() if ready else True
        if self.held and (not ready or self.rng.random() < 0.5):
            self.release(self.rng.randint(1, len(self.held)))
            if alive:
                self.tell_released()
        return alive

    def tell_released(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.peer.send(b".")


@pytest.mark.parametrize("seed", range(4))
def test_arena_contents_arrive_equal_and_credit_is_never_exceeded(seed: int) -> None:
    arena = ArenaOwner.create(RING_BYTES)
    ours, theirs = socket.socketpair()

    def run() -> None:
        ours.close()
        produce(arena, theirs, random.Random(seed), iter(range(400)))

    with ours, theirs, running(run) as pid:
        theirs.close()
        consumer = Consumer(arena, ours, random.Random(-seed))
        while consumer.step():
            pass
        consumer.release(len(consumer.held))
        assert join(pid) == 0
    assert 300 < consumer.seen < 400
    assert arena.used_bytes() == 0
    arena.close()


@pytest.mark.crash
@pytest.mark.parametrize("seed", range(25))
def test_arena_owner_goes_on_after_its_producer_was_killed_anywhere(seed: int) -> None:
    arena = ArenaOwner.create(RING_BYTES)
    ours, theirs = socket.socketpair()
    rng = random.Random(seed)

    def run() -> None:
        ours.close()
        produce(arena, theirs, random.Random(seed), itertools.count())

    with ours, theirs, running(run) as pid:
        theirs.close()
        consumer = Consumer(arena, ours, rng)
        killed_after = rng.randint(1, 80)
        while consumer.seen < killed_after:
            assert consumer.step()
        os.kill(pid, signal.SIGKILL)
        assert join(pid) == -signal.SIGKILL
        while consumer.receive():
            pass
    # Whatever was announced is intact, and only what was committed but not announced can be left.
    consumer.release(len(consumer.held))
    assert arena.used_bytes() <= RING_BYTES
    if arena.used_bytes() == 0:
        successor = ArenaProducer.attach(arena.fd, arena.size_bytes)
        assert successor.reserve(RING_BYTES) == 0
        successor.close()
    arena.close()


# --- words and records ---------------------------------------------------------------------------------------------------


def test_words_are_never_torn_between_processes() -> None:
    arena = ArenaOwner.create(4096)
    shared = ArenaProducer.attach(arena.fd, arena.size_bytes).ring

    def run() -> None:
        words = Words(shared, 0, 2)
        for byte in itertools.cycle(range(1, 256)):
            words.store(0, byte * 0x0101010101010101)
            words.add(1, 1)

    words = Words(shared, 0, 2)
    words.store(0, 0x0101010101010101)
    seen: set[int] = set()
    last = 0
    with running(run):
        while len(seen) < 100 or last < 200_000:
            value = words.load(0)
            seen.add(value)
            # Zero is never stored: struct.pack_into shows it, because it clears the place first.
            assert value, "a transient zero"
            assert value % 0x0101010101010101 == 0, f"torn: {value:016x}"
            count = words.load(1)
            assert count >= last
            last = count
    arena.close()


def test_records_are_never_mixed_between_processes() -> None:
    size_bytes = 500
    arena = ArenaOwner.create(4096)
    shared = ArenaProducer.attach(arena.fd, arena.size_bytes).ring
    words, place = Words(shared, 64, 1), shared[72 : 72 + size_bytes]

    def run() -> None:
        lock = SequenceLock(words, 0)
        for byte in itertools.cycle(range(256)):
            with lock:
                place[:] = bytes([byte]) * size_bytes

    seen: set[int] = set()
    reads = 0
    with running(run):
        while len(seen) < 50 or reads < 5000:
            record = read_stable(words, 0, place.tobytes)
            assert record == record[:1] * size_bytes
            seen.add(record[0])
            reads += 1
    arena.close()


# --- counters page ---------------------------------------------------------------------------------------------------


@pytest.fixture
def page() -> Iterator[CountersPage]:
    created = CountersPage.create(new_name(), 1, 6)
    yield created
    created.unlink()
    created.close()


def keep_changing(page: CountersPage, rng: random.Random) -> None:
    """Begin, add, drop and relabel rows for ever; labels start with the only value that a row ever gets, then the generation."""
    writer = page.writer(0)
    for life in itertools.count(1):
        writer.begin(pid=life, started_unix_ns=life)
        rows: list[RowWriter] = []
        for _ in range(rng.randint(1, 200)):
            if len(rows) == page.rows_per_region or (rows and rng.random() < 0.3):
                writer.drop(rows.pop(rng.randrange(len(rows))))
                continue
            value = rng.randint(1, 1 << 63)
            row = writer.row(rng.randint(1, 3), f"{value} {writer.generation} first name")
            for index in range(0, 32, 5):
                row.set(index, value)
            if rng.random() < 0.5:
                writer.relabel(row, f"{value} {writer.generation} second, rather longer name")
            rows.append(row)


def check(region: RegionSnapshot) -> int:
    """Check that nothing is mixed; returns the number of rows."""
    assert region.pid == region.started_unix_ns
    for row in region.rows:
        value, generation, _ = row.label.split(" ", 2)
        assert int(generation) == region.generation
        assert set(row.values) <= {0, int(value)}
        assert 1 <= row.kind <= 3
    return len(region.rows)


def test_counters_values_are_never_seen_under_another_label_or_generation(page: CountersPage) -> None:
    reader = CountersPage.attach(page.name)
    with running(lambda: keep_changing(page, random.Random(1))):
        rows = 0
        generations: set[int] = set()
        while rows < 3000 or len(generations) < 20:
            (region,) = reader.read()
            rows += check(region)
            generations.add(region.generation)
    reader.close()


@pytest.mark.crash
@pytest.mark.parametrize("seed", range(10))
def test_counters_region_of_a_killed_writer_is_readable_and_usable_again(page: CountersPage, seed: int) -> None:
    rng = random.Random(seed)
    with running(lambda: keep_changing(page, random.Random(seed))) as pid:
        generation_end = rng.randint(1, 40)
        while page.read_region(0).generation < generation_end:
            pass
        os.kill(pid, signal.SIGKILL)
        assert join(pid) == -signal.SIGKILL
    left = page.read_region(0)
    assert left.generation >= generation_end
    assert left == page.read_region(0)
    writer = page.writer(0)
    writer.begin(7, 8)
    rows = [writer.row(1, f"row {n}") for n in range(page.rows_per_region)]
    rows[-1].set(0, 9)
    found = page.read_region(0)
    assert (found.pid, found.started_unix_ns, len(found.rows)) == (7, 8, 6)
    assert found.rows[-1].values[0] == 9
