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

from quiver_actors.errors import DataLost, WorkerUnavailable
from quiver_actors.flight.contract import (
    Acknowledge,
    ConfirmGap,
    Contents,
    CoreContents,
    HoldTerms,
    Look,
    Node,
)
from quiver_actors.model import ENVELOPE_SLOT, SlotTable, check_id
from quiver_actors.protocol.messages import Gap
from quiver_actors.spark import offsets
from quiver_actors.spark.admission import Budget, admitted
from quiver_actors.spark.nodes import node_set
from quiver_actors.spark.offsets import Place
from quiver_actors.spark.options import EARLIEST, SourceOptions
from quiver_actors.spark.plan import Extent, StoredRange, ranges_between
from quiver_actors.spark.reader import (
    END,
    Slots,
    arrow_schema,
    head_of,
    named_slots,
    only_slot,
    position_at,
    read_partition,
    read_partitions,
    slot_rows,
)

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # Spark 4.1: no admission control, so no limits and no Trigger.AvailableNow.
    HAS_ADMISSION_CONTROL = False
    SupportsTriggerAvailableNow = object
else:
    HAS_ADMISSION_CONTROL = True

logger = logging.getLogger("quiver.spark")

_SETTLE_LOOK_SECONDS = 0.05

Positions = dict[Place, int]
ID_KEY = "query"
"""In offsets, beside the positions: drawn when a query is new, and with it for ever."""


