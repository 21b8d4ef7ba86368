"""Progress files: what is written is what is read, and damage is never read as progress."""

from __future__ import annotations

import struct
import zlib

import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from quiver_actors.base.rights import Ownership
from quiver_actors.errors import FormatError
from quiver_actors.store.subscriber.bitmap import first_unresolved, resized, resolved_count, unresolved_runs, word_count
from quiver_actors.store.subscriber.progress import (
    SegmentProgress,
    SubscriberProgress,
    decode_progress,
    encode_progress,
)

thorough = settings(database=None, deadline=None, derandomize=True, max_examples=200)


@st.composite
def segment_progress(draw: st.DrawFn) -> SegmentProgress:
    bundle_count = draw(st.integers(0, 300) | st.sampled_from([65_535, 65_536]))
    return SegmentProgress(bundle_count, resized(draw(st.binary(max_size=40)), bundle_count))


@st.composite
def progress(draw: st.DrawFn) -> SubscriberProgress:
    entries = draw(st.dictionaries(st.integers(0, 2**64 - 1), segment_progress(), max_size=6))
    oldest = draw(st.integers(0, min(entries, default=2**64 - 1)))
    uids = st.integers(0, 2**32 - 2)
    ownership = Ownership(draw(st.none() | uids), tuple(sorted(draw(st.sets(uids, max_size=4)))))
    return SubscriberProgress(
        oldest_incomplete_seg=oldest, entries=entries, trusted_watermark=draw(st.booleans()), ownership=ownership
    )


@thorough
@given(progress())
def test_encode_then_decode_is_identity(value: SubscriberProgress) -> None:
    assert decode_progress(encode_progress(value)) == value


@thorough
@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_with_a_good_checksum_decode_or_raise_a_typed_error(tail: bytes, castagnoli: bool) -> None:
    body = b"QUIVSUB\0" + struct.pack("<HH", 1, 32) + tail
    checksum = crc32c.crc32c(body) if castagnoli else zlib.crc32(body)
    try:
        value = decode_progress(body + struct.pack("<I", checksum))
    except FormatError:
        return
    assert all(resolved_count(entry.bitmap) <= entry.bundle_count for entry in value.entries.values())


@thorough
@given(st.integers(0, 400), st.binary(max_size=60))
def test_bitmap_functions_agree_with_a_list_of_bits(bundle_count: int, raw: bytes) -> None:
    bitmap = resized(raw, bundle_count)
    bits = [bool(raw[i // 8] >> i % 8 & 1) if i // 8 < len(raw) else False for i in range(bundle_count)]
    assert len(bitmap) == 8 * word_count(bundle_count)
    assert resolved_count(bitmap) == sum(bits)
    assert [first + i for first, count in unresolved_runs(bitmap, bundle_count) for i in range(count)] == [
        index for index, bit in enumerate(bits) if not bit
    ]
    assert first_unresolved(bitmap) == (bits.index(False) if False in bits else bundle_count)
