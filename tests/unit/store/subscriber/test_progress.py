"""The progress file, byte by byte."""

from __future__ import annotations

import struct

import crc32c
import msgspec
import pytest

from quiver_actors.base.rights import Ownership
from quiver_actors.errors import (
    ChecksumMismatch,
    InvalidFormat,
    InvalidId,
    Truncated,
    UnsupportedVersion,
    UsageError,
)
from quiver_actors.store.subscriber.bitmap import full
from quiver_actors.store.subscriber.progress import (
    ARCHIVED_RUNS_MAX,
    ARCHIVED_TABLE,
    BITMAP_WORDS_MAX,
    ENTRIES_MAX,
    JOINED_MAX,
    ArchivedSegments,
    SegmentProgress,
    SubscriberProgress,
    decode_progress,
    encode_for_rust,
    encode_progress,
    progress_file_name,
    subscriber_of,
)
from tests.support.other_writer import progress_bytes

#: A progress file of version 1, byte by byte.
EXAMPLE = bytes.fromhex(
    "5155495653554200 0100 2000 0000 0700000000000000 01000000 000000000000"
    "0700000000000000 03000000 0100 0500000000000000 51d24f4f"
)
#: `quiver.sub.sub-a` of both golden directories, written by the Rust implementation.
GOLDEN = bytes.fromhex(
    "5155495653554200 0100 2000 0000 0000000000000000 02000000 000000000000"
    "0000000000000000 03000000 0100 0500000000000000"
    "0100000000000000 02000000 0100 0100000000000000 5fe08347"
)

WORD = struct.Struct("<Q")


def file_of(
    entries: bytes = b"",
    *,
    magic: bytes = b"QUIVSUB\0",
    version: int = 1,
    header_size: int = 32,
    flags: int = 1,
    oldest: int = 0,
    entry_count: int = 0,
    pad: bytes = bytes(6),
) -> bytes:
    """A progress file put together by hand, with a good checksum."""
    body = magic + struct.pack("<HHHQI", version, header_size, flags, oldest, entry_count) + pad + entries
    return body + struct.pack("<I", crc32c.crc32c(body))


def entry_of(segment_seq: int, bundle_count: int, *words: int) -> bytes:
    return struct.pack("<QIH", segment_seq, bundle_count, len(words)) + b"".join(WORD.pack(word) for word in words)


def progress_of(oldest: int, entries: dict[int, tuple[int, bytes]]) -> SubscriberProgress:
    return SubscriberProgress(
        oldest_incomplete_seg=oldest,
        entries={seq: SegmentProgress(*entry) for seq, entry in entries.items()},
        trusted_watermark=True,
    )


def test_decode_example_of_formats() -> None:
    progress = decode_progress(EXAMPLE)
    assert progress == SubscriberProgress(
        oldest_incomplete_seg=7,
        entries={7: SegmentProgress(3, WORD.pack(0b101))},
        trusted_watermark=False,
        by_other_writer=True,
    )
    assert progress.watermark == 0, "Rust's field is not to be trusted"


def test_decode_golden_file_of_rust() -> None:
    progress = decode_progress(GOLDEN)
    assert progress.entries == {0: SegmentProgress(3, WORD.pack(0b101)), 1: SegmentProgress(2, WORD.pack(0b01))}
    assert not progress.trusted_watermark
    assert progress.unknown_flags == 0


def test_encode_lays_out_every_byte_as_formats_says() -> None:
    data = encode_progress(progress_of(7, {300: (65, full(64) + bytes(8)), 7: (3, WORD.pack(0b101))}))
    body = (
        b"QUIVSUB\0"
        + struct.pack("<HHHQI", 1, 32, 1, 7, 2)
        + bytes(6)
        + entry_of(7, 3, 0b101)
        + entry_of(300, 65, (1 << 64) - 1, 0)
    )
    assert data == body + struct.pack("<I", crc32c.crc32c(body))


def test_an_owner_stands_behind_the_header_where_other_readers_skip_it() -> None:
    plain = progress_of(7, {7: (3, WORD.pack(0b101))})
    owned = msgspec.structs.replace(plain, ownership=Ownership(1001, (7, 0xFFFFFFFE)))
    owner = b"OWNR" + struct.pack("<IIII", 1001, 2, 7, 0xFFFFFFFE)
    header = b"QUIVSUB\0" + struct.pack("<HHHQI", 1, 32 + len(owner), 1, 7, 1) + bytes(6)
    body = header + owner + entry_of(7, 3, 0b101)
    assert encode_progress(owned) == body + struct.pack("<I", crc32c.crc32c(body))
    assert decode_progress(encode_progress(owned)) == owned
    assert decode_progress(encode_progress(plain)).ownership == Ownership()


