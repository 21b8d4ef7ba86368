"""The sealed segments of one engine by their number, and what they amount to.

Figures and limits ask for the sums ten times a second: they are kept as segments come, change and go, so that ten thousand cost no more
than ten.
"""

from __future__ import annotations

from collections import UserDict

from quiver_actors.protocol.messages import SegmentInfo
from quiver_actors.retention.account import block_bytes


class SegmentTable(UserDict[int, SegmentInfo]):
    """A mapping; `size_bytes`, `block_bytes` (what the files take of the disk) and `bundle_count` are sums over it."""

    def __init__(self, segments: dict[int, SegmentInfo]) -> None:
        self.size_bytes = self.block_bytes = self.bundle_count = 0
        super().__init__(segments)

    def __setitem__(self, segment_seq: int, info: SegmentInfo) -> None:
        if segment_seq in self.data:
            self._count(self.data[segment_seq], -1)
        self.data[segment_seq] = info
        self._count(info, 1)

    def __delitem__(self, segment_seq: int) -> None:
        self._count(self.data.pop(segment_seq), -1)

    def _count(self, info: SegmentInfo, sign: int) -> None:
        self.size_bytes += sign * info.size_bytes
        self.block_bytes += sign * block_bytes(info.size_bytes)
        self.bundle_count += sign * info.bundle_count
