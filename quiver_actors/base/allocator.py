"""How soon the C allocator of this process gives freed memory back to the system."""

from __future__ import annotations

import ctypes

_M_MMAP_THRESHOLD = -3
"""The parameter of mallopt(3)."""


def give_back_blocks(size_bytes: int) -> None:
    """Have each block of at least that size given back when it is freed. Does nothing where the C library cannot.

    By itself glibc keeps blocks for the next time that are no larger than the largest one that was ever freed, up to 32 MiB, for each of
    some threads: a peak then counts for ever. Each block that is given back costs a system call and the first touch of its pages.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, size_bytes)
