"""Many small bundles of the same streams, laid out at once: what `push_many` of like bundles takes instead of a plan each.

A run's entries (encoding/entries.py has the layout) are laid out in warm private memory, in one of two ways, and copied into the ring with
one call. What that saves: `python -m benchmarks.push_cost`, docs/performance.md.

    run_layout.py    Arrow writes every batch
    forms.py         batches that differ in their values alone, as those of the last run did: numpy fills these in

Streams with dictionaries and large batches go another way (`entries.plan`).
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from quiver_actors.base.units import KIB
from quiver_actors.store.encoding.entries import ROWS_MAX, PushRows
from quiver_actors.store.encoding.forms import RunBuffer, RunForm, form_of
from quiver_actors.store.encoding.run_layout import RunLayout, Streams, layout_of
from quiver_actors.store.encoding.streams import EncodedStream

RUN_BUNDLES_MIN = 12
"""The fewest bundles that are laid out as a run: with fewer, a plan for each costs less."""
MESSAGES_BYTES_MAX = 8 * KIB
"""Schema messages of all slots up to here: what stands between two batches is kept ready in 64 lengths."""

_POOL_MAX = 4
_FORMS_MAX = 16


class RunMemory:
    """Buffers that runs are laid out in, used again so that their pages stay mapped and warm, and how the last ones were laid out. May be
    used by several threads."""

    def __init__(self) -> None:
        self._free: list[RunBuffer] = []
        self._forms: dict[tuple[Streams, tuple[int, ...]], RunForm] = {}
        """The last form of the bundles with these streams and, in each slot, this number of rows."""
        self.layout: RunLayout | None = None
        """The layout of the last run that Arrow wrote."""

    def take(self) -> RunBuffer:
        """Take a buffer out of the pool, or a new one; the caller owns it until `give_back`."""
        try:
            # One step: another thread may take the last buffer between a look and the pop.
            return self._free.pop()
        except IndexError:
            return RunBuffer()

    def give_back(self, buffer: RunBuffer) -> None:
        """Return a buffer to the pool; a full pool drops it."""
        if len(self._free) < _POOL_MAX:
            self._free.append(buffer)

    def form(self, streams: Streams, rows: tuple[int, ...]) -> RunForm | None:
        """The last form of bundles whose slots have these streams and these numbers of rows; None if there is none."""
        return self._forms.get((streams, rows))

    def keep_form(self, form: RunForm, rows: tuple[int, ...]) -> None:
        """Remember the form of runs with these streams and numbers of rows."""
        if len(self._forms) >= _FORMS_MAX:
            self._forms.clear()
        self._forms[form.streams, rows] = form

    def forget_form(self, streams: Streams, rows: tuple[int, ...]) -> None:
        """Forget the form of runs with these streams and numbers of rows; nothing happens if there is none."""
        self._forms.pop((streams, rows), None)


class PlannedRun:
    """A run, encoded. Keeps the batches alive until they are acknowledged, its memory until it is written."""

    __slots__ = ("_batches", "_buffer", "_item_counts", "_pool", "_rows", "_streams", "size_bytes")

    def __init__(
        self,
        streams: Streams,
        batches: Sequence[pa.RecordBatch],
        item_counts: Sequence[int | None],
        rows: tuple[bytes, bytes],
        size_bytes: int,
        lease: tuple[RunMemory, RunBuffer],
    ) -> None:
        self.size_bytes = size_bytes
        self._streams = streams
        self._batches = batches
        self._item_counts = item_counts
        self._rows = rows
        self._pool = lease[0]
        self._buffer: RunBuffer | None = lease[1]

    def __len__(self) -> int:
        return len(self._item_counts)

    @property
    def streams_max(self) -> int:
        """The number of `streams`, which all bundles of the run share."""
        return len(self._streams)

    @property
    def streams(self) -> set[EncodedStream]:
        """The encoded streams to which the run's batches belong."""
        return set(self._streams)

    def write(self, ring: memoryview, offset: int) -> PushRows:
        """Lay the entries at `ring[offset : offset + size_bytes]`, once."""
        assert self._buffer is not None, "a run is written once"
        ring[offset : offset + self.size_bytes] = self._buffer.memory[: self.size_bytes]
        self._pool.give_back(self._buffer)
        self._buffer = None
        rows = PushRows()
        rows.entries.append(self._rows[0])
        rows.slots.append(self._rows[1])
        rows.streams.update(self._streams)
        return rows

    def bundles_from(self, first: int) -> list[tuple[list[tuple[int, pa.RecordBatch]], int | None]]:
        """Batches by slot, and item counts, of the bundles from index `first` on."""
        slot_ids = [stream.slot_id for stream in self._streams]
        count = len(slot_ids)
        return [
            ([*zip(slot_ids, self._batches[number * count : (number + 1) * count], strict=True)], item_count)
            for number, item_count in enumerate(self._item_counts[first:], first)
        ]


