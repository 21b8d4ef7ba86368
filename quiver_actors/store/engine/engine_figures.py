"""The figures of an engine, as plain numbers for the counters page."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """One field per `base.metrics.figures.EngineFigure`, in its order."""

    state: int
    bundles_in: int
    rows_in: int
    bytes_in: int
    wal_bytes: int
    open_segment_bytes: int
    open_segment_bundles: int
    segments: int
    segment_bytes: int
    segment_bundles: int
    syncs: int
    seals: int
    sync_ns_last: int
    seal_ns_last: int
    sequence_written: int
    sequence_durable: int
    refused: int
    disk_bytes: int
    segments_deleted: int
    quarantined: int
    compactions: int
    compacted_bytes_saved: int
    last_scrub_unix_ns: int
    scrubbed_bytes: int
    prepared_stages: int
    staged_bytes: int
    oldest_prepared_unix_ns: int
    segments_deleted_by_others: int
    stored_bundles: int
    stored_rows: int
    limit: int
    limit_bytes: int
    limit_measured_bytes: int
    cold_bytes: int
    cold_work: int


@dataclass(frozen=True, slots=True)
class SubscriberFigures:
    """Fields of `base.metrics.figures.SubscriberFigure` that an engine knows; connections are the worker's."""

    lag_bundles: int
    oldest_unix_ns: int
    claimed: int
    acked: int
    rejected: int
    deferred: int
    delivered: int
    pending: int
    waiting: int
    blocked: int
    gaps: int
    redelivered: int
    expired: int
    dead_lettered: int
    dropped: int


@dataclass(frozen=True, slots=True)
class PendingCounts:
    """See `base.protocol.messages.PendingInfo`."""

    pending: int
    claimed: int
    deferred: int
    blocked: int
    unsealed: int
    gaps: int
    oldest: tuple[int, int] | None
    in_range: int
    drained: bool
