"""Where a dataset begins and ends: by time, or by the bundles of cores."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from quiver_actors.base.model import BundleId
from quiver_actors.base.protocol.messages import SegmentInfo
from quiver_actors.errors import UsageError

Bound: TypeAlias = "datetime.datetime | int | BundleId | Mapping[int, BundleId] | None"
"""A time with a zone, UNIX nanoseconds, or the bundle of a core: cores that are not named are not bounded."""

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)


@dataclass(frozen=True)
class Span:
    """Bundles of a topic from a start up to, and not including, an end."""

    start_ns: int | None = None
    """Ingestion time, UNIX nanoseconds."""
    end_ns: int | None = None
    starts: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """(segment, bundle) by core."""
    ends: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def parse(cls, topic: str, start: Bound, end: Bound) -> Span:
        """
        Raises:
            UsageError: a bound is of another topic, or has a type that no bound has.
        """
        start_ns, starts = _bound("start", topic, start)
        end_ns, ends = _bound("end", topic, end)
        return cls(start_ns, end_ns, starts, ends)

    @classmethod
    def parse_times(cls, start: Bound, end: Bound) -> Span:
        """The span of all topics between two times. Raises UsageError: a bound is a bundle, which is of one topic, or no bound."""
        for name, bound in (("start", start), ("end", end)):
            if isinstance(bound, BundleId | Mapping):
                raise UsageError(
                    f"{name}={bound!r} is of one topic: expected a datetime with a time zone, or UNIX nanoseconds"
                )
        return cls.parse("", start, end)

    def bundles_of(self, core: int, info: SegmentInfo) -> range:
        """The bundles of a segment that lie between the bounds of its core, if the segment may have some of the wanted time."""
        times = sorted((info.first_ingestion_ts_nanos, info.last_ingestion_ts_nanos))  # A clock may have been set back.
        if times[0] and not self._may_hold(*times):
            return range(0)
        segment_seq, count = info.segment_seq, info.bundle_count
        start, end = self.starts.get(core, (0, 0)), self.ends.get(core, (segment_seq + 1, 0))
        first = start[1] if start[0] == segment_seq else 0 if start[0] < segment_seq else count
        stop = end[1] if end[0] == segment_seq else count if end[0] > segment_seq else 0
        return range(first, min(stop, count))

    def holds(self, ingestion_unix_ns: int | None) -> bool:
        """Whether a bundle of that time is wanted. One whose time is not known is in no span of time."""
        if self.start_ns is None and self.end_ns is None:
            return True
        return ingestion_unix_ns is not None and self._may_hold(ingestion_unix_ns, ingestion_unix_ns)

    def _may_hold(self, first_ns: int, last_ns: int) -> bool:
        is_before = self.start_ns is not None and last_ns < self.start_ns
        return not is_before and (self.end_ns is None or first_ns < self.end_ns)


def _bound(name: str, topic: str, bound: Bound) -> tuple[int | None, dict[int, tuple[int, int]]]:
    if bound is None:
        return None, {}
    if isinstance(bound, BundleId):
        bound = {bound.core: bound}
    if isinstance(bound, Mapping):
        for core, bundle_id in bound.items():
            if (bundle_id.topic, bundle_id.core) != (topic, core):
                raise UsageError(f"{name}: {bundle_id} is not of topic {topic!r} and core {core}")
        return None, {core: (bundle_id.segment_seq, bundle_id.bundle_index) for core, bundle_id in bound.items()}
    unix_ns = _unix_ns(bound)
    if unix_ns is not None and (unix_ns >= 0 or not isinstance(bound, int)):
        return unix_ns, {}
    raise UsageError(
        f"{name}={bound!r} is not possible: expected a datetime with a time zone, UNIX nanoseconds, a BundleId, or BundleIds by core"
    )


def unix_ns_of(name: str, bound: datetime.datetime | int) -> int:
    """Return a time as UNIX nanoseconds. Raises UsageError: it is a datetime without a zone, or no time."""
    unix_ns = _unix_ns(bound)
    if unix_ns is None:
        raise UsageError(f"{name}={bound!r} is not possible: expected a datetime with a time zone, or UNIX nanoseconds")
    return unix_ns


def _unix_ns(bound: object) -> int | None:
    if isinstance(bound, datetime.datetime) and bound.tzinfo is not None:
        return (bound - _EPOCH) // _MICROSECOND * 1000
    return bound if isinstance(bound, int) and not isinstance(bound, bool) else None
