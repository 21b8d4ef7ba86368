"""One flipped bit of a segment is found by the CRC of the whole, wherever it is."""

from __future__ import annotations

import zlib
from random import Random

import pytest

from quiver_actors.store.segment.flips import flipped_bit
from tests.fuzz import bitflips, corpus
from tests.unit.store.wal.logs import reader_of


def file_of(size: int) -> bytes:
    body = Random(size).randbytes(size)
    return body + zlib.crc32(body).to_bytes(4, "little")


@pytest.mark.parametrize("size", [1, 3, 200, 4095, 4096, 4097, 300_000])
def test_a_flipped_bit_is_found(size: int) -> None:
    content = file_of(size)
    places = {0, size - 1, size // 2, *(Random(1).randrange(size) for _ in range(4))}
    for at in sorted(places):
        for mask in (1, 0x10, 0x80):
            damaged = content[:at] + bytes([content[at] ^ mask]) + content[at + 1 :]
            assert flipped_bit(reader_of(damaged), len(damaged)) == (at, mask)


def test_a_file_that_is_whole_and_one_whose_checksum_alone_is_damaged_have_none() -> None:
    content = file_of(5_000)
    assert flipped_bit(reader_of(content), len(content)) is None
    for bit in range(32):
        damaged = content[:-4] + (int.from_bytes(content[-4:], "little") ^ 1 << bit).to_bytes(4, "little")
        assert flipped_bit(reader_of(damaged), len(damaged)) is None
    assert flipped_bit(reader_of(b"abc"), 3) is None


def test_two_flipped_bits_are_no_flipped_bit() -> None:
    content = bytearray(file_of(5_000))
    content[77] ^= 1
    content[4_000] ^= 4
    assert flipped_bit(reader_of(bytes(content)), len(content)) is None


def test_a_bit_that_would_lie_before_the_file_is_no_flipped_bit() -> None:
    """The checksum of a short file that is wrong as one of a longer file with a flipped bit would be."""
    body = Random(1).randbytes(100)
    elsewhere = zlib.crc32(b"\1" + bytes(200)) ^ zlib.crc32(bytes(201))
    content = body + (zlib.crc32(body) ^ elsewhere).to_bytes(4, "little")
    assert flipped_bit(reader_of(content), len(content)) is None
    longer = bytes(101) + body
    assert flipped_bit(reader_of(longer + (zlib.crc32(longer) ^ elsewhere).to_bytes(4, "little")), 205) == (0, 1)


def test_no_flipped_bit_of_what_stands_behind_the_streams_costs_a_compacted_segment_anything() -> None:
    """Directory and manifest are there once. Every bit of all files is flipped by `make torture`."""
    _, compacted = corpus.segment_specimens()
    bits = range(len(compacted.content) * 4, len(compacted.content) * 8, 97)
    tally = bitflips.flip_segment(compacted.content, lambda _: bits)
    assert (tally.flips, tally.detected, tally.bundles_lost, tally.failures) == (len(bits), len(bits), 0, [])


def test_other_damage_that_looks_like_a_flipped_bit_costs_what_it_touches_and_no_more() -> None:
    """The last four bytes of a batch are what the CRC needs to claim that a bit far away was flipped."""
    _, compacted = corpus.segment_specimens()
    content = bytearray(compacted.content)
    elsewhere = bytearray(content)
    elsewhere[-300] ^= 8
    at = len(content) // 3
    content[at : at + 4] = _forged(bytes(content), at, zlib.crc32(elsewhere[:-4]))
    assert flipped_bit(reader_of(bytes(content)), len(content)) == (len(content) - 300, 8)
    lost, wrong = bitflips._lost_after_rebuild(bytes(content))
    assert not wrong
    assert len(lost) < 8


def _forged(content: bytes, at: int, wanted: int) -> bytes:
    """Four bytes for `at` that give the file the CRC `wanted`."""
    before, behind = content[:at], content[at + 4 : -4]
    rows = []
    base = zlib.crc32(before + bytes(4) + behind)
    for bit in range(32):
        rows.append((zlib.crc32(before + (1 << bit).to_bytes(4, "little") + behind) ^ base, 1 << bit))
    target, solution = base ^ wanted, 0
    for bit in range(32):
        pivot = next(row for row in rows if row[0] >> bit & 1)
        rows = [
            row if not row[0] >> bit & 1 else (row[0] ^ pivot[0], row[1] ^ pivot[1]) for row in rows if row != pivot
        ]
        if target >> bit & 1:
            target, solution = target ^ pivot[0], solution ^ pivot[1]
    return solution.to_bytes(4, "little")
