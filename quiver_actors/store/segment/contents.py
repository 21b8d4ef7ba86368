"""The decoded end of a segment file, with the file's memory: what the proof of a file works on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from quiver_actors.store.segment.codec import SegmentFooter, StreamInfo
from quiver_actors.store.segment.manifest import Manifest

Freeze = Callable[[int, int], None]
"""`freeze(start, end)`: keep these bytes of the file as they are now."""


class Contents(NamedTuple):
    """The decoded end of a segment file. `footer`, `streams` and `manifest` were decoded from frozen bytes."""

    view: memoryview
    """The whole file."""
    freeze: Freeze
    footer: SegmentFooter
    streams: Mapping[int, StreamInfo]
    manifest: Manifest

    def read(self, length: int, offset: int) -> bytes:
        """Return a copy of `length` bytes from `offset` on, as a disk would."""
        return bytes(self.view[offset : offset + length])
