"""The number and bytes of bundles that a claim may still take."""

from __future__ import annotations


class Room:
    """How many bundles, and how many bytes of them, may still be claimed."""

    __slots__ = ("bundles", "bytes")

    def __init__(self, bundles: int, size_bytes: int | None) -> None:
        self.bundles = bundles
        self.bytes = size_bytes

    def limit(self, fitting: int) -> int:
        """How many bundles may be claimed, if `fitting` of them fit in the bytes."""
        return min(self.bundles, fitting)
