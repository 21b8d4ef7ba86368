"""Small valid files and messages of every kind that a parser reads, written by the engine itself, and how to mend their checksums.

A specimen knows where its length fields are, so that a mutation can go for them, and how to mend a mutant so that it gets past the
checksum that would otherwise protect everything behind it.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import crc32c
import msgspec
import pyarrow as pa

from quiver_actors.base.checksum import crc32
from quiver_actors.base.config import TopicSettings
from quiver_actors.base.topics import Catalogue, Topic
from quiver_actors.store.files.core_file import CoreFile, encode_core
from quiver_actors.store.files.topic_list import encode_catalogue
from quiver_actors.store.segment.compaction import Rewriting
from quiver_actors.store.segment.outline import read_outline
from quiver_actors.store.segment.reader import SegmentReader
from quiver_actors.store.staged.keys import KeyRun, Windows
from quiver_actors.store.staged.records import (
    DroppedRecord,
    JournalRecord,
    PartRecord,
    PreparedRecord,
    PublishingRecord,
    StageOrder,
    encode_journal,
    encode_prepared,
)
from quiver_actors.store.subscriber.bitmap import word_count
from quiver_actors.store.subscriber.gaps import REASONS, GapLedger
from quiver_actors.store.subscriber.progress import SegmentProgress, SubscriberProgress, encode_progress
from quiver_actors.store.subscriber.progress_journal import JournalRecord as ProgressRecord
from quiver_actors.store.subscriber.progress_journal import encode_frame, encode_header
from quiver_actors.store.wal import layout
from quiver_actors.store.wal.codec import encode_cursor
from quiver_actors.transactions.model import COMMIT, Decision, Token
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver

Mend = Callable[[bytearray], None]

Bundle = dict[int, pa.RecordBatch]

U32 = struct.Struct("<I")
DIRECTORY = "default/core_0"


@dataclass(frozen=True)
class Specimen:
    """One valid input. `lengths`: (offset, size) of fields that say how much of something there is, or where it is."""

    content: bytes
    lengths: Sequence[tuple[int, int]]
    mend: Mend


def _words(*words: str) -> pa.RecordBatch:
    return pa.record_batch(
        {"w": pa.DictionaryArray.from_arrays(pa.array([0, len(words) - 1], pa.int8()), pa.array(words))}
    )


def small_bundles() -> list[Bundle]:
    """Plain, two slots, and dictionaries that grow and change: every path of the log and of the seal in about 4 KiB."""
    number = pa.record_batch({"n": pa.array([1, None, 3], pa.int16())})
    text = pa.record_batch({"t": pa.array(["a", None])})
    return [{0: number}, {0: number, 7: text}, {1: _words("a", "b")}, {1: _words("a", "b", "c")}, {1: _words("z", "y")}]


def tiny_bundles() -> list[list[Bundle]]:
    """Each by itself takes every step of a parser, in a tenth of the time."""
    number = pa.record_batch({"n": pa.array([1, None, 3], pa.int16())})
    return [[{0: number}], [{1: _words("a", "b")}]]


def _mostly_tiny(specimens: Callable[[list[Bundle]], list[Specimen]]) -> list[Specimen]:
    """Four mutants of a tiny file for one of a small one."""
    return 4 * [one for bundles in tiny_bundles() for one in specimens(bundles)] + 2 * specimens(small_bundles())


def store(bundles: Sequence[Bundle], *, seal: bool, settings: TopicSettings | None = None) -> EngineDriver:
    """An engine that has these bundles, each committed by itself; always the same bytes."""
    disk = SimDisk()
    disk.make_directory(DIRECTORY)
    core = disk.create(f"{DIRECTORY}/quiver.core")
    core.write([encode_core(CoreFile(bytes(range(16)), 0, 0, 0, clean_shutdown=True))], 0)
    core.close()
    driver = EngineDriver(disk, settings, DIRECTORY)
    for bundle in bundles:
        driver.push(bundle)
        driver.commit()
    if seal:
        driver.seal()
    return driver


def content_of(driver: EngineDriver, path: str) -> bytes:
    file = driver.disk.open_read(f"{driver.directory}/{path}")
    try:
        return file.read(file.size(), 0)
    finally:
        file.close()


# --- logs ----------------------------------------------------------------------------------------------------------------


@functools.cache
def log_specimens() -> list[Specimen]:
    """Logs of ours and of another writer."""
    return _mostly_tiny(lambda bundles: _logs_of(bundles[-4:-1] or bundles))


def _logs_of(bundles: Sequence[Bundle]) -> list[Specimen]:
    """A log of ours, not preallocated, and one as another writer lays it out: small header, nothing aligned."""
    driver = store(bundles, seal=False)
    whole = content_of(driver, "wal/quiver.wal")
    ends = entry_ends(whole, layout.HEADER_BYTES)
    ours = whole[: ends[-1]] + bytes(8)
    foreign = layout.HEADER.pack(layout.WAL_MAGIC, 1, layout.HEADER_BYTES_V1, layout.DEFAULT_CFG_HASH, 0)
    foreign += ours[layout.HEADER_BYTES :]
    return [_log_specimen(ours), _log_specimen(foreign)]


def _log_specimen(content: bytes) -> Specimen:
    start = int.from_bytes(content[12:14], "little")
    lengths = [(12, 2), (30, 8)]
    for at in [start, *entry_ends(content, start)][:-1]:
        lengths += [(at, 4), (at + 21, 8), (at + 29, 2), (at + 63, 4), (at + 67, 4), (at + 75, 4)]
    return Specimen(content, lengths, mend_log)


def entry_ends(content: bytes, start: int) -> list[int]:
    """Return the offset behind each entry."""
    ends = []
    while start + 4 <= len(content) and (length := U32.unpack_from(content, start)[0]):
        start += length + layout.ENTRY_OVERHEAD_BYTES
        ends.append(start)
    return ends


def mend_log(content: bytearray) -> None:
    """Header and entries, as far as lengths lead."""
    if len(content) < layout.HEADER_BYTES:
        return
    at = int.from_bytes(content[12:14], "little")
    if at == layout.HEADER_BYTES:
        _mend(content, layout.HEADER_CRC_OFFSET, 0)
    while at + layout.ENTRY_OVERHEAD_BYTES <= len(content):
        end = at + layout.ENTRY_LENGTH_BYTES + U32.unpack_from(content, at)[0]
        if end + layout.ENTRY_CRC.size > len(content) or end == at + layout.ENTRY_LENGTH_BYTES:
            return
        _mend(content, end, at + layout.ENTRY_LENGTH_BYTES)
        at = end + layout.ENTRY_CRC.size


def _mend(content: bytearray, at: int, start: int) -> None:
    U32.pack_into(content, at, crc32(memoryview(content)[start:at]))


# --- segments ------------------------------------------------------------------------------------------------------------


@functools.cache
def segment_specimens() -> list[Specimen]:
    """Sealed in place, and compacted."""
    return _segments_of(small_bundles())


@functools.cache
def tiny_and_small_segments() -> list[Specimen]:
    return _mostly_tiny(_segments_of)


def _segments_of(bundles: Sequence[Bundle]) -> list[Specimen]:
    in_place = content_of(store(bundles, seal=True), "segments/0000000000000000.qseg")
    outline = read_outline(reader_of(in_place), len(in_place))
    compacted = b"".join(chain.from_iterable(Rewriting(outline, reader_of(in_place)).parts()))
    return [_segment_specimen(in_place), _segment_specimen(compacted)]


def reader_of(content: bytes) -> Callable[[int, int], bytes]:
    """`read(length, offset)` over a byte string."""
    return lambda length, offset: content[offset : offset + length]


def _segment_specimen(content: bytes) -> Specimen:
    """Every field of footer, extension and trailer, the footers of the Arrow files, and the front of each message."""
    size = len(content)
    footer = size - 16 - int.from_bytes(content[size - 16 : size - 12], "little")
    lengths = [(size - 16, 4), (footer, 2), (footer + 2, 4), (footer + 6, 4), (footer + 10, 8), (footer + 18, 4)]
    lengths += [(footer + 22, 8), (footer + 30, 4), (footer + 34, 2), *((footer + 36 + 8 * n, 8) for n in range(7))]
    reader = SegmentReader(content)
    for stream in reader.streams:
        end = stream.byte_offset + stream.byte_length
        lengths += [(end - 10, 4), *((end - 10 - 8 * n, 8) for n in range(1, 12))]
    directory, manifest = reader.footer.directory_offset, reader.footer.manifest_offset
    lengths += [(at, 8) for at in range(directory, footer, 8)]
    lengths += [(manifest - 10, 4), (footer - 10, 4)]
    return Specimen(content, lengths, mend_segment)


def mend_segment(content: bytearray) -> None:
    if content[:10] == layout.WAL_MAGIC:
        mend_log(content)
    if len(content) >= 16:
        _mend(content, len(content) - 4, 0)


@functools.cache
def table_specimens() -> list[Specimen]:
    """Directory and manifest by themselves, in both orders of importance: a flag byte in front says which it is."""
    content = segment_specimens()[1].content
    footer = SegmentReader(content).footer
    directory = content[footer.directory_offset : footer.directory_offset + footer.directory_length]
    manifest = content[footer.manifest_offset : footer.manifest_offset + footer.manifest_length]
    return [_unprotected(b"d" + directory), _unprotected(b"m" + manifest)]


def _unprotected(content: bytes) -> Specimen:
    return Specimen(content, [(at, 4) for at in range(1, len(content) - 4, 4)], lambda mutant: None)


# --- small files ---------------------------------------------------------------------------------------------------------


@functools.cache
def progress_specimens() -> list[Specimen]:
    full = bytes(word_count(130) * 8)
    progresses = [
        SubscriberProgress(oldest_incomplete_seg=7, entries={}, trusted_watermark=True),
        SubscriberProgress(
            oldest_incomplete_seg=3,
            entries={3: SegmentProgress(130, b"\x05" + full[1:]), 9: SegmentProgress(1, b"\1" + bytes(7))},
            trusted_watermark=True,
        ),
        SubscriberProgress(
            oldest_incomplete_seg=3, entries={1: SegmentProgress(64, bytes(8))}, trusted_watermark=False
        ),
    ]
    lengths = [(8, 2), (10, 2), (12, 2), (14, 8), (22, 4), (32, 8), (40, 4), (44, 2)]
    return [Specimen(encode_progress(progress), lengths, mend_progress) for progress in progresses]


def mend_progress(content: bytearray) -> None:
    if len(content) > 4:
        U32.pack_into(content, len(content) - 4, crc32c.crc32c(memoryview(content)[:-4]))


@functools.cache
def cursor_specimens() -> list[Specimen]:
    newer = bytearray(encode_cursor(1 << 40) + bytes(16))
    newer[8:12] = struct.pack("<HH", 2, 40)
    _mend_sized(newer)
    lengths = [(8, 2), (10, 2), (12, 8)]
    return [Specimen(content, lengths, _mend_sized) for content in (encode_cursor(128), bytes(newer))]


def _mend_sized(content: bytearray) -> None:
    """Mend a file that has its size at byte 10 and its CRC at its end."""
    size = int.from_bytes(content[10:12], "little")
    if 4 <= size <= len(content):
        _mend(content, size - 4, 0)


@functools.cache
def core_specimens() -> list[Specimen]:
    content = encode_core(CoreFile(bytes(range(16)), 3, 1024, 1 << 20, clean_shutdown=True))
    return [Specimen(content, [(8, 2), (10, 2), (28, 4), (32, 8), (40, 8), (48, 1)], _mend_sized)]


def _behind(kind: bytes, content: bytes, mend: Mend) -> Specimen:
    """A flag byte in front says what it is."""

    def mend_behind(mutant: bytearray) -> None:
        inner = mutant[1:]
        mend(inner)
        mutant[1:] = inner

    return Specimen(kind + content, [(at, 4) for at in range(9, len(content) - 4, 4)], mend_behind)


@functools.cache
def record_specimens() -> list[Specimen]:
    """The small files of transactions, producers, gap notices and topics: see `parsers.RECORDS` for the flags."""
    order, part = StageOrder("txn", 1, 2, 0, "s3://b/d", 1 << 40), PartRecord(3, 9, 4096, 7, bytes(24))
    prepared = PreparedRecord(5, order, bytes(16), bytes(16), [part], 1, 2)
    journal = JournalRecord(9, [PublishingRecord(5, 0, 7, 100, 4096)], [DroppedRecord(4, "txn", 0, "aborted", 1)], 2)
    windows, gaps = Windows(), GapLedger()
    for number in range(3):
        windows.add("paula", KeyRun(number * 10, 2, number, 0, number * 10))
        gaps.add(number, 1, 2, 30, REASONS[number], 0)
    journaled = [ProgressRecord("ann", 7, b"content"), ProgressRecord("ben", 8, b"")]
    catalogue = Catalogue(version=3, topics={"default": Topic(settings=TopicSettings(name="default"))})
    token = Token("txn", 1, 2, 0, "node-a", "default", 0, "ab" * 16, 5, 3, 30, 4096, 1 << 60)
    decision = Decision("txn", 1, COMMIT, (token,), 1 << 60, "host/1")
    return [
        _behind(b"p", encode_prepared(prepared), mend_frame),
        _behind(b"j", encode_journal(journal), mend_frame),
        _behind(b"w", windows.encode(), mend_frame),
        _behind(b"g", gaps.encode(0), mend_progress),
        _behind(b"r", encode_header(b"a marker") + encode_frame(b"a marker", journaled), mend_journal_of_progress),
        _behind(b"c", encode_catalogue(catalogue), mend_catalogue),
        _behind(b"t", token.encode().encode(), lambda mutant: None),
        _behind(b"d", msgspec.json.encode(decision), lambda mutant: None),
    ]


def mend_journal_of_progress(content: bytearray) -> None:
    """Mend the CRC-32 of the header, and the CRC-32C of what follows as one frame."""
    if len(content) >= 24 + 4:
        content[20:24] = crc32(content[:20]).to_bytes(4, "little")
        content[-4:] = crc32c.crc32c(bytes(content[24:-4])).to_bytes(4, "little")


def mend_frame(content: bytearray) -> None:
    """Mend a record of `store.staged.records`: the CRC stands where the body ends, if the content is long enough."""
    if len(content) >= 16:
        end = int.from_bytes(content[10:12], "little") + int.from_bytes(content[12:16], "little")
        if end + 4 <= len(content):
            _mend(content, end, 0)


def mend_catalogue(content: bytearray) -> None:
    head, newline, body = bytes(content).partition(b"\n")
    if newline:
        content[:] = b" ".join([*head.split(b" ")[:2], b"%08x" % crc32(body)]) + newline + body