class TopicStreamReader(DataSourceStreamReader):
    """The reader of one query, for every Spark. See the module."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._id = ""
        self._initial: Positions | None = None
        self._heads: Positions = {}
        """Behind everything that was sealed at the last look."""
        self._stores: dict[Place, str] = {}
        """That the positions are of which Spark has named."""
        self._stores_seen: dict[Place, str] = {}
        """At the last held look."""
        self._is_held = False
        """The last look was attached to the subscriber."""
        self._lost_bundles = 0
        self._contents: dict[str, Contents] = {}
        self._gaps_seen: set[tuple[Place, int]] = set()
        self._slot_ids: set[int] = set()
        """That were met so far; only where neither the option nor the topic says what is read."""

    def __getstate__(self) -> dict[str, Any]:
        """What tasks need: options and schema."""
        return {**self.__dict__, "_contents": {}, "_heads": {}, "_gaps_seen": set()}

    # --- planning ------------------------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a new query begins."""
        # Spark asks several times, and means the same place.
        if self._initial is None:
            self._id = self._new_id()
            self._initial = self._begin()
        return self._json(self._initial)

    def _new_id(self) -> str:
        return uuid.uuid4().hex

    def _begin(self) -> Positions:
        options = self._options
        if isinstance(options.starting_offsets, Mapping):
            return dict(options.starting_offsets)
        if options.starting_offsets == EARLIEST:
            return {}
        nodes = node_set(options)
        found = nodes.ask_all(lambda node: node.look(Look(options.topic, flush=True)))
        positions: Positions = {}
        for name, contents in found.items():
            for core in contents.cores:
                place = Place(name, core.core)
                if options.starting_unix_ns is None:
                    positions[place] = head_of(core)
                else:
                    positions[place] = position_at(nodes.get(name), options, place, core, options.starting_unix_ns)
        return positions

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The bundles between two offsets; the same again when Spark replays a micro-batch."""
        begin, until = self._positions(start), self._positions(end)
        if start.get(ID_KEY) != end.get(ID_KEY):
            # The query failed in its first micro-batch, so Spark has asked anew where it begins. It is to begin where it did.
            begin = self._first_begin(until)
        elif not self._is_held or any(self._heads.get(place, 0) < position for place, position in until.items()):
            self._look(begin)
        self._settle(begin, until)
        self._check_left(begin, until)
        self._check_gaps(begin, until)
        stored: list[StoredRange] = []
        for place, position in until.items():
            core = self._core(place)
            if core is not None:
                segments = [Extent(info.segment_seq, info.bundle_count, info.size_bytes) for info in core.segments]
                first, last = offsets.bundle_of(begin.get(place, 0)), offsets.bundle_of(position)
                stored += ranges_between(place, segments, first, last)
        if not stored:
            return []
        return read_partitions(self._options, self._slots(stored), arrow_schema(self._schema), stored)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing up to there is needed any more: durable on every node when this returns."""
        self._acknowledge(self._positions(end))

    def _acknowledge(self, positions: Positions) -> None:
        nodes = node_set(self._options)
        present = nodes.all()
        by_node: dict[str, list[Acknowledge]] = {}
        for place, position in positions.items():
            last = offsets.last_bundle_before(position)
            # A node that has left has nothing that anybody could still read.
            if last is not None and place.node in present:
                request = Acknowledge(self._options.topic, self._subscriber, place.core, *last)
                by_node.setdefault(place.node, []).append(request)

        def acknowledge(node: Node) -> None:
            for request in by_node[node.name]:
                node.acknowledge(request)

        nodes.ask(by_node, acknowledge)

    # --- private -------------------------------------------------------------------------------------------------------------

    def _json(self, positions: offsets.Offsets) -> dict[str, Any]:
        found = offsets.to_json(positions, {**self._stores_seen, **self._stores})
        return dict(sorted({**found, ID_KEY: self._id}.items()))

    def _positions(self, value: dict[str, Any]) -> Positions:
        """Read an offset of Spark's; the query's subscriber is in it, and the stores that the positions are of."""
        self._id = str(value.get(ID_KEY, ""))
        self._stores.update(offsets.stores_of(value))
        return offsets.from_json(value)

    @property
    def _subscriber(self) -> str:
        return check_id("subscriber", self._options.subscriber or f"spark-{self._id}")

    def _first_begin(self, end: Positions) -> Positions:
        """Where the query began that planned a first micro-batch up to `end`: its subscriber has acknowledged nothing yet."""
        self._look({})
        self._settle({}, end)
        begin: Positions = {}
        for place in end:
            core = self._core(place)
            begin[place] = end[place] if core is None or core.oldest is None else offsets.position(*core.oldest)
        return begin

    def _slots(self, stored: list[StoredRange]) -> Slots:
        """What is read. Where nobody names it, the segments of the micro-batch are asked, and not all that are stored.

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

    def _look(self, start: Positions, *, is_held: bool = True) -> Positions:
        """Ask all nodes what they hold, attached to the query's subscriber unless told otherwise; where each worker ends now."""
        options = self._options
        nodes = node_set(options)

        def look(node: Node) -> Contents:
            starts = {place.core: offsets.bundle_of(at) for place, at in start.items() if place.node == node.name}
            terms = HoldTerms(self._subscriber, options.subscriber_ttl_ns, starts, options.fail_on_data_loss)
            return node.look(Look(options.topic, hold=terms if is_held else None))

        self._contents = nodes.ask_all(look)
        heads = dict(start)
        for name, contents in self._contents.items():
            for core in contents.cores:
                place = Place(name, core.core)
                self._check_store(place, core, start.get(place, 0))
                known = max(heads.get(place, 0), self._heads.get(place, 0))
                sealed = min(max(known, head_of(core)), settled_until(core, start.get(place, 0)))
                heads[place] = past_gaps(core, sealed)
                if core.is_new:
                    self._check_expired(place, core, start.get(place, 0))
        self._heads, self._is_held = heads, is_held
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
            self._look(begin)

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
            first = min((info.segment_seq for info in core.segments), default=None)
            self._lost(
                f"{place} of topic {self._options.topic!r}: the first segment is {first}, the query stands at segment "
                f"{offsets.bundle_of(start)[0]}, and its subscriber {self._subscriber!r} was dropped meanwhile (subscriberTtl, or an "
                "operator): what lay between may be lost"
            )

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
        raise DataLost(
            f"{place} of topic {self._options.topic!r}: the query stands at segment {offsets.bundle_of(start)[0]}, {found}: "
            "the topic was deleted and created anew, or the node's data directory replaced by another one, and what the query had not "
            "read of the former is gone. To read this one, begin with a new checkpoint"
        )

    def _check_left(self, start: Positions, end: Positions) -> None:
        """A node that was drained has left when the query was done with it, and so has a core that the node does not have any more; one
        that was taken out by force was not, nor was a core that has left after the subscriber had expired."""
        for place, position in end.items():
            if self._core(place) is None and start.get(place, 0) < position:
                is_there = place.node in self._contents
                gone = "its node does not have that core any more" if is_there else "its node is not announced any more"
                self._lost(
                    f"{place} of topic {self._options.topic!r}: {gone}, and the micro-batch has bundles of "
                    f"it up to segment {offsets.bundle_of(position)[0]}"
                )

    def _check_gaps(self, start: Positions, end: Positions) -> None:
        """Notices of bundles between the offsets. Those that end before `start` were told in their micro-batch, or are of bundles that were
        read and are not acknowledged yet.
        """
        for name, contents in self._contents.items():
            for core in contents.cores:
                place = Place(name, core.core)
                for gap in core.gaps:
                    at = offsets.position(gap.segment_seq, gap.bundle_index_first)
                    if at < end.get(place, 0) and (place, gap.notice) not in self._gaps_seen:
                        self._pass_gap(place, gap, is_new=end_of(gap) > start.get(place, 0))

    def _pass_gap(self, place: Place, gap: Gap, *, is_new: bool) -> None:
        if is_new:
            bundles = f"{gap.bundle_count} bundles" if gap.bundle_count else "all bundles"
            rows = f", {gap.row_count} rows" if gap.row_count >= 0 else ""
            self._lost(
                f"{place} of topic {self._options.topic!r} lost {bundles}{rows} of segment {gap.segment_seq} from bundle "
                f"{gap.bundle_index_first}: {gap.reason}",
                gap.bundle_count,
            )
        request = ConfirmGap(self._options.topic, self._subscriber, place.core, gap.notice)
        node_set(self._options).get(place.node).confirm_gap(request)
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


