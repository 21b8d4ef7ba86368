"""The tables that describe a node in SQL: `quiver.topics`, `quiver.segments`, `quiver.subscribers` and `quiver.gaps`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from quiver_actors.base.protocol.messages import SegmentInfo, SubscriberInfo, TopicInfo

_TIME = pa.timestamp("us", tz="UTC")
TOPICS = pa.schema(
    [
        ("topic", pa.string()),
        ("slots", pa.list_(pa.string())),
        ("durability", pa.string()),
        ("incarnation", pa.string()),
    ]
)
SEGMENTS = pa.schema(
    [
        ("topic", pa.string()),
        ("core", pa.int32()),
        ("segment", pa.int64()),
        ("is_sealed", pa.bool_()),
        ("bundles", pa.int64()),
        ("rows", pa.int64()),
        ("size_bytes", pa.int64()),
        ("first_ingestion_time", _TIME),
        ("last_ingestion_time", _TIME),
    ]
)
"""`rows` counts those of all slots; it is null where the segment is not sealed."""
SUBSCRIBERS = pa.schema(
    [
        ("topic", pa.string()),
        ("core", pa.int32()),
        ("subscriber", pa.string()),
        ("connections", pa.int64()),
        ("pending", pa.int64()),
        ("claimed", pa.int64()),
        ("deferred", pa.int64()),
        ("blocked", pa.int64()),
        ("acked", pa.int64()),
        ("rejected", pa.int64()),
        ("dead_lettered", pa.int64()),
        ("redelivered", pa.int64()),
        ("oldest_ingestion_time", _TIME),
    ]
)
"""`oldest_ingestion_time` is that of the oldest bundle that it has not resolved; null if there is none."""
GAPS = pa.schema(
    [
        ("topic", pa.string()),
        ("core", pa.int32()),
        ("subscriber", pa.string()),
        ("notices", pa.int64()),
        ("segment", pa.int64()),
        ("first_bundle", pa.int64()),
        ("bundles", pa.int64()),
        ("rows", pa.int64()),
        ("reason", pa.string()),
    ]
)
"""Gap notices that subscribers have not taken yet, one a row, with the bundles that are lost. Where a subscriber has very many, its last
row stands for all others, and says only how many they are. `bundles` and `rows` are null where nobody knows them."""


def node_tables(
    topics: Mapping[str, TopicInfo],
    segments: Mapping[str, Mapping[int, list[SegmentInfo]]],
    subscribers: Mapping[str, Mapping[int, list[SubscriberInfo]]],
) -> dict[str, pa.Table]:
    """The tables by name. `segments` and `subscribers`: by topic and core."""
    of_subscribers = [
        (topic, core, info) for topic, cores in subscribers.items() for core, infos in cores.items() for info in infos
    ]
    return {
        "topics": _table(
            TOPICS, ((each.name, list(each.slots), each.durability, each.incarnation) for each in topics.values())
        ),
        "segments": _table(
            SEGMENTS,
            (
                _segment(topic, core, info)
                for topic, cores in segments.items()
                for core, infos in cores.items()
                for info in infos
            ),
        ),
        "subscribers": _table(SUBSCRIBERS, (_subscriber(*each) for each in of_subscribers)),
        "gaps": _table(GAPS, (row for each in of_subscribers for row in _gaps(*each))),
    }


def _segment(topic: str, core: int, info: SegmentInfo) -> tuple[Any, ...]:
    is_sealed = info.row_count >= 0
    return (
        topic,
        core,
        info.segment_seq,
        is_sealed,
        info.bundle_count,
        info.row_count if is_sealed else None,
        info.size_bytes,
        _micros(info.first_ingestion_ts_nanos),
        _micros(info.last_ingestion_ts_nanos),
    )


def _subscriber(topic: str, core: int, info: SubscriberInfo) -> tuple[Any, ...]:
    counts = [getattr(info, name) for name in SUBSCRIBERS.names[3:-1]]
    return (topic, core, info.subscriber, *counts, _micros(info.oldest_unix_ns))


def _gaps(topic: str, core: int, info: SubscriberInfo) -> Iterator[tuple[Any, ...]]:
    place = (topic, core, info.subscriber)
    for gap in info.gap_ranges:
        row_count = gap.row_count if gap.row_count >= 0 else None
        yield (*place, 1, gap.segment_seq, gap.bundle_index_first, gap.bundle_count or None, row_count, gap.reason)
    further = info.gaps - len(info.gap_ranges)
    if further > 0:
        yield (*place, further, None, None, None, None, None)


def _micros(unix_ns: int) -> int | None:
    return unix_ns // 1000 or None


def _table(schema: pa.Schema, rows: Iterable[tuple[Any, ...]]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.Table.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )
