"""Gathers bundles of a subscription into batches: takes, reads and cuts them by portions, and finds schemas that all conform to.

A batch holds bundles in the order in which they came, at most `max_rows` rows (more only where one bundle alone has more), with one
schema for each slot that all of them conform to. Every bundle is proven against its checksum before it enters a batch.

Nothing is made for a single bundle that can be read with others.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import pyarrow as pa

from quiver_actors.base.model import ENVELOPE_SLOT
from quiver_actors.client.delivery import ClaimedBundle
from quiver_actors.client.durations import nanoseconds
from quiver_actors.client.exchange import deadline_after, seconds_until
from quiver_actors.client.gaps import GapNotice
from quiver_actors.client.grants import Parcel, Portion
from quiver_actors.errors import DataLost, FormatError, NotStored, UsageError

_PORTION_MAX = 1024

Slots: TypeAlias = Mapping[int, pa.RecordBatch]
"""What bundles hold, by slot id, without the envelope."""

M = TypeVar("M")

logger = logging.getLogger("quiver.client")


class Part(NamedTuple):
    """Bundles that were read together, or one that was read alone."""

    portion: Portion
    slots: Slots
    """Rows of all of them, one behind the other."""
    row_counts: Mapping[int, int]
    """Rows that each of them has, by slot id."""
    rows_each: int
    """Rows of all slots of each of them."""
    bundle_count: int

    def part(self, first: int, stop: int) -> Part:
        """Return bundles `first` to `stop` of it. Copies nothing."""
        slots = {
            slot_id: batch.slice(first * self.row_counts[slot_id], (stop - first) * self.row_counts[slot_id])
            for slot_id, batch in self.slots.items()
        }
        return Part(self.portion.part(first, stop), slots, self.row_counts, self.rows_each, stop - first)


class Gathering:
    """The batch that is being made, of the bundles and gap notices that a subscription returns."""

    def __init__(
        self,
        max_rows: int,
        max_wait: float,
        idle_timeout: float | None,
        make: Callable[[Parcel, int, int], ClaimedBundle[Any]],
    ) -> None:
        """
        Args:
            max_wait: seconds from the first bundle of a batch until it is handed over, full or not.
            idle_timeout: seconds without a bundle after which there are no more batches; None: never.
            make: makes the delivery of a parcel's bundle, from its index and delivery count.

        Raises:
            UsageError: `max_rows` is less than 1, or `max_wait` is no number of seconds.
        """
        if max_rows < 1:
            raise UsageError(f"max_rows {max_rows} is not possible: expected at least 1")
        nanoseconds("max_wait", max_wait)
        self.has_ended = False
        """Nothing came for the idle timeout."""
        self._max_rows = max_rows
        self._max_wait = max_wait
        self._idle_timeout = idle_timeout
        self._make = make
        self._later: list[Part] = []
        self._notice: GapNotice | None = None
        """What comes behind the batch; nothing was taken after it."""
        self._rows_each = float(max_rows)
        """Rows that a bundle had on average, of the last batch that had any."""
        self._begin()

    @property
    def is_ready(self) -> bool:
        """Whether the batch is as large as it gets."""
        return self._is_full or (bool(self._parts) and time.monotonic_ns() >= self._deadline_ns)

    @property
    def bundles_wanted(self) -> int:
        """How many bundles to take next: few more than the batch has room for."""
        if not self._row_count and self._parts:
            return _PORTION_MAX
        rows_each = self._row_count / self._bundle_count if self._parts else self._rows_each
        return max(1, min(_PORTION_MAX, int((self._max_rows - self._row_count) / rows_each)))

    @property
    def timeout_seconds(self) -> float | None:
        """How long to wait for them."""
        return seconds_until(self._deadline_ns) if self._parts else self._idle_timeout

    def add(self, event: Portion | GapNotice | None) -> None:
        """Add what came in time; None: nothing. Damaged bundles are left out; what does not fit is kept for the next batch."""
        if event is None:
            self.has_ended = not self._parts
            self._is_full = True
        elif isinstance(event, GapNotice):
            self._notice = event
            self._is_full = True
        else:
            for part in self._read(event):
                self._place(part)

    def take(self, make: Callable[[Sequence[Part], Mapping[int, pa.Table]], M]) -> list[M | GapNotice]:
        """Return the batch, and the notice that comes behind it; empty when it has ended. Begin the next batch.

        Args:
            make: makes the batch of its bundles and the tables of their slots.
        """
        taken: list[M | GapNotice] = []
        if self._parts:
            tables = self._tables()
            taken.append(make(self._parts, tables))
        if self._notice is not None and not self._later:
            taken.append(self._notice)
            self._notice = None
        if self._row_count:
            self._rows_each = self._row_count / self._bundle_count
        self._begin()
        return taken

    def left(self) -> list[Portion | GapNotice]:
        """Return what was added and not taken, in its order."""
        portions: list[Portion | GapNotice] = [part.portion for part in (*self._parts, *self._later)]
        return portions if self._notice is None else [*portions, self._notice]

    def _begin(self) -> None:
        self._parts: list[Part] = []
        self._row_count = self._bundle_count = 0
        self._is_full = False
        self._deadline_ns = 0
        later, self._later = self._later, []
        for part in later:
            self._place(part)
        self._is_full |= self._notice is not None

    def _place(self, part: Part) -> None:
        """Put bundles into the batch, as many as fit, the others behind it."""
        if self._is_full:
            self._later.append(part)
            return
        rows_each, count = part.rows_each, part.bundle_count
        if self._row_count + count * rows_each > self._max_rows:
            count = (self._max_rows - self._row_count) // rows_each
        if not self._parts:
            self._deadline_ns = deadline_after(self._max_wait)
            count = max(1, count)
        if count < part.bundle_count:
            self._is_full = True
            self._later.append(part.part(count, part.bundle_count))
            part = part.part(0, count)
        if count:
            self._parts.append(part)
            self._bundle_count += count
            self._row_count += count * rows_each
            # Where all bundles are alike, one that does not fit is not taken to find that out.
            room_needed = rows_each if self._row_count == self._bundle_count * rows_each else 1
            self._is_full |= self._row_count + max(1, room_needed) > self._max_rows

    def _read(self, portion: Portion) -> Iterator[Part]:
        """Read bundles, together where they are alike. Those that cannot be read are left out."""
        done = 0
        try:
            runs = portion.parcel.segment.runs(portion.indexes)
        except FormatError:
            # Reading them one by one says of each what is wrong.
            runs = []
        for run in runs:
            yield from self._read_singly(portion, done, run.first)
            done = run.first + run.bundle_count
            rows_each = sum(run.row_counts.values())
            yield Part(portion.part(run.first, done), run.batches, run.row_counts, rows_each, run.bundle_count)
        yield from self._read_singly(portion, done, len(portion.indexes))

    def _read_singly(self, portion: Portion, first: int, stop: int) -> Iterator[Part]:
        segment = portion.parcel.segment
        for number in range(first, stop):
            single, index = portion.part(number, number + 1), portion.indexes[number]
            try:
                segment.check(index)
                slots: dict[int, pa.RecordBatch] | None = segment.bundle(index)
            except (FormatError, DataLost, NotStored, IndexError):
                slots = self._read_again(single)
            if slots is not None:
                slots.pop(ENVELOPE_SLOT, None)
                row_counts = {slot_id: batch.num_rows for slot_id, batch in slots.items()}
                yield Part(single, slots, row_counts, sum(row_counts.values()), 1)

    def _read_again(self, single: Portion) -> dict[int, pa.RecordBatch] | None:
        """Read one bundle as its delivery does, which tells the worker what is wrong; None: it cannot be read."""
        delivery = self._make(single.parcel, single.indexes[0], single.counts[0])
        try:
            return dict(delivery.slots)
        except (FormatError, DataLost, NotStored, IndexError) as error:
            # The worker was told, or knows: a gap notice comes in the place of a bundle that is damaged.
            logger.warning("quiver.subscription.left_out bundle=%s error=%s", delivery.bundle_id, error)
            return None

    def _tables(self) -> dict[int, pa.Table]:
        """Return the table of each slot. Bundles from the first one on that no common schema fits are left for the next batch."""
        try:
            return {slot_id: pa.Table.from_batches(batches) for slot_id, batches in _by_slot(self._parts).items()}
        except pa.ArrowInvalid:
            stop = _conforming_count(self._parts)
        self._later[:0] = self._parts[stop:]
        del self._parts[stop:]
        return {slot_id: _joined(batches) for slot_id, batches in _by_slot(self._parts).items()}


def _by_slot(parts: Iterable[Part]) -> dict[int, list[pa.RecordBatch]]:
    found: dict[int, list[pa.RecordBatch]] = {}
    for part in parts:
        for slot_id, batch in part.slots.items():
            found.setdefault(slot_id, []).append(batch)
    return found


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    schema = batches[0].schema
    if all(batch.schema.equals(schema) for batch in batches):
        return pa.Table.from_batches(batches)
    return pa.concat_tables([pa.Table.from_batches([batch]) for batch in batches], promote_options="default")


def _conforming_count(parts: Sequence[Part]) -> int:
    """Return how many parts, from the first one on, have a common schema for each slot."""
    schemas: dict[int, pa.Schema] = {}
    for count, part in enumerate(parts):
        for slot_id, batch in part.slots.items():
            known = schemas.setdefault(slot_id, batch.schema)
            if known.equals(batch.schema):
                continue
            try:
                schemas[slot_id] = pa.unify_schemas([known, batch.schema])
            except (pa.ArrowInvalid, pa.ArrowTypeError):
                return count
    return len(parts)
