"""Bitmaps of resolved bundles, as progress files hold them (FORMATS section 4).

A bitmap is immutable bytes, a whole number of u64 words, LSB first: bit i % 8 of byte i // 8 says that bundle i is resolved. Bits
from the bundle count on are zero. `b""` stands for "no bit set" wherever a bitmap is taken.
"""

from __future__ import annotations

import numpy as np

WORD_BITS = 64


def word_count(bundle_count: int) -> int:
    """u64 words for that many bundles."""
    return -(-bundle_count // WORD_BITS)


def full(bundle_count: int) -> bytes:
    """The bitmap with every bundle resolved."""
    return ((1 << bundle_count) - 1).to_bytes(word_count(bundle_count) * 8, "little")


def resized(bitmap: bytes, bundle_count: int) -> bytes:
    """The same bits for another bundle count: bits beyond it are cleared, new ones are not set."""
    bits = int.from_bytes(bitmap, "little") & ((1 << bundle_count) - 1)
    return bits.to_bytes(word_count(bundle_count) * 8, "little")


def resolved_count(bitmap: bytes) -> int:
    return int.from_bytes(bitmap, "little").bit_count()


def first_unresolved(bitmap: bytes) -> int:
    """Index of the lowest clear bit; the number of bits if all are set."""
    bits = int.from_bytes(bitmap, "little")
    return (~bits & (bits + 1)).bit_length() - 1


def unresolved_runs(bitmap: bytes, bundle_count: int) -> list[tuple[int, int]]:
    """The bundles that are not resolved, as (first index, count), ascending."""
    # Full length first: from an empty array numpy unpacks whatever the memory held before.
    packed = np.frombuffer(resized(bitmap, bundle_count), dtype=np.uint8)
    bits = np.ones(bundle_count + 2, dtype=np.int8)
    bits[1:-1] = np.unpackbits(packed, count=bundle_count, bitorder="little")
    edges = np.flatnonzero(np.diff(bits)).reshape(-1, 2).tolist()
    return [(first, end - first) for first, end in edges]
