"""Streaming read: micro-batches are ranges of bundles, read again from the same places when Spark replays one.

Where it runs: one process of the driver for the life of a query, except `read`, which tasks call. Guarantees:
- What a query has not committed stays stored: it has a durable subscriber, which is attached while the query runs and lives for
  `subscriberTtl` after that (Spark never says that a query stopped for good).
- A range that lost bundles is never passed over unnoticed: the query fails with the reason, or goes on and counts them.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from quiver_actors.base.model import ENVELOPE_SLOT, check_id
from quiver_actors.base.protocol.messages import Gap
from quiver_actors.errors import DataLost, WorkerUnavailable
from quiver_actors.flight.archived_contents import ArchiveTerms
from quiver_actors.flight.contract import (
    Acknowledge,
    ConfirmGap,
    Contents,
    CoreContents,
    HoldTerms,
    Look,
    Node,
)
from quiver_actors.spark import loss_texts, offsets
from quiver_actors.spark.continuity import LogPositions, deleted_between, past_deleted
from quiver_actors.spark.heads import end_of, first_unread, head_behind, is_in_archive, lies_in, settled_until
from quiver_actors.spark.message_first import message_first
from quiver_actors.spark.nodes import node_set
from quiver_actors.spark.offsets import Place
from quiver_actors.spark.options import EARLIEST, SourceOptions
from quiver_actors.spark.plan import StoredRange, ranges_between
from quiver_actors.spark.reader import (
    Slots,
    arrow_schema,
    end_of_stored,
    having_rows,
    losses_of,
    named_slots,
    only_slot,
    read_partition,
    read_partitions,
    slot_rows,
    wanted_extents,
)
from quiver_actors.spark.starts import first_positions, retired_of

logger = logging.getLogger("quiver.spark")

_SETTLE_LOOK_SECONDS = 0.05

Positions = dict[Place, int]
ID_KEY = "query"
"""Key of the query's id in offsets. The id is drawn when a query is new, and never changes."""