def fits_run(streams: Streams) -> bool:
    """Whether bundles of those streams may make a run."""
    messages_bytes = 0
    for stream in streams:
        if stream.has_dictionaries or len(stream.message) % 8:
            return False
        messages_bytes += len(stream.message)
    return messages_bytes <= MESSAGES_BYTES_MAX


def plan_run(
    pool: RunMemory, streams: Streams, batches: Sequence[pa.RecordBatch], item_counts: Sequence[int | None]
) -> PlannedRun | None:
    """Lay out as many of the bundles as fit and can be encoded, from the first one on; None if that is not even the first.

    Args:
        streams: of all bundles, such that `fits_run`.
        batches: those of all slots, bundle by bundle.
        item_counts: one for each bundle, in the range that an entry allows.
    """
    rows = [batch.num_rows for batch in batches]
    if sum(rows) > ROWS_MAX:
        return None
    of_first = rows[: len(streams)]
    form = pool.form(streams, tuple(of_first))
    if form is not None and rows == of_first * len(item_counts):
        filled = _fill(pool, form, batches, item_counts)
        if filled is not None:
            return filled
        pool.forget_form(streams, tuple(of_first))
    return _write(pool, streams, batches, rows, item_counts)


def _fill(
    pool: RunMemory, form: RunForm, batches: Sequence[pa.RecordBatch], item_counts: Sequence[int | None]
) -> PlannedRun | None:
    """The run laid out in the form; None if the bundles do not fit the form."""
    count = min(len(item_counts), form.entries_max)
    batches, item_counts = batches[: count * len(form.streams)], item_counts[:count]
    buffer = pool.take()
    crcs = buffer.fill(form, batches)
    if crcs is None:
        pool.give_back(buffer)
        return None
    size_bytes = count * len(form.entry)
    return PlannedRun(form.streams, batches, item_counts, form.rows(crcs, item_counts), size_bytes, (pool, buffer))


def _write(
    pool: RunMemory,
    streams: Streams,
    batches: Sequence[pa.RecordBatch],
    rows: list[int],
    item_counts: Sequence[int | None],
) -> PlannedRun | None:
    """The run as Arrow writes it; None if not even its first bundle fits and can be encoded."""
    buffer = pool.take()
    ends = buffer.write(streams, batches)
    if not ends:
        pool.give_back(buffer)
        return None
    count = len(ends)
    batches, rows, item_counts = batches[:count], rows[:count], item_counts[: count // len(streams)]
    layout = pool.layout
    if layout is None or not layout.is_of(streams, buffer.memory, ends, rows):
        layout = pool.layout = layout_of(streams, buffer.memory, ends, rows)
    form = form_of(streams, batches, buffer.memory, layout)
    if form is not None:
        pool.keep_form(form, tuple(rows[: len(streams)]))
    packed = layout.fill(buffer.memory, item_counts)
    return PlannedRun(streams, batches, item_counts, packed, layout.size_bytes, (pool, buffer))
