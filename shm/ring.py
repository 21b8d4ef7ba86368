"""Computes the place of the next span in a byte ring. Pure arithmetic, no memory.

Owner: the producer. The reader of the ring gives credit back through one rising position, `released`.

Positions count the bytes of committed spans, for ever; bytes of the ring that are left unused do not count, so head - released is
exactly what is in use. Offsets are places in the ring. Spans are contiguous and start on 64-byte lines. A *lap* is a run of spans
laid one behind the other from offset 0; a span that does not fit behind the last one starts the next lap.

    one lap in use        |  free  [released .. head)  free  |
    two laps in use       |  [lap .. head)  free  [released .. lap)  unused  |

Invariants:
- released <= head, head - released <= ring size, and bytes between the two are never reserved.
- A span of up to the whole ring fits once everything is released, wherever the head stands.
- A lap ends early when the beginning of the ring is free and the lap is longer than `hot_bytes` and than twice what is in use: the
  bytes in use then stay in the processor's cache. Measured: writing 64 KiB spans takes half the time that it takes round a 64 MiB ring.
"""

from __future__ import annotations

from .errors import ShmError

SPAN_ALIGNMENT_BYTES = 64
HOT_BYTES = 8 << 20
"""The default of `hot_bytes`: well inside the cache that cores share, and enough for a writer that outruns its reader by milliseconds."""


def align_up(size_bytes: int, alignment_bytes: int) -> int:
    """Round up to the next multiple of `alignment_bytes`, a power of two."""
    return (size_bytes + alignment_bytes - 1) & -alignment_bytes


class RingAllocator:
    """The producer's account of one ring; at most one reservation is open.

    Args:
        size_bytes: bytes of the ring, a multiple of 64.
        head: position to start from, everything before it being released.
        hot_bytes: shortest lap that may end before the ring does.
    """

    __slots__ = ("_lap", "_lap_before", "_open_bytes", "_open_offset", "head", "hot_bytes", "size_bytes")

    def __init__(self, size_bytes: int, *, head: int = 0, hot_bytes: int = HOT_BYTES) -> None:
        if size_bytes < SPAN_ALIGNMENT_BYTES or size_bytes % SPAN_ALIGNMENT_BYTES:
            raise ShmError(f"a ring of {size_bytes} bytes: expected a multiple of {SPAN_ALIGNMENT_BYTES}")
        self.size_bytes = size_bytes
        self.hot_bytes = min(hot_bytes, size_bytes)
        self.head = head
        self._lap = head
        self._lap_before = head
        self._open_offset = 0
        self._open_bytes = 0

    def reserve(self, size_bytes: int, released: int) -> int | None:
        """Open a reservation of `size_bytes` and return its offset, or None while bytes in use are in the way.

        Raises:
            ShmError: it is larger than the ring, another one is open, or `released` is ahead of the head.
        """
        head = self.head
        if not 0 < size_bytes <= self.size_bytes or self._open_bytes or released > head:
            raise self._refusal(size_bytes, released)
        offset = head - self._lap
        end = offset + size_bytes
        if released < self._lap:
            fits = end <= released - self._lap_before
        elif end <= self.hot_bytes:
            fits = True
        elif self._may_start_over(offset, size_bytes, released):
            offset = 0
            fits = True
        else:
            fits = end <= self.size_bytes
        if not fits:
            return None
        self._open_offset = offset
        self._open_bytes = size_bytes
        return offset

    def commit(self, used_bytes: int) -> int:
        """End the open reservation, of which the first `used_bytes` were written, and return the position behind the span.

        Raises:
            ShmError: none is open, or it is smaller. Nothing used is for `cancel`.
        """
        if not 0 < used_bytes <= self._open_bytes:
            raise ShmError(f"commit of {used_bytes} bytes of an open reservation of {self._open_bytes}")
        if self._open_offset == 0:
            self._lap_before = self._lap
            self._lap = self.head
        self.head += (used_bytes + SPAN_ALIGNMENT_BYTES - 1) & -SPAN_ALIGNMENT_BYTES
        self._open_bytes = 0
        return self.head

    def cancel(self) -> None:
        """Forget the open reservation, if there is one."""
        self._open_bytes = 0

    def _may_start_over(self, offset: int, size_bytes: int, released: int) -> bool:
        """Whether the next lap may start now, the lap in use ending at `offset`."""
        if released == self.head:
            return True
        start_free = released - self._lap
        is_needed = offset + size_bytes > self.size_bytes
        return size_bytes <= start_free and (is_needed or 2 * start_free >= offset)

    def _refusal(self, size_bytes: int, released: int) -> ShmError:
        if self._open_bytes:
            return ShmError("a reservation is open: commit or cancel it before the next one")
        if released > self.head:
            return ShmError(f"position {released} is released but the ring was only written up to {self.head}")
        return ShmError(f"a span of {size_bytes} bytes: expected 1 to the ring's {self.size_bytes}")