class TopicStreamReader(DataSourceStreamReader):
    """The reader of one query, for every Spark. See the module."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._id = ""
        self._initial: Positions | None = None
        self._heads: Positions = {}
        """Positions behind everything that could be read at the last look."""
        self._stores: dict[Place, str] = {}
        """Store ids (incarnations) of the offsets that Spark named last, by place."""
        self._stores_seen: dict[Place, str] = {}
        """Store ids at the last look that was attached to the subscriber."""
        self._logs = LogPositions()
        self._last_end: Positions | None = None
        """Where the query begins, or the last micro-batch ended that was planned; None: Spark has not said it."""
        self._looked_from: Positions | None = None
        """Where the micro-batch began that the last look was for, if it was attached to the subscriber."""
        self._lost_bundles = 0
        self._contents: dict[str, Contents] = {}
        self._gaps_seen: set[tuple[Place, int]] = set()
        self._slot_ids: set[int] = set()
        """Slots seen so far; filled only where neither the option nor the topic names the slots to read."""

    def __getstate__(self) -> dict[str, Any]:
        """Return the state that tasks need: options and schema."""
        return {**self.__dict__, "_contents": {}, "_heads": {}, "_gaps_seen": set()}

    # --- planning ------------------------------------------------------------------------------------------------------------

    @message_first
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the position where a new query begins."""
        # Spark asks several times, and means the same place.
        if self._initial is None:
            self._id = self._new_id()
            self._initial = self._last_end = first_positions(self._options)
        return self._json(self._initial)

    def _new_id(self) -> str:
        return uuid.uuid4().hex

    @message_first
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The bundles between two offsets; the same again when Spark replays a micro-batch."""
        begin, until = self._positions(start), self._positions(end)
        self._last_end = until
        if start.get(ID_KEY) != end.get(ID_KEY):
            # The query failed in its first micro-batch, so Spark has asked anew where it begins. It is to begin where it did.
            begin = self._first_begin(until)
        elif self._looked_from is None or not lies_in(begin, until, self._looked_from, self._heads):
            self._look(begin, end=until)
        self._settle(begin, until)
        self._check_left(begin, until)
        self._check_gaps(begin, until)
        self._check_stored(begin, until, offsets.in_archive(start))
        stored: list[StoredRange] = []
        for place, position in until.items():
            core = self._core(place)
            if core is not None:
                first, last = offsets.bundle_of(begin.get(place, 0)), offsets.bundle_of(position)
                stored += ranges_between(place, wanted_extents(self._options, place, core), first, last)
        if not stored:
            return []
        slots, target = self._slots(stored), arrow_schema(self._schema)
        self._options.where.check(target)
        return read_partitions(self._options, slots, target, having_rows(self._options, slots, target, stored))

    @message_first
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition of a micro-batch. Runs in a task."""
        return read_partition(self._options, partition)

    @message_first
    def commit(self, end: dict[str, Any]) -> None:
        """Release everything up to the position `end`; durable on every node when this returns."""
        self._acknowledge(self._positions(end))

    def _acknowledge(self, positions: Positions) -> None:
        by_node: dict[str, list[Acknowledge]] = {}
        for place, position in positions.items():
            last, core = offsets.last_bundle_before(position), self._core(place)
            # Nothing has to be told of a retired core: it has no worker.
            if last is not None and not (core and core.is_retired):
                request = Acknowledge(self._options.topic, self._subscriber, place.core, *last)
                by_node.setdefault(place.node, []).append(request)

        def acknowledge(node: Node) -> None:
            for request in by_node[node.name]:
                node.acknowledge(request)

        # A node that has left has nothing that anybody could still read.
        node_set(self._options).ask_present(by_node, acknowledge)

    # --- private -------------------------------------------------------------------------------------------------------------

    def _json(self, positions: offsets.Offsets) -> dict[str, Any]:
        cores = {place: core for place in positions if (core := self._core(place)) is not None}
        found = offsets.to_json(positions, {**self._stores_seen, **self._stores}, self._logs.of(positions, cores))
        archived = sorted(str(place) for place, core in cores.items() if is_in_archive(core, positions[place]))
        named = {offsets.ARCHIVE_KEY: archived} if archived else {}
        return dict(sorted({**found, **named, ID_KEY: self._id}.items()))

    def _positions(self, value: dict[str, Any]) -> Positions:
        """Read an offset of Spark's; the query's subscriber is in it, and the stores and log positions that the positions are of."""
        self._id = str(value.get(ID_KEY, ""))
        self._stores.update(offsets.stores_of(value))
        positions = offsets.from_json(value)
        for place, log_position in offsets.logs_of(value).items():
            self._logs.note(place, positions.get(place, 0), log_position)
        return positions

    @property
    def _subscriber(self) -> str:
        return check_id("subscriber", self._options.subscriber or f"spark-{self._id}")

    def _first_begin(self, end: Positions) -> Positions:
        """Where the query began that planned a first micro-batch up to `end`.

        Its subscriber has acknowledged nothing yet, and does not know what was in the archive alone.
        """
        options = self._options
        begin: Positions = {} if options.starting_offsets == EARLIEST else dict.fromkeys(end, 0)
        if isinstance(options.starting_offsets, Mapping) or options.starting_unix_ns is not None:
            begin = first_positions(options)
        self._look(begin, end=end)
        self._settle(begin, end)
        if options.starting_offsets == EARLIEST or isinstance(options.starting_offsets, Mapping):
            return begin
        cores = {place: self._core(place) for place in end}
        unread = {
            place: end[place] if core is None else first_unread(core, end[place]) for place, core in cores.items()
        }
        return unread if options.starting_unix_ns is None else {at: min(unread[at], begin.get(at, 0)) for at in end}

    def _slots(self, stored: list[StoredRange]) -> Slots:
        """Return the slots to read. Where nobody names them, only the segments of the micro-batch are asked, not all that are stored.

        Raises:
            UsageError: the query has come to a second slot.
        """
        named = named_slots(self._options, self._contents)
        if named is not None:
            return named
        for found in slot_rows(self._options, stored).values():
            for segments in found.by_core.values():
                for rows in segments.values():
                    self._slot_ids |= rows.keys() - {ENVELOPE_SLOT}
        return only_slot(self._options, self._contents, self._slot_ids)

    def _look(self, start: Positions, *, end: Positions | None = None, is_held: bool = True) -> Positions:
        """Ask all nodes what they hold, attached to the query's subscriber unless told otherwise; where each worker ends now.

        Args:
            end: where the micro-batch from `start` ends that was planned before.
        """
        options = self._options
        named = {*start, *(end or {})} if is_held else self._last_end
        nodes = node_set(options)

        def look(node: Node) -> Contents:
            starts = {place.core: offsets.bundle_of(at) for place, at in start.items() if place.node == node.name}
            terms = HoldTerms(self._subscriber, options.subscriber_ttl_ns, starts, options.fail_on_data_loss)
            wanted = ArchiveTerms(starts) if is_held else None
            hold, retired = terms if is_held else None, retired_of(named, node.name)
            return node.look(Look(options.topic, hold=hold, reads_unsealed=True, archive=wanted, retired=retired))

        self._contents = nodes.ask_all(look)
        heads = dict(start)
        for name, contents in self._contents.items():
            for core in contents.cores:
                place = Place(name, core.core)
                if is_held:
                    self._check_store(place, core, start.get(place, 0))
                known = max(heads.get(place, 0), self._heads.get(place, 0))
                settled = settled_until(core, start.get(place, 0))
                head = head_behind(core, known, settled)
                heads[place] = past_deleted(core, head, self._logs.at(place, head, core), settled)
                if not is_held and not core.readable:
                    # It may all be in the archive, which is asked when it is known where the query stands.
                    heads[place] = max(heads[place], end_of_stored(core))
                if core.is_new:
                    self._check_expired(place, core, start.get(place, 0))
        self._heads, self._looked_from = heads, dict(start) if is_held else None
        return heads

    def _settle(self, begin: Positions, end: Positions) -> None:
        """Wait until all between the offsets is there, or a notice of its loss: a worker that has just started checks what it has first.

        Raises:
            WorkerUnavailable: that took too long.
        """
        deadline_ns = time.monotonic_ns() + self._options.push_timeout_ns
        while unsettled := [place for place in end if self._is_unsettled(place, begin.get(place, 0), end[place])]:
            if time.monotonic_ns() > deadline_ns:
                places = ", ".join(map(str, unsettled))
                raise WorkerUnavailable(
                    f"topic {self._options.topic!r}: {places} still has segments to check or to rescue that this micro-batch needs; the "
                    "node has just been started, or lacks the room to rescue a damaged one (quiver status): start the query again"
                )
            time.sleep(_SETTLE_LOOK_SECONDS)
            self._look(begin, end=end)

    def _is_unsettled(self, place: Place, begin: int, end: int) -> bool:
        core = self._core(place)
        return core is not None and settled_until(core, begin) < end

    def _core(self, place: Place) -> CoreContents | None:
        contents = self._contents.get(place.node)
        cores = contents.cores if contents is not None else ()
        return next((core for core in cores if core.core == place.core), None)

    # --- what is lost --------------------------------------------------------------------------------------------------------

    def _check_expired(self, place: Place, core: CoreContents, start: int) -> None:
        """The worker did not know the subscriber: what is behind the query's position may have been deleted meanwhile."""
        if core.begins_behind(offsets.bundle_of(start)):
            first = min((info.segment_seq for info in core.readable), default=None)
            stands_at = offsets.bundle_of(start)[0]
            self._lost(loss_texts.of_expired(place, self._options.topic, self._subscriber, first, stands_at))

    def _check_store(self, place: Place, core: CoreContents, start: int) -> None:
        """
        Raises:
            DataLost: another store was read up to there: its name says so, or nothing ever was where the query stands, as numbers are not
                used twice. Nobody can go on from that place, so `failOnDataLoss` does not matter.
        """
        known = self._stores.get(place, core.incarnation)
        if core.incarnation and core.incarnation != known:
            found = f"of directory {known}, and this one is {core.incarnation}"
        elif 0 <= core.next_segment_seq < offsets.bundle_of(start)[0]:
            found = f"but none from {core.next_segment_seq} on was ever there"
        else:
            if core.incarnation:
                self._stores_seen[place] = core.incarnation
            return
        raise DataLost(loss_texts.of_another_store(place, self._options.topic, offsets.bundle_of(start)[0], found))

    def _check_left(self, start: Positions, end: Positions) -> None:
        """A node that was drained has left when the query was done with it, and so has a core that the node does not have any more; one
        that was taken out by force was not, nor was a core that has left after the subscriber had expired."""
        for place, position in end.items():
            if self._core(place) is None and start.get(place, 0) < position:
                is_there, through = place.node in self._contents, offsets.bundle_of(position)[0]
                self._lost(loss_texts.of_left(place, self._options.topic, through, is_node_there=is_there))

    def _check_stored(self, start: Positions, end: Positions, in_archive: set[Place]) -> None:
        """Tell what is stored nowhere between the offsets: what the archive says that it has lost, or never had, and what was deleted
        though the query has not read it.

        Where the query stands at what its subscriber has kept for it, it has read what is gone right there, as far as the archive can tell.
        Not so where it was still reading the archive.
        """
        given = self._options.starting_offsets
        for place, position in end.items():
            core, begin, is_told = self._core(place), start.get(place, 0), False
            if core is None:
                continue
            is_unread = place in in_archive or (isinstance(given, Mapping) and given.get(place) == begin)
            for loss in losses_of(core, offsets.bundle_of(begin), offsets.bundle_of(position), tells_first=is_unread):
                self._lost(f"{place} of topic {self._options.topic!r} lost {loss}", loss.bundle_count)
                is_told = True
            if not (is_told or core.is_retired):
                self._check_deleted(place, core, begin, position)

    def _check_deleted(self, place: Place, core: CoreContents, begin: int, end: int) -> None:
        logs = self._logs.at(place, begin, core), self._logs.at(place, end, core)
        for numbers in deleted_between(core, begin, end, *logs):
            self._lost(loss_texts.of_deleted(place, self._options.topic, self._subscriber, numbers))

    def _check_gaps(self, start: Positions, end: Positions) -> None:
        """Notices of bundles between the offsets. Those that end before `start` were told in their micro-batch, or are of bundles that were
        read and are not acknowledged yet. What the archive has is not lost; what it has not, it says itself.
        """
        for name, contents in self._contents.items():
            for core in contents.cores:
                place = Place(name, core.core)
                for gap in core.gaps:
                    at = offsets.position(gap.segment_seq, gap.bundle_index_first)
                    if at < end.get(place, 0) and (place, gap.notice) not in self._gaps_seen:
                        is_there = core.archived is not None and core.archived.accounts_for(gap.segment_seq)
                        self._pass_gap(place, gap, is_new=end_of(gap) > start.get(place, 0) and not is_there)

    def _pass_gap(self, place: Place, gap: Gap, *, is_new: bool) -> None:
        if is_new:
            self._lost(loss_texts.of_gap(place, self._options.topic, gap), gap.bundle_count)
        request = ConfirmGap(self._options.topic, self._subscriber, place.core, gap.notice)
        node_set(self._options).ask_present([place.node], lambda node: node.confirm_gap(request))
        self._gaps_seen.add((place, gap.notice))

    def _lost(self, reason: str, bundle_count: int = 0) -> None:
        """
        Args:
            bundle_count: as far as it is known.

        Raises:
            DataLost: the query is not to go on without what is missing.
        """
        if self._options.fail_on_data_loss:
            raise DataLost(f"{reason}. To go on with what is left, start the query with failOnDataLoss=false")
        self._lost_bundles += bundle_count
        logger.warning(
            "quiver.spark.data_lost subscriber=%s bundles_total=%d %s", self._subscriber, self._lost_bundles, reason
        )