@pytest.mark.parametrize(
    "ownership", [Ownership(0), Ownership(0xFFFFFFFE), Ownership(None, (5,)), Ownership(1, (2, 3))]
)
def test_owners_come_back(ownership: Ownership) -> None:
    progress = msgspec.structs.replace(progress_of(0, {}), ownership=ownership)
    assert decode_progress(encode_progress(progress)) == progress


def test_users_that_do_not_fit_in_the_header_are_damage() -> None:
    owner = b"OWNR" + struct.pack("<II", 1001, 3)
    with pytest.raises(InvalidFormat, match="3 users"):
        decode_progress(file_of(owner + bytes(4), header_size=48))
    with pytest.raises(UsageError, match="users"):
        encode_progress(
            msgspec.structs.replace(progress_of(0, {}), ownership=Ownership(1, tuple(range(JOINED_MAX + 1))))
        )


def archived_of(run_count: int) -> SubscriberProgress:
    runs = tuple((3 * number, 2) for number in range(run_count))
    return msgspec.structs.replace(progress_of(0, {}), archived=ArchivedSegments(runs, 27, is_read=True))


def test_as_many_runs_of_archived_segments_as_fit_come_back_beside_an_owner_and_one_more_is_refused() -> None:
    progress = msgspec.structs.replace(archived_of(ARCHIVED_RUNS_MAX), ownership=Ownership(1001, (7,)))
    assert decode_progress(encode_progress(progress)) == progress
    with pytest.raises(UsageError, match=f"{ARCHIVED_RUNS_MAX + 1} runs of archived segments"):
        encode_progress(archived_of(ARCHIVED_RUNS_MAX + 1))


@pytest.mark.parametrize("run_count", [3, 0xFFFFFFFF])
def test_runs_of_archived_segments_that_do_not_fit_in_the_header_are_damage(run_count: int) -> None:
    """What stands behind the header are entries: taken for runs, they would turn what is owed from the disk into archived segments."""
    head = ARCHIVED_TABLE.pack(run_count=run_count, mean_bytes=27)
    runs = struct.pack("<QIQI", 3, 2, 9, 1)
    data = file_of(head + runs + entry_of(7, 3, 0b101), header_size=32 + len(head + runs), entry_count=1)
    with pytest.raises(InvalidFormat, match=f"{run_count} runs of segments do not fit"):
        decode_progress(data)
    whole = file_of(
        ARCHIVED_TABLE.pack(run_count=2, mean_bytes=27) + runs + entry_of(7, 3, 0b101),
        header_size=32 + len(head + runs),
        entry_count=1,
    )
    assert decode_progress(whole).archived.runs == ((3, 2), (9, 1))


def test_crc_is_castagnoli() -> None:
    assert crc32c.crc32c(b"123456789") == 0xE3069283


@pytest.mark.parametrize(
    "progress",
    [
        progress_of(0, {}),
        progress_of(2**63, {}),
        progress_of(5, {5: (65_535, full(65_535)), 9: (1, bytes(8)), 2**40: (64, full(64))}),
        progress_of(0, {seq: (64, WORD.pack(seq)) for seq in range(1000)}),
    ],
)
def test_encode_then_decode_gives_the_same(progress: SubscriberProgress) -> None:
    assert decode_progress(encode_progress(progress)) == progress


def test_decode_accepts_crc32_and_crc32c() -> None:
    ours = progress_of(1, {1: (2, WORD.pack(1))})
    data = encode_progress(ours)
    assert decode_progress(data) == ours
    theirs = decode_progress(encode_for_rust(ours))
    assert (theirs.entries, theirs.by_other_writer, theirs.watermark) == (ours.entries, True, 0)


def test_the_other_writers_flag_says_that_a_segment_and_all_below_it_are_complete() -> None:
    """Its entries of complete segments stay in the file, also below that number."""
    theirs = {3: (2, {0, 1}), 5: (4, {0, 1, 2, 3}), 6: (3, {1})}
    progress = decode_progress(progress_bytes(theirs, completed_through=5))
    assert progress.watermark == 6
    assert progress.entries == {6: SegmentProgress(3, WORD.pack(0b10))}
    assert not progress.unknown_flags


