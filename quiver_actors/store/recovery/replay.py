"""A log of ours at open, read once: while its entries are checked, the books of the segment that it becomes are written.

Owner: one `Recovery`. What is taken goes to the builder as bundle i = sequence first_sequence + i; where sequences are missing, bundles
are lost and keep their numbers. Entries of one slot without dictionaries that look alike, which is what a log of small bundles is made of,
are taken many at a time (`alike`); any other one by one, with the same result.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from quiver_actors.base.checksum import crc32
from quiver_actors.base.model import ENVELOPE_SLOT, SEGMENT_BUNDLES_MAX
from quiver_actors.store.segment.builder import SegmentBuilder
from quiver_actors.store.staged.keys import KeyRun, key_of
from quiver_actors.store.wal import layout
from quiver_actors.store.wal.alike import Form, Integers, form_of
from quiver_actors.store.wal.codec import Identity
from quiver_actors.store.wal.reader import Span
from quiver_actors.store.wal.recovery import RecoveredEntry, parse_entry

_RUN_ENTRIES_MIN = 6
"""The fewest entries that are taken as a run: fewer are taken faster one by one."""
_SINGLE_ENTRIES = 32
"""How many entries are taken one by one before it is tried again whether those that follow are alike."""


class Replay:
    """Takes the entries of one log of ours, and writes the books of the segment that the log becomes.

    Attributes:
        builder: the segment's books.
        unusable: entries whose CRC holds and that are still no bundles of this log: behind one with a higher number, of a type that
            nobody knows, or with payloads that cannot be used. The number of the latter two is that of a lost bundle.
        lost: indexes of bundles that are missing between others.
        keys: what idempotent producers have stored, by producer.
        crc: CRC-32 of the bytes `[0, end)` of the file; None if something stood between entries.
        end: behind the last entry taken.
        foreign: entries of another writer, who has gone on in this file: those with a sequence that no bundle of this log can have
            (right behind damage they are unusable), those whose payloads are not aligned, and all from the first one on that does not
            stand where one of ours can. They are not taken: they are adopted.
    """

    def __init__(self, header: bytes, identity: Identity, read: Callable[[int, int], bytes]) -> None:
        """
        Args:
            header: the first bytes of the file, up to where entries begin.
            read: `read(length, offset)` of the file, for dictionaries; used while entries are taken only.
        """
        self.builder = SegmentBuilder(identity.segment_seq, lambda offset, length: read(length, offset))
        self.unusable: list[Span] = []
        self.lost: list[int] = []
        self.keys: list[tuple[str, KeyRun]] = []
        self.crc: int | None = crc32(header)
        self.end = len(header)
        self.foreign: list[Span] = []
        self._is_left = False
        """Whether another writer's entries have begun, which are not aligned."""
        self._reached = len(header)
        self._is_doubtful = False
        """Whether no bundle of this log was met since a damaged span: what stands there may be a log that a producer stored as data."""
        self._first_sequence = identity.first_sequence
        self._sequence_end = identity.first_sequence + SEGMENT_BUNDLES_MAX
        self._form: Form | None = None

    def take(self, memory: memoryview, offset: int, ends: list[int]) -> None:
        """See `reader.Take`."""
        self._is_doubtful = self._is_doubtful or offset != self._reached
        self._reached = offset + ends[-1]
        own = 0 if self._is_left else _aligned_count(offset, ends)
        if own:
            self._take_own(memory, offset, ends[:own])
        if own < len(ends):
            self._leave(offset, [0, *ends][own:])

    def _leave(self, offset: int, bounds: list[int]) -> None:
        self._is_left = True
        self.foreign += [Span(offset + start, offset + end) for start, end in pairwise(bounds)]

    def _take_own(self, memory: memoryview, offset: int, ends: list[int]) -> None:
        contiguous = self.crc is not None and offset == self.end
        self.crc = crc32(memory[: ends[-1]], self.crc or 0) if contiguous else None
        self.end = offset + ends[-1]
        bounds = np.array([0, *ends])
        first, count = 0, len(ends)
        while first < count:
            taken = self._take_alike(memory, offset, bounds[first:])
            if not taken:
                taken = min(count - first, _SINGLE_ENTRIES)
                for start, end in zip(bounds[first:].tolist(), ends[first : first + taken], strict=False):
                    self._take_one(memory, offset, start, end)
            first += taken

    def skip_to(self, sequence: int) -> None:
        """Count the bundles before that one which were not taken as lost."""
        for missing in range(self._next_sequence, sequence):
            self.lost.append(self.builder.append(missing, 0, 0, 0, ()))

    @property
    def _next_sequence(self) -> int:
        return self._first_sequence + self.builder.bundle_count

    def _take_one(self, memory: memoryview, offset: int, start: int, end: int) -> None:
        span = Span(offset + start, offset + end)
        entry = parse_entry(memory[start + layout.ENTRY_LENGTH_BYTES : end - layout.ENTRY_CRC.size], span)
        is_own = self._first_sequence <= entry.sequence < self._sequence_end
        if not (is_own and entry.is_aligned):
            (self.unusable if self._is_doubtful and not self.foreign else self.foreign).append(span)
            return
        self._is_doubtful = False
        if entry.sequence < self._next_sequence:
            self.unusable.append(span)
            return
        self.skip_to(entry.sequence)
        if entry.error or entry.entry_type != layout.ENTRY_TYPE_BUNDLE:
            self.unusable.append(span)
            self.skip_to(entry.sequence + 1)
            return
        index = self.builder.append(entry.sequence, entry.ingestion_ts_nanos, -1, end - start, entry.placements)
        if entry.placements and entry.placements[-1][0].slot_id == ENVELOPE_SLOT:
            self._note_key(memory, offset, index, entry)

    def _note_key(self, memory: memoryview, offset: int, index: int, entry: RecoveredEntry) -> None:
        def read(length: int, at: int) -> bytes:
            return bytes(memory[at - offset : at - offset + length])

        if key := key_of(entry.placements, read):
            self.keys.append((key[0], KeyRun(key[1], 1, self.builder.segment_seq, index, entry.sequence)))

    # --- many at a time ------------------------------------------------------------------------------------------------------

    def _take_alike(self, memory: memoryview, offset: int, bounds: Integers) -> int:
        """Take the first entries as a run. Returns how many; 0: there are too few of them that look alike."""
        if len(bounds) <= _RUN_ENTRIES_MIN:
            return 0
        form = self._form
        if form is None or not form.fits(memory, int(bounds[0]), int(bounds[1])):
            form = self._form = form_of(memory, int(bounds[0]), int(bounds[1]))
        run = None if form is None else form.columns(memory, offset, bounds)
        if run is None or len(run.byte_counts) < _RUN_ENTRIES_MIN or run.first_sequence < self._next_sequence:
            return 0
        count = len(run.byte_counts)
        if run.first_sequence + count > self._sequence_end:
            return 0
        self._is_doubtful = False
        self.skip_to(run.first_sequence)
        self.builder.append_run(run)
        return count


def _aligned_count(offset: int, ends: list[int]) -> int:
    """How many of the first entries start, and end, where entries of ours do."""
    bounds = np.array([0, *ends]) + offset
    misaligned = np.flatnonzero(bounds % layout.ALIGNMENT != layout.ENTRY_START_MOD)
    return len(ends) if not len(misaligned) else max(0, int(misaligned[0]) - 1)
