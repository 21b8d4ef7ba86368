"""Groups the bundles of a call into Push messages, and encodes each group.

    run      consecutive bundles with the same slots, a small batch in each, of the same streams: laid out at once (encoding/runs.py)
    others   each with a plan of its own (encoding/entries.py), until the group is full

Owned by one call. Order is kept; a group is given out as soon as it is full.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa

from quiver_actors.base.model import ENVELOPE_SLOT
from quiver_actors.client.slots import Bundle, TopicSlots
from quiver_actors.client.tabular import Batch
from quiver_actors.errors import UsageError
from quiver_actors.store.encoding.entries import SERIALIZE_BYTES_MAX, BundlePlan, PlannedBundles, check_item_count, plan
from quiver_actors.store.encoding.forms import RUN_BYTES_MAX
from quiver_actors.store.encoding.run_layout import Streams
from quiver_actors.store.encoding.runs import RUN_BUNDLES_MIN, PlannedRun, RunMemory, fits_run, plan_run
from quiver_actors.store.encoding.streams import StreamTable

GROUP_BUNDLES_MAX = 64
RUN_ROWS_MAX = 1536
"""Row limit of the second and later runs of a call, one row for each bundle and slot: 768 bundles of one slot. The first run leaves as
early as any group, so that the worker starts. What a message costs is shared by its bundles (docs/performance.md). With 40 bytes a row it
still fits a reader's usual buffer."""
GROUP_BYTES_MAX = RUN_BYTES_MAX
_FRAME_BYTES = 512
"""Assumed for a slot beside its buffers and its schema: a guess decides when a group is full, not what fits."""

Planned = PlannedBundles | PlannedRun
Batches = list[tuple[int, pa.RecordBatch]]