def test_decode_skips_unknown_header_fields_and_trailing_bytes() -> None:
    entry = entry_of(4, 2, 1)
    longer = file_of(b"new field" + entry + b"trailing", header_size=41, oldest=4, entry_count=1)
    assert decode_progress(longer) == decode_progress(file_of(entry, oldest=4, entry_count=1))


def test_decode_reports_unknown_flags_and_goes_on() -> None:
    progress = decode_progress(file_of(flags=0x8003))
    assert (progress.trusted_watermark, progress.unknown_flags) == (True, 0x8002)
    assert encode_progress(progress) == file_of(flags=1), "what we do not know we do not write"


def test_decode_ignores_bits_beyond_the_bundle_count() -> None:
    progress = decode_progress(file_of(entry_of(0, 3, (1 << 64) - 1), entry_count=1))
    assert progress.entries[0] == SegmentProgress(3, WORD.pack(0b111))
    assert progress.entries[0].is_complete


def test_decode_accepts_completed_entries() -> None:
    progress = decode_progress(file_of(entry_of(8, 2, 0b11), flags=0, entry_count=1))
    assert progress.entries[8].is_complete


def test_decode_at_the_limit_of_a_bitmap() -> None:
    words = [0] * BITMAP_WORDS_MAX
    assert decode_progress(file_of(entry_of(0, 65_536, *words), entry_count=1)).entries[0].bundle_count == 65_536


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        (b"", Truncated, "0 bytes"),
        (EXAMPLE[:35], Truncated, "35 bytes"),
        (EXAMPLE[:-1], ChecksumMismatch, "checksum"),
        (file_of(magic=b"QUIVSUB1"), InvalidFormat, "QUIVSUB1"),
        (file_of(version=0), InvalidFormat, "version 0"),
        (file_of(version=2), UnsupportedVersion, "version 2"),
        (file_of(header_size=31), InvalidFormat, "31 bytes"),
        (file_of(header_size=33), Truncated, "33 bytes"),
        (file_of(entry_count=1), Truncated, "entry 0 of 1"),
        (file_of(entry_of(3, 1, 0)[:-1], entry_count=1), Truncated, "segment 3"),
        (file_of(entry_count=ENTRIES_MAX + 1), InvalidFormat, str(ENTRIES_MAX + 1)),
        (file_of(entry_of(3, 65, 0), entry_count=1), InvalidFormat, "1 words for 65 bundles"),
        (file_of(entry_of(3, 64, 0, 0), entry_count=1), InvalidFormat, "2 words for 64 bundles"),
        (file_of(entry_of(3, 65_600, *[0] * 1025), entry_count=1), InvalidFormat, "1025 words"),
        (file_of(entry_of(3, 1, 0) * 2, entry_count=2), InvalidFormat, "two entries of segment 3"),
        (file_of(entry_of(3, 1, 0), oldest=4, entry_count=1), InvalidFormat, "segment 3 is below"),
    ],
)
def test_decode_damaged_file_raises_a_typed_error(data: bytes, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        decode_progress(data)


@pytest.mark.parametrize(
    "progress",
    [
        progress_of(0, {0: (65_537, full(65_537))}),
        progress_of(0, {0: (64, bytes(16))}),
        progress_of(0, {0: (65, bytes(8))}),
        progress_of(0, {0: (1, b"")}),
        progress_of(5, {4: (1, bytes(8))}),
    ],
)
def test_encode_refuses_what_no_reader_accepts(progress: SubscriberProgress) -> None:
    with pytest.raises(UsageError):
        encode_progress(progress)


def test_encode_refuses_more_segments_than_a_reader_accepts() -> None:
    entries = dict.fromkeys(range(ENTRIES_MAX + 1), SegmentProgress(1, full(1)))
    with pytest.raises(UsageError, match="1000001 segments: a file holds at most 1000000"):
        encode_progress(SubscriberProgress(oldest_incomplete_seg=0, entries=entries, trusted_watermark=True))


def test_file_names() -> None:
    assert progress_file_name("sub-a") == "quiver.sub.sub-a"
    assert subscriber_of("quiver.sub.sub-a") == "sub-a"
    for name in ("a/b", "", "x" * 65, "CON", "lpt1", "é", "a\n"):
        with pytest.raises(InvalidId):
            progress_file_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "quiver.sub.",
        "quiver.sub.a.tmp",
        "quiver.sub.nul",
        "quiver.lock",
        "quiver.sub.a b",
        "xquiver.sub.a",
        "quiver.sub",
    ],
)
def test_subscriber_of_other_files_is_none(name: str) -> None:
    assert subscriber_of(name) is None
