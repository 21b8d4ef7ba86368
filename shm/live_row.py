"""Rows of a counters page, read again and again by a process that does not write them: one is found once, not at every look; all of a
kind are read in one pass.

Owner: the reader. A row that is dropped, or whose region is begun anew by another process, is looked for again by itself.
"""

from __future__ import annotations

from .counters import (
    _LABEL_OFFSET_BYTES,
    _REGION_HEADER_BYTES,
    _ROW_BYTES,
    _ROW_KIND,
    _ROW_WORDS,
    _VALUES_OFFSET_BYTES,
    _VALUES_WORD,
    LABEL_BYTES,
    VALUES_PER_ROW,
    CountersPage,
    _decode_label,
    _encode_label,
    _fitting,
)
from .words import WORD_BYTES, Words


class LiveRow:
    """Values of the row of one kind and label in one region; all 0 while there is no such row."""

    def __init__(self, page: CountersPage, region: int, kind: int, label: str) -> None:
        """Raises ShmError: no such region."""
        self._memory = page._region_memory(region)
        self._kind = kind
        self._label = _encode_label(_fitting(label))
        self._start = 0
        self._head: Words | None = None
        self._values: Words | None = None

    def load(self, index: int) -> int:
        """One value, whole at any time; 0 while there is no such row. Raises ShmError when the index is over 31."""
        values = self._find()
        return 0 if values is None else values.load(index)

    def load_all(self) -> list[int]:
        """All 32 values, first to last; they are not a snapshot of one moment."""
        values = self._find()
        return [0] * VALUES_PER_ROW if values is None else values.load_many(0, VALUES_PER_ROW)

    def __repr__(self) -> str:
        return f"<LiveRow kind={self._kind} label={self._label.rstrip(bytes(1)).decode()!r} found={self._find() is not None}>"

    def _find(self) -> Words | None:
        if self._head is not None and self._head.load(_ROW_KIND) == self._kind and self._is_mine(self._start):
            return self._values
        self._head = self._values = None
        for start in _starts_of(self._memory, self._kind):
            if self._is_mine(start):
                self._start = start
                self._head = Words(self._memory, start, 2)
                self._values = Words(self._memory, start + _VALUES_OFFSET_BYTES, VALUES_PER_ROW)
                break
        return self._values

    def _is_mine(self, start: int) -> bool:
        at = start + _LABEL_OFFSET_BYTES
        return bytes(self._memory[at : at + len(self._label)]) == self._label


def read_rows(page: CountersPage, region: int, kind: int, count: int) -> dict[str, list[int]]:
    """The first `count` values of all rows of one kind in a region, by label, in one pass. Each value is whole; they are not a snapshot
    of one moment. Raises ShmError: no such region."""
    memory = page._region_memory(region)
    words = memory.cast("Q")
    found: dict[str, list[int]] = {}
    for start in _starts_of(memory, kind):
        first, label_at = start // WORD_BYTES, start + _LABEL_OFFSET_BYTES
        label = bytes(memory[label_at : label_at + LABEL_BYTES])
        values = words[first + _VALUES_WORD : first + _VALUES_WORD + count].tolist()
        # Else it was freed meanwhile, and has perhaps begun to be another one.
        if words[first + _ROW_KIND] == kind and bytes(memory[label_at : label_at + LABEL_BYTES]) == label:
            found[_decode_label(label)] = values
    return found


def _starts_of(memory: memoryview, kind: int) -> list[int]:
    """Where the rows of that kind begin, in bytes. There may be many thousands: their kinds are read at once."""
    kinds = memory[_REGION_HEADER_BYTES:].cast("Q")[_ROW_KIND::_ROW_WORDS].tolist()
    return [_REGION_HEADER_BYTES + number * _ROW_BYTES for number, each in enumerate(kinds) if each == kind]
