"""The stream readers that Spark gets: with a limit for each micro-batch, and without."""

from __future__ import annotations

from typing import Any

from pyspark.sql.types import StructType

from quiver_actors.base.model import SlotTable
from quiver_actors.spark import offsets
from quiver_actors.spark.admission import Budget, admitted
from quiver_actors.spark.heads import past_gaps
from quiver_actors.spark.message_first import message_first
from quiver_actors.spark.nodes import node_set
from quiver_actors.spark.offsets import Place
from quiver_actors.spark.options import SourceOptions
from quiver_actors.spark.reader import end_of_stored, everything
from quiver_actors.spark.stream import Positions, TopicStreamReader

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


class UnlimitedStreamReader(TopicStreamReader):
    """Reader for Spark 4.1, which does not say how far the query is: everything that is there is the next micro-batch."""

    def _new_id(self) -> str:
        return ""

    @message_first
    def latestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the offsets behind all that can be read on all nodes, as the JSON object that Spark keeps in the checkpoint."""
        # Where the query stands is said to `partitions`: only there it is known what the subscriber needs.
        return self._json(self._look({}, is_held=False))


class LimitedStreamReader(TopicStreamReader, SupportsTriggerAvailableNow):
    """Reader for Spark 4.2 and newer: micro-batches by rows and bytes, Trigger.AvailableNow, and lag in the progress report."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._target: Positions | None = None
        """Positions when a Trigger.AvailableNow began; nothing behind them is read."""
        self._kept_weigher: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state that tasks need."""
        return {**super().__getstate__(), "_kept_weigher": None}

    @message_first
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Remember where all ends that was acknowledged before: the query stops there, even if bundles keep coming."""
        nodes = node_set(self._options)
        found = nodes.ask_all(lambda node: node.look(everything(self._options.topic)))
        self._target = {
            Place(name, core.core): end_of_stored(core) for name, contents in found.items() for core in contents.cores
        }

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        """Return the limit of a micro-batch from the options: rows, else stored bytes, else none."""
        options = self._options
        if options.max_rows_per_trigger is not None:
            return ReadMaxRows(options.max_rows_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        return ReadAllAvailable()

    @message_first
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
        """Return the offsets as JSON. To Spark another text is another micro-batch: without new bundles it is the text of the start."""
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

    @message_first
    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the offsets behind all that could be read at the last look, for the query's progress; None before it."""
        return self._json(self._heads) if self._heads else None

    def _weigher(self) -> Any:
        from quiver_actors.spark.admission import Weigher

        if self._kept_weigher is None:
            table = SlotTable(next(iter(self._contents.values())).slots)
            slots = [table.resolve(slot) for slot in self._options.slots] or None
            self._kept_weigher = Weigher(node_set(self._options), self._options.topic, slots)
        return self._kept_weigher


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
