"""Checksums of runs and of parts of files are those of the bytes themselves."""

from __future__ import annotations

import random
import zlib

import pytest

from quiver_actors.base.checksum import crc32_of_range, crc32_of_run

DATA = random.Random(1).randbytes((2 << 20) + 77)


@pytest.mark.parametrize(
    ("start", "end"), [(0, 0), (0, 1), (5, 900), (0, 1 << 20), (3, (1 << 20) + 3), (0, len(DATA)), (121, len(DATA) - 4)]
)
def test_a_part_of_a_file(start: int, end: int) -> None:
    assert crc32_of_range(lambda length, at: DATA[at : at + length], start, end) == zlib.crc32(DATA[start:end])


def test_a_file_that_ends_before_counts_as_far_as_it_goes() -> None:
    assert crc32_of_range(lambda length, at: DATA[at : at + length], 0, len(DATA) + (3 << 20)) == zlib.crc32(DATA)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 64, 1000])
def test_a_run_of_equal_pieces(count: int) -> None:
    piece = DATA[:100]
    assert crc32_of_run(zlib.crc32(piece), len(piece), count) == zlib.crc32(piece * count)
