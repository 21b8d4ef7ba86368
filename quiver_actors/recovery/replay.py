"""A log of ours at open, read once: while its entries are checked, the books of the segment that it becomes are written.

Owner: one `Recovery`. What is taken goes to the builder as bundle i = sequence first_sequence + i; where sequences are missing, bundles
are lost and keep their numbers. Entries of one slot without dictionaries that look alike, which is what a log of small bundles is made of,
are taken many at a time (`alike`); any other one by one, with the same result.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from quiver_actors.checksum import crc32
from quiver_actors.model import ENVELOPE_SLOT, SEGMENT_BUNDLES_MAX
from quiver_actors.segment.builder import SegmentBuilder
from quiver_actors.transactions.keys import KeyRun, key_of
from quiver_actors.wal import layout
from quiver_actors.wal.alike import Form, Integers, form_of
from quiver_actors.wal.codec import Identity
from quiver_actors.wal.reader import Span
from quiver_actors.wal.recovery import RecoveredEntry, parse_entry

_RUN_ENTRIES_MIN = 6
"""Fewer entries are taken faster one by one."""
_SINGLE_ENTRIES = 32
"""So many are taken one by one before it is tried again whether those that follow are alike."""


class Replay:
    """See the module.

    Attributes:
        builder: the segment's books.
        unusable: entries whose CRC holds and that are still no bundles of this log: with a number that none of its bundles can have, of
            a type that nobody knows, or with payloads that cannot be used. The number of the latter two is that of a lost bundle.
        lost: indexes of bundles that are missing between others.
        keys: what idempotent producers have stored, by producer.
        crc: CRC-32 of the bytes `[0, end)` of the file; None if something stood between entries.
        end: behind the last entry taken.
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
        self._first_sequence = identity.first_sequence
        self._sequence_end = identity.first_sequence + SEGMENT_BUNDLES_MAX
        self._form: Form | None = None

    def take(self, memory: memoryview, offset: int, ends: list[int]) -> None:
        """See `reader.Take`."""
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
        """Bundles before that one which were not taken are lost."""
        for missing in range(self._next_sequence, sequence):
            self.lost.append(self.builder.append(missing, 0, 0, 0, ()))

    @property
    def _next_sequence(self) -> int:
        return self._first_sequence + self.builder.bundle_count

    def _take_one(self, memory: memoryview, offset: int, start: int, end: int) -> None:
        span = Span(offset + start, offset + end)
        entry = parse_entry(memory[start + layout.ENTRY_LENGTH_BYTES : end - layout.ENTRY_CRC.size], span)
        if not self._is_expected(entry.sequence):
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

    def _is_expected(self, sequence: int) -> bool:
        return self._next_sequence <= sequence < self._sequence_end

    # --- many at a time ------------------------------------------------------------------------------------------------------

    def _take_alike(self, memory: memoryview, offset: int, bounds: Integers) -> int:
        """Take the first entries as a run. Returns how many; 0: there are too few of them that look alike."""
        if len(bounds) <= _RUN_ENTRIES_MIN:
            return 0
        form = self._form
        if form is None or not form.fits(memory, int(bounds[0]), int(bounds[1])):
            form = self._form = form_of(memory, int(bounds[0]), int(bounds[1]))
        run = None if form is None else form.columns(memory, offset, bounds)
        if run is None or len(run.byte_counts) < _RUN_ENTRIES_MIN or not self._is_expected(run.first_sequence):
            return 0
        count = len(run.byte_counts)
        if run.first_sequence + count > self._sequence_end:
            return 0
        self.skip_to(run.first_sequence)
        self.builder.append_run(run)
        return count
