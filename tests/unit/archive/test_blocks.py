"""Checksums of blocks: what was written is proven, what was changed is found."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiver_actors.archive.blocks import BLOCK_BYTES, decode_sums, encode_sums, sums_of
from quiver_actors.base.checksum import crc32
from quiver_actors.errors import ChecksumMismatch, FormatError


@pytest.mark.parametrize("size_bytes", [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 5 * BLOCK_BYTES + 7])
def test_sums_come_back_and_hold_the_whole_files_checksum(size_bytes: int) -> None:
    content = os.urandom(size_bytes)
    sums = sums_of(content)
    assert decode_sums(encode_sums(sums)) == sums
    assert sums.size_bytes == size_bytes
    assert sums.crc32 == (crc32(content) if size_bytes else 0)
    sums.check(0, content)


@given(st.binary(max_size=100), st.binary(max_size=100))
def test_segments_of_one_size_are_told_apart(one: bytes, other: bytes) -> None:
    """Each ends with its own CRC-32, so that of the whole is the same for all."""
    one, other = one.ljust(100, b" "), other.ljust(100, b" ")
    first, second = (sums_of(each + crc32(each).to_bytes(4, "little")) for each in (one, other))
    assert first.crc32 == second.crc32
    assert (first == second) is (one == other)


def test_checksums_of_former_programs_are_read() -> None:
    former = sums_of(os.urandom(3 * BLOCK_BYTES))._replace(digest=b"")
    encoded = encode_sums(former)
    assert encoded[:4] == b"QAC1"
    assert decode_sums(encoded) == former


@given(st.integers(0, 3 * BLOCK_BYTES), st.integers(0, 3 * BLOCK_BYTES), st.integers(0, 7))
def test_any_flipped_bit_of_any_aligned_range_is_found(start: int, at: int, bit: int) -> None:
    content = bytes(range(256)) * (3 * BLOCK_BYTES // 256) + b"end"
    sums = sums_of(content)
    first, end = sums.aligned(min(start, at), max(start, at) + 1)
    piece = bytearray(content[first:end])
    sums.check(first, piece)
    piece[at - first] ^= 1 << bit
    with pytest.raises(ChecksumMismatch):
        sums.check(first, piece)


def test_a_part_of_a_block_proves_nothing() -> None:
    sums = sums_of(bytes(3 * BLOCK_BYTES))
    with pytest.raises(ChecksumMismatch):
        sums.check(0, bytes(BLOCK_BYTES - 1))
    with pytest.raises(ChecksumMismatch):
        sums.check(1, bytes(BLOCK_BYTES))


def test_each_changed_or_missing_byte_of_the_object_is_found() -> None:
    encoded = encode_sums(sums_of(os.urandom(2 * BLOCK_BYTES + 1)))
    for at in range(len(encoded)):
        changed = bytearray(encoded)
        changed[at] ^= 1
        with pytest.raises(FormatError):
            decode_sums(bytes(changed))
        with pytest.raises(FormatError):
            decode_sums(encoded[:at])
