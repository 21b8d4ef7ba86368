"""Bitmaps of resolved bundles, as progress files hold them (`store.subscriber.progress`).

A bitmap is immutable bytes, a whole number of u64 words, LSB first: bit i % 8 of byte i // 8 says that bundle i is resolved. Bits
from the bundle count on are zero. `b""` stands for "no bit set" wherever a bitmap is taken.
"""

from __future__ import annotations

import numpy as np

from quiver_actors.base.ranges import Runs

WORD_BITS = 64


def word_count(bundle_count: int) -> int:
    """How many u64 words a bitmap of that many bundles has."""
    return -(-bundle_count // WORD_BITS)


def bits_of(bitmap: bytes) -> int:
    """The bits of a bitmap as a number, in which sets of bundles are joined, cut and shifted."""
    return int.from_bytes(bitmap, "little")


def bitmap_of(bits: int, bundle_count: int) -> bytes:
    """The bitmap of the bits of so many bundles; those beyond are left out."""
    return (bits & ((1 << bundle_count) - 1)).to_bytes(word_count(bundle_count) * 8, "little")


def full(bundle_count: int) -> bytes:
    """The bitmap with every bundle resolved."""
    return bitmap_of(-1, bundle_count)


def resized(bitmap: bytes, bundle_count: int) -> bytes:
    """The same bits for another bundle count: bits beyond it are cleared, new ones are not set."""
    return bitmap_of(bits_of(bitmap), bundle_count)


def resolved_count(bitmap: bytes) -> int:
    """Return how many bits of a bitmap are set."""
    return bits_of(bitmap).bit_count()


def indexes(bits: int) -> list[int]:
    """The numbers of the set bits, ascending."""
    found = []
    while bits:
        found.append((bits & -bits).bit_length() - 1)
        bits &= bits - 1
    return found


def first_unresolved(bitmap: bytes) -> int:
    """Index of the lowest clear bit; the number of bits if all are set."""
    bits = bits_of(bitmap)
    return (~bits & (bits + 1)).bit_length() - 1


def unresolved_in(bitmap: bytes, start: int, stop: int) -> int:
    """Return how many of the bundles in `start..stop` are not resolved."""
    if start >= stop:
        return 0
    bits = bits_of(bitmap) >> start & ((1 << stop - start) - 1)
    return stop - start - bits.bit_count()


def unresolved_runs(bitmap: bytes, bundle_count: int) -> Runs:
    """The bundles that are not resolved, as (first index, count), ascending."""
    # Full length first: from an empty array numpy unpacks whatever the memory held before.
    packed = np.frombuffer(resized(bitmap, bundle_count), dtype=np.uint8)
    bits = np.ones(bundle_count + 2, dtype=np.int8)
    bits[1:-1] = np.unpackbits(packed, count=bundle_count, bitorder="little")
    edges = np.flatnonzero(np.diff(bits)).reshape(-1, 2).tolist()
    return [(first, end - first) for first, end in edges]
