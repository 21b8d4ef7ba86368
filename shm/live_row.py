"""Rows of a counters page, read again and again by a process that does not write them: one row is searched for once, not at every look;
all rows of a kind are read in one pass.

Owner: the reader. A row that is dropped, or whose region is begun anew by another process, is looked for again by itself.
"""

from __future__ import annotations

from .counters import CountersPage
from .counters_layout import (
    LABEL_BYTES,
    LABEL_OFFSET_BYTES,
    REGION_HEADER_BYTES,
    ROW_BYTES,
    ROW_KIND,
    ROW_WORDS,
    VALUES_OFFSET_BYTES,
    VALUES_PER_ROW,
    VALUES_WORD,
    decode_label,
    encode_label,
    fitting_label,
)
from .words import WORD_BYTES, Words


class LiveRow:
    """Values of the row of one kind and label in one region; all 0 while there is no such row."""

    def __init__(self, page: CountersPage, region: int, kind: int, label: str) -> None:
        """Raises ShmError: no such region."""
        self._memory = page.region_memory(region)
        self._kind = kind
        self._label = encode_label(fitting_label(label))
        self._start = 0
        self._head: Words | None = None
        self._values: Words | None = None

    def load(self, index: int) -> int:
        """One value, whole at any time; 0 while there is no such row. Raises ShmError when a row has no such value."""
        values = self._find()
        return 0 if values is None else values.load(index)

    def load_all(self) -> list[int]:
        """All values of the row, first to last; they are not a snapshot of one moment."""
        values = self._find()
        return [0] * VALUES_PER_ROW if values is None else values.load_many(0, VALUES_PER_ROW)

    def __repr__(self) -> str:
        return f"<LiveRow kind={self._kind} label={self._label.rstrip(bytes(1)).decode()!r} found={self._find() is not None}>"

    def _find(self) -> Words | None:
        if self._head is not None and self._head.load(ROW_KIND) == self._kind and self._is_mine(self._start):
            return self._values
        self._head = self._values = None
        for start in _starts_of(self._memory, self._kind):
            if self._is_mine(start):
                self._start = start
                self._head = Words(self._memory, start, 2)
                self._values = Words(self._memory, start + VALUES_OFFSET_BYTES, VALUES_PER_ROW)
                break
        return self._values

    def _is_mine(self, start: int) -> bool:
        at = start + LABEL_OFFSET_BYTES
        return bytes(self._memory[at : at + len(self._label)]) == self._label


def read_rows(page: CountersPage, region: int, kind: int, count: int) -> dict[str, list[int]]:
    """The first `count` values of all rows of one kind in a region, by label, in one pass. Each value is whole; they are not a snapshot
    of one moment. Raises ShmError: no such region."""
    memory = page.region_memory(region)
    words = memory.cast("Q")
    found: dict[str, list[int]] = {}
    for start in _starts_of(memory, kind):
        first, label_at = start // WORD_BYTES, start + LABEL_OFFSET_BYTES
        label = bytes(memory[label_at : label_at + LABEL_BYTES])
        values = words[first + VALUES_WORD : first + VALUES_WORD + count].tolist()
        # Else the row was freed meanwhile, and may have become another one.
        if words[first + ROW_KIND] == kind and bytes(memory[label_at : label_at + LABEL_BYTES]) == label:
            found[decode_label(label)] = values
    return found


def _starts_of(memory: memoryview, kind: int) -> list[int]:
    """Where the rows of that kind begin, in bytes. There may be many thousands: their kinds are read at once."""
    kinds = memory[REGION_HEADER_BYTES:].cast("Q")[ROW_KIND::ROW_WORDS].tolist()
    return [REGION_HEADER_BYTES + number * ROW_BYTES for number, each in enumerate(kinds) if each == kind]