class Grouping:
    """Divides the bundles of one call into groups, one Push message each."""

    def __init__(self, slots: TopicSlots, streams: StreamTable, memory: RunMemory) -> None:
        self._slots = slots
        self._streams = streams
        self._memory = memory
        self._run_streams: Streams = ()
        """Streams of the slots of the current run; a run and plans are never collected at the same time."""
        self._run: list[pa.RecordBatch] = []
        """The batches of its bundles, one bundle behind the other."""
        self._item_counts: list[int | None] = []
        self._run_bytes = 0
        self._run_bundles_max = GROUP_BUNDLES_MAX
        self._lone_schema: pa.Schema | None = None
        """Schema of the run if its last batch was pushed without a slot; None: nothing is known of the next bundle."""
        self._keys: tuple[str | int, ...] = ()
        """Keys of the run's last bundle, if that bundle was a dictionary whose values are its batches."""
        self._schemas: list[pa.Schema] = []
        """Schemas of the batches under `_keys`, in the same order."""
        self._measured_rows: list[range] = []
        """Row counts, by slot, for which a bundle counts as being as large as the one that was measured."""
        self._measured_bytes = 0
        self._plans: list[BundlePlan] = []
        self._plans_bytes = 0

    def groups(self, bundles: Iterable[tuple[Bundle, int | None]]) -> Iterator[Planned]:
        """All bundles, encoded, in groups.

        Raises:
            UsageError: a bundle that cannot be pushed, after the groups with everything in front of it.
        """
        wrong: UsageError | None = None
        left = self._collect(bundles)
        while True:
            try:
                yield from left
                break
            except UsageError as error:
                # Another wrong bundle may be among those that are left; it comes before the one that was found first.
                wrong, left = error, self._take_all()
        if wrong is not None:
            raise wrong

    def _collect(self, bundles: Iterable[tuple[Bundle, int | None]]) -> Iterator[Planned]:
        batches_of, record_batch = self._slots.batches_of, pa.RecordBatch
        for bundle, item_count in bundles:
            if item_count is not None:
                check_item_count(item_count)
            size_bytes = self._measured_bytes
            batches: list[pa.RecordBatch] | None
            if (
                self._lone_schema is not None
                and isinstance(bundle, record_batch)
                and bundle.num_rows in self._measured_rows[0]
                and bundle.schema.equals(self._lone_schema, check_metadata=True)
            ):
                # One more like the last one: the usual case, without the detours.
                batches = [bundle]
            elif not self._keys or (batches := self._of_alike(bundle)) is None:
                slots = batches_of(bundle)
                size_bytes = self._size_in_run(slots)
                if not size_bytes:
                    self._lone_schema, self._keys = None, ()
                    yield from self._end_run()
                    yield from self._plan(slots, item_count)
                    continue
                batches = [batch for _, batch in slots]
                if self._measured_rows:
                    self._note(bundle, slots)
            if len(self._item_counts) == self._run_bundles_max or self._run_bytes + size_bytes > GROUP_BYTES_MAX:
                yield from self._take_run()
                self._run_bundles_max = RUN_ROWS_MAX // (1 + len(self._run_streams))
            self._run_bytes += size_bytes
            self._run += batches
            self._item_counts.append(item_count)
        yield from self._take_all()

    def _of_alike(self, bundle: Bundle) -> list[pa.RecordBatch] | None:
        """The batches of a dictionary that is one more like the last one; None: it is not, or not certainly."""
        if type(bundle) is not dict or len(bundle) != len(self._keys):
            return None
        expected = zip(bundle.items(), self._keys, self._schemas, self._measured_rows, strict=True)
        for (key, batch), known, schema, rows in expected:
            if (
                key is not known
                or not isinstance(batch, pa.RecordBatch)
                or batch.num_rows not in rows
                or not batch.schema.equals(schema, check_metadata=True)
            ):
                return None
        return list(bundle.values())

    def _note(self, bundle: Bundle, slots: Batches) -> None:
        """Remember the shape of a bundle: the next bundle of the run is compared with it first."""
        self._lone_schema, self._keys = None, ()
        if slots[-1][0] == ENVELOPE_SLOT:
            # What is in it is not always what was given.
            return
        if not all(stream.is_told_by_equality for stream in self._run_streams):
            return
        if isinstance(bundle, pa.RecordBatch):
            self._lone_schema = bundle.schema
        elif type(bundle) is dict and self._is_in_order(bundle, slots):
            self._keys, self._schemas = tuple(bundle), [batch.schema for _, batch in slots]

    def _is_in_order(self, bundle: Mapping[str | int, Batch], slots: Batches) -> bool:
        """Whether its values, as they stand there, are the batches of its slots."""
        resolve = self._slots.table.resolve
        given = [(resolve(key), id(content)) for key, content in bundle.items()]
        return given == [(slot_id, id(batch)) for slot_id, batch in slots]

    def _size_in_run(self, slots: Batches) -> int:
        """About how many bytes the bundle adds to the run; 0: it cannot be part of it.

        A batch may be far larger than others of as many rows: the run ends in front of what its memory does not hold.
        """
        if self._plans:
            return 0
        streams = tuple([self._streams.stream(slot_id, batch.schema) for slot_id, batch in slots])
        if streams != self._run_streams:
            if self._run or not fits_run(streams):
                return 0
            self._run_streams, self._measured_rows = streams, []
            self._run_bundles_max = min(self._run_bundles_max, RUN_ROWS_MAX // (1 + len(streams)))
            # It may well stay alone: only a second one is measured.
            return _FRAME_BYTES
        if not self._measured_rows:
            return self._measure(slots)
        for (_, batch), rows in zip(slots, self._measured_rows, strict=True):
            if batch.num_rows not in rows:
                return self._measure(slots)
        return self._measured_bytes

    def _measure(self, slots: Batches) -> int:
        size_bytes, measured_rows = 0, []
        for stream, (_, batch) in zip(self._run_streams, slots, strict=True):
            # Of a slice it counts whole buffers: then it is planned, which measures exactly.
            content_bytes: int = batch.get_total_buffer_size()
            if content_bytes > SERIALIZE_BYTES_MAX:
                return 0
            rows: int = batch.num_rows
            measured_rows.append(range(rows // 2, rows + 1))
            size_bytes += content_bytes + len(stream.message) + _FRAME_BYTES
        self._measured_rows, self._measured_bytes = measured_rows, size_bytes
        if self._run:
            # The first one was not measured: it is taken for one like this.
            self._run_bytes = max(self._run_bytes, size_bytes)
        return size_bytes

    def _plan(self, batches: Batches, item_count: int | None) -> Iterator[Planned]:
        """Collect one bundle that is on its own; yields the group before it if that group is full."""
        planned = plan(batches, self._streams, item_count)
        if len(self._plans) == GROUP_BUNDLES_MAX or (
            self._plans and self._plans_bytes + planned.entry_bytes > GROUP_BYTES_MAX
        ):
            yield self._take_plans()
        self._plans.append(planned)
        self._plans_bytes += planned.entry_bytes

    def _end_run(self) -> Iterator[Planned]:
        """End the run: yield it, or move its bundles to the plans if there are only a few."""
        if len(self._item_counts) >= RUN_BUNDLES_MIN:
            yield from self._take_run()
        else:
            yield from self._plan_run()

    def _take_run(self) -> Iterator[Planned]:
        """Yield the run in as many groups as it needs."""
        while len(self._item_counts) >= RUN_BUNDLES_MIN:
            laid_out = plan_run(self._memory, self._run_streams, self._run, self._item_counts)
            if laid_out is None:
                # Its first bundle alone is too large for the memory: what follows may still be a run.
                yield from self._plan_first(1)
                continue
            if self._plans:
                yield self._take_plans()
            yield laid_out
            self._forget(len(laid_out))
        yield from self._plan_run()
        if self._plans:
            yield self._take_plans()

    def _plan_run(self) -> Iterator[Planned]:
        """Let the members of the run have plans of their own."""
        yield from self._plan_first(len(self._item_counts))

    def _plan_first(self, count: int) -> Iterator[Planned]:
        """Let the first members of the run have plans of their own."""
        slot_ids = [stream.slot_id for stream in self._run_streams]
        slot_count, run, item_counts = len(slot_ids), self._run, self._item_counts
        # If it raises, what is behind is not to be pushed.
        self._run, self._item_counts = [], []
        for number, item_count in enumerate(item_counts[:count]):
            batches = run[number * slot_count : (number + 1) * slot_count]
            yield from self._plan([*zip(slot_ids, batches, strict=True)], item_count)
        self._run, self._item_counts = run, item_counts
        self._forget(count)

    def _forget(self, count: int) -> None:
        # New lists: the run has the old ones.
        self._run, self._item_counts = self._run[count * len(self._run_streams) :], self._item_counts[count:]
        self._run_bytes = 0 if not self._run else self._run_bytes

    def _take_plans(self) -> Planned:
        group = PlannedBundles(self._plans)
        self._plans, self._plans_bytes = [], 0
        return group

    def _take_all(self) -> Iterator[Planned]:
        """Yield the groups of everything still collected: one run, or plans."""
        if len(self._item_counts) >= RUN_BUNDLES_MIN:
            yield from self._take_run()
        yield from self._plan_run()
        if self._plans:
            yield self._take_plans()
