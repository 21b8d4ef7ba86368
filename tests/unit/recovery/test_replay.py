"""The replay of a log at open: entries taken many at a time give the same books as entries taken one by one, whatever is in them."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import lru_cache
from random import Random

import pyarrow as pa
import pytest

from quiver_actors.disk.simulated import SimDisk
from quiver_actors.model import SEGMENT_BUNDLES_MAX
from quiver_actors.recovery.replay import Replay
from quiver_actors.segment.builder import SegmentBuilder
from quiver_actors.segment.tail import encode_tail
from quiver_actors.wal.codec import Identity, decode_header
from quiver_actors.wal.layout import ENTRY_TYPE_BUNDLE, HEADER_BYTES
from quiver_actors.wal.reader import LogReader, LogScan, Span
from quiver_actors.wal.recovery import read_entry
from tests.support.engine_driver import EngineDriver, topic_settings
from tests.unit.wal.logs import reader_of

LOG = "default/core_0/wal/quiver.wal"
CHUNKS = (1, 700, 4096, 1 << 20, 4 << 20)


def numbers(rows: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(range(rows), pa.int64()), "t": pa.array([f"{row}" for row in range(rows)])})


def words(*values: str) -> pa.RecordBatch:
    return pa.record_batch({"w": pa.array(values).dictionary_encode()})


ALIKE = [{0: numbers(rows)} for rows in (3, 3, 4, 5, 0, 3, 900, 2, 2, 2, 2, 2, 7, 1, 1, 1)]
MIXED = [
    *ALIKE,
    {1: numbers(2)},
    *ALIKE[:7],
    {0: numbers(1), 2: numbers(2)},
    {0: words("a", "b")},
    {0: words("a", "b", "c")},
    *[{3: numbers(n % 3)} for n in range(40)],
    {0: pa.record_batch({"x": pa.array([None, 1.5])})},
    *ALIKE[:9],
]


@lru_cache
def log_of(name: str) -> tuple[bytes, list[Span]]:
    """A log that nobody sealed, and where its entries are."""
    driver = EngineDriver(SimDisk(), topic_settings(segment_target_size_bytes=1 << 20))
    for bundle in {"alike": ALIKE, "mixed": MIXED}[name]:
        driver.push(bundle)
    driver.commit()
    data = driver.disk.contents()[LOG]  # type: ignore[attr-defined]
    scan = LogReader(reader_of(data), len(data)).scan(HEADER_BYTES, stride=64)
    assert scan.entry_count == len({"alike": ALIKE, "mixed": MIXED}[name])
    return data[: scan.end + 5000], scan.entries


def identity_of(data: bytes) -> Identity:
    identity = decode_header(data[:HEADER_BYTES]).identity
    assert identity is not None
    return identity


def tail_of(builder: SegmentBuilder) -> bytes:
    parts = encode_tail(
        builder,
        entries_end=1 << 20,
        crc32_of_entries=0,
        wal_position_start=0,
        wal_position_end=1 << 20,
        incarnation=bytes(16),
    )
    return b"".join(parts)


def replayed(data: bytes, chunk_bytes: int = 1 << 20) -> tuple[Replay, LogScan]:
    read = reader_of(data)
    replay = Replay(data[:HEADER_BYTES], identity_of(data), read)
    scan = LogReader(read, len(data), chunk_bytes).scan(HEADER_BYTES, stride=64, take=replay.take)
    return replay, scan


def one_by_one(data: bytes, entries: Sequence[Span]) -> tuple[SegmentBuilder, list[Span]]:
    """The rule itself: bundle i has sequence first_sequence + i, what cannot be used or does not fit in is left out."""
    reader, identity = LogReader(reader_of(data), len(data)), identity_of(data)
    builder = SegmentBuilder(identity.segment_seq, lambda offset, length: data[offset : offset + length])
    unusable = []
    for span in entries:
        entry = read_entry(reader, span)
        if entry.entry_type != ENTRY_TYPE_BUNDLE:
            continue
        expected = identity.first_sequence + builder.bundle_count
        if entry.error or not expected <= entry.sequence < expected + SEGMENT_BUNDLES_MAX:
            unusable.append(span)
            continue
        for missing in range(expected, entry.sequence):
            builder.append(missing, 0, 0, 0, ())
        builder.append(entry.sequence, entry.ingestion_ts_nanos, -1, span.end - span.start, entry.placements)
    return builder, unusable


@pytest.mark.parametrize("name", ["alike", "mixed"])
def test_a_replay_in_chunks_of_any_size_writes_the_same_books(name: str) -> None:
    data, entries = log_of(name)
    builder, _ = one_by_one(data, entries)
    for chunk_bytes in CHUNKS:
        replay, scan = replayed(data, chunk_bytes)
        assert tail_of(replay.builder) == tail_of(builder)
        assert (scan.entries, replay.end, replay.unusable, replay.lost) == (entries, entries[-1].end, [], [])
        assert replay.crc == zlib.crc32(data[: replay.end])


def damaged(data: bytes, entries: Sequence[Span], random: Random) -> bytes:
    """One byte somewhere in the head or at the end of one entry is another one, and the entry's CRC is right."""
    span = random.choice(entries)
    size = span.end - span.start
    at = random.choice([random.randrange(4, min(size - 4, 700)), random.randrange(max(4, size - 100), size - 4)])
    body = bytearray(data[span.start + 4 : span.end - 4])
    body[at - 4] = random.choice([body[at - 4] ^ 1 << random.randrange(8), 0, 0xFF, random.randrange(256)])
    return b"".join(
        [data[: span.start + 4], body, zlib.crc32(body).to_bytes(4, "little"), data[span.end :]],
    )


@pytest.mark.parametrize("seed", range(4))
def test_entries_that_are_not_what_they_seem_are_taken_as_if_each_was_looked_at(seed: int) -> None:
    random = Random(seed)
    data, entries = log_of("alike")
    different = 0
    for _ in range(120):
        spoilt = damaged(data, entries, random)
        builder, unusable = one_by_one(spoilt, entries)
        replay, scan = replayed(spoilt)
        assert scan.entries == entries
        assert replay.unusable == unusable
        assert tail_of(replay.builder) == tail_of(builder)
        different += bool(unusable)
    assert different > 10, "some of it mattered"


def test_bundles_that_are_missing_between_others_keep_their_numbers() -> None:
    data, entries = log_of("alike")
    gone = entries[6]
    without = data[: gone.start] + bytes(gone.end - gone.start) + data[gone.end :]
    replay, scan = replayed(without)
    assert [(span.start, span.end) for span in scan.damaged] == [(gone.start, gone.end)]
    assert replay.lost == [6]
    assert replay.crc is None
    assert replay.builder.bundle_count == len(entries)
