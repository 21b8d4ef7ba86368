"""The writing side of a counters page: one process writes a region and its rows."""

from __future__ import annotations

from .counters_layout import (
    GENERATION,
    HEARTBEAT,
    LABEL_OFFSET_BYTES,
    PID,
    REGION_HEADER_BYTES,
    REGION_HEADER_WORDS,
    ROW_BYTES,
    ROW_KIND,
    ROW_SEQUENCE,
    ROW_WORDS,
    SEQUENCE,
    STARTED,
    STATE,
    VALUES_OFFSET_BYTES,
    VALUES_PER_ROW,
    decode_label,
    encode_label,
    fitting_label,
)
from .errors import ShmError
from .words import SequenceLock, Words


class RegionWriter:
    """The one writer of a region: a header and a table of rows. Not thread-safe. Making one writes nothing."""

    def __init__(self, memory: memoryview, region: int) -> None:
        """Take over a region's memory with the rows that are in it: use `CountersPage.writer`."""
        self.region = region
        self._memory = memory
        self._header = Words(memory, 0, REGION_HEADER_WORDS)
        self._lock = SequenceLock(self._header, SEQUENCE)
        self._rows: dict[tuple[int, str], RowWriter] = {}
        self._free: list[int] = []
        self._take_stock()

    @property
    def generation(self) -> int:
        """How often the region was begun."""
        return self._header.load(GENERATION)

    def begin(self, pid: int, started_unix_ns: int) -> None:
        """Start a new life of the region: next generation, no rows, state and heartbeat 0. Ends all row writers of this object."""
        header = self._header
        with self._lock:
            header.store(PID, pid)
            header.add(GENERATION, 1)
            header.store(STATE, 0)
            header.store(HEARTBEAT, 0)
            header.store(STARTED, started_unix_ns)
            for row in self._rows.values():
                row.end()
            # A writer that died may have left others.
            for index, kind in enumerate(self._kinds()):
                if kind:
                    self._row_at(index).end()
        self._take_stock()

    def set_state(self, state: int) -> None:
        """Store the writer's own state code."""
        self._header.store(STATE, state)

    def heartbeat(self, now_ns: int) -> None:
        """Say that the writer is alive at `now_ns` of CLOCK_MONOTONIC."""
        self._header.store(HEARTBEAT, now_ns)

    def row(self, kind: int, label: str) -> RowWriter:
        """The row of that kind and label: the one that exists, else a new one with all values 0.

        A label over 216 bytes of UTF-8 is cut at a character border.

        Raises:
            ShmError: the table is full, or the kind is not positive.
        """
        label = fitting_label(label)
        found = self._rows.get((kind, label))
        if found is not None:
            return found
        if kind < 1:
            raise ShmError(f"row kind {kind}: expected a positive number")
        if not self._free:
            raise ShmError(f"region {self.region} has no row left for {label!r}: all {self._row_count()} are in use")
        row = self._row_at(self._free.pop())
        row.begin(int(kind), label)
        self._rows[row.kind, label] = row
        return row

    def drop(self, row: RowWriter) -> None:
        """Free a row of this region and end its writer. Idempotent."""
        if self._rows.get((row.kind, row.label)) is row:
            del self._rows[row.kind, row.label]
            row.end()
            self._free.append(row.index)

    def relabel(self, row: RowWriter, label: str) -> None:
        """Give a row another label; its values stay.

        Raises:
            ShmError: another row of that kind has the label, or the row was dropped.
        """
        label = fitting_label(label)
        if self._rows.get((row.kind, row.label)) is not row:
            raise ShmError(f"row {row.label!r} is not a row of region {self.region}, or was dropped")
        if self._rows.get((row.kind, label), row) is not row:
            raise ShmError(f"region {self.region} has another row of kind {row.kind} with the label {label!r}")
        del self._rows[row.kind, row.label]
        row.relabel(label)
        self._rows[row.kind, label] = row

    def __repr__(self) -> str:
        return f"<RegionWriter region={self.region} generation={self.generation} rows={len(self._rows)}>"

    def _take_stock(self) -> None:
        kinds = self._kinds()
        rows = [self._row_at(index) for index, kind in enumerate(kinds) if kind]
        self._rows = {(row.kind, row.label): row for row in rows}
        self._free = [index for index in reversed(range(len(kinds))) if not kinds[index]]

    def _kinds(self) -> list[int]:
        """Return the kind of each row, read at once: of thousands of rows most are free."""
        kinds: list[int] = self._memory[REGION_HEADER_BYTES:].cast("Q")[ROW_KIND::ROW_WORDS].tolist()
        return kinds

    def _row_count(self) -> int:
        return self._memory.nbytes // ROW_BYTES

    def _row_at(self, index: int) -> RowWriter:
        start = REGION_HEADER_BYTES + index * ROW_BYTES
        return RowWriter(self._memory[start : start + ROW_BYTES], index)


class RowWriter:
    """The one writer of a row: `VALUES_PER_ROW` values of 64 bits, each visible to readers at once. Made by `RegionWriter.row`."""

    __slots__ = ("_label", "_lock", "_values", "_words", "index", "kind", "label")

    def __init__(self, memory: memoryview, index: int) -> None:
        """Take over a row's memory as it stands."""
        self.index = index
        self._words = Words(memory, 0, 2)
        self._lock = SequenceLock(self._words, ROW_SEQUENCE)
        self._label = memory[LABEL_OFFSET_BYTES:VALUES_OFFSET_BYTES]
        self._values = Words(memory, VALUES_OFFSET_BYTES, VALUES_PER_ROW)
        self.kind = self._words.load(ROW_KIND)
        self.label = decode_label(self._label.tobytes())

    def set(self, index: int, value: int) -> None:
        """Store a value; a negative one as 0. Raises ShmError when the row has no such value or was dropped."""
        self._values.store(index, value if value > 0 else 0)

    def add(self, index: int, delta: int) -> None:
        """Add to a value; below 0 it stays 0. Raises as `set`."""
        value = self._values.load(index) + delta
        self._values.store(index, value if value > 0 else 0)

    def get(self, index: int) -> int:
        """Read a value back. Raises as `set`."""
        return self._values.load(index)

    def __repr__(self) -> str:
        return f"<RowWriter index={self.index} kind={self.kind} label={self.label!r}>"

    def begin(self, kind: int, label: str) -> None:
        """Take the row into use, with all values 0. Only `RegionWriter` calls this, `relabel` and `end`."""
        with self._lock:
            for index in range(VALUES_PER_ROW):
                self._values.store(index, 0)
            self._label[:] = encode_label(label)
            self._words.store(ROW_KIND, kind)
        self.kind, self.label = kind, label

    def relabel(self, label: str) -> None:
        """Give the row another label; its values stay."""
        with self._lock:
            self._label[:] = encode_label(label)
        self.label = label

    def end(self) -> None:
        """Free the row: whoever still has this object can neither read nor write any more."""
        with self._lock:
            self._words.store(ROW_KIND, 0)
        self._values.release()
