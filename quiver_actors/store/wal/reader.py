"""Reading a log file back: every entry whose CRC holds, and every span that is damaged. Read only, no decisions.

Memory: one chunk, or one entry where that is larger, used again for the next. Works over any `read(length, offset)`, so a simulated disk,
a real file and a byte string are read by the same code. Entries that lie whole in a chunk are checked where they stand; only one that
straddles two is moved to the front of the chunk, and the rest of it read behind it.

An entry is valid when its length is plausible and its CRC matches. Behind an invalid entry the scanner looks for the next
valid one: where the length field points, if just one sequence is missing then; otherwise on every offset where an entry could
start (64 apart in our files), because the length field itself may be the damage and point behind entries that are whole. An entry
with just one sequence missing before it is preferred also there, so that logs which a producer stores as data are not mistaken. Where
nothing is found 64 apart, every offset is tried: another writer may have appended to a file of ours, without alignment.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from quiver_actors.base.checksum import crc32
from quiver_actors.store.wal import layout
from quiver_actors.store.wal.codec import plausible_entry_length
from quiver_actors.store.wal.equal_lengths import valid_run

CHUNK_BYTES = 1 << 20
WINDOW_BYTES_MAX = 16 << 20
"""Entries up to this size are read whole, if chunks are not much smaller; larger ones in pieces."""
_CHUNKS_PER_WINDOW = 16
_PIECE_BYTES = 64 << 10
"""A chunk is read in pieces that come and go in memory which stays warm: a byte string of a megabyte is new pages each time."""
_ALONE_BYTES = 16 << 10
"""Bytes of entries that are checked one by one before the reader tries again whether many of one length follow."""
_BODY_BYTES_MAX = layout.ENTRY_BYTES_MAX - layout.ENTRY_OVERHEAD_BYTES
_SEQUENCE_MAX = 1 << 64
_SEQUENCES_LOST_MAX = 1 << 20
"""More sequences than fit into a log file of ours: a greater jump is no gap but something that only looks like an entry."""
_SEQUENCE_TOP_OFFSET = 19
"""Bytes 19 and 20 of an entry are the top of its sequence: zero until 2**48 bundles. Keeps random bytes from looking
like entries, each of which would cost a CRC over its claimed length."""


@dataclass(frozen=True, slots=True)
class Span:
    """Half-open byte range of a file."""

    start: int
    end: int


@dataclass(slots=True)
class LogScan:
    """Result of a scan of a log file."""

    damaged: list[Span] = field(default_factory=list)
    end: int = 0
    """Where the written part ends: behind the last valid entry."""
    end_marked: bool = False
    """Whether a zero length field, or the end of the file, is at `end`; otherwise the bytes of a torn entry are there."""
    _starts: array[int] = field(default_factory=lambda: array("q"))
    _ends: array[int] = field(default_factory=lambda: array("q"))

    @property
    def entries(self) -> tuple[Span, ...]:
        """Whole entries (length field to CRC), ascending. Made anew at each call."""
        return tuple(map(Span, self._starts, self._ends))

    @property
    def entry_count(self) -> int:
        """Number of entries that the scan has found."""
        return len(self._ends)

    @property
    def last(self) -> Span:
        """The last entry; there must be one."""
        return Span(self._starts[-1], self._ends[-1])

    def add(self, start: int, ends: list[int]) -> None:
        """Entries that stand one behind the other from `start` on."""
        self._starts.append(start)
        self._starts.extend(ends[:-1])
        self._ends.extend(ends)
        self.end = ends[-1]


Take = Callable[[memoryview, int, list[int]], None]
"""`take(memory, offset, ends)`: valid entries one behind the other, as they stand at `offset` of the file. The first starts at the
memory's start, each ends at one of the `ends`, also counted from there. The memory is borrowed for the call."""


