"""Which bundles of a call travel together in one Push message, and how they are encoded.

    run      neighbours of one small batch each, all of one stream: laid out at once (encoding/runs.py)
    others   each with a plan of its own (encoding/entries.py), until the group is full

Owned by one call. Order is kept; a group is given out as soon as it is full.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from quiver_actors.client.slots import Bundle, TopicSlots
from quiver_actors.encoding.entries import SERIALIZE_BYTES_MAX, BundlePlan, PlannedBundles, check_item_count, plan
from quiver_actors.encoding.forms import RUN_BYTES_MAX
from quiver_actors.encoding.runs import RUN_BUNDLES_MIN, PlannedRun, RunMemory, fits_run, plan_run
from quiver_actors.encoding.streams import EncodedStream, StreamTable
from quiver_actors.errors import UsageError

GROUP_BUNDLES_MAX = 64
RUN_BUNDLES_MAX = 768
"""Of the second and later runs of a call; the first one leaves as early as any group, so that the worker starts. What a message costs
is shared by its bundles (docs/performance.md). With 80 bytes of rows for each it still fits a reader's usual buffer."""
GROUP_BYTES_MAX = RUN_BYTES_MAX
_FRAME_BYTES = 512
"""Assumed for an entry beside its buffers and its schema: a guess decides when a group is full, not what fits."""

_NONE = range(0)

Planned = PlannedBundles | PlannedRun
Batches = list[tuple[int, pa.RecordBatch]]


class Grouping:
    """See the module."""

    def __init__(self, slots: TopicSlots, streams: StreamTable, memory: RunMemory) -> None:
        self._slots = slots
        self._streams = streams
        self._memory = memory
        self._stream: EncodedStream | None = None
        """Of the run; it and the plans are never both collected."""
        self._run: list[pa.RecordBatch] = []
        self._item_counts: list[int | None] = []
        self._run_bytes = 0
        self._run_bundles_max = GROUP_BUNDLES_MAX
        self._lone_schema: pa.Schema | None = None
        """Of the run, if its last batch was pushed without a slot; None: nothing is known of the next bundle."""
        self._measured_rows = _NONE
        """Batches of the stream with that many rows are taken for as large as the one that was measured."""
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
                # In what is left one may be wrong, too: it stands in front of the one that was found first.
                wrong, left = error, self._take_all()
        if wrong is not None:
            raise wrong

    def _collect(self, bundles: Iterable[tuple[Bundle, int | None]]) -> Iterator[Planned]:
        batches_of, record_batch = self._slots.batches_of, pa.RecordBatch
        for bundle, item_count in bundles:
            if item_count is not None:
                check_item_count(item_count)
            if (
                self._lone_schema is not None
                and isinstance(bundle, record_batch)
                and bundle.num_rows in self._measured_rows
                and bundle.schema.equals(self._lone_schema, check_metadata=True)
            ):
                # One more like the last one: the usual case, without the detours.
                batch: pa.RecordBatch = bundle
                size_bytes = self._measured_bytes
            else:
                batches = batches_of(bundle)
                size_bytes = self._size_in_run(batches)
                if not size_bytes:
                    self._lone_schema = None
                    yield from self._end_run()
                    yield from self._plan(batches, item_count)
                    continue
                batch = batches[0][1]
                self._lone_schema = batch.schema if isinstance(bundle, pa.RecordBatch) else None
            if len(self._run) == self._run_bundles_max or self._run_bytes + size_bytes > GROUP_BYTES_MAX:
                yield from self._take_run()
                self._run_bundles_max = RUN_BUNDLES_MAX
            self._run_bytes += size_bytes
            self._run.append(batch)
            self._item_counts.append(item_count)
        yield from self._take_all()

    def _size_in_run(self, batches: Batches) -> int:
        """About how many bytes the bundle adds to the run; 0: it cannot be part of it.

        A batch may be far larger than others of as many rows: the run ends in front of what its memory does not hold.
        """
        if self._plans or len(batches) > 1:
            return 0
        slot_id, batch = batches[0]
        stream = self._streams.stream(slot_id, batch.schema)
        if stream is not self._stream:
            if self._run or not fits_run(stream):
                return 0
            self._stream, self._measured_rows = stream, _NONE
        rows: int = batch.num_rows
        if rows not in self._measured_rows:
            # Of a slice it counts whole buffers: then it is planned, which measures exactly.
            content_bytes: int = batch.get_total_buffer_size()
            if content_bytes > SERIALIZE_BYTES_MAX:
                return 0
            self._measured_rows = range(rows // 2, rows + 1)
            self._measured_bytes = content_bytes + len(stream.message) + _FRAME_BYTES
        return self._measured_bytes

    def _plan(self, batches: Batches, item_count: int | None) -> Iterator[Planned]:
        """Collect one bundle that is on its own; gives out the group before it if it is full."""
        planned = plan(batches, self._streams, item_count)
        if len(self._plans) == GROUP_BUNDLES_MAX or (
            self._plans and self._plans_bytes + planned.entry_bytes > GROUP_BYTES_MAX
        ):
            yield self._take_plans()
        self._plans.append(planned)
        self._plans_bytes += planned.entry_bytes

    def _end_run(self) -> Iterator[Planned]:
        """The next bundle is not of the run: give it out, or let its few members go with the others."""
        if len(self._run) >= RUN_BUNDLES_MIN:
            yield from self._take_run()
        else:
            yield from self._plan_run()

    def _take_run(self) -> Iterator[Planned]:
        """The run, in as many groups as it needs."""
        while len(self._run) >= RUN_BUNDLES_MIN and self._stream is not None:
            laid_out = plan_run(self._memory, self._stream, self._run, self._item_counts)
            if laid_out is None:
                # Its first batch alone is too large for the memory: what follows may still be a run.
                yield from self._plan_first()
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
        while self._run:
            yield from self._plan_first()

    def _plan_first(self) -> Iterator[Planned]:
        """Let the first member of the run have a plan of its own."""
        assert self._stream is not None, "a run has a stream"
        batch, item_count = self._run[0], self._item_counts[0]
        self._forget(1)
        behind, self._run, self._item_counts = (self._run, self._item_counts), [], []
        # If it raises, what is behind is not to be pushed.
        yield from self._plan([(self._stream.slot_id, batch)], item_count)
        self._run, self._item_counts = behind

    def _forget(self, count: int) -> None:
        # New lists: the run has the old ones.
        self._run, self._item_counts = self._run[count:], self._item_counts[count:]
        self._run_bytes = 0 if not self._run else self._run_bytes

    def _take_plans(self) -> Planned:
        group = PlannedBundles(self._plans)
        self._plans, self._plans_bytes = [], 0
        return group

    def _take_all(self) -> Iterator[Planned]:
        """What is left: a run or plans."""
        if len(self._run) >= RUN_BUNDLES_MIN:
            yield from self._take_run()
        yield from self._plan_run()
        if self._plans:
            yield self._take_plans()
