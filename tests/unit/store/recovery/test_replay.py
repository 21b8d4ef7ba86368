"""The replay of a log at open: entries taken many at a time give the same books as entries taken one by one, whatever is in them."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import lru_cache
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from quiver_actors.base.model import SEGMENT_BUNDLES_MAX
from quiver_actors.store.recovery.replay import Replay
from quiver_actors.store.segment.builder import SegmentBuilder
from quiver_actors.store.segment.tail import encode_tail
from quiver_actors.store.wal.alike import form_of
from quiver_actors.store.wal.codec import Identity, decode_header
from quiver_actors.store.wal.layout import ENTRY_LENGTH_BYTES, ENTRY_TYPE_BUNDLE, HEADER_BYTES
from quiver_actors.store.wal.reader import LogReader, LogScan, Span
from quiver_actors.store.wal.recovery import read_entry
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver, topic_settings
from tests.unit.store.wal.logs import reader_of

LOG = "default/core_0/wal/quiver.wal"
_SEQUENCE_AT = ENTRY_LENGTH_BYTES + 9
CHUNKS = (1, 700, 4096, 1 << 20, 4 << 20)


def numbers(rows: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(range(rows), pa.int64()), "t": pa.array([f"{row}" for row in range(rows)])})


def words(*values: str) -> pa.RecordBatch:
    return pa.record_batch({"w": pa.array(values).dictionary_encode()})


ALIKE = [{0: numbers(rows)} for rows in (3, 3, 4, 5, 6, 3, 900, 2, 2, 2, 2, 2, 7, 1, 1, 1)]
MIXED = [
    *ALIKE,
    {1: numbers(2)},
    *ALIKE[:7],
    {0: numbers(1), 2: numbers(2)},
    {0: words("a", "b")},
    {0: words("a", "b", "c")},
    *[{3: numbers(n % 9)} for n in range(40)],  # of no rows: a message of another form
    {0: pa.record_batch({"x": pa.array([None, 1.5])})},
    *ALIKE[:9],
]
LONG = numbers(2).replace_schema_metadata({"note": "n" * 20_000})
BUNDLES = {"alike": ALIKE, "mixed": MIXED, "long schemas": [{0: LONG}] * 8}


@lru_cache
def log_of(name: str) -> tuple[bytes, Sequence[Span]]:
    """A log that nobody sealed, and where its entries are."""
    driver = EngineDriver(SimDisk(), topic_settings(segment_target_size_bytes=1 << 20))
    for bundle in BUNDLES[name]:
        driver.push(bundle)
    driver.commit()
    data = driver.disk.contents()[LOG]  # type: ignore[attr-defined]
    scan = LogReader(reader_of(data), len(data)).scan(HEADER_BYTES, stride=64)
    assert scan.entry_count == len(BUNDLES[name])
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


def one_by_one(data: bytes, entries: Sequence[Span]) -> tuple[SegmentBuilder, list[Span], list[Span]]:
    """The rule itself: bundle i has sequence first_sequence + i, what cannot be used is lost, what does not fit in is left out. Third are
    the entries of another writer."""
    reader, identity = LogReader(reader_of(data), len(data)), identity_of(data)
    builder = SegmentBuilder(identity.segment_seq, lambda offset, length: data[offset : offset + length])
    unusable, foreign = [], []
    for span in entries:
        entry = read_entry(reader, span)
        expected = identity.first_sequence + builder.bundle_count
        is_own = identity.first_sequence <= entry.sequence < identity.first_sequence + SEGMENT_BUNDLES_MAX
        if not (is_own and entry.is_aligned):
            foreign.append(span)
            continue
        if entry.sequence < expected:
            unusable.append(span)
            continue
        for missing in range(expected, entry.sequence):
            builder.append(missing, 0, 0, 0, ())
        if entry.error or entry.entry_type != ENTRY_TYPE_BUNDLE:
            unusable.append(span)
            builder.append(entry.sequence, 0, 0, 0, ())
            continue
        builder.append(entry.sequence, entry.ingestion_ts_nanos, -1, span.end - span.start, entry.placements)
    return builder, unusable, foreign


@pytest.mark.parametrize("name", BUNDLES)
def test_a_replay_in_chunks_of_any_size_writes_the_same_books(name: str) -> None:
    data, entries = log_of(name)
    builder, _, _ = one_by_one(data, entries)
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
    form = form_of(memoryview(data), entries[0].start, entries[0].end)
    assert form is not None
    run = form.columns(memoryview(data), 0, np.array([entries[0].start, *(span.end for span in entries)]))
    assert run is not None
    assert len(run.byte_counts) == len(entries), "or all of them are looked at one by one"
    different = 0
    for _ in range(120):
        spoilt = damaged(data, entries, random)
        builder, unusable, foreign = one_by_one(spoilt, entries)
        replay, scan = replayed(spoilt)
        assert scan.entries == entries
        assert replay.unusable == unusable
        assert replay.foreign == foreign
        assert tail_of(replay.builder) == tail_of(builder)
        different += bool(unusable or foreign)
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


def changed(data: bytes, span: Span, at: int, content: bytes) -> bytes:
    """Return the data with other bytes at that place of an entry, whose CRC is right."""
    entry = bytearray(data[span.start : span.end])
    entry[at : at + len(content)] = content
    entry[-4:] = zlib.crc32(entry[4:-4]).to_bytes(4, "little")
    return data[: span.start] + entry + data[span.end :]


@pytest.mark.parametrize("which", [6, 15])
def test_an_entry_of_a_type_that_nobody_knows_keeps_its_number_and_is_no_bundle(which: int) -> None:
    data, entries = log_of("alike")
    newer = changed(data, entries[which], ENTRY_LENGTH_BYTES, b"\x09")
    builder, _, _ = one_by_one(newer, entries)
    replay, scan = replayed(newer)
    assert (scan.entries, scan.damaged) == (entries, [])
    assert (replay.lost, replay.unusable) == ([which], [entries[which]])
    assert tail_of(replay.builder) == tail_of(builder)
    assert replay.crc == zlib.crc32(newer[: replay.end]), "its bytes stay in the segment"


@pytest.mark.parametrize("first", [SEGMENT_BUNDLES_MAX - 5, SEGMENT_BUNDLES_MAX, 2 * SEGMENT_BUNDLES_MAX])
@pytest.mark.parametrize("damaged_before", [False, True])
def test_entries_with_numbers_that_no_segment_of_the_log_can_have_are_another_writers(
    first: int, damaged_before: bool
) -> None:
    """Behind damage they are set aside: a log that a producer has stored as data looks like that."""
    data, entries = log_of("alike")
    base = identity_of(data).first_sequence
    for number, span in enumerate(entries[8:]):
        data = changed(data, span, _SEQUENCE_AT, (base + first + number).to_bytes(8, "little"))
    fitting = max(0, SEGMENT_BUNDLES_MAX - first)
    if damaged_before:
        data = data[: entries[7].start] + bytes(64) + data[entries[7].start + 64 :]
    replay, _ = replayed(data)
    wild = list(entries[8 + fitting :])
    is_set_aside = damaged_before and not fitting
    assert (replay.unusable, replay.foreign) == ((wild, []) if is_set_aside else ([], wild))
    if damaged_before:
        return
    assert replay.lost == (list(range(8, first)) if fitting else [])
    assert replay.builder.bundle_count == (SEGMENT_BUNDLES_MAX if fitting else 8)


@pytest.mark.parametrize("what", ["end mark", "rows", "body"])
def test_the_first_of_many_alike_that_is_not_what_it_seems_is_set_aside(what: str) -> None:
    data, entries = log_of("alike")
    span = entries[8]
    form = form_of(memoryview(data), span.start, span.end)
    assert form is not None
    body = int.from_bytes(data[span.start + form.body :][:8], "little")
    places = {
        "end mark": (form.batch + form.metadata_bytes + body, bytes(8)),
        "rows": (form.rows, (-1).to_bytes(8, "little", signed=True)),
        "body": (form.body, (1 << 40).to_bytes(8, "little")),
    }
    spoilt = changed(data, span, *places[what])
    builder, unusable, _ = one_by_one(spoilt, entries)
    replay, _ = replayed(spoilt)
    assert replay.unusable == unusable == [span]
    assert replay.lost == [8]
    assert tail_of(replay.builder) == tail_of(builder)
