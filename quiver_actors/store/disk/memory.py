"""The parts of a file that are in memory: mincore(2), for which Python has no call."""

from __future__ import annotations

import ctypes
import mmap

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]

_LOWEST_BIT = bytes(number & 1 for number in range(256))


def is_in_memory(descriptor: int, length: int, offset: int) -> bool:
    """Whether memory holds any page of `[offset, offset + length)` of the file; True also where nobody can tell."""
    if length <= 0:
        return False
    start = offset - offset % mmap.ALLOCATIONGRANULARITY
    try:
        mapped = mmap.mmap(descriptor, offset + length - start, access=mmap.ACCESS_COPY, offset=start)
    except (OSError, ValueError):
        return True
    with mapped:
        pages = (ctypes.c_ubyte * -(-len(mapped) // mmap.PAGESIZE))()
        first = ctypes.c_char.from_buffer(mapped)
        try:
            failed = _LIBC.mincore(ctypes.addressof(first), len(mapped), pages)
        finally:
            del first
    return bool(failed) or 1 in bytes(pages).translate(_LOWEST_BIT)
