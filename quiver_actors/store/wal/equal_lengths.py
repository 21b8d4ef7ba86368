"""Checking the CRCs of many entries of one length at once: what the replay of a log of small bundles spent most of its time on. Pure.

Bytes that end with their own CRC-32 have the same CRC-32, whatever they are. So a valid entry, from its length field to its CRC, has a
CRC that depends on its length alone, and so have any number of them one behind the other. One pass over all of them at the speed of
memory says whether each is valid: damage to one of them changes the result exactly when it would fail that one's own check, and damage
to several that cancels itself out is as unlikely as damage to one that goes unnoticed, 1 in 2**32.
"""

from __future__ import annotations

import struct

import numpy as np

from quiver_actors.base.checksum import crc32, crc32_of_run
from quiver_actors.store.wal import layout

_LENGTH = struct.Struct("<I")
_ENTRIES_MIN = 8
"""Fewer entries than this are checked faster one by one."""


def valid_run(memory: memoryview, at: int, entry_bytes: int) -> int:
    """How many whole entries, as long as the valid one that starts at `at` and all valid, stand in memory behind it.

    Returns:
        0 if they are too few, or one of them is not valid.
    """
    first = at + entry_bytes
    whole = (len(memory) - first) // entry_bytes
    length = entry_bytes - layout.ENTRY_OVERHEAD_BYTES
    last = first + (_ENTRIES_MIN - 1) * entry_bytes
    if whole < _ENTRIES_MIN or any(_LENGTH.unpack_from(memory, place)[0] != length for place in (last, first)):
        return 0
    is_other = np.ndarray((whole,), "<u4", memory, first, (entry_bytes,)) != length
    count = int(np.argmax(is_other)) if is_other.any() else whole
    if count < _ENTRIES_MIN:
        return 0
    expected = crc32_of_run(crc32(memory[at:first]), entry_bytes, count)
    return count if crc32(memory[first : first + count * entry_bytes]) == expected else 0
