"""The statistics of sealed segments, by which a reader tells which of them it need not open."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from quiver_actors.base.model import OTAP_SIGNALS
from quiver_actors.base.protocol.messages import SegmentColumns, StatisticsList
from quiver_actors.errors import FormatError
from quiver_actors.store.segment.statistics import ColumnStatistics, decode_statistics

__all__ = ["ColumnStatistics", "SegmentStatistics", "StreamStatistics", "statistics_in"]


class StreamStatistics(NamedTuple):
    """The rows of one schema in one segment."""

    slot_id: int
    schema: pa.Schema
    row_count: int
    columns: Mapping[str, ColumnStatistics] | None
    """Statistics by name; None: not known. A column of the schema that is missing here is not known either."""

    def may_have(self, column: str, smallest: Any = None, largest: Any = None) -> bool:
        """Whether a row may have a value of that column within these bounds, both included; see `SegmentStatistics.may_have`."""
        if not self.row_count or column not in self.schema.names:
            return False
        known = None if self.columns is None else self.columns.get(column)
        if known is None:
            return True
        if known.null_count >= self.row_count:
            return False
        return not (_is_less(known.largest, smallest) or _is_less(largest, known.smallest))


class SegmentStatistics(NamedTuple):
    """Statistics of the columns of one segment."""

    streams: tuple[StreamStatistics, ...]
    """One for each schema that bundles of the segment have in a slot."""

    def row_count(self, slot_id: int) -> int:
        """Rows of a slot."""
        return sum(stream.row_count for stream in self.streams if stream.slot_id == slot_id)

    @property
    def signals(self) -> frozenset[str]:
        """The OpenTelemetry signals that the segment has rows of: `logs`, `metrics`, `traces`.

        The numbers of the slots say it, so this holds in a topic without a slot table of its own, whose slots are those of OTAP.
        """
        slots = {stream.slot_id for stream in self.streams if stream.row_count}
        return frozenset(signal for signal, of_signal in OTAP_SIGNALS.items() if not slots.isdisjoint(of_signal))

    def may_have(self, slot_id: int, column: str, smallest: Any = None, largest: Any = None) -> bool:
        """Whether a row of the slot may have a value of that column within these bounds, both included.

        False is certain; True means that the segment has to be read. Nulls are no values.

        Args:
            smallest, largest: values as `pyarrow.scalar` takes them, or scalars; None: no bound.
        """
        return any(stream.may_have(column, smallest, largest) for stream in self.streams if stream.slot_id == slot_id)


def _is_less(one: Any, other: Any) -> bool:
    """Whether one value is certainly less than another; None is no bound. What cannot be compared is not."""
    if one is None or other is None:
        return False
    try:
        # A value that Python has no exact counterpart of raises ValueError.
        one, other = (each.as_py() if isinstance(each, pa.Scalar) else each for each in (one, other))
        return bool(one < other)
    except (TypeError, ValueError):
        return False


def statistics_in(answer: StatisticsList) -> dict[int, SegmentStatistics]:
    """What a worker says of its segments, by number. What cannot be decoded counts as not known."""
    schemas = [(slot_id, _schema(message)) for slot_id, message in answer.schemas]
    return {info.segment_seq: SegmentStatistics(tuple(_streams(info, schemas))) for info in answer.segments}


def _streams(info: SegmentColumns, schemas: list[tuple[int, pa.Schema]]) -> Iterator[StreamStatistics]:
    of_segment = [(*schemas[number], rows) for number, rows in info.streams]
    columns: list[dict[str, ColumnStatistics] | None] = [None] * len(of_segment)
    if info.statistics:
        with contextlib.suppress(FormatError):  # They may be of a newer worker.
            columns = decode_statistics(info.statistics, [schema for _, schema, _ in of_segment])
    for (slot_id, schema, rows), found in zip(of_segment, columns, strict=True):
        yield StreamStatistics(slot_id, schema, rows, found)


def _schema(message: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(message))
