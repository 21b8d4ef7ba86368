"""Checks the options of a subscription, and turns them into the words of the protocol."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, TypedDict

from quiver_actors.base.model import BundleId, check_id
from quiver_actors.base.protocol.archived_start import ArchivedStart
from quiver_actors.base.protocol.messages import Terms
from quiver_actors.client.archived_reads import ArchivedReads
from quiver_actors.client.durations import nanoseconds, positive_nanoseconds
from quiver_actors.client.gaps import GapNotice
from quiver_actors.client.projection import Asked
from quiver_actors.errors import UsageError

Start: TypeAlias = "str | int | datetime.datetime | BundleId"
Gaps: TypeAlias = Literal["log", "deliver"]

ORDERS = ("oldest", "newest", "newest_backfill")
EXHAUSTED = ("dead_letter", "drop", "block")
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_COUNT_MAX = (1 << 63) - 1


class SubscribeOptions(TypedDict, total=False):
    """Keyword arguments of `Client.subscribe`; all have defaults."""

    start: Start
    """Where a new subscriber begins: `latest` (default), bundles pushed from now on; `earliest`, all stored bundles; an aware
    datetime or UNIX nanoseconds, bundles ingested at or after that time; a BundleId, that bundle and everything after it."""
    order: Literal["oldest", "newest", "newest_backfill"]
    """Order in which this consumer gets bundles: `oldest` first (default), `newest` first, or `newest_backfill` (newest, and some old)."""
    backfill_ratio: int
    """How many of every 10 bundles given under `newest_backfill` are the oldest ones; 0..10, default 2."""
    prefetch: int
    """Bundles that each worker may send ahead of `get`; default 64."""
    max_in_flight: int | None
    """Most bundles that this consumer holds of one worker, those ahead of `get` included; None (default): as many as it takes."""
    max_in_flight_bytes: int | None
    """Upper limit for unresolved bytes as stored; one bundle is always allowed."""
    lease: float | None
    """Seconds after which a bundle that was neither resolved nor extended goes to another consumer; default 30, None: as long as the
    connection stands. Bundles ahead of `get` are extended by themselves while `get` is called."""
    max_deliveries: int | None
    """Deliveries after which a bundle that comes back is exhausted; None (default): never."""
    exhausted: Literal["dead_letter", "drop", "block"]
    """Fate of an exhausted bundle: into the dead-letter topic (default), rejected, or kept for `claim` only."""
    dead_letter_topic: str | None
    """None: `<topic>-dead`, made when needed; another one must be configured."""
    orphan_ttl: float | None
    """Seconds after which the subscriber is dropped when no consumer is attached to it; None (default): as the topic says."""
    slots: Iterable[str | int] | None
    """Only these slots of each bundle, by name or id; the others are not touched."""
    columns: Mapping[str | int, Iterable[str]] | None
    """Columns to read, for some slots; other slots are read with all columns."""
    idle_timeout: float | None
    """Iteration and `run` end when nothing came for so many seconds; None (default): never."""
    on_bundle: Callable[[Any], Any] | None
    """Function that `run` calls with each delivery."""
    on_gap: Callable[[GapNotice], Any] | None
    """Function that `get` calls with each gap notice. Notices are counted and logged in any case."""


class NotDelivered(NamedTuple):
    """Archived bundles behind a new subscriber's start that it does not get, as the node does not have their core any more."""

    topic: str
    core: int
    first: BundleId
    """The oldest of them, where `client.read(topic, core, first)` begins."""
    segment_count: int
    bundle_count: int


class StartPoints(NamedTuple):
    """Where a new subscriber starts, worker by worker."""

    others: str
    core: int = -1
    at_core: str = ""
    """The start on `core`."""
    archived: Mapping[int, ArchivedStart] = {}
    """The segments that come from the archive, by core."""
    not_delivered: tuple[NotDelivered, ...] = ()
    """What does not come at all, by rising core."""

    def on(self, core: int) -> str:
        """Return the start point of one core, in the words of `Register.start`."""
        return self.at_core if core == self.core else self.others


@dataclass(frozen=True)
class SubscribeRequest:
    """The options of a subscription, checked, in the words of the protocol."""

    topic: str
    subscriber: str
    start: Start
    prefetch: int
    terms: Terms
    asked: Asked
    idle_timeout: float | None = None
    on_bundle: Callable[[Any], Any] | None = None
    on_gap: Callable[[GapNotice], Any] | None = None
    are_gaps_delivered: bool = False
    verifies_checksums: bool = True
    archive: ArchivedReads | None = None
    """Reads the segments that are not on the disk; None: they cannot be read, and a subscriber that is owed some is refused."""

    @classmethod
    def parse(
        cls, topic: str, subscriber: str, gaps: str, options: SubscribeOptions, *, verifies_checksums: bool = True
    ) -> SubscribeRequest:
        """Check everything that can be checked without a worker.

        Raises:
            InvalidId, UsageError: the call is wrong.
        """
        if gaps not in ("log", "deliver"):
            raise UsageError(f"gaps={gaps!r} is unknown: expected 'log' or 'deliver'")
        unknown = options.keys() - SubscribeOptions.__annotations__.keys()
        if unknown:
            raise UsageError(
                f"subscribe has no option {sorted(unknown)}: it has {sorted(SubscribeOptions.__annotations__)}"
            )
        start = options.get("start", "latest")
        start_text(start)
        prefetch = options.get("prefetch", 64)
        _check_count("prefetch", prefetch, 1)
        return cls(
            check_id("topic", topic),
            check_id("subscriber", subscriber),
            start,
            prefetch,
            _terms_of(options),
            Asked.parse(options.get("slots"), options.get("columns")),
            _idle_timeout(options),
            options.get("on_bundle"),
            options.get("on_gap"),
            gaps == "deliver",
            verifies_checksums,
        )


class SeekReport(NamedTuple):
    """Report of a seek on all workers: what it did, or would do."""

    skipped: int
    """Bundles that it was owed and does not get; gap notices say which."""
    again: int
    """Bundles that it had resolved and is owed again."""


def start_text(start: Start) -> str:
    """Return a start in the form of `Register.start`; the start of a BundleId is for its own core.

    Raises:
        UsageError: the value is no start.
    """
    if isinstance(start, BundleId):
        return f"bundle:{start.core}/{start.segment_seq}/{start.bundle_index}"
    if start in ("latest", "earliest"):
        return str(start)
    if isinstance(start, datetime.datetime) and start.tzinfo is not None:
        microseconds = (start - _EPOCH) // datetime.timedelta(microseconds=1)
        return f"time:{microseconds * 1000}"
    if isinstance(start, int) and not isinstance(start, bool) and 0 <= start <= _COUNT_MAX:
        return f"time:{start}"
    raise UsageError(
        f"start {start!r} is not possible: expected 'latest', 'earliest', a datetime with a time zone, UNIX nanoseconds or a BundleId"
    )


def _terms_of(options: SubscribeOptions) -> Terms:
    order, exhausted = options.get("order", "oldest"), options.get("exhausted", "dead_letter")
    if order not in ORDERS or exhausted not in EXHAUSTED:
        raise UsageError(f"order={order!r}, exhausted={exhausted!r}: expected one of {ORDERS} and one of {EXHAUSTED}")
    ratio = options.get("backfill_ratio", 2)
    if not isinstance(ratio, int) or not 0 <= ratio <= 10:
        raise UsageError(f"backfill_ratio {ratio!r} is not possible: expected 0..10, of 10 bundles")
    return Terms(
        lease_ns=positive_nanoseconds("lease", options.get("lease", 30.0), "no lease"),
        order=order,
        backfill_ratio=ratio,
        max_in_flight_bundles=_limit(options, "max_in_flight"),
        max_in_flight_bytes=_limit(options, "max_in_flight_bytes"),
        max_deliveries=_limit(options, "max_deliveries"),
        exhausted=exhausted,
        dead_letter_topic=options.get("dead_letter_topic") or "",
        orphan_ttl_ns=positive_nanoseconds("orphan_ttl", options.get("orphan_ttl"), "that of the topic"),
    )


def _idle_timeout(options: SubscribeOptions) -> float | None:
    seconds = options.get("idle_timeout")
    if seconds is not None:
        nanoseconds("idle_timeout", seconds, "0 or more, or None for no end")
    return seconds


def _limit(options: SubscribeOptions, name: str) -> int:
    value = options.get(name)
    if value is None:
        return 0
    return _check_count(name, value, 1)


def _check_count(name: str, value: object, least: int) -> int:
    if not isinstance(value, int) or not least <= value <= _COUNT_MAX:
        raise UsageError(f"{name} {value!r} is not possible: expected a number, at least {least}")
    return value