class UnlimitedStreamReader(TopicStreamReader):
    """For Spark 4.1, which asks without saying where it stands: everything that is there is the next micro-batch."""

    def _new_id(self) -> str:
        return ""

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802
        # Where the query stands is said to `partitions`: only there it is known what the subscriber needs.
        return self._json(self._look({}, is_held=False))


class LimitedStreamReader(TopicStreamReader, SupportsTriggerAvailableNow):
    """For Spark 4.2 and newer: micro-batches by rows and bytes, Trigger.AvailableNow, and lag in the progress report."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._target: Positions | None = None
        """What there was when a Trigger.AvailableNow began; nothing behind it is read."""

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        nodes = node_set(self._options)
        found = nodes.ask_all(lambda node: node.look(Look(self._options.topic, flush=True)))
        self._target = {
            Place(name, core.core): head_of(core) for name, contents in found.items() for core in contents.cores
        }

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        options = self._options
        if options.max_rows_per_trigger is not None:
            return ReadMaxRows(options.max_rows_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802
        """Where the next micro-batch ends: one look at every node, and bundle weights only where a limit cuts a segment."""
        begin = self._positions(start)
        heads = self._look(begin)
        self._let_go(begin)
        if self._target is not None:
            heads = {place: self._capped(place, begin.get(place, 0), head) for place, head in heads.items()}
        options = self._options
        if isinstance(limit, ReadAllAvailable) or (
            options.max_rows_per_trigger is None and options.max_bytes_per_trigger is None
        ):
            return self._end(start, begin, heads)
        budget = Budget(options.max_rows_per_trigger, options.max_bytes_per_trigger)
        cores = {place: core for place in heads if (core := self._core(place)) is not None}
        return self._end(start, begin, {**begin, **admitted(cores, begin, heads, budget, self._weigher())})

    def _end(self, start: dict[str, Any], begin: Positions, end: Positions) -> dict[str, Any]:
        """To Spark another text is another micro-batch: where nothing came, it is that of the start, though stores are known by now."""
        return start if end == begin else self._json(end)

    def _let_go(self, begin: Positions) -> None:
        """Acknowledge at once where a node waits for it to leave: Spark does so only with the next micro-batch, and there may be none.

        It asks for a next one when it has written down that all up to `begin` is done, and so never reads that again.
        """
        waited_for = {}
        for place, position in begin.items():
            core = self._core(place)
            if core is not None and core.is_leaving and core.oldest and offsets.position(*core.oldest) < position:
                waited_for[place] = position
        if waited_for:
            self._acknowledge(waited_for)

    def _capped(self, place: Place, start: int, head: int) -> int:
        """No further than the target, but for bundles that are lost: those are told now."""
        core = self._core(place)
        capped = max(start, min(head, (self._target or {}).get(place, 0)))
        return capped if core is None else past_gaps(core, capped)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return self._json(self._heads) if self._heads else None

    def _weigher(self) -> Any:
        from quiver_actors.spark.admission import Weigher

        table = SlotTable(next(iter(self._contents.values())).slots)
        slots = [table.resolve(slot) for slot in self._options.slots] or None
        return Weigher(node_set(self._options), self._options.topic, slots)


def past_gaps(core: CoreContents, head: int) -> int:
    """Behind what is lost next after a position: nothing that is stored, or may be, lies between."""
    stored = [*(info.segment_seq for info in core.segments), *core.unsettled]
    for gap in sorted(core.gaps, key=lambda gap: (gap.segment_seq, gap.bundle_index_first)):
        behind = offsets.position(gap.segment_seq + 1, 0)
        if behind > head and not any(head < offsets.position(seq + 1, 0) <= behind for seq in stored):
            head = behind
    return head


def end_of(gap: Gap) -> int:
    """The position behind what is lost."""
    if not gap.bundle_count:
        return offsets.position(gap.segment_seq + 1, 0)
    return offsets.position(gap.segment_seq, gap.bundle_index_last) + 1


def settled_until(core: CoreContents, start: int) -> int:
    """How far everything from a position on is known: sealed and found whole, gone, or lost with a notice."""
    ahead = (offsets.position(seq, 0) for seq in core.unsettled if offsets.position(seq + 1, 0) > start)
    return max(start, min(ahead, default=offsets.position(*END)))


def stream_reader(options: SourceOptions, schema: StructType) -> TopicStreamReader:
    """The reader that this Spark can use.

    Raises:
        UsageError: an option needs a newer Spark.
    """
    if HAS_ADMISSION_CONTROL:
        return LimitedStreamReader(options, schema)
    check_old_options(options)
    return UnlimitedStreamReader(options, schema)


def check_old_options(options: SourceOptions) -> None:
    """
    Raises:
        ConfigError: an option that Spark 4.1 cannot honour, or one that it needs.
    """
    from quiver_actors.errors import ConfigError

    if options.max_rows_per_trigger is not None or options.max_bytes_per_trigger is not None:
        raise ConfigError("options 'maxRowsPerTrigger' and 'maxBytesPerTrigger' need Spark 4.2 or newer")
    if options.subscriber is None:
        raise ConfigError(
            "on Spark 4.1 a streaming read needs option 'subscriber': Spark does not say which query asks"
        )
