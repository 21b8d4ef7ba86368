"""Whole, damaged or newer: one rule for every small file, tried on every kind that there is."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

import pytest

from quiver_actors.errors import ChecksumMismatch, FormatError, InvalidFormat, Truncated, UnsupportedVersion
from quiver_actors.store.files.cold_list import COLD, ColdEntry, ColdList, decode_cold_list, encode_cold_list
from quiver_actors.store.files.cold_owner import OWNER, ColdOwner, decode_owner
from quiver_actors.store.files.core_file import CORE, CoreFile, decode_core, encode_core
from quiver_actors.store.files.foreign_record import (
    FOREIGN,
    AdoptedEntry,
    AdoptedSource,
    ForeignRecord,
    ForeignSegment,
    decode_foreign,
    encode_foreign,
)
from quiver_actors.store.files.summaries import SUMMARIES, StoredSchema, Summary, decode_summaries, encode_summaries
from quiver_actors.store.format.framing import CRC, DAMAGE, Framing, Place
from quiver_actors.store.staged.keys import PRODUCERS_MAGIC, KeyRun, Windows, decode_windows
from quiver_actors.store.staged.records import (
    JOURNAL_MAGIC,
    STAGE_MAGIC,
    DroppedRecord,
    JournalRecord,
    PartRecord,
    PreparedRecord,
    StageOrder,
    decode_journal,
    decode_prepared,
    encode_journal,
    encode_prepared,
    record_framing,
)
from quiver_actors.store.subscriber.gaps import GAPS, GapLedger, decode_gaps
from quiver_actors.store.subscriber.progress import (
    PROGRESS,
    SegmentProgress,
    SubscriberProgress,
    decode_progress,
    encode_for_rust,
    encode_progress,
)
from quiver_actors.store.subscriber.progress_journal import (
    PROGRESS_JOURNAL,
    decode_progress_journal,
    encode_header,
)
from quiver_actors.store.wal.codec import CURSOR, decode_cursor, encode_cursor

PROGRESS_VALUE = SubscriberProgress(
    oldest_incomplete_seg=3, entries={3: SegmentProgress(2, bytes(8))}, trusted_watermark=True
)


SUMMARIES_VALUE = {9: Summary(b"identity", ((StoredSchema(7, b"arrow"), 81),), b"abc"), 11: Summary(b"other id", ())}
FOREIGN_VALUE = ForeignRecord(
    5,
    {1: ForeignSegment(2, 3)},
    (4,),
    (AdoptedSource("quiver.wal", 5, 6, (AdoptedEntry(7, 8, 4),)),),
)


PREPARED_VALUE = PreparedRecord(
    7,
    StageOrder("t", 1, 2, 3, "s3://bucket", 10**9),
    bytes(16),
    b"contract",
    [PartRecord(1, 2, 3, 4, b"12345678")],
    5,
    6,
)
COLD_VALUE = ColdList(bytes(range(16)), "/cold", {3: ColdEntry(100, b"the end", ((1, 2),))}, (4, 5))


def encoded_gaps() -> bytes:
    ledger = GapLedger()
    ledger.add(3, 3, 2, 17, "damaged", 1)
    return ledger.encode(0)


def encoded_windows() -> bytes:
    windows = Windows()
    windows.add("p", KeyRun(1, 2, 3, 4, 5))
    return windows.encode()


class Kind(NamedTuple):
    framing: Framing
    data: bytes
    decode: Callable[[bytes], object]


KINDS = {
    "cursor": Kind(CURSOR, encode_cursor(17), decode_cursor),
    "core": Kind(CORE, encode_core(CoreFile(bytes(range(16)), 1, 2, 3, clean_shutdown=True)), decode_core),
    "progress": Kind(PROGRESS, encode_progress(PROGRESS_VALUE), decode_progress),
    "progress of Rust": Kind(PROGRESS, encode_for_rust(PROGRESS_VALUE), decode_progress),
    "journal of progress": Kind(PROGRESS_JOURNAL, encode_header(b"a marker"), decode_progress_journal),
    "gaps": Kind(GAPS, encoded_gaps(), decode_gaps),
    "foreign": Kind(FOREIGN, encode_foreign(FOREIGN_VALUE), decode_foreign),
    "cold": Kind(COLD, encode_cold_list(COLD_VALUE), decode_cold_list),
    "cold owner": Kind(OWNER, ColdOwner(bytes(range(16)), b"t" * 16, 9).encode(), decode_owner),
    "summaries": Kind(SUMMARIES, encode_summaries(SUMMARIES_VALUE), decode_summaries),
    "record": Kind(
        record_framing(JOURNAL_MAGIC, "journal"),
        encode_journal(JournalRecord(3, [], [DroppedRecord(5, "t", 0, "why", 6)], 2)),
        decode_journal,
    ),
    "prepared": Kind(record_framing(STAGE_MAGIC, "prepared"), encode_prepared(PREPARED_VALUE), decode_prepared),
    "producers": Kind(record_framing(PRODUCERS_MAGIC, "producers"), encoded_windows(), decode_windows),
}
PARAMETERS = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def changed(kind: Kind, name: str, value: int) -> bytes:
    """The file with another version or size, and a checksum that holds."""
    framing, data, _ = kind
    at = framing.table.offsets[name]
    body = data[:at] + value.to_bytes(2, "little") + data[at + 2 : -CRC.size]
    return framing._replace(checksums=(framing.checksum_of(data) or framing.checksums[0],)).seal(body)


def size_name(kind: Kind) -> str:
    return "size" if kind.framing.place is Place.SIZE else "header_size"


@PARAMETERS
def test_a_whole_file_is_opened(kind: Kind) -> None:
    assert bytes(kind.framing.open(kind.data)) == kind.data[: -CRC.size]
    assert kind.framing.checksum_of(kind.data) is not None
    assert not kind.framing.is_newer(kind.data)


@PARAMETERS
def test_every_flipped_bit_is_damage(kind: Kind) -> None:
    for bit in range(len(kind.data) * 8):
        damaged = bytearray(kind.data)
        damaged[bit // 8] ^= 1 << bit % 8
        assert not kind.framing.is_newer(bytes(damaged)), bit
        with pytest.raises((ChecksumMismatch, InvalidFormat, Truncated)):
            kind.decode(bytes(damaged))


@PARAMETERS
def test_every_file_that_is_cut_off_is_damage(kind: Kind) -> None:
    for end in range(len(kind.data)):
        with pytest.raises((ChecksumMismatch, Truncated)):
            kind.decode(kind.data[:end])
        assert not kind.framing.is_newer(kind.data[:end])


@PARAMETERS
def test_a_newer_version_is_refused_unless_it_keeps_the_fields(kind: Kind) -> None:
    newer = changed(kind, "version", 2)
    assert kind.framing.is_newer(newer)
    if kind.framing.reads_newer:
        assert bytes(kind.framing.open(newer)) == newer[: -CRC.size]
    else:
        with pytest.raises(UnsupportedVersion, match="version 2"):
            kind.framing.open(newer)


@PARAMETERS
def test_a_newer_version_that_does_not_end_where_this_one_does_is_in_doubt_for_core_files_only(kind: Kind) -> None:
    newer = bytearray(changed(kind, "version", 2))
    newer[-1] ^= 1
    newer[-CRC.size - 1] ^= 1
    with pytest.raises(UnsupportedVersion if kind.framing is CORE else ChecksumMismatch):
        kind.framing.open(bytes(newer))


@PARAMETERS
def test_there_is_no_version_0(kind: Kind) -> None:
    with pytest.raises(InvalidFormat, match="version 0"):
        kind.framing.open(changed(kind, "version", 0))


@PARAMETERS
def test_a_header_that_lacks_fields_is_damage_whatever_its_checksum_says(kind: Kind) -> None:
    least = kind.framing.size_least or kind.framing.table.size
    if kind.framing.place is Place.FILE:
        with pytest.raises(InvalidFormat):
            kind.framing.open(changed(kind, size_name(kind), least - 1))
    with pytest.raises(FormatError):
        kind.framing.open(changed(kind, size_name(kind), 0xFFFF))


@PARAMETERS
def test_another_magic_is_named(kind: Kind) -> None:
    with pytest.raises(InvalidFormat, match="starts with b'X"):
        kind.framing.open(b"X" + kind.data[1:])


def test_bytes_behind_a_file_of_a_fixed_size_are_not_read() -> None:
    for name in ("cursor", "core", "record"):
        framing, data, _ = KINDS[name]
        assert bytes(framing.open(data + b"more")) == data[: -CRC.size]
    for name in ("progress", "gaps", "foreign"):
        framing, data, _ = KINDS[name]
        with pytest.raises(ChecksumMismatch):
            framing.open(data + b"more")


def test_the_checksum_says_which_program_wrote_the_file() -> None:
    assert PROGRESS.checksum_of(KINDS["progress"].data) is PROGRESS.checksums[0]
    assert PROGRESS.checksum_of(KINDS["progress of Rust"].data) is PROGRESS.checksums[1]


@PARAMETERS
def test_whatever_stands_in_a_whole_file_it_is_read_or_damaged_or_newer(kind: Kind) -> None:
    """A start quarantines what raises `DAMAGE` and refuses what is newer; any other error would end it."""
    source = random.Random(1)
    read = 0
    for _ in range(500):
        content = bytearray(kind.data[: -CRC.size])
        for _ in range(source.randint(1, 3)):
            content[source.randrange(len(content))] = source.choice((0, 1, 0xFF, source.randrange(256)))
        try:
            kind.decode(kind.framing.seal(bytes(content)))
            read += 1
        except (*DAMAGE, UnsupportedVersion):
            continue
    assert read, "some changes leave a file that can be read"
