"""Finds the one flipped bit of a file by the CRC-32 of the whole file. Pure.

The difference between the CRC that a file claims and the one that it has depends on the place of the damage alone, and no two places of
single bits give the same difference in files below 512 MiB. Other damage may look like a flipped bit that it is not, so what is read
with the bit turned back counts only as far as another checksum proves it.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from quiver_actors.base.checksum import crc32_of_range
from quiver_actors.store.segment.layout import CRC
from quiver_actors.store.segment.outline import Read

_POLYNOMIAL = 0xEDB88320
_BLOCK = 1 << 12

Words = npt.NDArray[np.uint32]


def flipped_bit(read: Read, size_bytes: int) -> tuple[int, int] | None:
    """The byte of a segment file that has one bit flipped, as (offset, mask), if that is what is wrong with it.

    None: nothing is wrong before the CRC, or more than one bit.
    """
    end = size_bytes - CRC.size
    if end <= 0:
        return None
    difference = crc32_of_range(read, 0, end) ^ CRC.unpack(read(CRC.size, end))[0]
    return None if difference.bit_count() <= 1 else _search(difference, end)


def _search(difference: int, end: int) -> tuple[int, int] | None:
    """Take zero bytes off the end of the damage until a single bit is left."""
    table, first, jump = _tables()
    block = _apply(first, difference)
    single = {int(table[1 << bit]): 1 << bit for bit in range(8)}
    wanted = np.array(sorted(single), np.uint32)
    for behind in range(0, end, _BLOCK):
        for found in np.flatnonzero(np.isin(block, wanted)).tolist():
            if behind + found < end:
                return end - 1 - behind - found, single[int(block[found])]
        block = jump[0][block & 0xFF] ^ jump[1][block >> 8 & 0xFF] ^ jump[2][block >> 16 & 0xFF] ^ jump[3][block >> 24]
    return None


def _apply(steps: Words, value: int) -> Words:
    """The linear map whose images of single bits are the rows."""
    result = np.zeros(steps.shape[1], np.uint32)
    for bit in range(32):
        if value >> bit & 1:
            result ^= steps[bit]
    return result


@functools.cache
def _tables() -> tuple[Words, Words, tuple[Words, Words, Words, Words]]:
    """The CRC's table; for each bit what it becomes by taking 0, 1, 2, ... bytes off; by byte what a block's worth of that does."""
    table = np.zeros(256, np.uint32)
    for index in range(256):
        value = index
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        table[index] = value
    index_of_top = np.zeros(256, np.uint32)
    index_of_top[table >> 24] = np.arange(256, dtype=np.uint32)
    steps = np.zeros((32, _BLOCK + 1), np.uint32)
    steps[:, 0] = np.uint32(1) << np.arange(32, dtype=np.uint32)
    for number in range(_BLOCK):
        before = steps[:, number]
        index = index_of_top[before >> 24]
        steps[:, number + 1] = (before ^ table[index]) << np.uint32(8) | index
    whole = steps[:, _BLOCK:]
    by_byte = [
        np.array([_apply(whole, index << shift)[0] for index in range(256)], np.uint32) for shift in (0, 8, 16, 24)
    ]
    return table, steps[:, :_BLOCK], (by_byte[0], by_byte[1], by_byte[2], by_byte[3])