class LogReader:
    """A chunk-wise view of one log file.

    Args:
        read: `read(length, offset)`, like `DiskFile.read`.
        size_bytes: how far to look; bytes behind it do not exist.
        chunk_bytes: how much is read at once; any value gives the same result.
    """

    def __init__(self, read: Callable[[int, int], bytes], size_bytes: int, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._read = read
        self._size = size_bytes
        self._chunk_bytes = chunk_bytes
        self._base = 0
        self._memory = memoryview(bytearray())
        """The memory of all chunks, used again and again: fresh pages for every chunk would cost as much as reading it."""
        self._chunk = self._memory
        """The part of the memory that holds the file's bytes from `_base` on."""

    def bytes_at(self, offset: int, length: int) -> memoryview:
        """`length` bytes at `offset`, fewer at the end of the file. Valid until the next call."""
        start = offset - self._base
        if start < 0 or start + length > len(self._chunk):
            self._fill(offset, max(length, min(self._chunk_bytes, self._size - offset)))
            start = 0
        return self._chunk[start : start + length]

    def _fill(self, offset: int, length: int) -> None:
        """Let the chunk be what stands at `offset`; what is at hand of it is not read again."""
        at_hand = self._chunk[max(0, offset - self._base) :] if offset >= self._base else self._chunk[:0]
        kept = len(at_hand)
        memory = self._memory if length <= len(self._memory) else memoryview(bytearray(length))
        # A read that fails leaves nothing at hand: what was there is being written over.
        self._chunk = self._memory[:0]
        if memory is not self._memory or offset != self._base:
            # Moves within one memory where it is the same one: a slice assignment is a memmove.
            memory[:kept] = at_hand
        filled = kept
        while filled < length:
            piece = self._read(min(_PIECE_BYTES, length - filled), offset + filled)
            if not piece:
                break
            memory[filled : filled + len(piece)] = piece
            filled += len(piece)
        self._memory, self._base, self._chunk = memory, offset, memory[:filled]

    def is_zero(self, start: int) -> bool:
        """Whether nothing but zeroes stands from `start` on."""
        offsets = range(start, self._size, self._chunk_bytes)
        return not any(_any(self.bytes_at(at, min(self._chunk_bytes, self._size - at))) for at in offsets)

    def body(self, entry: Span) -> bytes:
        """The body of a valid entry."""
        start = entry.start + layout.ENTRY_LENGTH_BYTES
        return bytes(self.bytes_at(start, entry.end - layout.ENTRY_CRC.size - start))

    def checksum_of(self, entry: Span) -> int:
        """The CRC-32 that stands at the end of a valid entry."""
        crc_bytes = layout.ENTRY_CRC.size
        return int.from_bytes(self.bytes_at(entry.end - crc_bytes, crc_bytes), "little")

    def scan(self, start: int, stride: int, last_sequence: int | None = None, *, take: Take | None = None) -> LogScan:
        """Find all entries from `start` on.

        Args:
            stride: distance of possible entry starts (64 in our files, else 1).
            last_sequence: that of the entry before the first one, where it is known.
            take: gets every entry, so that nobody has to read them again.
        """
        found = LogScan(end=start)
        offset = start
        while True:
            memory, ends = self._valid_entries_at(offset)
            if not ends:
                entry = self._valid_entry_at(offset) or self._next_valid_entry(offset, stride, last_sequence)
                if entry is None and stride > 1:
                    # Another writer may have gone on in this file: its entries start anywhere, and in an empty log with any sequence.
                    known = last_sequence if found.entry_count else None
                    entry = self._next_valid_entry(offset, 1, known)
                if entry is None:
                    break
                if entry.start > offset:
                    found.damaged.append(Span(offset, entry.start))
                offset, ends = entry.start, [entry.end - entry.start]
                memory = self.bytes_at(offset, ends[0]) if take is not None else memory
            if take is not None:
                take(memory, offset, ends)
            last_sequence = self.sequence_at(offset + (ends[-2] if len(ends) > 1 else 0))
            found.add(offset, [offset + end for end in ends])
            offset = found.end
        found.end_marked = not any(self.bytes_at(offset, min(layout.END_MARK_BYTES, self._size - offset)))
        return found

    def _valid_entries_at(self, offset: int) -> tuple[memoryview, list[int]]:
        """The bytes at hand from `offset` on, and where the valid entries end that stand whole at their beginning, one behind the other; no
        end if the first entry is not valid, or too large to be held."""
        memory = self._window_at(offset)
        ends: list[int] = []
        at, last = 0, len(memory) - layout.ENTRY_CRC.size
        number_at, checksum = layout.ENTRY_CRC.unpack_from, crc32
        alone_until = 0
        # What `_valid_entry_at` does, for a million entries a second.
        while at <= last:
            body = at + layout.ENTRY_LENGTH_BYTES
            end = body + number_at(memory, at)[0]
            if not body + layout.ENTRY_HEADER.size <= end <= last or end - body > _BODY_BYTES_MAX:
                break
            if checksum(memory[body:end]) != number_at(memory, end)[0]:
                break
            start, at = at, end + layout.ENTRY_CRC.size
            ends.append(at)
            if at >= alone_until:
                size = at - start
                count = valid_run(memory, start, size)
                ends += range(at + size, at + (count + 1) * size, size)
                at += count * size
                alone_until = at if count else at + _ALONE_BYTES
        return memory, ends

    def _window_at(self, offset: int) -> memoryview:
        """The bytes at hand from `offset` on, with a whole entry in them if one of a size that may be held stands there."""
        length = self._length_at(offset)
        wanted = layout.ENTRY_OVERHEAD_BYTES + (length or 0)
        if wanted > max(self._chunk_bytes, min(self._chunk_bytes * _CHUNKS_PER_WINDOW, WINDOW_BYTES_MAX)):
            return memoryview(b"")
        self.bytes_at(offset, min(wanted, max(0, self._size - offset)))
        return self._chunk[offset - self._base :]

    def _length_at(self, offset: int) -> int | None:
        """The length field at `offset` if an entry of that length could stand there."""
        available = self._size - offset - layout.ENTRY_LENGTH_BYTES
        if available <= 0:
            return None
        length = int.from_bytes(self.bytes_at(offset, layout.ENTRY_LENGTH_BYTES), "little")
        return length if plausible_entry_length(length, available) else None

    def _valid_entry_at(self, offset: int) -> Span | None:
        length = self._length_at(offset)
        if length is None:
            return None
        value, at, left = 0, offset + layout.ENTRY_LENGTH_BYTES, length
        while left:
            piece = self.bytes_at(at, min(left, self._chunk_bytes))
            if not piece:
                return None
            value = crc32(piece, value)
            at += len(piece)
            left -= len(piece)
        stored = int.from_bytes(self.bytes_at(at, layout.ENTRY_CRC.size), "little")
        return Span(offset, at + layout.ENTRY_CRC.size) if stored == value else None

    def has_entry_at(self, offset: int) -> bool:
        """Whether a valid entry starts there."""
        return self._valid_entry_at(offset) is not None

    def sequence_at(self, offset: int) -> int:
        """The sequence of the valid entry that starts there."""
        return int(layout.ENTRY_HEAD.unpack(self.bytes_at(offset, layout.ENTRY_HEAD.size))[3])

    def _next_valid_entry(self, offset: int, stride: int, last_sequence: int | None) -> Span | None:
        length = self._length_at(offset)
        pointed = self._valid_entry_at(offset + length + layout.ENTRY_OVERHEAD_BYTES) if length is not None else None
        if pointed is None:
            return self._search(offset + stride, self._size, stride, last_sequence, _SEQUENCE_MAX)
        next_sequence = self.sequence_at(pointed.start)
        if last_sequence is None or next_sequence == last_sequence + 2:
            return pointed
        return self._search(offset + stride, pointed.start, stride, last_sequence, next_sequence) or pointed

    def _search(self, start: int, end: int, stride: int, last_sequence: int | None, next_sequence: int) -> Span | None:
        """The first valid entry that starts in `[start, end)`, with a sequence between those two.

        One with just one sequence missing before it is preferred if it is not far behind.
        """
        found, at = None, start
        while found is None and at < end and at + layout.ENTRY_HEAD.size <= self._size:
            at_hand = self.bytes_at(at, min(CHUNK_BYTES, self._size - at))
            candidates, length = _candidates(at_hand, stride), len(at_hand)
            # Looking at one may read something else.
            window = bytes(at_hand) if candidates else b""
            for candidate in candidates:
                sequence = layout.ENTRY_HEAD.unpack_from(window, candidate)[3]
                if at + candidate >= end or not _is_between(last_sequence, sequence, next_sequence):
                    continue
                is_next = last_sequence is None or sequence == last_sequence + 2
                entry = self._valid_entry_at(at + candidate) if is_next or found is None else None
                if entry is not None and is_next:
                    return entry
                found = found or entry
            step = length - layout.ENTRY_HEAD.size + 1
            at += max(stride, step - step % stride)
        return found


def _is_between(last_sequence: int | None, sequence: int, next_sequence: int) -> bool:
    if last_sequence is None:
        return sequence < next_sequence
    return last_sequence < sequence < min(next_sequence, last_sequence + _SEQUENCES_LOST_MAX)


def _any(memory: memoryview) -> bool:
    """Whether there is a byte other than zero."""
    return bool(np.frombuffer(memory, np.uint8).any())


def _candidates(window: memoryview, stride: int) -> list[int]:
    """Offsets in `window`, multiples of `stride`, where the fixed bytes of an entry head look right."""
    if not _any(window):
        return []  # what was preallocated and never written
    data = np.frombuffer(window, np.uint8)
    count = len(data) - layout.ENTRY_HEAD.size + 1
    if count <= 0:
        return []

    def column(at: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        return data[at : at + count : stride]

    some_length = (column(0) | column(1) | column(2) | column(3)) != 0
    is_bundle = (column(4) == layout.ENTRY_TYPE_BUNDLE) | (column(4) == layout.ENTRY_TYPE_STAGED)
    right = some_length & (column(3) <= layout.ENTRY_BYTES_MAX >> 24) & is_bundle
    right &= (column(_SEQUENCE_TOP_OFFSET) == 0) & (column(_SEQUENCE_TOP_OFFSET + 1) == 0)
    return [int(at) * stride for at in np.flatnonzero(right)]
